"""The report: which runs share a row, what a row says, and what is written."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from runs import SCRIPTED, config

from a3c_exp.errors import ConfigError, printable
from a3c_exp.report import __main__ as report
from a3c_exp.report.bands import band, by_seconds, by_steps, normalized_returns, profiles
from a3c_exp.report.episodes import read_episodes, running_mean
from a3c_exp.report.page import Page, write_table
from a3c_exp.report.ranking import cells, comparison, rank
from a3c_exp.report.report import Report
from a3c_exp.report.runs import find_runs, group, read_curve

pytest.importorskip("matplotlib", reason="draws the pictures: pip install -e '.[report]'")


def run(
    folder: Path, seed: int, solved: int | None, n: int = 5, env: str = "CartPole-v1",
    reward_threshold: float | None = 475.0, init_from: str | None = None, returns: str = "NStep", **summary: Any,
) -> None:  # fmt: skip
    folder.mkdir(parents=True)
    settings: dict[str, Any] = {"env": {"_target_": "a3c_exp.envs.Gym", "id": env}, "seed": seed}
    settings |= {"returns": {"_target_": f"a3c_exp.returns.{returns}", "n": n}}
    settings |= {"reward_threshold": reward_threshold, "init_from": init_from}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    values: dict[str, Any] = {
        "solved_at_steps": solved, "solved_at_seconds": solved and solved / 1000, "mean_return_100": 480.0,
        "best_eval_return": 500.0, "steps_per_second": 1000.0, "staleness_mean": 0.5, "commit": "abc", "machine": {},
        "stop_reason": "total_steps",
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(values | summary))


def curve(folder: Path, *points: tuple[int, float, float], ended: bool = True) -> None:
    """Give a run a learning curve of steps, seconds and returns, and as many episodes; `ended`: leave its summary."""
    rows = "".join(f"{step},{seconds},{value},0.1\n" for step, seconds, value in points)
    (folder / "metrics.csv").write_text(f"step,wall_seconds,rollout/ep_rew_mean,train/entropy\n{rows}")
    lines = "".join(f"{step},0,{value},9,{seconds}\n" for step, seconds, value in points)
    (folder / "episodes.csv").write_text(f"step,worker,return,length,seconds\n{lines}")
    if not ended:
        (folder / "summary.json").unlink()


def names(folder: Path) -> dict[str, list[str]]:
    """The configurations of the runs below a folder, by environment."""
    return {env: list(configurations) for env, configurations in group(find_runs([folder])[0]).items()}


# Which runs are one configuration, and how it is named.


def test_runs_that_differ_in_their_seed_alone_share_a_row(tmp_path: Path) -> None:
    for seed in range(3):
        run(tmp_path / f"a{seed}", seed, 1000 * (seed + 1), n=5)
        run(tmp_path / f"b{seed}", seed, None, n=9)
    groups = group(find_runs([tmp_path])[0])
    assert {name: len(runs) for name, runs in groups["CartPole-v1"].items()} == {"returns.n=5": 3, "returns.n=9": 3}


def test_a_component_is_named_by_its_class_and_by_what_differs_within_the_class(tmp_path: Path) -> None:
    run(tmp_path / "a", 0, None, n=5, returns="NStep")
    run(tmp_path / "b", 0, None, n=9, returns="Discounted")
    assert names(tmp_path) == {"CartPole-v1": ["returns=NStep", "returns=Discounted"]}
    run(tmp_path / "c", 0, None, n=7, returns="NStep")
    assert names(tmp_path)["CartPole-v1"][0] == "returns=NStep, returns.n=5"


def test_runs_that_start_from_another_have_another_row_than_those_that_do_not(tmp_path: Path) -> None:
    for seed in range(2):
        run(tmp_path / f"a{seed}", seed, 9000)
        run(tmp_path / f"b{seed}", seed, 1000, init_from=f"outputs/{seed}")
    assert names(tmp_path) == {"CartPole-v1": ["CartPole-v1", "init_from=a run"]}


def test_a_number_is_the_same_however_it_is_written(tmp_path: Path) -> None:
    """A resumed run may have been given total_steps=2e6."""
    for seed, steps in enumerate([2000000, 2e6]):
        run(tmp_path / str(seed), seed, 1000)
        settings = yaml.safe_load((tmp_path / str(seed) / "config.yaml").read_text())
        (tmp_path / str(seed) / "config.yaml").write_text(yaml.safe_dump(settings | {"total_steps": steps}))
    assert names(tmp_path) == {"CartPole-v1": ["CartPole-v1"]}


def test_what_differs_between_environments_is_not_reported(tmp_path: Path) -> None:
    run(tmp_path / "a", 0, 1000, n=5)
    run(tmp_path / "b", 0, 1000, n=9, env="Acrobot-v1")
    assert names(tmp_path) == {"CartPole-v1": ["CartPole-v1"], "Acrobot-v1": ["Acrobot-v1"]}


def test_games_are_told_apart_by_their_names_and_other_environments_by_their_classes(tmp_path: Path) -> None:
    run(tmp_path / "a", 0, 1000)
    for name, env in {
        "b": {"_target_": "a3c_exp.envs.Atari", "game": "pong"},
        "c": {"_target_": "a3c_exp.envs.Atari", "game": "breakout"},
        "d": {"_target_": "mine.Env"},
    }.items():
        run(tmp_path / name, 0, 1000)
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump({"env": env, "returns": {"n": 5}}))
    assert list(names(tmp_path)) == ["CartPole-v1", "pong", "breakout", "mine.Env"]


def test_configurations_whose_short_names_are_equal_are_two(tmp_path: Path) -> None:
    for place, network in enumerate(("a3c_exp.networks.Mlp", "mine.Mlp", "mine.Mlp")):
        run(tmp_path / str(place), place, 1000)
        settings = yaml.safe_load((tmp_path / str(place) / "config.yaml").read_text())
        settings["network"] = {"_target_": network}
        (tmp_path / str(place) / "config.yaml").write_text(yaml.safe_dump(settings))
    [configurations] = group(find_runs([tmp_path])[0]).values()
    assert {name: len(runs) for name, runs in configurations.items()} == {
        'network="a3c_exp.networks.Mlp"': 1,
        'network="mine.Mlp"': 2,
    }


def test_an_empty_setting_and_a_filled_one_are_told_apart(tmp_path: Path) -> None:
    for name, kwargs in {"a": {}, "b": {"gravity": -5.0}}.items():
        run(tmp_path / name, 0, 1000)
        env = {"_target_": "a3c_exp.envs.Gym", "id": "LunarLander-v3", "kwargs": kwargs}
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump({"env": env}))
    assert names(tmp_path) == {"LunarLander-v3": ["LunarLander-v3", "env.kwargs.gravity=-5"]}


# What a row says.


def test_a_row_gives_estimates_and_ranges_and_counts_failures(tmp_path: Path) -> None:
    for seed, solved in enumerate([3000, 1000, None, 2000]):
        run(tmp_path / str(seed), seed, solved, mean_return_100=100.0 * seed)
    [ranked] = rank(group(find_runs([tmp_path])[0])["CartPole-v1"])
    row = cells(ranked)
    assert row[:4] == ["1", "CartPole-v1", "4", "3 of 4"]
    assert re.fullmatch(r"150\.0 \[\d+\.\d, \d+\.\d\]", row[4]), "the mean without the best and the worst"
    assert row[5:] == ["500.0 [500.0, 500.0]", "2,500 (1,000 to 3,000)", "2.5 (1.0 to 3.0)", "1,000", "0.50"]


def test_configurations_are_ranked_by_their_final_return(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(3):
        run(tmp_path / f"a{seed}", seed, None, n=5, mean_return_100=100.0 + seed)
        run(tmp_path / f"b{seed}", seed, 1000, n=9, mean_return_100=300.0 + seed)
        run(tmp_path / f"c{seed}", seed, None, n=7, mean_return_100=None, best_eval_return=None)
    assert report.main([str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "| 1 | returns.n=9 | 3 | 3 of 3 | 301.0 [300.0, 302.0] |" in output
    assert "| 3 | returns.n=7 | 3 | 0 of 3 | - | - |" in output, "no episode has ended"
    assert "a run of returns.n=9 ends higher than one of returns.n=5: 1.00 [1.00, 1.00].\n" in output


def test_among_equals_the_one_that_was_solved_soonest_is_first(tmp_path: Path) -> None:
    for n, solved in ((5, None), (7, 9000), (9, 1000)):
        run(tmp_path / str(n), 0, solved, n=n)
    ranked = rank(group(find_runs([tmp_path])[0])["CartPole-v1"])
    assert [each.name for each in ranked] == ["returns.n=9", "returns.n=7", "returns.n=5"]


def test_there_is_no_comparison_with_a_configuration_without_a_return(tmp_path: Path) -> None:
    run(tmp_path / "a", 0, None, n=5)
    run(tmp_path / "b", 0, None, n=9, mean_return_100=None)
    first, second = rank(group(find_runs([tmp_path])[0])["CartPole-v1"])
    assert comparison(first, second) is None


def test_a_run_counts_once_and_runs_of_one_seed_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "a", 0, 1000)
    assert report.main([str(tmp_path), str(tmp_path / "a"), str(tmp_path)]) == 0
    assert "| 1 | CartPole-v1 | 1 | 1 of 1 |" in capsys.readouterr().out
    run(tmp_path / "b", 0, 1000)
    assert report.main([str(tmp_path)]) == 0
    assert "| 1 | CartPole-v1 | 2 of 1 seed | 2 of 2 |" in capsys.readouterr().out


def test_without_a_threshold_there_is_nothing_to_reach(tmp_path: Path) -> None:
    run(tmp_path / "a", 0, None, env="Pendulum-v1", reward_threshold=None)
    [ranked] = rank(group(find_runs([tmp_path])[0])["Pendulum-v1"])
    assert cells(ranked)[:4] == ["1", "Pendulum-v1", "1", "-"]


def test_the_last_lines_say_where_it_comes_from_and_what_it_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "a", 0, 1000)
    (tmp_path / "a" / "checkpoints").mkdir()
    (tmp_path / "a" / "checkpoints" / "latest.ckpt").write_bytes(bytes(3_000_000))
    assert report.main([str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "Size on disk: 3 MB; runs: 1.\nCommit abc; " in output


# Runs that are still going on.


def test_a_mean_of_a_few_episodes_solves_nothing(tmp_path: Path) -> None:
    run(tmp_path / "a", 0, None, reward_threshold=100.0)
    (tmp_path / "a" / "summary.json").unlink()
    rows = "10,1,150,3\n2000,2,20,99\n3000,3,110,120\n4000,4,90,140\n"
    (tmp_path / "a" / "metrics.csv").write_text(f"step,wall_seconds,rollout/ep_rew_mean,rollout/episodes\n{rows}")
    [found], _ = find_runs([tmp_path])
    assert (found.solved_steps, found.best_return, found.final_return) == (3000, 110, 90)


def test_a_run_that_goes_on_is_reported_as_far_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "a", 0, None, reward_threshold=30.0)
    curve(tmp_path / "a", (1000, 1.0, 10.0), (2000, 2.0, 30.0), (3000, 3.0, 20.0), ended=False)
    with open(tmp_path / "a" / "metrics.csv", "a") as file:
        file.write("4000,4.0,99")  # as it is while the run writes it
    assert report.main([str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "| 1 | CartPole-v1 | 1, 1 unfinished | 1 of 1 | 20.0 | 30.0 | 2,000 | 2.0 | 1,000 | - |" in output
    assert "1 unfinished: going on, or killed." in output
    assert (tmp_path / "report" / "index.html").exists()


def test_a_run_that_has_just_begun_has_no_curve_yet(tmp_path: Path) -> None:
    run(tmp_path / "a", 0, None)
    (tmp_path / "a" / "summary.json").unlink()
    assert report.main([str(tmp_path)]) == 0
    assert "No episode has ended yet" in (tmp_path / "report" / "index.html").read_text()


# What is left out, and what is refused.


def test_runs_that_broke_off_are_named_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "a", 0, 1000, stop_reason="mean_return", machine={"processor": "this one", "usable_cores": 2})
    run(tmp_path / "b", 1, None, stop_reason="interrupted")
    run(tmp_path / "c", 2, 5000, stop_reason="total_steps", machine={"processor": "that one", "usable_cores": 8})
    assert report.main([str(tmp_path)]) == 1, "as evaluate ends that leaves runs out"
    output = capsys.readouterr().out
    assert "| 1 | CartPole-v1 | 2 | 2 of 2 |" in output
    assert f"; that one, 8 cores; this one, 2 cores.\nLeft out: {tmp_path / 'b'}: interrupted\n" in output
    assert "interrupted" in (tmp_path / "report" / "index.html").read_text()
    assert report.main([str(tmp_path / "b")]) == 2
    assert "no run is left to report on: interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["nowhere"], ["nowhere", "random=3"]])
def test_a_folder_without_runs_is_one_clear_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(arguments) == 2
    assert capsys.readouterr().err == "a3c_exp: folder = 'nowhere': must hold runs: no config.yaml is below it\n"


ENV = "env: {_target_: a3c_exp.envs.Gym, id: CartPole-v1}\n"
CURVE = "step,wall_seconds,rollout/ep_rew_mean\n"
ODD = [
    ("summary.json", "{", "is no JSON: line 1: Expecting property name enclosed in double quotes"),
    ("summary.json", "[]", "it is no summary of a run"),
    ("summary.json", "{}", "stop_reason is None, and must be a text"),
    (
        "summary.json",
        '{"stop_reason": "total_steps", "mean_return_100": "many"}',
        "mean_return_100 is 'many', and must be a number",
    ),
    ("summary.json", '{"stop_reason": "x", "steps": [1]}', "steps is [1], and must be a number"),
    ("summary.json", '{"stop_reason": "x", "wall_seconds": 1e308}', "wall_seconds is 1e+308, which is too large"),
    ("summary.json", '{"stop_reason": "x", "machine": "mine"}', "machine is 'mine', and must be a mapping"),
    ("summary.json", '{"stop_reason": "x", "steps": 9223372036854775808}', "steps is a whole number beyond "),
    ("config.yaml", "a: [", "is no YAML: line 2: "),
    ("config.yaml", "", "it holds no settings"),
    ("config.yaml", "a: 1", "it has no environment"),
    ("config.yaml", "- a", "it holds no settings"),
    ("config.yaml", f"{ENV}a: 2024-01-01", "has the date 2024-01-01 in line 2"),
    ("config.yaml", f"{ENV}a: !!set {{b}}", "has the tag tag:yaml.org,2002:set in line 2"),
    ("config.yaml", f"{ENV}a: &a [*a]", "has an alias in line 2"),
    ("config.yaml", f"{ENV}returns: {{_target_: [1]}}", "returns._target_ is [1], and must be the name of a class"),
    ("config.yaml", f"{ENV}reward_threshold: much", "reward_threshold is 'much', and must be a number"),
    ("metrics.csv", "rollout/ep_rew_mean\n1\n", "its header must begin with step,wall_seconds and have no name twice"),
    ("metrics.csv", f"{CURVE}1,2,3\n1,2\n1,2,3\n", "line 3 has 2 cells, the header 3"),
    ("metrics.csv", f"{CURVE}1,2,x\n", "line 2 has a cell that is no number"),
    ("metrics.csv", f"{CURVE}1,2,1e200\n", "a number at step 1 is 1e+200, which is too large"),
    ("metrics.csv", f"{CURVE}{'9' * 200_000},2,1\n", "line 2: field larger than field limit (131072)"),
]


@pytest.mark.parametrize(("file", "content", "reason"), ODD)
def test_a_run_that_cannot_be_read_is_named_and_left_out(file: str, content: str, reason: str, tmp_path: Path) -> None:
    """A sweep of many seeds keeps its report where one folder has suffered."""
    run(tmp_path / "a", 0, 1000, stop_reason="mean_return")
    run(tmp_path / "b", 1, 3000, stop_reason="mean_return")
    (tmp_path / "b" / file).write_text(content)
    runs, left_out = find_runs([tmp_path])
    assert [each.folder for each in runs] == [tmp_path / "a"]
    assert left_out[tmp_path / "b"].startswith(f"cannot be read: {file}: {reason}")
    with pytest.raises(ConfigError, match="cannot be read"):
        find_runs([tmp_path / "b"])


def test_runs_that_are_left_out_are_printed_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "a", 0, 1000)
    run(tmp_path / "b\x1b[31m", 1, 3000)
    (tmp_path / "b\x1b[31m" / "summary.json").write_text('{"stop_reason": "x", "steps": "\\u001b]0;title"}')
    assert report.main([str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert "| 1 | CartPole-v1 | 1 | 1 of 1 |" in output
    reason = r"cannot be read: summary.json: steps is '\x1b]0;title', and must be a number"
    assert f"Left out: {tmp_path}/b\\x1b[31m: {reason}\n" in output
    assert "\x1b" not in output


@pytest.mark.parametrize("file", ["config.yaml", "summary.json", "metrics.csv"])
def test_a_fifo_in_a_run_is_not_waited_for(file: str, tmp_path: Path) -> None:
    run(tmp_path / "a", 0, 1000)
    run(tmp_path / "b", 1, 1000)
    (tmp_path / "b" / file).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "b" / file)
    _, left_out = find_runs([tmp_path])
    assert left_out == {tmp_path / "b": f"cannot be read: {file}: is a FIFO, not a regular file"}


def test_names_with_control_characters_are_shown_escaped(tmp_path: Path) -> None:
    run(tmp_path / "a", 0, 1000, env="Cart\x1b[2J|Pole\n-v1")
    runs, left_out = find_runs([tmp_path])
    text = printable(Report(runs, left_out, {}).text())
    assert r"| 1 | Cart\x1b[2J\|Pole\n-v1 | 1 |" in text


def test_episodes_that_cannot_be_read_leave_the_rest_of_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "a", 0, 1000)
    (tmp_path / "a" / "episodes.csv").write_text("step,worker,return,length,seconds\n1,2,x,4,5\n")
    assert report.main([str(tmp_path)]) == 1
    reason = "its episodes cannot be read: could not convert string 'x' to float64 at row 0, column 3."
    assert f"Left out: {tmp_path / 'a'}: {reason}" in capsys.readouterr().out


def test_a_full_disk_is_one_line_and_the_table_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run(tmp_path / "a", 0, 1000)
    monkeypatch.setattr("a3c_exp.report.report.write_picture", full)
    curve(tmp_path / "a", (1000, 1.0, 10.0))
    assert report.main([str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert "| 1 | CartPole-v1 |" in output.out
    assert "the report cannot be written: OSError: [Errno 28] No space left on device" in output.err
    assert output.err.count("\n") == 1
    assert (tmp_path / "report" / "runs.csv").exists(), "tables come first"


def test_without_matplotlib_the_tables_are_there_and_a_line_says_what_to_install(tmp_path: Path) -> None:
    run(tmp_path / "a", 0, 1000)
    curve(tmp_path / "a", (1000, 1.0, 10.0))
    program = "import sys; sys.modules['matplotlib'] = None; from a3c_exp.report.__main__ import main; "
    program += "sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("need matplotlib: pip install 'a3c-exp[report]'\n")
    assert done.stderr.count("\n") == 1
    assert "| 1 | CartPole-v1 |" in done.stdout
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"curves.csv", "ranking.csv", "runs.csv"}


@pytest.mark.parametrize("arguments", [["-h"], ["somewhere", "--help"]])
def test_help_is_given_wherever_it_is_asked_for(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(arguments) == 0
    assert "A report on runs" in capsys.readouterr().out


def test_a_folder_may_be_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every shell opens `~`, and Python does not."""
    monkeypatch.setenv("HOME", str(tmp_path))
    run(tmp_path / "a", 0, 1000)
    assert report.main(["~/a", "to=~/there"]) == 0
    assert (tmp_path / "there" / "index.html").exists()


