"""The report: which runs share a row, what a row says, and what is written."""

from __future__ import annotations

import csv
import html
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from refusals import Refuses

from a3c_exp.cli.processes import say_comparison
from a3c_exp.report import __main__ as report
from a3c_exp.report.charts import band, draw_bands
from a3c_exp.report.ranking import (
    RecordedRuns,
    comparison,
    improvement_table,
    normalized_table,
    rank,
    ranking_table,
)
from a3c_exp.report.runs import RecordedRun, find_runs, group, read_curve
from a3c_exp.report.tables import latex_table, write_csv

pytest.importorskip("matplotlib", reason="draws the pictures: pip install -e '.[report]'")


def run(
    folder: Path,
    seed: int = 0,
    solved: int | None = None,
    env: str | dict[str, Any] = "CartPole-v1",
    settings: dict[str, Any] | None = None,
    **summary: Any,
) -> None:
    """A run's folder. settings: beside those that every run has. summary: beside what every summary
    says."""
    folder.mkdir(parents=True)
    whole: dict[str, Any] = {
        "env": {"_target_": "a3c_exp.envs.Gym", "id": env} if isinstance(env, str) else env
    }
    whole |= {
        "seed": seed,
        "returns": {"_target_": "a3c_exp.returns.NStep", "n": 5},
        "reward_threshold": 475.0,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(whole | (settings or {})))
    values: dict[str, Any] = {
        "solved_at_steps": solved,
        "solved_at_seconds": solved and solved / 1000,
    }
    values |= {"mean_return_100": 480.0, "best_eval_return": 500.0, "steps_per_second": 1000.0}
    values |= {"staleness_mean": 0.5, "commit": "abc", "stop_reason": "total_steps"}
    (folder / "summary.json").write_text(json.dumps(values | summary))


def returns(n: int, name: str = "NStep") -> dict[str, Any]:
    return {"returns": {"_target_": f"a3c_exp.returns.{name}", "n": n}}


def curve(folder: Path, *points: tuple[int, float, float], ended: bool = True) -> None:
    """Give a run a learning curve of steps, seconds and returns. ended: leave its summary."""
    rows = "".join(f"{step},{seconds},{value},0.1\n" for step, seconds, value in points)
    (folder / "metrics.csv").write_text(
        f"step,wall_seconds,rollout/ep_rew_mean,train/entropy\n{rows}"
    )
    if not ended:
        (folder / "summary.json").unlink()


def grouped(folder: Path) -> dict[str, dict[str, list[RecordedRun]]]:
    return group(find_runs([folder])[0])


def ranked(folder: Path) -> dict[str, RecordedRuns]:
    """The configurations of the only environment."""
    [configurations] = grouped(folder).values()
    return rank(configurations)


# Which runs are one configuration, and how it is named.


GYM = "a3c_exp.envs.Gym"
MLP = {"_target_": "a3c_exp.networks.Mlp", "hidden_sizes": [8]}
LSTM = {"_target_": "a3c_exp.networks.Lstm", "encoder": MLP}
INSIDE = {
    "_target_": "a3c_exp.optimizers.RMSProp",
    "epsilon_inside": True,
    "initial_mean_square": 1,
}
ADAM = {"_target_": "a3c_exp.optimizers.Adam"}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ([returns(5), returns(9), returns(5)], ["returns.n=5", "returns.n=9"]),
        ([returns(5), returns(9, "Discounted")], ["returns=n_step", "returns=discounted"]),
        (
            [returns(5), returns(9, "Discounted"), returns(7)],
            [
                "returns=n_step, returns.n=5",
                "returns=discounted, returns.n=9",
                "returns=n_step, returns.n=7",
            ],
        ),
        ([{"network": LSTM}, {"network": MLP}], ["network=lstm", "network=mlp"]),
        ([{"optimizer": INSIDE}, {"optimizer": ADAM}], ["optimizer=rmsprop_tf", "optimizer=adam"]),
        (
            [{"network": MLP, "workers": 1}, {"network": MLP, "workers": 2}],
            ["workers=1", "workers=2"],
        ),
        (
            [{"init_from": None}, {"init_from": "outputs/0"}, {"init_from": "outputs/1"}],
            ["x", "init_from=a run"],
        ),
        ([{"total_steps": 2000000}, {"total_steps": 2e6}], ["x"]),
        (
            [{"checkpoint": {"every": 10}}, {"checkpoint": {"every": 20}}, {"log": {"every": 5}}],
            ["x"],
        ),
        (
            [
                {"network": {"_target_": "a3c_exp.networks.Mlp"}},
                {"network": {"_target_": "mine.Mlp"}},
            ],
            ["network=mlp", "network=mine.Mlp"],
        ),
        (
            [
                {"env": {"_target_": GYM, "id": "x", "kwargs": kwargs}}
                for kwargs in ({}, {"gravity": -5.0})
            ],
            ["x", "env.kwargs.gravity=-5"],
        ),
    ],
)
def test_a_configuration_is_named_by_what_differs(
    settings: list[Any], named: list[str], tmp_path: Path
) -> None:
    """Of a component by its option, and by what differs within its class. What is resolved
    separates runs too."""
    for number, each in enumerate(settings):
        run(tmp_path / str(number), number, env="x", settings=each)
    [configurations] = grouped(tmp_path).values()
    assert list(configurations) == named


