"""Sums and means over the rows of an array that are transitions, for closed forms of losses."""

from __future__ import annotations

import math

import numpy as np

from a3c_exp.common.arrays import Array, Floats


def count_of(rows: Floats, mask: Floats | None) -> float:
    """Number of transitions, at least 1: a rollout of one row can hold no transition, and then its gradient is 0."""
    return float(rows.size) if mask is None else max(float(mask.sum()), 1.0)


def masked(rows: Array, mask: Floats | None) -> Array:
    """The rows, with 0 for those that are no transitions, whatever they hold."""
    return rows if mask is None else np.where(mask != 0, rows, rows.dtype.type(0))


def total(rows: Array, mask: Floats | None) -> float:
    """The sum over the transitions."""
    return float(rows.sum()) if mask is None else float(rows[mask != 0].sum())


def dot(a: Array, b: Array) -> float:
    """The sum of products of all elements."""
    return float(np.vdot(a, b))


def broadcast(number: float, like: Floats, mask: Floats | None) -> Floats:
    """The number in every row that is a transition, 0 in the others."""
    return np.full_like(like, number) if mask is None else mask * np.float32(number)


def closed_form_advantages(advantages: Floats, mask: Floats | None, normalize: bool) -> tuple[Floats, float]:
    """The advantages [T, B] of a closed form, 0 for rows that are no transitions, and the number of transitions.

    normalize: to mean 0 and standard deviation 1, in float64: if all advantages are the same, float32's error in their
        mean would be all that is left of them, and would be scaled to 1.
    """
    count = count_of(advantages, mask)
    if normalize:
        wide = advantages.astype(np.float64)
        deviations = wide - total(wide, mask) / count
        counted = masked(deviations, mask)
        advantages = (deviations / (math.sqrt(dot(counted, counted) / count) + 1e-8)).astype(np.float32)
    # Masked last: a row that is no transition may hold anything, and 0 times infinity is not 0.
    return masked(advantages, mask), count


def explained_variance(values: Floats, targets: Floats, mask: Array | None = None) -> float:
    """1 - Var[targets - values] / Var[targets]: 1 for a perfect critic, 0 for one no better than a constant.

    values, targets: float32 [T, B], the critic's predictions and its targets.
    mask: [T, B], other than 0 for a transition; None: every row is one.
    NaN if the targets do not vary, since the ratio has no meaning then.
    """
    # In double precision the variance of equal numbers is exactly 0, and that of nearly equal ones is right.
    wide = targets.ravel().astype(np.float64)
    errors = wide - values.ravel()
    if mask is not None:
        counted = mask.ravel() != 0
        wide, errors = wide[counted], errors[counted]
    variance = _squared_deviations(wide)
    return 1 - _squared_deviations(errors) / variance if variance > 0 else math.nan


def mean_value(values: Floats, mask: Floats | None = None) -> float:
    """The mean of V over the transitions [T, B], float32; 0 if there are none. mask: as `explained_variance` has it."""
    return total(values, mask) / count_of(values, mask)


def _squared_deviations(x: Array) -> float:
    """Sum of squared deviations from the mean; 0 for an empty array. (`var` takes longer at this size.)"""
    deviations = x - np.add.reduce(x) / max(x.size, 1)
    return float(deviations.dot(deviations))