def test_a_file_cannot_be_the_place_of_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Said before anything is read."""
    (tmp_path / "file").touch()
    assert report.main([str(tmp_path), f"to={tmp_path / 'file'}"]) == 2
    assert capsys.readouterr().err == f"a3c_exp: to = '{tmp_path / 'file'}': must be a folder\n"


# Curves.


def test_a_curve_is_what_metrics_csv_has_of_returns(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    assert len(read_curve(file).steps) == 0
    file.write_text(
        "step,wall_seconds,rollout/ep_rew_mean,eval/mean_reward\n"
        "100,1.0,10,\n200,2.0,,5\n400,4.0,40,\n300,3.0,nan,\n300,2.5,30,\n700,7.0,7"
    )
    found = read_curve(file)
    assert found.steps.tolist() == [100, 300, 400], "in order, without what is not finite, and without half a row"
    assert found.seconds.tolist() == [1.0, 2.5, 4.0]
    assert found.returns.tolist() == [10, 30, 40]


def test_a_band_goes_as_far_as_the_longest_run_and_those_that_ended_earlier_keep_their_return(tmp_path: Path) -> None:
    for seed, last in enumerate((1000, 2000, 3000)):
        run(tmp_path / str(seed), seed, None)
        curve(tmp_path / str(seed), (0, 0.0, 0.0), (last, last / 100, float(last)))
    runs, _ = find_runs([tmp_path])
    found = band(runs, by_steps)
    assert found is not None
    assert (found.x[0], found.x[-1], found.runs) == (0, 3000, 3)
    assert found.middle[-1] == pytest.approx((1000 + 2000 + 3000) / 3)
    assert (found.low <= found.middle).all() and (found.middle <= found.high).all()
    over_time = band(runs, by_seconds)
    assert over_time is not None and over_time.x[-1] == 30.0


def test_a_band_leaves_out_runs_that_go_on_or_ends_with_the_shortest_of_them(tmp_path: Path) -> None:
    for seed, last in enumerate((1000, 2000)):
        run(tmp_path / str(seed), seed, None)
        curve(tmp_path / str(seed), (0, 0.0, 0.0), (last, 1.0, 1.0), ended=False)
    going, _ = find_runs([tmp_path])
    both = band(going, by_steps)
    assert both is not None and (both.x[-1], both.runs) == (1000, 2)
    run(tmp_path / "2", 2, None)
    curve(tmp_path / "2", (0, 0.0, 0.0), (5000, 1.0, 1.0))
    ended = band(find_runs([tmp_path])[0], by_steps)
    assert ended is not None and (ended.x[-1], ended.runs) == (5000, 1)


def test_profiles_are_of_configurations_that_have_run_everywhere(tmp_path: Path) -> None:
    for env in ("CartPole-v1", "Acrobot-v1"):
        for n, score in ((5, 0.0), (9, 100.0)):
            run(tmp_path / f"{env}{n}", 0, None, n=n, env=env, mean_return_100=score)
    run(tmp_path / "more", 0, None, n=7, env="Acrobot-v1", mean_return_100=50.0)
    scores = normalized_returns({env: rank(each) for env, each in group(find_runs([tmp_path])[0]).items()})
    found = profiles(scores)
    assert list(found) == list(scores) == ["returns.n=9", "returns.n=5"], "the best one first"
    assert found["returns.n=5"].share.max() == 0, "the lowest here is 0, and nothing is above it"
    assert found["returns.n=9"].share[:-1].min() == 1


def test_a_picture_says_what_it_leaves_out_and_how_to_see_it(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for n in range(7):
        run(tmp_path / f"n-{n}", 0, None, n=n)
        curve(tmp_path / f"n-{n}", (500, 0.5, 10.0 + n), (1000, 1.0, 20.0 + n))
    assert report.main([str(tmp_path)]) == 0
    note = "Only the first 6 of 7 configurations"
    assert f"{note}, in the order of their rank; curves.csv has all." in (tmp_path / "report/index.html").read_text()
    chosen = [str(tmp_path / "n-0"), str(tmp_path / "n-1")]
    assert report.main([*chosen, f"to={tmp_path / 'two'}"]) == 0
    assert note not in (tmp_path / "two/index.html").read_text()


def test_episodes_are_in_the_order_in_which_they_ended(tmp_path: Path) -> None:
    assert len(read_episodes(tmp_path).returns) == 0
    header = "step,worker,return,length,seconds\n"
    (tmp_path / "episodes.csv").write_text(f"{header}20,1,2.5,10,0.1\n10,0,1.5,10,0.1\n30,1,9")
    assert read_episodes(tmp_path).returns.tolist() == [1.5, 2.5]
    assert running_mean(np.array([1.0, 3.0, 5.0]), 2).tolist() == [1.0, 2.0, 4.0]


# The page.


class Reader(HTMLParser):
    """Collects what a page says, and everything that it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.loaded, self.tags = "", list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "srcset", "href", "action", "data")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on two environments, one with a name that is HTML."""
    folder = tmp_path_factory.mktemp("sweep")
    for seed in range(2):
        for env in ("CartPole-v1", "<script>alert('$x^2$')</script>"):
            for n in (5, 9):
                place = folder / f"{len(env)}_{n}_{seed}"
                run(place, seed, 1000, n=n, env=env, mean_return_100=10.0 * n + seed)
                curve(place, (100, 1.0, 0.0), (2000, 20.0, 10.0 * n + seed))
    assert report.main([str(folder)]) == 0
    return folder / "report"


def test_the_page_has_everything_in_it_and_loads_nothing(written: Path) -> None:
    reader = Reader()
    reader.feed((written / "index.html").read_text())
    assert len(reader.loaded) == 10, "curves and episodes of two environments and a profile, light and dark"
    assert all(source.startswith("data:image/png;base64,iVBOR") for source in reader.loaded)
    assert "prefers-color-scheme: dark" in reader.text
    assert not {"script", "link", "iframe"} & set(reader.tags), "a name is text, not code"
    assert "<script>alert('$x^2$')</script>" in reader.text
    sentence = "Probability that a run of returns.n=9 ends higher than one of returns.n=5: 1.00 [1.00, 1.00]."
    assert reader.text.count(sentence) == 3, "in each environment, and in all of them"


def test_everything_that_a_page_is_given_is_escaped() -> None:
    text = "<b>&\"'"
    page = Page(text)
    page.heading(text)
    page.paragraph(text)
    page.paragraph(text, note=True)
    page.items([text])
    page.table([text], [[text, f"({text})"]])
    page.picture(b"", b"", text, text)
    html = page.html()
    assert "<b>" not in html and '&"' not in html
    assert html.count("&lt;b&gt;&amp;&quot;&#x27;") == 11


def test_pictures_are_there_on_both_backgrounds(written: Path) -> None:
    pictures = sorted(path.name for path in written.glob("*.png"))
    assert len(pictures) == 10 and "profile.png" in pictures and "profile_dark.png" in pictures
    assert all((written / name).read_bytes().startswith(b"\x89PNG") for name in pictures)


def test_tables_can_be_read_by_other_programs(written: Path) -> None:
    with open(written / "runs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert {row["configuration"] for row in rows} == {"returns.n=5", "returns.n=9"}
    assert {float(row["final_return"]) for row in rows} == {50.0, 51.0, 90.0, 91.0}
    with open(written / "curves.csv", newline="") as file:
        points = list(csv.DictReader(file))
    assert {(row["axis"], row["runs"]) for row in points} == {("steps", "2"), ("seconds", "2")}
    last = [row for row in points if row["configuration"] == "returns.n=9" and row["axis"] == "steps"][-1]
    assert (float(last["x"]), float(last["iqm"])) == (2000.0, 90.5)
    assert float(last["low"]) == 90.0 and float(last["high"]) == 91.0


def test_no_cell_of_a_table_is_a_formula(tmp_path: Path) -> None:
    cells: list[object] = ["=1+1", "+x", "-x", "@x", "x=1", "-1.5", "+2e3", -3.0, None, Path("-x")]
    write_table(tmp_path / "table.csv", ["=a", "b"], [[cell, "y"] for cell in cells])
    with open(tmp_path / "table.csv", newline="") as file:
        [header, *rows] = csv.reader(file)
    assert header == ["'=a", "b"]
    assert [row[0] for row in rows] == ["'=1+1", "'+x", "'-x", "'@x", "x=1", "-1.5", "+2e3", "-3.0", "", "'-x"]


def test_the_report_itself_holds_no_runs(written: Path) -> None:
    before = (written / "runs.csv").read_bytes()
    assert report.main([str(written.parent)]) == 0, "once more, with a report in the folder"
    assert (written / "runs.csv").read_bytes() == before
    with pytest.raises(ConfigError):
        find_runs([written])


def test_the_report_needs_neither_torch_nor_gymnasium(written: Path) -> None:
    program = (
        "import sys; from a3c_exp.report.__main__ import main; code = main(sys.argv[1:]);"
        "sys.exit(code or {'torch', 'gymnasium'} & set(sys.modules) != set())"
    )
    done = subprocess.run([sys.executable, "-c", program, str(written.parent)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


# Random actions.


def test_a_random_policy_stands_beside_the_trained_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CartPole under random actions falls after about 22 steps."""
    from a3c_exp import compose

    run(tmp_path / "a", 0, 1000)
    (tmp_path / "a" / "config.yaml").write_text(yaml.safe_dump(compose([])))
    assert report.main([str(tmp_path), "random=30"]) == 0
    assert 15 < random_return(capsys) < 35


