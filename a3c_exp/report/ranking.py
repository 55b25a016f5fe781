"""The ranked table of an environment's configurations, and the comparison of the first two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import mean, median

import numpy as np

from a3c_exp.common.estimates import (
    estimate,
    improvement_interval,
    interquartile_mean,
    median_reached,
    probability_of_improvement,
    spread,
)
from a3c_exp.report.runs import RecordedRun

EXPLANATION = """\
Configurations are ranked by their final return, the mean of the last 100 training episodes (of all, where fewer have
ended), and those with the same by the steps until they were solved. Best return: of the best evaluation, or the highest
mean of 100 training episodes of a run without evaluations. Both are the interquartile mean
over runs (without the lowest and the highest quarter; of three runs or fewer, the mean), with its 95 % bootstrap
interval. Steps, seconds, steps/s: medians, with the range in brackets; a run that has not been solved counts as
slowest. Staleness: updates of others between a worker's pull and its push, mean."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A configuration and its place."""

    rank: int
    name: str
    runs: list[RecordedRun]

    @property
    def final_returns(self) -> list[float]:
        """Of the runs that have one."""
        return [run.final_return for run in self.runs if run.final_return is not None]


def rank(configurations: Mapping[str, list[RecordedRun]]) -> list[Ranked]:
    """The configurations of an environment, the highest final return first, among equals the one solved soonest."""

    def place(name: str) -> tuple[float, float]:
        runs = configurations[name]
        returns = [run.final_return for run in runs if run.final_return is not None]
        score = float(interquartile_mean(np.array(returns))) if returns else -inf
        return -score, median_reached([run.solved_steps for run in runs])

    ordered = sorted(configurations, key=place)
    return [Ranked(number, name, configurations[name]) for number, name in enumerate(ordered, 1)]


def cells(ranked: Ranked) -> dict[str, str]:
    """A row of the table, by column."""
    runs = ranked.runs
    return {
        "rank": str(ranked.rank),
        "configuration": ranked.name,
        "runs": _count(runs),
        "solved": _solved(runs),
        "final return": estimate(ranked.final_returns),
        "best return": estimate([run.best_return for run in runs if run.best_return is not None]),
        "steps until solved": _spread([run.solved_steps for run in runs], 0),
        "seconds until solved": _spread([run.solved_seconds for run in runs], 1),
        "steps/s": _middle([run.steps_per_second for run in runs], median, 0),
        "staleness": _middle([run.staleness for run in runs], mean, 2),
    }


def comparison(ranked: Sequence[Ranked]) -> list[str]:
    """The probability that a run of the first configuration ends higher than one of the second, in a sentence; none if
    there is no second one, or one of them has no return."""
    if len(ranked) < 2 or not (ranked[0].final_returns and ranked[1].final_returns):
        return []
    first, second = ranked[:2]
    probability = probability_of_improvement(first.final_returns, second.final_returns)
    low, high = improvement_interval(first.final_returns, second.final_returns)
    alone = min(len(first.final_returns), len(second.final_returns)) == 1
    interval = "" if alone else f" [{low:.2f}, {high:.2f}]"
    return [
        f"Probability that a run of {first.name} ends higher than one of {second.name}: {probability:.2f}{interval}."
    ]


def _count(runs: Sequence[RecordedRun]) -> str:
    seeds, unfinished = len({str(run.seed) for run in runs}), sum(not run.ended for run in runs)
    text = str(len(runs)) if seeds == len(runs) else f"{len(runs)} of {seeds} seed{'s' if seeds > 1 else ''}"
    return f"{text}, {unfinished} unfinished" if unfinished else text


def _solved(runs: Sequence[RecordedRun]) -> str:
    if all(run.threshold is None for run in runs):
        return "-"
    return f"{sum(run.solved_steps is not None for run in runs)} of {len(runs)}"


def _spread(values: Sequence[float | None], digits: int) -> str:
    """See `spread`; of a single run there is no range."""
    (first, *others) = values
    return spread(values, digits) if others or first is None else f"{first:,.{digits}f}"


def _middle(values: Sequence[float | None], statistic: Callable[[list[float]], float], digits: int) -> str:
    there = [value for value in values if value is not None]
    return f"{statistic(there):,.{digits}f}" if there else "-"
