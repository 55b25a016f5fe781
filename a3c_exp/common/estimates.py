"""Estimates from a handful of seeds, with their uncertainty (Agarwal et al. 2021, "Deep
Reinforcement Learning at the Edge of the Statistical Precipice"), and the interval of a mean over
few episodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Statistic = Callable[[Scores], Scores]
"""A function of scores [..., n], which takes its last axis away."""

DRAWS = 10_000
FEW_DRAWS = 1_000
"""Draws where one costs more: for every point of a curve, and for comparisons of all pairs of
runs."""
BOUNDS = (0.025, 0.975)
"""Quantiles of an interval of 95 %."""


def interquartile_mean(scores: Scores) -> Scores:
    """The mean over the last axis [..., n] without the lowest and the highest n // 4 scores."""
    cut = scores.shape[-1] // 4
    middle = np.sort(scores, axis=-1)[..., cut : scores.shape[-1] - cut]
    return np.asarray(middle.mean(axis=-1))


def decimals(values: Sequence[float]) -> int:
    """Return how many decimals returns are shown with: 1, but 3 if all are below 10, as those of
    MiniGrid."""
    return 1 if max(map(abs, values)) >= 10 else 3


def estimate(values: Sequence[float], statistic: Statistic = interquartile_mean) -> str:
    """A statistic with its interval as text: '480.0 [470.1, 490.3]'. One value has no interval; '-'
    for none."""
    if not values:
        return "-"
    digits = decimals(values)
    middle = f"{statistic(np.asarray(values, np.float64)):,.{digits}f}"
    if len(values) == 1:
        return middle
    low, high = bootstrap_interval(values, statistic)
    return f"{middle} [{low:,.{digits}f}, {high:,.{digits}f}]"


def bootstrap_interval(
    scores: Any, statistic: Statistic = interquartile_mean
) -> tuple[float, float]:
    """The percentile bootstrap interval of a statistic of scores [n]. statistic: takes all draws,
    [draws, n]."""
    return _interval(statistic(_drawn(np.random.default_rng(0), scores)))


def stratified_interval(tasks: Sequence[Any]) -> tuple[float, float]:
    """The percentile bootstrap interval of the interquartile mean over the scores of several tasks,
    [n] each, which are drawn within each task."""
    rng = np.random.default_rng(0)
    drawn = np.concatenate([_drawn(rng, scores) for scores in tasks], axis=1)
    return _interval(interquartile_mean(drawn))


def bootstrap_band(curves: Scores) -> tuple[Scores, Scores]:
    """The percentile bootstrap interval of the interquartile mean at each point of curves [n,
    points].

    Returns its lower and its upper bounds, [points].

    Whole curves are drawn: a draw has the same seeds at every point.
    """
    draws = np.random.default_rng(0).integers(len(curves), size=(FEW_DRAWS, len(curves)))
    low, high = np.transpose(
        [np.quantile(interquartile_mean(scores[draws]), BOUNDS) for scores in curves.T]
    )
    return low, high


def probability_of_improvement(x: Any, y: Any) -> float:
    """The probability that a run with a score of x [n] has a higher one than a run of y [m]. A tie
    counts half."""
    ordered = np.sort(y)
    below = np.searchsorted(ordered, x, "left")
    not_above = np.searchsorted(ordered, x, "right")
    return float((below + not_above).mean() / (2 * ordered.size))


def improvement(x: Any, y: Any) -> tuple[float, float, float]:
    """`probability_of_improvement`, and the two ends of its bootstrap interval."""
    rng = np.random.default_rng(0)
    draws = zip(_drawn(rng, x, FEW_DRAWS), _drawn(rng, y, FEW_DRAWS), strict=True)
    return probability_of_improvement(x, y), *_interval(
        np.array([probability_of_improvement(a, b) for a, b in draws])
    )


def student_half_width(values: Any) -> float:
    """Half the width of the 95 % interval of a mean, by Student's t: the normal one is too narrow
    for few values.

    The quantile of t is a series in 1 / degrees of freedom (Abramowitz and Stegun 1964, 26.7.5): of
    5 values the interval is 0.03 % too narrow, of 3 values 1 %, and of 2 values 11 %: there it is
    the quantile of a table.
    values: two or more.
    """
    array = np.asarray(values, np.float64)
    quantile = (
        12.706
        if array.size == 2
        else np.polyval([1.589, 2.5558, 2.8225, 2.3723, 1.96], 1 / (array.size - 1))
    )
    return float(quantile * array.std(ddof=1) / math.sqrt(array.size))


def median_reached(values: Sequence[float | None]) -> float:
    """The median, where None is a run that never reached the value and counts as the slowest."""
    return median(math.inf if value is None else value for value in values)


def spread(values: Sequence[float | None], digits: int) -> str:
    """The median of all runs as text, and the range of those that reached the value; '-' if none
    did.

    Of one run, the value alone.
    """
    reached = [value for value in values if value is not None]
    if not reached:
        return "-"

    middle = median_reached(values)
    text = f"{middle:,.{digits}f}" if math.isfinite(middle) else "never"
    if len(values) > 1:
        text += f" ({min(reached):,.{digits}f} to {max(reached):,.{digits}f})"
    return text


def _drawn(rng: np.random.Generator, scores: Any, draws: int = DRAWS) -> Scores:
    """Scores [n] drawn with replacement: [draws, n]."""
    every = np.asarray(scores, np.float64)
    return np.asarray(every[rng.integers(every.size, size=(draws, every.size))])


def _interval(values: Scores) -> tuple[float, float]:
    low, high = np.quantile(values, BOUNDS)
    return float(low), float(high)
