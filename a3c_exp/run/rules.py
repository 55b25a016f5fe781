"""Rules of a run: when it stops, when its periodic tasks are due, and which evaluated policy is the best.

A new stop rule needs a field in `core.experiment.Stop`, a line in `find_stop_reason`, and its key in conf/config.yaml.
"""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

from a3c_exp.core.experiment import Stop
from a3c_exp.core.store import SharedStore
from a3c_exp.errors import ConfigError
from a3c_exp.run.evaluator import EvalResult
from a3c_exp.run.run_folder import BEST, CHECKPOINTS
from a3c_exp.run.saved_state import load_state
from a3c_exp.run.statistics import RunStatistics


def find_stop_reason(stop: Stop, statistics: RunStatistics, store: SharedStore, wait_for_all: bool) -> str | None:
    """The name of the rule that ends the run now; None if the run continues.

    wait_for_all: see `RunStatistics.reached`.
    """
    if stop.mean_return is not None and statistics.reached(stop.mean_return, wait_for_all, stop.window):
        return "mean_return"
    if stop.max_episodes is not None and statistics.episodes >= stop.max_episodes:
        return "max_episodes"
    if stop.max_seconds is not None and store.training_seconds >= stop.max_seconds:
        return "max_seconds"
    return None


def leaving_rule(stop: Stop, statistics: RunStatistics) -> str:
    """The rule by which a run has ended before its total steps: that of most of the workers that say why they leave."""
    # One that had finished all its episodes in an earlier session says nothing.
    silent = "total_steps" if stop.worker_episodes is None else "worker_episodes"
    ((rule, _),) = statistics.left.most_common(1) or [(silent, 0)]
    return rule


class Every:
    """A rule for when a task is due: a multiple of `interval` has been passed since it was last due. None: never.

    start: value from which counting begins; a multiple at `start` itself counts as done.
    """

    def __init__(self, interval: int | None, start: int = 0) -> None:
        self._interval = interval
        self._next = self._multiple_after(start)

    def __call__(self, value: int) -> bool:
        due = value >= self._next
        if due:
            self._next = self._multiple_after(value)
        return due

    def _multiple_after(self, value: int) -> float:
        return math.inf if self._interval is None else (value // self._interval + 1) * self._interval


class GrowingInterval:
    """A rule for when a task is due: at once, then at intervals of `seconds` plus `share` of the time since the start.

    With half a second and 1/1000 a run of an hour has two thousand points, and a run of a day five thousand.
    """

    def __init__(self, seconds: float, share: float) -> None:
        self._seconds = seconds
        self._share = share
        self._next = 0.0

    def __call__(self, now: float) -> bool:
        due = now >= self._next
        if due:
            self._next = now + self._seconds + self._share * now
        return due


class BestPolicy:
    """The mean return of the best evaluation so far; None before the first."""

    def __init__(self) -> None:
        self.mean_return: float | None = None

    def is_better(self, result: EvalResult, *, equal_counts: bool = False) -> bool:
        """Note an evaluation; return whether it is the best so far. equal_counts: a result equal to the best counts."""
        mean, best = result.mean_return, self.mean_return
        better = not math.isnan(mean) and (best is None or mean > best or (equal_counts and mean == best))
        if better:
            self.mean_return = mean
        return better

    def resume(self, mean_return: float | None, folder: Path) -> None:
        """Continue from a checkpoint's value, or from that of best.ckpt if it is higher.

        A killed run may have saved a better policy after its last checkpoint. A worse one must not overwrite it.
        """
        self.mean_return = mean_return
        with suppress(ConfigError):
            best = load_state(folder / CHECKPOINTS / BEST)["best_eval_return"]
            self.mean_return = max((each for each in (best, mean_return) if each is not None), default=None)
