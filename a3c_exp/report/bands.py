"""Learning curves of several runs as one: the interquartile mean with a bootstrap band, over steps and over seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from a3c_exp.common.estimates import bootstrap_band, interquartile_mean
from a3c_exp.report.runs import Array, Axis, RecordedRun

POINTS = 200
"""Points of a curve at which runs are compared."""


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
    places = [curve.along(axis) for curve in curves]
    start, ends = max(place[0] for place in places), [place[-1] for place in places]
    x = np.linspace(start, max(start, max(ends) if ended else min(ends)), POINTS)
    values = np.stack([np.interp(x, place, curve.returns) for place, curve in zip(places, curves, strict=True)])
    low, high = bootstrap_band(values) if len(curves) > 1 else (values[0], values[0])
    return Band(x, interquartile_mean(values.T), low, high, len(curves))
