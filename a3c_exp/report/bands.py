"""Learning curves of several runs as one: the interquartile mean with a bootstrap band, over steps and over seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from a3c_exp.common.estimates import bootstrap_band, interquartile_mean, profile_band
from a3c_exp.report.ranking import Ranked
from a3c_exp.report.runs import Array, Curve, RecordedRun

POINTS = 200
"""Points of a curve at which runs are compared."""

Axis = Callable[[Curve], Array]


def by_steps(curve: Curve) -> Array:
    return curve.steps


def by_seconds(curve: Curve) -> Array:
    return curve.seconds


@dataclass(frozen=True, slots=True)
class Band:
    """The interquartile mean over runs, and its 95 % interval, float64 [points] each. runs: how many they are of."""

    x: Array
    middle: Array
    low: Array
    high: Array
    runs: int


def band(runs: Sequence[RecordedRun], axis: Axis) -> Band | None:
    """The band of the runs that have ended, as far as the longest of them goes: the others keep their last return.

    While none has ended: of all of them, as far as the shortest goes. None if there is nothing to draw yet.
    """
    ended = [run.curve for run in runs if run.ended and len(run.curve.steps)]
    curves = ended or [run.curve for run in runs if len(run.curve.steps)]
    if not curves:
        return None
    start, ends = max(axis(curve)[0] for curve in curves), [axis(curve)[-1] for curve in curves]
    x = np.linspace(start, max(start, max(ends) if ended else min(ends)), POINTS)
    values = np.stack([np.interp(x, axis(curve), curve.returns) for curve in curves])
    low, high = bootstrap_band(values) if len(curves) > 1 else (values[0], values[0])
    return Band(x, interquartile_mean(values.T), low, high, len(curves))


@dataclass(frozen=True, slots=True)
class Profile:
    """A performance profile: the share of runs above each threshold, with its 95 % interval, float64 [points] each."""

    thresholds: Array
    share: Array
    low: Array
    high: Array


def normalized_returns(ranked: Mapping[str, Sequence[Ranked]]) -> dict[str, list[Array]]:
    """For each configuration that has run in every environment, the final returns in each, the best one first.

    ranked: by environment. 0 is the lowest final return of any run of its environment here, 1 the highest. If each
    environment has one configuration, these are one.
    """
    alone = all(len(configurations) == 1 for configurations in ranked.values())
    scores: dict[str, list[Array]] = {}
    for configurations in ranked.values():
        every = [value for each in configurations for value in each.final_returns]
        low, width = (min(every), (max(every) - min(every)) or 1.0) if every else (0.0, 1.0)
        for each in configurations:
            if each.final_returns:
                name = "all runs" if alone else each.name
                scores.setdefault(name, []).append((np.array(each.final_returns) - low) / width)
    everywhere = [name for name, strata in scores.items() if len(strata) == len(ranked)]
    everywhere.sort(key=lambda name: interquartile_mean(np.concatenate(scores[name])).item(), reverse=True)
    return {name: scores[name] for name in everywhere}


def profiles(scores: Mapping[str, Sequence[Array]]) -> dict[str, Profile]:
    """The performance profile of each configuration. scores: see `normalized_returns`."""
    thresholds = np.linspace(0.0, 1.0, POINTS)
    return {name: Profile(thresholds, *profile_band(strata, thresholds)) for name, strata in scores.items()}
