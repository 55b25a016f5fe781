"""The loss of A3C: its gradient by the formula and by hand, and what it says of itself."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from a3c_exp.algorithms import A3C, Algorithm, Batch, Evaluation, explained_variance
from a3c_exp.errors import ConfigError
from a3c_exp.networks.heads import Categorical
from a3c_exp.schedules import Linear

SHAPE = (5, 3)
COUNT = 15


def draw(seed: int, count: int) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).standard_normal((count, *SHAPE)).astype(np.float32))


def evaluation(seed: int = 0) -> Evaluation:
    return Evaluation(*draw(seed, 3))


def batch(seed: int = 1, mask: np.ndarray | None = None) -> Batch:
    return Batch(*draw(seed, 4), mask=mask)


def a_mask() -> np.ndarray:
    mask = np.ones(SHAPE, np.float32)
    mask[1, 0] = mask[4, 2] = mask[3, 1] = 0
    return mask


def loss(x: Evaluation, y: Batch, value_coefficient: float, entropy: float, reduction: str) -> torch.Tensor:
    """The formula as it is written, for torch to find its derivatives; only the rows that count."""
    counted = slice(None) if y.mask is None else y.mask != 0
    log_probs, h, values = (torch.from_numpy(z.astype(np.float64)).requires_grad_() for z in astuple(x))
    advantages, targets = (torch.from_numpy(z.astype(np.float64)[counted]) for z in (y.advantages, y.targets))
    errors = targets - values[counted]
    terms = -log_probs[counted] * advantages + value_coefficient * 0.5 * errors**2 - entropy * h[counted]
    total = terms.mean() if reduction == "mean" else terms.sum()
    total.backward()
    total.by = [z.grad.numpy() for z in (log_probs, h, values)]
    return total


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("mask", [None, a_mask()], ids=["every row", "some rows"])
def test_its_gradient_is_that_of_the_formula(reduction: str, mask: np.ndarray | None):
    x, y = evaluation(), batch(mask=mask)
    by, _ = A3C(value_coefficient=0.25, entropy=0.1, reduction=reduction).gradient(x, y, 0.0)
    for one, other in zip(astuple(by), loss(x, y, 0.25, 0.1, reduction).by, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
        assert one.dtype == np.float32


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("mask", [None, a_mask()], ids=["every row", "some rows"])
def test_its_gradient_is_that_by_hand(reduction: str, mask: np.ndarray | None):
    """dL/dlog pi = -A, dL/dV = c_v (V - G), dL/dH = -c_e: over the count for a mean, 0 where a row does not count."""
    x, y = evaluation(), batch(mask=mask)
    by, _ = A3C(value_coefficient=0.25, entropy=0.1, reduction=reduction).gradient(x, y, 0.0)
    counted = np.ones(SHAPE) if mask is None else mask
    weight = counted if reduction == "sum" else counted / counted.sum()
    np.testing.assert_allclose(by.log_probs, -y.advantages * weight, rtol=1e-5)
    np.testing.assert_allclose(by.values, 0.25 * (x.values - y.targets) * weight, rtol=1e-5)
    np.testing.assert_allclose(by.entropy, -0.1 * weight, rtol=1e-5)


def test_its_gradient_reaches_the_logits_of_a_softmax_as_by_hand():
    """dL/dlogits = A (pi - onehot) + c_e pi (log pi + H), for one state."""
    logits = np.array([[0.5, -1.0, 0.2]], np.float32)
    action, advantage, c = 2, 1.7, 0.3
    log_probs, entropy, backward = Categorical(1, Discrete(3)).evaluate(logits, np.array([action]))
    one = np.ones((1, 1), np.float32)
    x = Evaluation(log_probs[None], entropy[None], 0 * one)
    by, _ = A3C(entropy=c).gradient(x, Batch(0 * one, 0 * one, advantage * one, 0 * one), 0.0)
    pi = np.exp(logits[0]) / np.exp(logits[0]).sum()
    expected = advantage * (pi - np.eye(3)[action]) + c * pi * (np.log(pi) - (pi * np.log(pi)).sum())
    np.testing.assert_allclose(backward(by.log_probs[0], by.entropy[0])[0], expected, rtol=1e-5)


def test_the_policy_learns_nothing_from_the_critics_error_nor_the_critic_from_the_advantage():
    by, _ = A3C(entropy=0.0).gradient(evaluation(), replace(batch(), advantages=np.zeros(SHAPE, np.float32)), 0.0)
    assert not by.log_probs.any() and not by.entropy.any() and by.values.all()
    by, _ = A3C(value_coefficient=0.0).gradient(evaluation(), batch(), 0.0)
    assert not by.values.any() and by.log_probs.all()


@pytest.mark.parametrize("garbage", [1e6, math.nan])
def test_a_row_that_does_not_count_changes_nothing(garbage: float):
    """As if it were not there: gradient and metrics."""
    results = []
    for hidden in (0.0, garbage):
        x, y = evaluation(), batch(mask=a_mask())
        for z in (x.log_probs, x.values, x.entropy, y.advantages, y.targets):
            z[y.mask == 0] = hidden
        by, metrics = A3C(normalize_advantages=True).gradient(x, y, 0.0)
        assert not by.log_probs[y.mask == 0].any()
        results.append([*astuple(by), *metrics.values()])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_mask_of_ones_is_no_mask():
    for algorithm in (A3C(), A3C(normalize_advantages=True, reduction="sum")):
        one, _ = algorithm.gradient(evaluation(), batch(), 0.0)
        other, _ = algorithm.gradient(evaluation(), batch(mask=np.ones(SHAPE, np.float32)), 0.0)
        for by, and_by in zip(astuple(one), astuple(other), strict=True):
            np.testing.assert_allclose(by, and_by, rtol=1e-6)


@pytest.mark.parametrize("normalize", [False, True])
def test_a_batch_without_any_transition_has_no_gradient(normalize: bool):
    """One row of reset steps: possible, and no reason for a gradient that is not a number."""
    nothing = batch(mask=np.zeros(SHAPE, np.float32))
    by, metrics = A3C(normalize_advantages=normalize).gradient(evaluation(), nothing, 0.0)
    assert not any(z.any() for z in astuple(by))
    assert set(metrics.values()) == {0.0}


@pytest.mark.parametrize("mask", [None, a_mask()], ids=["every row", "some rows"])
def test_its_metrics_are_means_without_coefficients(mask: np.ndarray | None):
    """The same for either reduction, so that curves can be compared; with them they are the loss."""
    x, y = evaluation(), batch(mask=mask)
    counted = slice(None) if mask is None else mask != 0
    for reduction in ("mean", "sum"):
        _, metrics = A3C(value_coefficient=0.3, entropy=0.2, reduction=reduction).gradient(x, y, 0.0)
        assert metrics == pytest.approx({
            "policy_loss": -(x.log_probs * y.advantages)[counted].mean(),
            "value_loss": 0.5 * ((y.targets - x.values)[counted] ** 2).mean(),
            "entropy": x.entropy[counted].mean(),
        })  # fmt: skip
        whole = metrics["policy_loss"] + 0.3 * metrics["value_loss"] - 0.2 * metrics["entropy"]
        assert whole == pytest.approx(loss(x, y, 0.3, 0.2, "mean").item(), rel=1e-5)


def test_the_entropy_bonus_follows_its_schedule():
    algorithm = A3C(entropy=Linear(start=0.2, end=0.0))
    for progress in (0.0, 0.5, 1.0):
        by, _ = algorithm.gradient(evaluation(), batch(), progress)
        np.testing.assert_allclose(by.entropy, np.full(SHAPE, -0.2 * (1 - progress) / COUNT), rtol=1e-6)


@pytest.mark.parametrize("mask", [None, a_mask()], ids=["every row", "some rows"])
def test_normalised_advantages_have_mean_0_and_deviation_1(mask: np.ndarray | None):
    """Read off the gradient of the log-probabilities, which is -A."""
    y = batch(mask=mask)
    y = replace(y, advantages=7 + 30 * y.advantages)
    by, _ = A3C(normalize_advantages=True, reduction="sum").gradient(evaluation(), y, 0.0)
    counted = slice(None) if mask is None else mask != 0
    expected = (y.advantages[counted] - y.advantages[counted].mean()) / y.advantages[counted].std()
    np.testing.assert_allclose(-by.log_probs[counted], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("advantage", [3.0, -0.4427041, 0.1, -50.3])
def test_equal_advantages_normalise_to_nothing(advantage: float):
    """Whatever a mean in float32 would be off by, blown up to 1, would push towards what happened to be drawn."""
    one = np.zeros((512, 1), np.float32)
    y = Batch(one, one, one + np.float32(advantage), one)
    by, _ = A3C(normalize_advantages=True, reduction="sum").gradient(Evaluation(one, one, one), y, 0.0)
    np.testing.assert_allclose(by.log_probs, 0, atol=1e-6)


def test_it_is_an_algorithm():
    assert isinstance(A3C(), Algorithm)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"value_coefficient": -0.5}, "value_coefficient = -0.5: must be a number >= 0"),
        ({"entropy": math.nan}, "entropy = nan: must be a finite number, or a schedule"),
        ({"reduction": "max"}, "reduction = 'max': must be mean or sum"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], message: str):
    with pytest.raises(ConfigError) as error:
        A3C(**settings)
    assert str(error.value) == message


# -- explained variance ------------------------------------------------------------------------------------------------


def floats(*x: float) -> np.ndarray:
    return np.array(x, np.float32).reshape(-1, 1)


def test_a_perfect_critic_explains_everything():
    assert explained_variance(floats(1, 2, 5), floats(1, 2, 5)) == 1


def test_a_constant_critic_explains_nothing():
    assert explained_variance(floats(4, 4, 4), floats(1, 2, 5)) == 0


def test_a_critic_that_is_wrong_the_other_way_is_worse_than_nothing():
    assert explained_variance(floats(-1, -2, -5), floats(1, 2, 5)) == -3


@pytest.mark.parametrize("same", [0.0, 0.1, 1e6 + 0.1])
def test_it_is_undefined_where_targets_do_not_vary(same: float):
    """Not some huge number made of rounding errors, whatever the targets are."""
    assert math.isnan(explained_variance(floats(*range(7)), floats(*[same] * 7)))


def test_rows_that_do_not_count_are_left_out():
    values, targets, mask = floats(1, 99, 2, 5), floats(1, 7, 2, 5), floats(1, 0, 1, 1)
    assert explained_variance(values, targets, mask) == 1
    assert math.isnan(explained_variance(values, targets, 0 * mask))


@given(arrays(np.float32, (6, 2), elements=st.floats(-100, 100, width=32)), st.integers(0, 100))
def test_it_agrees_with_its_definition_in_float64(targets: np.ndarray, seed: int):
    values = np.random.default_rng(seed).normal(size=(6, 2)).astype(np.float32)
    wide, errors = targets.astype(np.float64), targets.astype(np.float64) - values
    if wide.var() > 1e-6:
        assert explained_variance(values, targets) == pytest.approx(1 - errors.var() / wide.var(), rel=1e-9, abs=1e-9)