def test_the_files_of_trackers_are_no_runs(tmp_path: Path) -> None:
    run(tmp_path / "r")
    run(tmp_path / "r" / "wandb" / "run-1" / "files")
    assert [each.folder.name for each in find_runs([tmp_path])[0]] == ["r"]


def test_folders_tell_configurations_of_one_name_apart(tmp_path: Path) -> None:
    for place, typed in {"a/s0": "A", "b/s0": "B", "c/s1": "C"}.items():
        settings = {"algorithm": {"_target_": f"mine.{typed}"}}
        run(tmp_path / place, settings=settings, overrides=["algorithm=mine"])
    [configurations] = grouped(tmp_path).values()
    assert len(configurations) == 3 and "algorithm=mine (s1)" in configurations
    assert any(str(tmp_path / "a" / "s0") in name for name in configurations)


def test_a_mistyped_option_is_answered_with_the_options(tmp_path: Path, refuses: Refuses) -> None:
    run(tmp_path / "run")
    line = refuses([str(tmp_path), "ranks=eval"], "ranks", "eval", main=report.main)
    assert "did you mean 'rank'?" in line


def test_an_option_of_ones_own_is_named_by_the_word_that_was_typed(tmp_path: Path) -> None:
    for name, overrides in {
        "clipped": ["algorithm=clipped", "seed=0"],
        "Plain": None,
        "Old": [7, "seed"],
    }.items():
        run(
            tmp_path / name,
            0,
            settings={"algorithm": {"_target_": f"mine.{name}"}},
            overrides=overrides,
        )
    [configurations] = grouped(tmp_path).values()
    assert set(configurations) == {
        "algorithm=clipped",
        "algorithm=mine.Plain",
        "algorithm=mine.Old",
    }


def test_environments_are_apart_by_name_game_or_class_and_have_their_own_configurations(
    tmp_path: Path,
) -> None:
    environments: list[Any] = [
        "CartPole-v1",
        {"_target_": "a3c_exp.envs.Atari", "game": "x"},
        {"_target_": "my.Env"},
    ]
    for number, env in enumerate(environments):
        run(tmp_path / str(number), 0, env=env, settings=returns(number))
    names = {env: list(each) for env, each in grouped(tmp_path).items()}
    assert names == {name: [name] for name in ("CartPole-v1", "x", "my.Env")}


# What a row says.


def test_a_row_gives_estimates_and_ranges_and_counts_failures(tmp_path: Path) -> None:
    for seed, solved in enumerate([3000, 1000, None, 2000]):
        run(tmp_path / str(seed), seed, solved, mean_return_100=100.0 * seed)
    row = list(ranking_table(ranked(tmp_path))[0].values())
    assert row[:3] == ["CartPole-v1", "4", "3 of 4"]
    assert re.fullmatch(r"150\.0 \[\d+\.\d, \d+\.\d\]", row[3]), (
        "the mean without the best and the worst"
    )
    assert row[4:] == [
        "500.0 [500.0, 500.0]",
        "2,500 (1,000 to 3,000)",
        "2.5 (1.0 to 3.0)",
        *row[7:9],
        "*",
    ]
    assert row[7:9] == ["1,000 (1,000 to 1,000)", "0.50 (0.50 to 0.50)"]


