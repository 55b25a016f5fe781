"""Searches: the trials of a command, their scores, and going on with a search that was cut. Runs
are on serial."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml
from refusals import Refuses
from runs import QUICK, content
from test_report import curve, run

import a3c_exp.__main__ as program
from a3c_exp.cli.search import score_of

FOUR = [
    *(*QUICK[:-2], "total_steps=400", "eval.every=null", "sweep=searched", "jobs=4", "seed=0,1"),
    *(
        "optimizer.learning_rate=loguniform(1e-5,1e-1)",
        "gamma=interval(0.5,1)",
        "returns=n_step,gae",
    ),
]


@pytest.mark.parametrize(
    ("files", "scores"),
    [
        (
            {"best_eval_return": 7.0, "eval": 3.0},
            {"best": 7, "last": 3, "ep_rew_mean": 20, "eval/mean_reward": 3},
        ),
        (
            {"best_eval_return": None, "mean_return_100": 9.0},
            {"best": 20, "last": 9, "success_rate": -math.inf},
        ),
        ({"best_eval_return": None, "mean_return_100": None}, {"best": 20, "last": 20}),
        (
            {
                "mean_return_100": 9.0,
                "stop_reason": "mean_return",
                "settings": {"stop.mean_return": 8.0},
            },
            {"last": 9},
        ),
        (
            {"stop_reason": "failed"},
            {"best": -math.inf, "last": -math.inf, "ep_rew_mean": -math.inf},
        ),
        ({"summary": "{"}, {"best": -math.inf}),
    ],
)
def test_a_run_has_a_score_by_its_evaluations_or_a_curve(
    files: dict[str, Any], scores: dict[str, float], tmp_path: Path
) -> None:
    """A run with fewer than 100 episodes has the mean return of those that it has."""
    evaluation = files.pop("eval", None)
    summary = files.pop("summary", None)
    run(tmp_path / "run", **files)
    curve(tmp_path / "run", (100, 1.0, 10.0), (200, 2.0, 20.0))
    if evaluation is not None:
        header = "step,wall_seconds,rollout/ep_rew_mean,eval/mean_reward"
        lines = f"{header}\n100,1,20,9\n200,2,,{evaluation}\n"
        (tmp_path / "run" / "metrics.csv").write_text(lines)
    if summary is not None:
        (tmp_path / "run" / "summary.json").write_text(summary)
    assert {name: score_of(tmp_path / "run", name) for name in scores} == scores


def chosen(folder: Path) -> dict[str, tuple[Any, ...]]:
    """What was searched, by folder of a run."""
    configs = {
        path.parent.name: yaml.safe_load(path.read_text())
        for path in sorted(folder.glob("*/config.yaml"))
    }
    return {
        name: (each["optimizer"]["learning_rate"], each["gamma"], each["returns"]["_target_"])
        for name, each in configs.items()
    }


def test_a_trial_is_a_run_a_seed_and_the_same_command_goes_on(
    here: Path, in_process: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a search that was killed in its third trial, finished runs stay byte for byte, and the
    trials are the same."""
    pytest.importorskip("optuna")
    folder = here / "searched"
    assert program.main([*FOUR, "search=4"]) == 0
    trials = chosen(folder)
    assert list(trials) == [
        f"trial-00{trial}_seed-{seed}" for trial in range(1, 5) for seed in (0, 1)
    ]
    for trial in range(1, 5):
        assert trials[f"trial-00{trial}_seed-0"] == trials[f"trial-00{trial}_seed-1"]
    assert len(set(trials.values())) == 4
    scores = [
        fmean(score_of(folder / f"trial-00{trial}_seed-{seed}", "best") for seed in (0, 1))
        for trial in range(1, 5)
    ]
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith(f"the best of 4 trials is {scores.index(max(scores)) + 1}: ")
    assert line.endswith(f"best {max(scores):.5g}")
    before = {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.parent != folder
    }
    (folder / "trial-003_seed-1" / "summary.json").unlink()
    assert program.main([*FOUR, "search=5"]) == 0
    assert {name: each for name, each in chosen(folder).items() if name in trials} == trials
    assert len(chosen(folder)) == 10
    assert json.loads((folder / "trial-003_seed-1" / "summary.json").read_text())["resumed"] == 1
    assert {path for path, content in before.items() if path.read_bytes() != content} <= set(
        (folder / "trial-003_seed-1").rglob("*")
    )


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ("search=3 gamma=0.9,0.99", "search", 3),
        ("search=3 sweep=x seed=0,1", "search", 3),
        ("search=0 sweep=x gamma=0.9,0.99", "search", "0"),
        ("objective=best sweep=x gamma=0.9,0.99", "objective", "best"),
        ("search=3 sweep=x hydra/launcher=submitit_local gamma=0.9,0.99", "search", 3),
        ("search=3 sweep=x gamma=0.9,0.99,1.5", "gamma", 1.5),
        ("search=3 sweep=x gamma=interval(0.9,1.5)", "gamma", 1.5),
        ("search=3 sweep=x gamma=interval(0.99,0.9)", "gamma", "0.99 to 0.9"),
        ("search=3 sweep=x gamma=tag(log,interval(0,1))", "gamma", "0 to 1"),
        ("search=3 sweep=x rollout_length=int(loguniform(0.5,8))", "rollout_length", "0 to 8"),
        (
            "search=3 sweep=x gamma=0.9,0.99 seed=range(0,20000)",
            "command line",
            "seed=range(0,20000)",
        ),
        ("search=3 sweep=x rollout_length=interval(8,64)", "rollout_length", 25.825),
        ("sweep=x gamma=interval(0.9,1)", "gamma", "interval(0.9,1)"),
        (
            "sweep=x optimizer.learning_rate=loguniform(1e-4,1e-2)",
            "optimizer.learning_rate",
            "loguniform(1e-4,1e-2)",
        ),
    ],
)
def test_a_search_that_cannot_be_made_is_refused(
    words: str, key: str, value: object, here: Path, refuses: Refuses
) -> None:
    if isinstance(value, float) or "seed=" in words or " to " in str(value):
        pytest.importorskip("optuna")
    refuses([*QUICK, *words.split()], key, value)
    assert list(here.iterdir()) == []


