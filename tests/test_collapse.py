"""A run that loses what it had reached says so, and no other run does."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from runs import config, summary, train, train_config

from a3c_exp.run.collapse import ReturnPeak
from a3c_exp.run.outcome import collapse

CURVES = sorted((Path(__file__).parents[1] / "evidence" / "results" / "curves").glob("*.csv"))
# The spread of a recorded mean's returns is not recorded. That of Pong's scores is about 1.
SPREAD = np.array([-1.0, 1.0])


class Phases(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Episodes of one step, which pay 0, then 10, then 0 again."""

    observation_space = Box(-1, 1, (1,), np.float32)
    action_space = Discrete(2)
    ends = (60, 150)

    def __init__(self) -> None:
        self.episodes = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.episodes += 1
        first, last = self.ends
        reward = 10.0 if first < self.episodes <= last else 0.0
        return np.zeros(1, np.float32), reward, True, False, {}


gymnasium.register("Phases-v0", entry_point=f"{__name__}:Phases")


def peak_of(means: list[float], spread: NDArray[np.float64] = SPREAD * 0) -> ReturnPeak:
    """The peak after means of returns, at 100, 200, ... steps."""
    peak = ReturnPeak()
    for index, mean in enumerate(means, 1):
        peak.add(mean + spread, 100 * index)
    return peak


def test_a_fall_below_a_third_of_the_gain_is_a_collapse_once_it_lasts() -> None:
    peak = peak_of([20.0, 500.0, 500.0, 150.0])
    assert (peak.highest, peak.steps, peak.fallen_at) == (500.0, 300, 400)
    assert not peak.has_collapsed(steps=499, total_steps=1000)
    assert peak.has_collapsed(steps=500, total_steps=1000)
    assert not peak.has_collapsed(steps=699, total_steps=10**9), "as long as it took to get there"
    assert peak.has_collapsed(steps=700, total_steps=10**9)


@pytest.mark.parametrize(
    "means",
    [
        [20.0, 500.0, 200.0],  # more than a third is left
        [20.0, 500.0, 30.0, 400.0],  # it came back
        [-150.0, -300.0, -310.0],  # nothing was gained before
        [20.0, 200.0, 500.0],
    ],
)
def test_other_falls_are_none(means: list[float]) -> None:
    assert peak_of(means).fallen_at is None


def test_a_fall_within_the_spread_of_the_returns_is_none() -> None:
    means = [-20.5, -19.7, -20.5]
    assert peak_of(means, SPREAD).fallen_at is None
    assert peak_of(means, 0.1 * SPREAD).fallen_at == 300


def test_no_recorded_curve_collapses() -> None:
    runs = dict[tuple[str, str], list[dict[str, str]]]()
    for path in CURVES:
        with path.open() as file:
            for row in csv.DictReader(file):
                runs.setdefault((row["record"], row["seed"]), []).append(row)
    assert len(runs) >= 100
    for run, rows in runs.items():
        total_steps = int(rows[-1]["step"])
        peak = ReturnPeak()
        for row in rows:
            steps = int(row["step"])
            peak.add(float(row["rollout/ep_rew_mean"]) + SPREAD, steps)
            assert not peak.has_collapsed(steps, total_steps), (run, steps)
        assert peak.fallen_at is None, run


def test_a_run_that_collapses_says_so_while_it_trains_and_at_its_end(tmp_path: Path) -> None:
    run = train(tmp_path, "Phases-v0", total_steps=2000, plugins=[__name__])
    assert run.summary["collapsed_from"] == pytest.approx(10.0)
    log = (tmp_path / "train.log").read_text()
    assert log.count("training returns have collapsed") == 2
    assert "eval.every" in log  # there is no other policy


def test_the_best_evaluation_is_named_only_if_it_is_better_than_what_is_left(
    tmp_path: Path,
) -> None:
    evaluations = {"every": 200, "episodes": 1}  # of the first phase, which pays nothing
    train(tmp_path, "Phases-v0", total_steps=2000, plugins=[__name__], eval=evaluations)
    assert (tmp_path / "checkpoints" / "best.ckpt").exists()
    lines = (tmp_path / "train.log").read_text().splitlines()
    assert not any("best.ckpt" in line for line in lines if "collapsed" in line)
    assert "best.ckpt" in collapse(tmp_path, mean=0.0, peak=10.0, evaluation=6.0)


def test_a_resumed_run_knows_what_it_had_reached(tmp_path: Path) -> None:
    run_config = config("Phases-v0", total_steps=500, plugins=[__name__])
    train_config(run_config, tmp_path)
    assert summary(tmp_path)["collapsed_from"] is None
    # The environments of the resumed run begin with episodes that pay nothing.
    train_config(run_config | {"total_steps": 740}, tmp_path, resume=True)
    assert summary(tmp_path)["collapsed_from"] == pytest.approx(10.0)