def random_return(capsys: pytest.CaptureFixture[str]) -> float:
    [value] = re.findall(r"Random actions have a mean return of (\S+)\.\n", capsys.readouterr().out)
    return float(value)


def test_a_random_policy_in_an_episode_without_an_end_is_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "a", 0, 1000)
    endless = config(SCRIPTED, env__kwargs={"lengths": [0]}, eval__max_steps=50)
    (tmp_path / "a" / "config.yaml").write_text(yaml.safe_dump(endless))

    def returns(episodes: int) -> float:
        assert report.main([str(tmp_path), f"random={episodes}", "plugins=[scripted]"]) == 0
        return random_return(capsys)

    assert returns(1) < returns(2), "rewards grow with the steps of an episode, which goes on after the cut"


def test_a_random_policy_plays_environments_of_the_users_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "a", 0, 1000)
    whole = config(SCRIPTED, backend__address="127.0.0.1:1", backend___target_="a3c_exp.backends.ray.Ray")
    (tmp_path / "a" / "config.yaml").write_text(yaml.safe_dump(whole))
    assert report.main([str(tmp_path), "random=2"]) == 2
    assert "allow it with plugins=[scripted]" in capsys.readouterr().err
    assert report.main([str(tmp_path), "random=2", "plugins=[scripted]"]) == 0
    assert "Random actions have a mean return" in capsys.readouterr().out


def test_a_random_policy_whose_environment_fails_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "a", 0, 1000)
    whole = config("faulty:Misbehaving-v0", env__kwargs={"fault": "raise", "every": 1}, plugins=["faulty"])
    (tmp_path / "a" / "config.yaml").write_text(yaml.safe_dump(whole))
    assert report.main([str(tmp_path), "random=2", "plugins=[faulty]"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("a3c_exp: random = 2: cannot be played: environment 0 (")
    assert error.count("\n") == 1


@pytest.mark.parametrize("random", ["x", "-1"])
def test_a_number_of_random_episodes_that_is_none_is_refused(
    random: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "a", 0, 1000)
    assert report.main([str(tmp_path), f"random={random}"]) == 2
    assert capsys.readouterr().err.startswith("a3c_exp: random = ")
