"""The loss of A3C: its gradient by the formula and by hand, and its metrics."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
from batches import draw_batch, draw_outputs, make_batch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from a3c_exp.algorithms import A3C, explained_variance
from a3c_exp.common.arrays import Array, Floats
from a3c_exp.networks import NetworkOutputs

SHAPE = (5, 3)
REDUCTIONS: tuple[Literal["mean", "sum"], ...] = ("mean", "sum")


def a_mask() -> Floats:
    mask = np.ones(SHAPE, np.float32)
    mask[1, 0] = mask[4, 2] = mask[3, 1] = 0
    return mask


@pytest.mark.parametrize("mask", [None, a_mask()], ids=["every row", "some rows"])
def test_its_metrics_are_means_without_coefficients(mask: Array | None) -> None:
    """The same for either reduction, so that curves can be compared."""
    x, y = draw_outputs(SHAPE), draw_batch(SHAPE, mask=mask)
    counted = slice(None) if mask is None else mask != 0
    for algorithm in (A3C(value_coefficient=0.3, entropy_coefficient=0.2, reduction=each) for each in REDUCTIONS):
        _, metrics = algorithm.gradient(x, y, 0.0)
        assert metrics == pytest.approx(
            {
                "policy_loss": -(x.log_probs * y.advantages)[counted].mean(),
                "value_loss": 0.5 * ((y.targets - x.values)[counted] ** 2).mean(),
                "entropy": x.entropy[counted].mean(),
            }
        )


@pytest.mark.parametrize("advantage", [3.0, -0.4427041, 0.1, -50.3])
def test_equal_advantages_normalize_to_nothing(advantage: float) -> None:
    """The rounding error of a mean in float32, scaled to 1, would push towards whatever actions were drawn."""
    one = np.zeros((512, 1), np.float32)
    y = make_batch(one, one, one + np.float32(advantage), one)
    by, _ = A3C(normalize_advantages=True, reduction="sum").gradient(NetworkOutputs(one, one, one), y, 0.0)
    np.testing.assert_allclose(by.log_probs, 0, atol=1e-6)


# -- explained variance ------------------------------------------------------------------------------------------------


def floats(*x: float) -> Floats:
    return np.array(x, np.float32).reshape(-1, 1)


@pytest.mark.parametrize(("values", "expected"), [((1, 2, 5), 1), ((4, 4, 4), 0), ((-1, -2, -5), -3)], ids=str)
def test_a_critic_explains_the_share_that_its_errors_leave(values: tuple[float, ...], expected: float) -> None:
    assert explained_variance(floats(*values), floats(1, 2, 5)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("same", [0.0, 0.1, 1e6 + 0.1])
def test_it_is_undefined_where_targets_do_not_vary(same: float) -> None:
    """Not some huge number made of rounding errors, whatever the targets are."""
    assert math.isnan(explained_variance(floats(*range(7)), floats(*[same] * 7)))


def test_rows_that_do_not_count_are_left_out() -> None:
    values, targets, mask = floats(1, 99, 2, 5), floats(1, 7, 2, 5), floats(1, 0, 1, 1)
    assert explained_variance(values, targets, mask) == 1
    assert math.isnan(explained_variance(values, targets, 0 * mask))


@given(arrays(np.float32, (6, 2), elements=st.floats(-100, 100, width=32)), st.integers(0, 100))
def test_it_agrees_with_its_definition_in_float64(targets: Array, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(6, 2)).astype(np.float32)
    wide, errors = targets.astype(np.float64), targets.astype(np.float64) - values
    if wide.var() > 1e-6:
        assert explained_variance(values, targets) == pytest.approx(1 - errors.var() / wide.var(), rel=1e-9, abs=1e-9)
