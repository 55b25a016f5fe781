"""The table of finished runs: which runs share a row, and what a row says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from a3c_exp.cli import report
from a3c_exp.run import policy


def run(
    folder: Path, seed: int, solved: int | None, n: int = 5, env: str = "CartPole-v1",
    reward_threshold: float | None = 475.0, init_from: str | None = None, **summary: Any,
) -> None:  # fmt: skip
    folder.mkdir(parents=True)
    config = {"env": {"_target_": "a3c_exp.envs.Gym", "id": env}, "returns": {"n": n}, "seed": seed}
    config |= {"reward_threshold": reward_threshold, "init_from": init_from}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    values: dict[str, Any] = {
        "solved_at_steps": solved, "solved_at_seconds": solved and solved / 1000, "mean_return_100": 480.0,
        "best_eval_return": 500.0, "steps_per_second": 1000.0, "staleness_mean": 0.5, "commit": "abc", "machine": {},
        "stop_reason": "total_steps",
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(values | summary))


def test_runs_that_differ_in_their_seed_alone_share_a_row(tmp_path: Path) -> None:
    for seed in range(3):
        run(tmp_path / f"a{seed}", seed, 1000 * (seed + 1), n=5)
        run(tmp_path / f"b{seed}", seed, None, n=9)
    groups = report.group(report.find_runs([tmp_path])[0])
    assert {name: len(runs) for name, runs in groups.items()} == {
        "CartPole-v1, returns.n=5": 3,
        "CartPole-v1, returns.n=9": 3,
    }


def test_runs_that_start_from_another_have_another_row_than_those_that_do_not(tmp_path: Path) -> None:
    for seed in range(2):
        run(tmp_path / f"a{seed}", seed, 9000)
        run(tmp_path / f"b{seed}", seed, 1000, init_from=f"outputs/{seed}")
    groups = report.group(report.find_runs([tmp_path])[0])
    assert {name: len(runs) for name, runs in groups.items()} == {"CartPole-v1": 2, "CartPole-v1, init_from=a run": 2}


def test_a_number_is_the_same_however_it_is_written(tmp_path: Path) -> None:
    """A resumed run may have been given total_steps=2e6."""
    for seed, steps in enumerate([2000000, 2e6]):
        run(tmp_path / str(seed), seed, 1000)
        config = yaml.safe_load((tmp_path / str(seed) / "config.yaml").read_text())
        (tmp_path / str(seed) / "config.yaml").write_text(yaml.safe_dump(config | {"total_steps": steps}))
    assert list(report.group(report.find_runs([tmp_path])[0])) == ["CartPole-v1"]


def test_a_run_counts_once_and_runs_of_one_seed_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "a", 0, 1000)
    assert report.main([str(tmp_path), str(tmp_path / "a"), str(tmp_path)]) == 0
    assert "| CartPole-v1 | 1 | 1 of 1 |" in capsys.readouterr().out
    run(tmp_path / "b", 0, 1000)
    assert report.main([str(tmp_path)]) == 0
    assert "| CartPole-v1 | 1, in 2 runs | 2 of 2 |" in capsys.readouterr().out


def test_a_folder_may_be_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every shell opens `~`, and Python does not."""
    monkeypatch.setenv("HOME", str(tmp_path))
    run(tmp_path / "a", 0, 1000)
    assert report.main(["~/a"]) == 0


@pytest.mark.parametrize("arguments", [["-h"], ["somewhere", "--help"]])
def test_help_is_given_wherever_it_is_asked_for(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(arguments) == 0
    assert "A table of finished runs" in capsys.readouterr().out


def test_without_a_goal_there_is_nothing_to_reach(tmp_path: Path) -> None:
    run(tmp_path / "a", 0, None, env="Pendulum-v1", reward_threshold=None)
    assert (
        report.table(report.group(report.find_runs([tmp_path])[0]))
        .splitlines()[2]
        .startswith("| Pendulum-v1 | 1 | - |")
    )


def test_what_differs_between_environments_is_not_reported(tmp_path: Path) -> None:
    run(tmp_path / "a", 0, 1000, n=5)
    run(tmp_path / "b", 0, 1000, n=9, env="Acrobot-v1")
    assert list(report.group(report.find_runs([tmp_path])[0])) == ["CartPole-v1", "Acrobot-v1"]


def test_a_row_gives_the_median_and_the_range_and_counts_failures(tmp_path: Path) -> None:
    for seed, solved in enumerate([3000, 1000, None, 2000]):
        run(tmp_path / str(seed), seed, solved)
    lines = report.table(report.group(report.find_runs([tmp_path])[0])).splitlines()
    assert len(lines) == 3
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells[:5] == ["CartPole-v1", "4", "3 of 4", "2,000 (1,000 to 3,000)", "2.0 (1.0 to 3.0)"]


def test_the_last_line_says_where_it_comes_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "a", 0, 1000)
    assert report.main([str(tmp_path)]) == 0
    assert "Commit abc" in capsys.readouterr().out


