"""A score and its interval from a handful of seeds (Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of
the Statistical Precipice")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DRAWS = 10_000


def interquartile_mean(scores: Array) -> Array:
    """The mean over the last axis [..., n] without the lowest and the highest n // 4 scores."""
    cut = scores.shape[-1] // 4
    kept = np.sort(scores, axis=-1)[..., cut : scores.shape[-1] - cut]
    return np.asarray(kept.mean(axis=-1))


def bootstrap_interval(
    strata: Sequence[Any], statistic: Callable[[Array], Array] = interquartile_mean, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """The stratified percentile bootstrap interval of a statistic of scores.

    strata: for each task, the scores of its seeds. Seeds are drawn within each task, so that every draw has the same
        number of scores of each task. statistic: takes all drawn scores together, [draws, n].
    """
    rng = np.random.default_rng(seed)
    drawn = []
    for scores in strata:
        values = np.asarray(scores, np.float64)
        drawn.append(values[rng.integers(values.size, size=(DRAWS, values.size))])
    low, high = np.quantile(statistic(np.concatenate(drawn, axis=1)), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
