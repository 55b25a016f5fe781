"""The ranked table of an environment's configurations, and what tells them apart."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import inf
from statistics import median
from typing import NamedTuple

import numpy as np

from a3c_exp.common import estimates
from a3c_exp.common.estimates import estimate, interquartile_mean, median_reached, spread
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

RecordedRuns = Sequence[RecordedRun]
"""The runs of one configuration."""

MOST_COMPARED = 10
"""Configurations that are compared with each other: of more, the first ones of the ranking."""
FEW_RUNS = 5
"""With fewer a bootstrap sees too little of how much runs differ: in one of five comparisons of a
configuration with itself, three runs each, it finds one ahead."""


def rank(
    configurations: Mapping[str, RecordedRuns], curve: str | None = None
) -> dict[str, RecordedRuns]:
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


def scores(runs: RecordedRuns, curve: str | None) -> list[float]:
    """Return the scores of those runs that have one: see `rank`."""
    return _there(run.score(curve) for run in runs)


def ranking_table(
    ranked: Mapping[str, RecordedRuns], curve: str | None = None
) -> list[dict[str, str]]:
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


class Improvement(NamedTuple):
    """How probable it is that a run of one configuration ends higher than a run of another.

    probability: ties count half. low, high: its 95 % interval.
    by_steps: the runs all end alike, and the one that is solved sooner counts as higher.
    decisive: neither configuration has fewer than FEW_RUNS runs, and the interval excludes 0.5.
    """

    probability: float
    low: float
    high: float
    by_steps: bool
    decisive: bool


def improvement_of(
    first: RecordedRuns, second: RecordedRuns, curve: str | None
) -> Improvement | None:
    """Compare the runs of two configurations by their scores; None if one of them has no score."""
    x = scores(first, curve)
    y = scores(second, curve)
    if not x or not y:
        return None

    by_steps = len({*x, *y}) == 1
    if by_steps:
        x = [-(run.numbers["solved_steps"] or inf) for run in first]
        y = [-(run.numbers["solved_steps"] or inf) for run in second]

    probability, low, high = estimates.improvement(x, y)
    are_enough = min(len(x), len(y)) >= FEW_RUNS
    return Improvement(probability, low, high, by_steps, are_enough and not low <= 0.5 <= high)


def comparison(ranked: Mapping[str, RecordedRuns], curve: str | None = None) -> list[str]:
    """Return sentences on whether the runs tell the first configuration from the others, of which
    the first MOST_COMPARED are compared; none of a single one.

    It is ahead of another if the interval of the probability that a run of it ends higher lies
    above 0.5. That may lie below: a few runs that end high raise a mean.
    """
    names = list(ranked)[:MOST_COMPARED]
    if len(names) < 2:
        return []

    first, *followers = names
    counts = {name: len(scores(ranked[name], curve)) for name in names}
    few = [name for name in followers if min(counts[first], counts[name]) < FEW_RUNS]
    sentences = [_verdict(ranked, first, name, curve) for name in followers if name not in few]

    if few:
        numbers = ", of ".join(f"{name}: {counts[name]}" for name in [first, *few])
        sentences.append(
            f"Undecided between {_listed([first, *few])}: runs of {numbers}; "
            f"{FEW_RUNS} or more of each may tell."
        )
    return sentences


def _verdict(ranked: Mapping[str, RecordedRuns], first: str, second: str, curve: str | None) -> str:
    result = improvement_of(ranked[first], ranked[second], curve)
    assert result is not None
    ends = "ends higher" if curve is None else f"ends with a higher {curve}"
    if result.by_steps:
        ends = "is solved after fewer steps"

    is_ahead = result.decisive and result.probability > 0.5
    verdict = f"{first} is ahead of {second}"
    if not is_ahead:
        verdict = f"Undecided between {_listed([first, second])}"
    probability = f"{result.probability:.2f} (95 % interval {result.low:.2f} to {result.high:.2f})"
    return f"{verdict}: a run of {first} {ends} with a probability of {probability}."


def _listed(names: Sequence[str]) -> str:
    """Return names in one text, in the order of the alphabet: "a, b and c"."""
    *firsts, last = sorted(names)
    return f"{', '.join(firsts)} and {last}"


def improvement_table(
    ranked: Mapping[str, RecordedRuns], curve: str | None = None
) -> list[dict[str, str]]:
    """Return the probabilities that a run of a row's configuration ends higher than a run of a
    column's, which is named by its place; no rows for fewer than three configurations.

    A star marks a decisive one: see `Improvement`.
    """
    names = list(ranked)[:MOST_COMPARED]
    if len(names) < 3:
        return []

    cells: dict[tuple[str, str], str] = {}
    for first, second in combinations(names, 2):
        result = improvement_of(ranked[first], ranked[second], curve)
        if result is not None:
            star = "*" * result.decisive
            cells[first, second] = f"{result.probability:.2f}{star}"
            cells[second, first] = f"{1 - result.probability:.2f}{star}"

    return [
        {"configuration": f"{position}: {name}"}
        | {str(number): cells.get((name, other), "-") for number, other in enumerate(names, 1)}
        for position, name in enumerate(names, 1)
    ]


def normalized_table(
    by_environment: Mapping[str, Mapping[str, RecordedRuns]],
) -> list[dict[str, str]]:
    """Return the interquartile mean of each configuration's final returns in several environments,
    with its stratified 95 % interval, the highest first.

    A return of 0 is that with which the runs of an environment begin, in the median, and 1 its
    threshold. No rows unless a configuration has runs in two environments where that can be said.
    """
    normalized: dict[str, list[list[float]]] = defaultdict(list)
    for configurations in by_environment.values():
        runs = [run for members in configurations.values() for run in members]
        starts = [run.curve.returns[0] for run in runs if run.curve.returns.size]
        thresholds = [run.threshold for run in runs if run.threshold is not None]
        if not starts or not thresholds or max(thresholds) <= median(starts):
            continue

        start = median(starts)
        for name, members in configurations.items():
            returns = np.array(scores(members, None))
            if returns.size:
                normalized[name].append(list((returns - start) / (max(thresholds) - start)))

    several = {name: groups for name, groups in normalized.items() if len(groups) > 1}
    means = {name: interquartile_mean(np.concatenate(groups)) for name, groups in several.items()}

    rows = []
    for name in sorted(several, key=lambda name: -means[name]):
        low, high = estimates.stratified_interval(several[name])
        rows.append(
            {
                "configuration": name,
                "environments": str(len(several[name])),
                "runs": str(sum(map(len, several[name]))),
                "normalized return": f"{means[name]:.3f} [{low:.3f}, {high:.3f}]",
            }
        )
    return rows


def _there(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _count(runs: RecordedRuns) -> str:
    seeds = len({str(run.settings.get("seed")) for run in runs})
    unfinished = sum(not run.ended for run in runs)

    text = str(len(runs))
    if seeds != len(runs):
        text += f" of {seeds} seed{'s' if seeds > 1 else ''}"

    return f"{text}, {unfinished} unfinished" if unfinished else text


def _solved(runs: RecordedRuns) -> str:
    if all(run.threshold is None for run in runs):
        return "-"
    return f"{sum(run.numbers['solved_steps'] is not None for run in runs)} of {len(runs)}"


def _folders(names: Sequence[str]) -> str:
    """Return the names of folders in one, as a shell has it: "returns-gae_seed-*"."""
    return names[0] if len(set(names)) == 1 else f"{os.path.commonprefix(names)}*"  # noqa: RUF071