def test_configurations_are_ranked_by_their_final_return(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Among equals the one that was solved soonest is first."""
    for n, solved in ((4, None), (3, 9000), (2, 1000)):
        run(tmp_path / "equal" / str(n), 0, solved, settings=returns(n))
    assert list(ranked(tmp_path / "equal")) == ["returns.n=2", "returns.n=3", "returns.n=4"]
    for seed in range(3):
        run(tmp_path / f"a{seed}", seed, settings=returns(5), mean_return_100=100.0 + seed)
        run(tmp_path / f"b{seed}", seed, 1000, settings=returns(9), mean_return_100=300.0 + seed)
        run(
            tmp_path / f"c{seed}",
            seed,
            settings=returns(7),
            mean_return_100=None,
            best_eval_return=None,
            commit=None,
        )
    shutil.rmtree(tmp_path / "equal")
    assert report.main([str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "| returns.n=9 | 3 | 3 of 3 | 301.0 [300.0, 302.0] |" in output
    assert "| returns.n=7 | 3 | 0 of 3 | - | - |" in output, "no episode has ended"
    assert "Undecided between returns.n=5, returns.n=7 and returns.n=9: " in output
    assert "Runs: 9.\n" in output
    assert "\nCommit abc, unknown; " in output


def test_configurations_are_ranked_by_evaluations_where_that_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for n, value in ((1, 20.0), (2, 30.0)):
        for seed in range(5):
            folder = tmp_path / f"n-{n}_seed-{seed}"
            run(folder, seed, settings=returns(n), mean_return_100=100.0 / n)
            (folder / "metrics.csv").write_text(
                f"step,wall_seconds,eval/mean_reward,rollout/level\n10,1.0,{value},{n}\n"
            )
    higher = "ends with a higher eval/mean_reward"
    for words, first, ends in (
        ([], 1, "ends higher"),
        (["rank=eval"], 2, higher),
        (["rank=eval/mean_reward"], 2, higher),
        (["rank=level"], 2, "ends with a higher rollout/level"),
    ):
        assert report.main([str(tmp_path), *words]) == 0
        lines = capsys.readouterr().out.splitlines()
        row = next(line for line in lines if line.startswith("| returns"))
        assert f" returns.n={first} |" in row and row.endswith(f"| n-{first}_seed-* |")
        assert any(f"returns.n={first} is ahead" in line and ends in line for line in lines)
    assert report.main([str(tmp_path), "rank=levle"]) == 2


def test_a_sweep_ends_with_how_its_finished_configurations_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for n, value in ((1, 20.0), (2, 30.0), (3, 10.0)):
        for seed in range(5):
            run(tmp_path / f"{n}_{seed}", seed, settings=returns(n), mean_return_100=value + seed)
    folders = [*sorted(tmp_path.iterdir()), tmp_path / "not_started"]
    say_comparison(folders)
    *sentences, row_2, row_1, row_3, command, watch, page = capsys.readouterr().err.splitlines()
    for sentence, other in zip(sentences, (1, 3), strict=True):
        assert sentence.startswith(f"CartPole-v1: returns.n=2 is ahead of returns.n={other}: ")
        assert "ends higher" in sentence
    rows = ((row_2, 2, 32.0), (row_1, 1, 22.0), (row_3, 3, 12.0))
    for row, n, value in rows:
        assert row.startswith(f"  returns.n={n}: ") and f" {value} [" in row and "steps" not in row
    assert "a3c_exp.report" in command and "tensorboard --logdir" in watch
    assert "#custom_scalars" in page
    say_comparison([tmp_path / "not_started"])
    assert "CartPole" not in capsys.readouterr().err


def test_runs_that_a_mean_return_has_ended_are_compared_by_the_steps_until_then(
    tmp_path: Path,
) -> None:
    """How far the last rollout went beyond it is luck."""
    stop = {"stop": {"mean_return": 475.0}}
    for n, steps in ((5, 3000), (9, 1000)):
        for seed in range(5):
            place = tmp_path / f"{n}_{seed}"
            settings = returns(n) | stop
            value = 475.0 + n + seed
            run(
                place,
                seed,
                steps + seed,
                settings=settings,
                mean_return_100=value,
                stop_reason="mean_return",
            )
    configurations = ranked(tmp_path)
    assert list(configurations) == ["returns.n=9", "returns.n=5"]
    assert {row["final return"] for row in ranking_table(configurations)} == {
        "475.0 [475.0, 475.0]"
    }
    [sentence] = comparison(configurations)
    assert (
        sentence.startswith("returns.n=9 is ahead of returns.n=5")
        and "is solved after fewer steps" in sentence
    )


@pytest.mark.parametrize(("seeds", "apart"), [(5, 1.0), (4, 100.0)])
def test_runs_that_overlap_or_are_few_leave_it_undecided(
    tmp_path: Path, seeds: int, apart: float
) -> None:
    for n in (5, 9):
        for seed in range(seeds):
            run(
                tmp_path / f"{n}_{seed}",
                seed,
                settings=returns(n),
                mean_return_100=apart * n + 4 * seed,
            )
    [sentence] = comparison(ranked(tmp_path))
    assert sentence.startswith("Undecided between returns.n=5 and returns.n=9")


def test_a_high_mean_of_few_good_runs_is_not_ahead(tmp_path: Path) -> None:
    for seed in range(25):
        run(
            tmp_path / f"5_{seed}",
            seed,
            settings=returns(5),
            mean_return_100=500.0 if seed < 7 else 20.0,
        )
        run(tmp_path / f"9_{seed}", seed, settings=returns(9), mean_return_100=49.0 + seed / 100)
    configurations = ranked(tmp_path)
    assert next(iter(configurations)) == "returns.n=5"
    assert comparison(configurations)[0].startswith("Undecided between")


def test_without_a_return_a_comparison_is_undecided_and_without_a_threshold_nothing_is_reached(
    tmp_path: Path,
) -> None:
    run(tmp_path / "a", settings=returns(5) | {"reward_threshold": None})
    assert comparison(ranked(tmp_path)) == []
    assert ranking_table(ranked(tmp_path))[0]["solved"] == "-"
    run(tmp_path / "b", settings=returns(9), mean_return_100=None)
    assert comparison(ranked(tmp_path))[0].startswith("Undecided")


def probability_by_definition(x: list[float], y: list[float]) -> float:
    """Agarwal et al. 2021, appendix: the mean over all pairs of runs, of which ties are a half."""
    wins = sum(one > other for one in x for other in y)
    ties = sum(one == other for one in x for other in y)
    return (wins + ties / 2) / (len(x) * len(y))


def test_a_matrix_has_the_probability_of_improvement_for_each_pair(tmp_path: Path) -> None:
    """A star marks the pairs that the runs tell apart."""
    returns_by_n = {
        1: [1.0, 2.0, 3.0, 4.0, 5.0],
        2: [2.5, 3.0, 3.5, 4.5, 6.0],
        3: [90.0, 91.0, 92.0, 93.0, 94.0],
    }
    for n, values in returns_by_n.items():
        for seed, value in enumerate(values):
            run(tmp_path / f"{n}_{seed}", seed, settings=returns(n), mean_return_100=value)
    matrix = improvement_table(ranked(tmp_path))
    order = (3, 2, 1)
    assert [row["configuration"] for row in matrix] == [
        f"{place}: returns.n={n}" for place, n in enumerate(order, 1)
    ]
    for row, n in zip(matrix, order, strict=True):
        for place, other in enumerate(order, 1):
            cell = row[str(place)]
            if n == other:
                assert cell == "-"
                continue
            expected = probability_by_definition(returns_by_n[n], returns_by_n[other])
            assert float(cell.removesuffix("*")) == pytest.approx(expected, abs=0.0051)
            assert cell.endswith("*") == (3 in (n, other))


def test_every_configuration_up_to_ten_is_compared_with_the_first(tmp_path: Path) -> None:
    for n in range(11):
        for seed in range(5):
            value = 1000.0 if n < 2 else 100.0 * (11 - n)
            run(
                tmp_path / f"{n}_{seed}",
                seed,
                100 * (n + 1) + seed,
                settings=returns(n),
                mean_return_100=value + seed,
            )
    sentences = comparison(ranked(tmp_path))
    assert sentences[0].startswith("Undecided between returns.n=0 and returns.n=1: ")
    behind = [f"returns.n=0 is ahead of returns.n={n}: " for n in range(2, 10)]
    assert [
        sentence[: len(start)] for sentence, start in zip(sentences[1:], behind, strict=True)
    ] == behind


def iqm_by_definition(scores: list[float]) -> float:
    """The mean without the lowest and the highest quarter, as scipy's trim_mean cuts it."""
    quarter = int(0.25 * len(scores))
    middle = sorted(scores)[quarter : len(scores) - quarter]
    return sum(middle) / len(middle)


def test_returns_of_several_environments_are_normalized_by_their_thresholds(
    tmp_path: Path,
) -> None:
    """0 is the return with which an environment's runs begin, also where returns are negative."""
    first_and_threshold = {"CartPole-v1": (20.0, 475.0), "Pendulum-v1": (-1400.0, -200.0)}
    normalized: dict[int, list[float]] = {5: [], 9: []}
    for env, (start, threshold) in first_and_threshold.items():
        for n, scores in normalized.items():
            for seed in range(5):
                score = (seed + n) / 10
                scores.append(score)
                folder = tmp_path / f"{env}_{n}_{seed}"
                last = start + score * (threshold - start)
                settings = returns(n) | {"reward_threshold": threshold}
                run(folder, seed, env=env, settings=settings, mean_return_100=last)
                curve(folder, (10, 1.0, start), (20, 2.0, last))
    by_environment = {env: rank(each) for env, each in grouped(tmp_path).items()}
    rows = normalized_table(by_environment)
    for row, n in zip(rows, (9, 5), strict=True):
        assert (row["configuration"], row["environments"], row["runs"]) == (
            f"returns.n={n}",
            "2",
            "10",
        )
        value, interval = row["normalized return"].split(" ", 1)
        assert float(value) == pytest.approx(iqm_by_definition(normalized[n]), abs=6e-4)
        low, high = map(float, interval.strip("[]").split(", "))
        assert min(normalized[n]) <= low < float(value) < high <= max(normalized[n])
    assert normalized_table(dict(list(by_environment.items())[:1])) == []


def test_few_runs_of_one_of_two_configurations_are_not_few_of_both(tmp_path: Path) -> None:
    for n, seeds in ((5, 6), (9, 2)):
        for seed in range(seeds):
            run(tmp_path / f"{n}_{seed}", seed, settings=returns(n), mean_return_100=10.0 * n)
    [sentence] = comparison(ranked(tmp_path))
    assert "runs of returns.n=9: 2, of returns.n=5: 6" in sentence


def test_a_run_counts_once_and_runs_of_one_seed_are_shown(tmp_path: Path) -> None:
    run(tmp_path / "a")
    run(tmp_path / "b")
    assert len(find_runs([tmp_path, tmp_path / "a", tmp_path])[0]) == 2
    assert ranking_table(ranked(tmp_path))[0]["runs"] == "2 of 1 seed"


# Runs that are still going on.


def test_a_mean_of_a_few_episodes_solves_nothing(tmp_path: Path) -> None:
    run(tmp_path / "a", settings={"reward_threshold": 100.0})
    (tmp_path / "a" / "summary.json").unlink()
    rows = "10,1,150,3\n2000,2,20,99\n3000,3,110,120\n4000,4,90,140\n"
    (tmp_path / "a" / "metrics.csv").write_text(
        f"step,wall_seconds,rollout/ep_rew_mean,rollout/episodes\n{rows}"
    )
    [found], _ = find_runs([tmp_path])
    numbers = [found.numbers[name] for name in ("solved_steps", "best_return", "final_return")]
    assert numbers == [3000, 110, 90]


def test_the_best_return_of_a_run_that_goes_on_is_that_of_its_evaluations_too(
    tmp_path: Path,
) -> None:
    run(tmp_path / "a")
    (tmp_path / "a" / "summary.json").unlink()
    header = "step,wall_seconds,rollout/ep_rew_mean,rollout/episodes,eval/mean_reward"
    (tmp_path / "a" / "metrics.csv").write_text(f"{header}\n10,1,,,80\n20,2,110,120,\n30,3,,,nan\n")
    assert find_runs([tmp_path])[0][0].numbers["best_return"] == 80


def test_a_run_that_goes_on_is_reported_as_far_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "a", settings={"reward_threshold": 30.0})
    curve(tmp_path / "a", (1000, 1.0, 10.0), (2000, 2.0, 30.0), (3000, 3.0, 20.0), ended=False)
    with open(tmp_path / "a" / "metrics.csv", "a") as file:
        file.write("4000,4.0,99")  # as it is while the run writes it
    assert report.main([str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert (
        "| CartPole-v1 | 1, 1 unfinished | 1 of 1 | 20.0 | 30.0 | 2,000 | 2.0 | 1,000 | - | a |"
        in output
    )
    assert "Unfinished, and counted: a." in output


# What is left out, and what is refused.


def test_a_run_that_was_interrupted_counts_as_one_that_was_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both go on with the same command."""
    run(tmp_path / "a", 0)
    run(tmp_path / "b", 1, stop_reason="interrupted", mean_return_100=10.0)
    assert report.main([str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "| CartPole-v1 | 2, 1 unfinished |" in output and "Unfinished, and counted: b." in output


def test_runs_whose_seconds_are_simulated_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "a", 0)
    assert report.main([str(tmp_path)]) == 0
    assert "simulated" not in capsys.readouterr().out
    run(tmp_path / "b", 1, clock="simulated")
    assert report.main([str(tmp_path)]) == 0
    assert "simulated: 1." in capsys.readouterr().out


def test_runs_that_failed_are_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "a", 0, 1000, machine={"processor": "this one", "usable_cores": 2})
    run(tmp_path / "b", 1, stop_reason="stalled")
    run(tmp_path / "c", 2, 5000, machine={"processor": "that one", "usable_cores": 8})
    assert report.main([str(tmp_path)]) == 1, "as evaluate ends that leaves runs out"
    output = capsys.readouterr().out
    assert "| CartPole-v1 | 2 | 2 of 2 |" in output
    assert "; that one, 8 cores; this one, 2 cores.\n" in output
    assert f"Left out: {tmp_path / 'b'}: stalled\n" in output
    page = (tmp_path / "report" / "index.html").read_text()
    assert "stalled" in page and "<img" not in page, "there is no curve"
    for folder, reason in ((tmp_path / "b", "stalled"), (tmp_path / "nowhere", "config.yaml")):
        assert report.main([str(folder)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"a3c_exp: folder = '{folder}': ") and reason in error


CURVE = "step,wall_seconds,rollout/ep_rew_mean\n"
ODD = [
    ("summary.json", "{", "it does not say how the run ended"),
    ("summary.json", "{}", "it does not say how the run ended"),
    ("config.yaml", "a: [", "is no YAML: line 2: "),
    ("config.yaml", "a: 1", "it has no env"),
    ("metrics.csv", "rollout/ep_rew_mean\n1\n", "line 2 is no point of a curve"),
    ("metrics.csv", f"{CURVE}1,2,3\n1,2,3,4\n1,2,3\n", "line 3 is no point of a curve"),
    ("metrics.csv", f"{CURVE}{'9' * 200_000},2,1\n", "line "),
]


@pytest.mark.parametrize(("file", "content", "reason"), ODD)
def test_a_run_that_cannot_be_read_is_named_and_left_out(
    file: str, content: str, reason: str, tmp_path: Path
) -> None:
    """A sweep of many seeds keeps its report where one folder has suffered."""
    run(tmp_path / "a", 0)
    run(tmp_path / "b", 1)
    (tmp_path / "b" / file).write_text(content)
    runs, left_out = find_runs([tmp_path])
    assert [each.folder for each in runs] == [tmp_path / "a"]
    assert left_out[tmp_path / "b"].startswith(f"its {file} is damaged: {reason}")


def test_names_with_control_characters_are_shown_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "a", 0, env="Cart\x1b[2J|Pole\n-v1")
    run(tmp_path / "b\x1b[31m", 1)
    (tmp_path / "b\x1b[31m" / "summary.json").write_text("{}")
    assert report.main([str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert r"| Cart\x1b[2J\|Pole\n-v1 | 1 |" in output
    assert f"Left out: {tmp_path}/b\\x1b[31m: its summary.json is damaged: " in output
    assert output.replace("\n", "").isprintable()


def test_without_matplotlib_the_tables_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "a")
    curve(tmp_path / "a", (1000, 1.0, 10.0))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert report.main([str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert "pip install 'a3c-exp[report]'" in output.err and output.err.count("\n") == 1
    assert "| CartPole-v1 |" in output.out
    written = {path.name for path in (tmp_path / "report").iterdir()}
    assert written == {"curves.csv", "runs.csv", "tables.tex"}


def test_the_place_of_a_report_may_be_in_the_home_folder_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not every shell opens `~`, and Python does not."""
    monkeypatch.setenv("HOME", str(tmp_path))
    run(tmp_path / "a")
    assert report.main(["~/a", "to=~/there"]) == 0
    assert (tmp_path / "there" / "index.html").exists()
    (tmp_path / "file").touch()
    assert report.main(["~/a", "to=~/file"]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "file") in error and error.count("\n") == 1


# Curves.


def test_a_curve_is_what_metrics_csv_has_of_returns(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text(
        "step,wall_seconds,rollout/ep_rew_mean,eval/mean_reward\n"
        "100,1.0,10,\n200,2.0,,5\n400,4.0,40,\n300,3.0,nan,\n300,2.5,30,\n700,7.0,7"
    )
    found = read_curve(file)
    assert found.steps.tolist() == [100, 300, 400], (
        "in order, without what is not finite, and without half a row"
    )
    assert found.seconds.tolist() == [1.0, 2.5, 4.0]
    assert found.returns.tolist() == [10, 30, 40]


def test_a_band_goes_as_far_as_the_longest_run_and_those_that_ended_earlier_keep_their_return(
    tmp_path: Path,
) -> None:
    for seed, last in enumerate((1000, 2000, 3000)):
        run(tmp_path / str(seed), seed)
        curve(tmp_path / str(seed), (0, 0.0, 0.0), (last, last / 100, float(last)))
    runs, _ = find_runs([tmp_path])
    found = band(runs, "steps")
    assert found is not None and (found.x[0], found.x[-1], found.runs) == (0, 3000, 3)
    assert found.middle[-1] == pytest.approx((1000 + 2000 + 3000) / 3)
    assert (found.low <= found.middle).all() and (found.middle <= found.high).all()
    over_time = band(runs, "seconds")
    assert over_time is not None and over_time.x[-1] == 30.0


def test_a_band_leaves_out_runs_that_go_on_or_ends_with_the_shortest_of_them(
    tmp_path: Path,
) -> None:
    for seed, last in enumerate((1000, 2000)):
        run(tmp_path / str(seed), seed)
        curve(tmp_path / str(seed), (0, 0.0, 0.0), (last, 1.0, 1.0), ended=False)
    going, _ = find_runs([tmp_path])
    both = band(going, "steps")
    assert both is not None and (both.x[-1], both.runs) == (1000, 2)
    run(tmp_path / "2", 2)
    curve(tmp_path / "2", (0, 0.0, 0.0), (5000, 1.0, 1.0))
    ended = band(find_runs([tmp_path])[0], "steps")
    assert ended is not None and (ended.x[-1], ended.runs) == (5000, 1)


def test_a_picture_says_what_it_leaves_out_and_how_to_see_it(tmp_path: Path) -> None:
    for n in range(7):
        run(tmp_path / f"n-{n}", settings=returns(n))
        curve(tmp_path / f"n-{n}", (500, 0.5, 10.0 + n), (1000, 1.0, 20.0 + n))
    assert report.main([str(tmp_path)]) == 0
    assert "Only the first 6 of 7 configurations" in (tmp_path / "report/index.html").read_text()


def test_a_long_name_without_spaces_is_cut_in_the_legend(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    for name in ("a", "b"):
        place = tmp_path / name
        run(place, env={"_target_": GYM, "id": "x", "kwargs": {"file": f"{name}{'x' * 120}"}})
        curve(place, (500, 0.5, 10.0), (1000, 1.0, 20.0))
    axes = Figure().subplots()
    draw_bands(axes, list(ranked(tmp_path).items()), "steps")
    labels = axes.get_legend_handles_labels()[1]
    assert [label[:18] for label in labels] == ["env.kwargs.file=ax", "env.kwargs.file=bx"]
    assert all(label.endswith(" ...") for label in labels)


@pytest.mark.parametrize("values", [7, 6])
def test_a_setting_with_many_values_has_a_scatter(values: int, tmp_path: Path) -> None:
    """A run without a score or without a number is no point."""
    for n in range(values):
        for name in ("NStep", "GAE"):
            optimizer = {"_target_": "a3c_exp.optimizers.SGD", "learning_rate": 1e-4 * 2**n}
            settings = {"optimizer": optimizer, "returns": {"_target_": f"a3c_exp.returns.{name}"}}
            score = None if (n, name) == (3, "GAE") else 10.0 * n
            run(tmp_path / f"{name}{n}", settings=settings, mean_return_100=score)
    run(
        tmp_path / "other",
        settings={"optimizer": {"_target_": "mine.Other", "learning_rate": "auto"}},
    )
    assert report.main([str(tmp_path)]) == 0
    picture = tmp_path / "report" / "1_CartPole-v1_optimizer.learning_rate.png"
    assert picture.exists() == (values == 7)
    assert ("over optimizer.learning_rate" in (tmp_path / "report" / "index.html").read_text()) == (
        values == 7
    )


def test_numbers_at_a_narrow_axis_are_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []

    def keep(figure: Any, file_format: str) -> bytes:
        drawn.append(figure)
        return b""

    monkeypatch.setattr("a3c_exp.report.report.rendered", keep)
    for n in range(8):
        settings = {
            "optimizer": {"_target_": "a3c_exp.optimizers.SGD", "learning_rate": 1e-3 + 5e-4 * n}
        }
        run(tmp_path / str(n), settings=settings, mean_return_100=10.0 * n)
    assert report.main([str(tmp_path)]) == 0
    [axes] = drawn[0].axes
    drawn[0].draw_without_rendering()
    shown = [
        label.get_text()
        for which in ("major", "minor")
        for label in axes.get_xticklabels(which=which)
    ]
    assert any(shown) and not any("$" in text for text in shown)


def test_each_run_is_a_point_of_a_scatter_where_two_settings_have_many_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(
        "matplotlib.axes.Axes.scatter", lambda self, x, y, **look: drawn.append(len(x))
    )
    for n in range(8):
        optimizer = {
            "_target_": "a3c_exp.optimizers.SGD",
            "learning_rate": 1e-4 * 2**n,
            "max_grad_norm": 1.0 + n,
        }
        run(tmp_path / str(n), settings={"optimizer": optimizer}, mean_return_100=10.0 * n)
    assert report.main([str(tmp_path)]) == 0
    assert drawn == [8, 8]


def test_a_chart_may_be_over_episodes(tmp_path: Path) -> None:
    run(tmp_path / "a")
    header = "step,wall_seconds,rollout/ep_rew_mean,rollout/episodes"
    (tmp_path / "a" / "metrics.csv").write_text(f"{header}\n100,1,10,7\n200,2,20,9\n")
    runs, _ = find_runs([tmp_path])
    over_episodes = band(runs, "episodes")
    assert over_episodes is not None
    assert (over_episodes.x[0], over_episodes.x[-1]) == (7, 9)
    assert (over_episodes.middle[0], over_episodes.middle[-1]) == (10, 20)
    assert report.main([str(tmp_path), "axis=episodes"]) == 0
    with open(tmp_path / "report" / "curves.csv", newline="") as file:
        assert {row["axis"] for row in csv.DictReader(file)} == {"steps", "seconds", "episodes"}


@pytest.mark.parametrize(("value", "share"), [(475.0, 0.9), (25.0, 0.5)])
def test_a_far_threshold_leaves_the_chart_to_the_curves(
    value: float, share: float, tmp_path: Path
) -> None:
    """A near one has its line."""
    from matplotlib.figure import Figure

    run(tmp_path / "a", settings={"reward_threshold": value})
    curve(tmp_path / "a", (500, 0.5, 10.0), (1000, 1.0, 20.0))
    axes = Figure().subplots()
    draw_bands(axes, list(ranked(tmp_path).items()), "steps")
    low, high = axes.get_ylim()
    assert 10.0 / (high - low) > share
    names = [text.get_text() for text in axes.texts]
    assert names == (["solved at 475 ↑"] if value == 475.0 else [])


@pytest.mark.parametrize(("file_format", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_charts_have_the_format_that_is_asked_for(
    file_format: str, start: bytes, tmp_path: Path
) -> None:
    """The same runs are the same file."""
    run(tmp_path / "a")
    curve(tmp_path / "a", (500, 0.5, 10.0), (1000, 1.0, 20.0))
    contents = []
    for _ in range(2):
        assert report.main([str(tmp_path), f"format={file_format}"]) == 0
        contents.append((tmp_path / f"report/1_CartPole-v1_curves.{file_format}").read_bytes())
    assert contents[0] == contents[1] and contents[0].startswith(start)
    assert report.main([str(tmp_path), "format=jpeg"]) == 2


# The page.


SCRIPT = "<script>alert('$x^2$')</script> *a* [b](c) `d`"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on two environments, one with a name that is HTML and Markdown."""
    folder = tmp_path_factory.mktemp("sweep")
    for seed in range(2):
        for env in ("CartPole-v1", SCRIPT):
            for n in (5, 9):
                place = folder / f"{len(env)}_{n}_{seed}"
                run(place, seed, 1000, env, returns(n), mean_return_100=10.0 * n + seed)
                curve(place, (100, 1.0, 0.0), (2000, 20.0, 10.0 * n + seed))
    assert report.main([str(folder)]) == 0
    return folder / "report"


def test_the_page_has_everything_in_it_and_loads_nothing(written: Path) -> None:
    page = (written / "index.html").read_text()
    sources = re.findall(r"\b(?:src|srcset|href|action|data)=.{30}", page)
    assert [source[:27] for source in sources] == ['src="data:image/png;base64,'] * 2, (
        "curves of two environments"
    )
    assert not re.search("<(script|link|iframe)", page), "a name is text, not code"
    assert html.escape(SCRIPT, quote=False) in page
    sentence = "Undecided between returns.n=5 and returns.n=9"
    assert page.count(sentence) == 2, "in each environment"
    pictures = list(written.glob("*_curves.png"))
    assert len(pictures) == 2 and all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)


@pytest.mark.parametrize(
    ("cell", "written"), [("=1+1", "'=1+1"), ("@x", "'@x"), ("x=1", "x=1"), (-1.5e-7, "-1.5e-07")]
)
def test_no_cell_of_a_table_is_a_formula(tmp_path: Path, cell: object, written: str) -> None:
    write_csv(tmp_path / "table.csv", ["a", "b"], [[cell, "y"]])
    assert (tmp_path / "table.csv").read_text() == f"a,b\n{written},y\n"


def test_a_table_for_latex_has_its_names_escaped() -> None:
    text = latex_table([{"name": r"n_step & 5% of $x^2$ {\x}~#", "runs": "-5 [-6, 7]"}])
    assert text.splitlines() == [
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"name & runs \\",
        r"\midrule",
        r"n\_step \& 5\% of \$x\textasciicircum{}2\$ "
        r"\{\textbackslash{}x\}\textasciitilde{}\# & $-$5 [$-$6, 7] \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_tables_can_be_read_by_other_programs(written: Path) -> None:
    with open(written / "runs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["configuration"] for row in rows} == {"returns.n=5", "returns.n=9"}
    assert sorted(float(row["final_return"]) for row in rows) == [
        50.0,
        50.0,
        51.0,
        51.0,
        90.0,
        90.0,
        91.0,
        91.0,
    ]
    assert (rows[0]["steps"], rows[0]["solved_steps"], rows[0]["stop_reason"]) == (
        "2000.0",
        "1000.0",
        "total_steps",
    )
    with open(written / "curves.csv", newline="") as file:
        points = list(csv.DictReader(file))
    assert {(row["axis"], row["runs"]) for row in points} == {("steps", "2"), ("seconds", "2")}, (
        "metrics.csv says nothing of episodes"
    )
    last = [
        row for row in points if row["configuration"] == "returns.n=9" and row["axis"] == "steps"
    ][-1]
    assert [float(last[name]) for name in ("x", "iqm", "low", "high")] == [2000.0, 90.5, 90.0, 91.0]