def test_runs_that_broke_off_are_counted_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "a", 0, 1000, stop_reason="mean_return", machine={"processor": "this one", "usable_cores": 2})
    run(tmp_path / "b", 1, None, stop_reason="interrupted")
    run(tmp_path / "c", 2, 5000, stop_reason="total_steps", machine={"processor": "that one", "usable_cores": 8})
    assert report.main([str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "| CartPole-v1 | 2 | 2 of 2 |" in output
    assert output.endswith("; that one, 8 cores; this one, 2 cores.\nLeft out: 1 interrupted.\n")
    assert report.main([str(tmp_path / "b")]) == 2
    assert "must hold finished ones" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["nowhere"], ["nowhere", "random=3"]])
def test_a_folder_without_runs_is_one_clear_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("a3c_exp: ") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("summary.json", "{"),
        ("summary.json", "[]"),
        ("summary.json", "{}"),
        ("config.yaml", "a: ["),
        ("config.yaml", ""),
    ],
)
def test_a_run_that_cannot_be_read_is_named_and_left_out(
    file: str, content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sweep of many seeds keeps its table where one folder has suffered."""
    run(tmp_path / "a", 0, 1000, stop_reason="mean_return")
    run(tmp_path / "b", 1, 3000, stop_reason="mean_return")
    (tmp_path / "b" / file).write_text(content)
    assert report.main([str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "| CartPole-v1 | 1 | 1 of 1 |" in output
    assert f"Left out: {tmp_path / 'b'} cannot be read: " in output
    assert report.main([str(tmp_path / "b")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_run_with_former_names_of_settings_is_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "a", 0, 1000)
    run(tmp_path / "b", 1, 3000)
    config = yaml.safe_load((tmp_path / "b" / "config.yaml").read_text())
    config["goal"] = config.pop("reward_threshold")
    (tmp_path / "b" / "config.yaml").write_text(yaml.safe_dump(config))
    assert report.main([str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "| CartPole-v1 | 1 | 1 of 1 |" in output
    assert f"Left out: {tmp_path / 'b'} cannot be read: was written by commit abc: use that checkout" in output


def test_a_random_policy_stands_beside_the_trained_one(tmp_path: Path) -> None:
    """CartPole under random actions falls after about 22 steps."""
    from a3c_exp import compose

    folder = tmp_path / "a"
    run(folder, 0, 1000)
    (folder / "config.yaml").write_text(yaml.safe_dump(compose([])))
    lines = report.table(report.group(report.find_runs([tmp_path])[0]), random_episodes=30).splitlines()
    assert 15 < float(lines[2].strip("| ").split("|")[-1]) < 35


def test_games_are_told_apart_by_their_names_and_other_environments_by_their_classes(tmp_path: Path) -> None:
    run(tmp_path / "a", 0, 1000)
    for name, env in {
        "b": {"_target_": "a3c_exp.envs.Atari", "game": "pong"},
        "c": {"_target_": "a3c_exp.envs.Atari", "game": "breakout"},
        "d": {"_target_": "mine.Env"},
    }.items():
        run(tmp_path / name, 0, 1000)
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump({"env": env, "returns": {"n": 5}}))
    assert list(report.group(report.find_runs([tmp_path])[0])) == ["CartPole-v1", "pong", "breakout", "mine.Env"]


def test_an_empty_setting_and_a_filled_one_are_told_apart(tmp_path: Path) -> None:
    for name, kwargs in {"a": {}, "b": {"gravity": -5.0}}.items():
        run(tmp_path / name, 0, 1000)
        env = {"_target_": "a3c_exp.envs.Gym", "id": "LunarLander-v3", "kwargs": kwargs}
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump({"env": env}))
    rows = list(report.group(report.find_runs([tmp_path])[0]))
    assert rows == ["LunarLander-v3", "LunarLander-v3, env.kwargs.gravity=-5"]


def test_a_random_policy_in_an_episode_without_an_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runs import SCRIPTED, config

    monkeypatch.setattr(policy, "LONGEST_EPISODE", 50)
    run(tmp_path / "a", 0, 1000)
    whole = config(SCRIPTED, env__kwargs={"lengths": [0]})
    (tmp_path / "a" / "config.yaml").write_text(yaml.safe_dump(whole))
    groups = report.group(report.find_runs([tmp_path])[0])

    def returns(episodes: int) -> float:
        line = report.table(groups, random_episodes=episodes, plugins=["scripted"]).splitlines()[2]
        return float(line.strip("| ").split("|")[-1])

    assert returns(1) < returns(2), "rewards grow with the steps of an episode, which goes on after the cut"


def test_a_random_policy_plays_environments_of_the_users_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from runs import SCRIPTED, config

    run(tmp_path / "a", 0, 1000)
    whole = config(SCRIPTED, backend__address="127.0.0.1:1", backend___target_="a3c_exp.backends.ray.Ray")
    (tmp_path / "a" / "config.yaml").write_text(yaml.safe_dump(whole))
    assert report.main([str(tmp_path), "random=2"]) == 2
    assert "allow it with plugins=[scripted]" in capsys.readouterr().err
    assert report.main([str(tmp_path), "random=2", "plugins=[scripted]"]) == 0
    assert "| random policy |" in capsys.readouterr().out


@pytest.mark.parametrize("random", ["x", "-1"])
def test_a_number_of_random_episodes_that_is_none_is_refused(
    random: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "a", 0, 1000)
    assert report.main([str(tmp_path), f"random={random}"]) == 2
    assert capsys.readouterr().err.startswith("a3c_exp: random = ")
