"""Rules of a run: when it stops, and when its periodic tasks are due.

A new stop rule needs a field in `core.experiment.Stop`, a line in `find_stop_reason`, and its key in conf/config.yaml.
"""

from __future__ import annotations

import math

from a3c_exp.core.experiment import Stop
from a3c_exp.core.store import SharedStore
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
