"""The ranked table of an environment's configurations, and the comparison of the first two."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from math import inf

import numpy as np

from a3c_exp.common.estimates import (
    estimate,
    improvement,
    interquartile_mean,
    median_reached,
    spread,
)
from a3c_exp.report.runs import RUN_NUMBERS, RecordedRun

EXPLANATION = """\
In the order of the {score}, among equals of the steps until solved. Returns: interquartile \
means over runs (of three or fewer, means) with 95 % bootstrap intervals, too narrow for few \
runs: of two equal configurations of five runs one in ten is found ahead. Final return: the mean \
of the last 100 training episodes, with sampled actions; of a run that stop.mean_return has \
ended, that number. Best return: of the best evaluation, of greedy actions, or the highest mean \
of 100 training episodes of a run without evaluations. The others: medians, ranges in brackets; \
a run that is not solved counts as slowest. Staleness: a run's mean number of others' updates \
between pull and push."""

Runs = Sequence[RecordedRun]
FEW_RUNS = 5
"""With fewer a bootstrap sees too little of how much runs differ: in one of five comparisons of a
configuration with itself, three runs each, it finds one ahead."""


def rank(configurations: Mapping[str, Runs], curve: str | None = None) -> dict[str, Runs]:
    """Return the configurations of an environment, the highest score first, among equals the one
    solved soonest.

    curve: whose last value is the score; None: the final return is.
    """

    def sort_key(name: str) -> tuple[float, float]:
        runs = configurations[name]
        run_scores = scores(runs, curve)
        score = float(interquartile_mean(np.array(run_scores))) if run_scores else -inf
        return -score, median_reached([run.numbers["solved_steps"] for run in runs])

    return {name: configurations[name] for name in sorted(configurations, key=sort_key)}


def scores(runs: Runs, curve: str | None) -> list[float]:
    """Return the scores of those runs that have one: see `rank`."""
    return _there(run.score(curve) for run in runs)


def table(ranked: Mapping[str, Runs], curve: str | None = None) -> list[dict[str, str]]:
    """Return a row for each configuration, by column. curve: that by which they are ranked."""
    rows = []
    for name, runs in ranked.items():
        numbers = {key: [run.numbers[key] for run in runs] for key in RUN_NUMBERS}
        row = {
            "configuration": name,
            "runs": _count(runs),
            "solved": _solved(runs),
            **({} if curve is None else {curve: estimate(scores(runs, curve))}),
            "final return": estimate(scores(runs, None)),
            "best return": estimate(_there(numbers["best_return"])),
            "steps until solved": spread(numbers["solved_steps"], 0),
            "seconds until solved": spread(numbers["solved_seconds"], 1),
            "steps/s": spread(_there(numbers["steps_per_second"]), 0),
            "staleness": spread(_there(numbers["staleness"]), 2),
            "folders": _folders([run.folder.name for run in runs]),
        }
        rows.append(row)
    return rows


def comparison(ranked: Mapping[str, Runs], curve: str | None = None) -> list[str]:
    """Return a sentence on whether the runs tell the first two configurations apart; none of a
    single one.

    They do if the interval of the probability that a run of the first ends higher lies above 0.5;
    where all end alike, that it is solved sooner. It may lie below: a few runs that end high raise
    a mean.
    """
    if len(ranked) < 2:
        return []

    first, second = list(ranked)[:2]
    x = scores(ranked[first], curve)
    y = scores(ranked[second], curve)
    undecided = f"Undecided between {' and '.join(sorted([first, second]))}"
    if min(len(x), len(y)) < FEW_RUNS:
        counts = f"runs of {first}: {len(x)}, of {second}: {len(y)}"
        return [f"{undecided}: {counts}; {FEW_RUNS} or more of each may tell."]

    ends = "ends higher" if curve is None else f"ends with a higher {curve}"
    if len({*x, *y}) == 1:
        x = [-(run.numbers["solved_steps"] or inf) for run in ranked[first]]
        y = [-(run.numbers["solved_steps"] or inf) for run in ranked[second]]
        ends = "is solved after fewer steps"
    share, low, high = improvement(x, y)
    verdict = f"{first} is ahead of {second}" if low > 0.5 else undecided
    probability = f"{share:.2f} (95 % interval {low:.2f} to {high:.2f})"
    return [f"{verdict}: a run of {first} {ends} with a probability of {probability}."]


def _there(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _count(runs: Sequence[RecordedRun]) -> str:
    seeds = len({str(run.settings.get("seed")) for run in runs})
    unfinished = sum(not run.ended for run in runs)
    text = str(len(runs))
    if seeds != len(runs):
        text += f" of {seeds} seed{'s' if seeds > 1 else ''}"
    return f"{text}, {unfinished} unfinished" if unfinished else text


def _solved(runs: Sequence[RecordedRun]) -> str:
    if all(run.threshold is None for run in runs):
        return "-"
    return f"{sum(run.numbers['solved_steps'] is not None for run in runs)} of {len(runs)}"


def _folders(names: Sequence[str]) -> str:
    """Return the names of folders in one, as a shell has it: "returns-gae_seed-*"."""
    return names[0] if len(set(names)) == 1 else f"{os.path.commonprefix(names)}*"  # noqa: RUF071
