"""The rules that end a run before its `total_steps`. A new rule needs a field in `core.experiment.Stop` and a line
here."""

from __future__ import annotations

from a3c_exp.core.experiment import Stop
from a3c_exp.core.store import SharedStore
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
