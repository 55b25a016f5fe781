"""The ranked table of an environment's configurations, and the comparison of the first two."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from a3c_exp.report.runs import NUMBERS, RecordedRun

EXPLANATION = """\
Configurations are ranked by their {score}, and those with the same by the steps until they were solved. Final return: \
the mean of the last 100 training episodes (of all, where fewer have ended). Best return: of the best evaluation, or \
the highest mean of 100 training episodes of a run without evaluations. These are the interquartile mean over runs \
(without the lowest and the highest quarter; of three runs or fewer, the mean), with its 95 % bootstrap interval. \
Steps, seconds, steps/s: medians, with the range in brackets; a run that has not been solved counts as slowest. \
Staleness: updates of others between a worker's pull and its push, mean."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A configuration and its place. curve: whose last values decide it; None: final returns do."""

    rank: int
    name: str
    runs: list[RecordedRun]
    curve: str | None = None

    @property
    def scores(self) -> list[float]:
        """Of the runs that have one."""
        return _there(run.score(self.curve) for run in self.runs)


def rank(configurations: Mapping[str, list[RecordedRun]], curve: str | None = None) -> list[Ranked]:
    """The configurations of an environment, the highest score first, among equals the one solved soonest.

    curve: whose last value is the score; None: the final return is.
    """

    def place(name: str) -> tuple[float, float]:
        runs = configurations[name]
        scores = _there(run.score(curve) for run in runs)
        score = float(interquartile_mean(np.array(scores))) if scores else -inf
        return -score, median_reached([run.numbers["solved_steps"] for run in runs])

    ordered = sorted(configurations, key=place)
    return [Ranked(number, name, configurations[name], curve) for number, name in enumerate(ordered, 1)]


def cells(ranked: Ranked) -> dict[str, str]:
    """A row of the table, by column."""
    runs = ranked.runs
    numbers = {name: [run.numbers[name] for run in runs] for name in NUMBERS}
    return {
        "rank": str(ranked.rank),
        "configuration": ranked.name,
        "runs": _count(runs),
        "solved": _solved(runs),
        **({} if ranked.curve is None else {ranked.curve: estimate(ranked.scores, digits=3)}),
        "final return": estimate(_there(numbers["final_return"])),
        "best return": estimate(_there(numbers["best_return"])),
        "steps until solved": spread(numbers["solved_steps"], 0),
        "seconds until solved": spread(numbers["solved_seconds"], 1),
        "steps/s": _middle(numbers["steps_per_second"], median, 0),
        "staleness": _middle(numbers["staleness"], mean, 2),
        "folders": _folders([run.folder.name for run in runs]),
    }


def comparison(ranked: Sequence[Ranked]) -> list[str]:
    """The probability that a run of the first configuration ends higher than one of the second, in a sentence; none if
    there is no second one, or one of them has no return."""
    if len(ranked) < 2 or not (ranked[0].scores and ranked[1].scores):
        return []
    first, second = ranked[:2]
    probability = probability_of_improvement(first.scores, second.scores)
    low, high = improvement_interval(first.scores, second.scores)
    alone = min(len(first.scores), len(second.scores)) == 1
    ends = "ends higher" if first.curve is None else f"ends with a higher {first.curve}"
    interval = "" if alone else f" [{low:.2f}, {high:.2f}]"
    return [f"Probability that a run of {first.name} {ends} than one of {second.name}: {probability:.2f}{interval}."]


def _there(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _count(runs: Sequence[RecordedRun]) -> str:
    seeds, unfinished = len({str(run.settings.get("seed")) for run in runs}), sum(not run.ended for run in runs)
    text = str(len(runs)) if seeds == len(runs) else f"{len(runs)} of {seeds} seed{'s' if seeds > 1 else ''}"
    return f"{text}, {unfinished} unfinished" if unfinished else text


def _solved(runs: Sequence[RecordedRun]) -> str:
    if all(run.threshold is None for run in runs):
        return "-"
    return f"{sum(run.numbers['solved_steps'] is not None for run in runs)} of {len(runs)}"


def _folders(names: Sequence[str]) -> str:
    """The names of folders in one, as a shell has it: "returns-gae_seed-*"."""
    return names[0] if len(set(names)) == 1 else f"{os.path.commonprefix(names)}*"  # noqa: RUF071


def _middle(values: Sequence[float | None], statistic: Callable[[list[float]], float], digits: int) -> str:
    there = _there(values)
    return f"{statistic(there):,.{digits}f}" if there else "-"
