"""When a run stops, when its periodic tasks are due, and which of its policies is the best.

A new stop rule needs a field in `core.experiment.Stop` and a line in `holding_rule`.
"""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

from a3c_exp.core.experiment import Stop
from a3c_exp.core.store import SharedStore
from a3c_exp.errors import ConfigError
from a3c_exp.run import checkpoint
from a3c_exp.run.evaluator import EvalResult
from a3c_exp.run.run_folder import BEST, CHECKPOINTS
from a3c_exp.run.statistics import RunStatistics


def holding_rule(stop: Stop, statistics: RunStatistics, store: SharedStore, *, foreseen: bool = False) -> str | None:
    """The name of the rule that ends the run now, if there is one.

    foreseen: also one that will hold as soon as every environment has ended an episode.
    """
    if stop.mean_return is not None and statistics.reached(stop.mean_return, foreseen):
        return "mean_return"
    if stop.max_episodes is not None and statistics.episodes >= stop.max_episodes:
        return "max_episodes"
    if stop.max_seconds is not None and store.training_seconds >= stop.max_seconds:
        return "max_seconds"
    return None


class Every:
    """Due once a multiple of `interval` has been passed since the last task. None: never due.

    start: where counting begins; a multiple there has been dealt with.
    """

    def __init__(self, interval: int | None, start: int = 0) -> None:
        self._interval = interval
        self.done(start)

    def due(self, value: float) -> bool:
        """Whether the task is to be run now."""
        return value >= self._next

    def done(self, value: int) -> None:
        """Note that the task has been run at this value."""
        self._next = math.inf if self._interval is None else (value // self._interval + 1) * self._interval


class Spreading:
    """Due at once, then every `seconds`, and less often later: after a longer run by `share` of the time that it took.

    With half a second and a thousandth that is about two thousand times in a run of any length.
    """

    def __init__(self, seconds: float, share: float) -> None:
        self._seconds, self._share, self._next = seconds, share, 0.0

    def due(self, now: float) -> bool:
        """Whether the task is to be run now."""
        return now >= self._next

    def done(self, now: float) -> None:
        """Note that the task has been run now."""
        self._next = now + self._seconds + self._share * now


class BestPolicy:
    """The mean return of the best evaluation so far; None before the first."""

    def __init__(self) -> None:
        self.mean_return: float | None = None

    def is_better(self, result: EvalResult, *, equal_counts: bool = False) -> bool:
        """Note an evaluation, and return whether it is the best so far. equal_counts: also if it equals the best."""
        mean, best = result.mean_return, self.mean_return
        better = not math.isnan(mean) and (best is None or mean > best or (equal_counts and mean == best))
        if better:
            self.mean_return = mean
        return better

    def resume(self, mean_return: float | None, folder: Path) -> None:
        """Continue from a checkpoint. A run that was killed may have found a better policy after it last saved its
        state: that policy is not to be overwritten by a worse one."""
        self.mean_return = mean_return
        with suppress(ConfigError):
            best = checkpoint.load(folder / CHECKPOINTS / BEST)["best_eval_return"]
            self.mean_return = best if mean_return is None else max(best, mean_return)