def test_whole_numbers_are_searched_and_a_trial_that_failed_is_not_run_again(
    here: Path, in_process: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is the worst, whatever curve it has left, and even if no other has one yet."""
    pytest.importorskip("optuna")
    (here / "trigger").touch()
    monkeypatch.setattr("a3c_exp.cli.search.score_of", lambda folder, objective: 1.0)
    failing = ["plugins=[faulty]", "algorithm={_target_:faulty.FailingA3C,trigger:trigger}"]
    command = [
        *QUICK,
        *failing,
        "backend=threads",
        "sweep=searched",
        "search=2",
        "rollout_length=int(interval(8,64))",
    ]
    command += ["objective=ep_len_mean"]
    assert program.main(command) == 1
    assert "the best of 2 trials is 2: " in capfd.readouterr().err
    before = content(here / "searched")
    lengths = [
        yaml.safe_load(path.read_text())["rollout_length"]
        for path in (here / "searched").glob("*/config.yaml")
    ]
    assert len(lengths) == 2 and all(8 <= each <= 64 for each in lengths)
    assert program.main(command) == 1, "it counts as failed"
    assert content(here / "searched") == before


@pytest.mark.parametrize("combinations", [0, 200])
def test_a_combination_that_cannot_run_is_refused_or_counts_as_a_failed_trial(
    combinations: int,
    here: Path,
    in_process: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    refuses: Refuses,
) -> None:
    """PPO learns without V-trace, A3C with either. What was not tried before the first trial does
    not end the search, nor the same command once more."""
    pytest.importorskip("optuna")
    monkeypatch.setattr("a3c_exp.cli.search.MOST_PROBES", combinations)
    choices = ["algorithm=a3c,ppo", "returns=vtrace,n_step"]
    command = [*QUICK, "rollout_length=64", "sweep=searched", "search=6", *choices]
    if combinations:
        refuses(command, "returns", ...)
        return

    for _ in range(2):
        assert program.main(command) == 1
        lines = capfd.readouterr().err
        assert "cannot be run, and counts as failed" in lines
        assert "the best of 6 trials is" in lines


def test_trials_of_one_batch_may_be_one_configuration(
    here: Path, in_process: None, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    command = [
        *QUICK,
        "sweep=searched",
        "search=4",
        "jobs=4",
        "returns=gae,gae_095",
        "returns.lambda_=0.9",
    ]
    assert program.main(command) == 0
    best = re.search(r"the best of 4 trials is (\d)", capfd.readouterr().err)
    assert best and (here / "searched" / f"trial-00{best[1]}").is_dir()


def test_an_objective_that_no_run_has_ends_the_search_after_its_first_trials(
    here: Path, in_process: None
) -> None:
    """As many as fit: four runs at once are two trials of two seeds, and one at a time a trial."""
    pytest.importorskip("optuna")
    alone = [word for word in FOUR if not word.startswith("jobs=")]
    assert program.main([*alone, "search=4", "objective=success_rate"]) == 2
    assert len(chosen(here / "searched")) == 2
    assert program.main([*FOUR, "search=4", "objective=success_rate"]) == 2
    assert len(chosen(here / "searched")) == 4
    assert program.main([*FOUR, "search=2", "objective=ep_rew_mean"]) == 0


def test_a_search_needs_an_extra(
    here: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "a3c-exp[search]" in refuses(
        [*QUICK, "search=3", "sweep=x", "gamma=0.9,0.99"], "search", 3
    )
