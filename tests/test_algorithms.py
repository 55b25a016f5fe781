"""The loss of A3C: its value by the formula, its gradients by hand, and what must not have one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from a3c_exp.algorithms import A3C, Algorithm, Batch, Evaluation, explained_variance
from a3c_exp.errors import ConfigError
from a3c_exp.schedules import Linear

SHAPE = (5, 3)
COUNT = 15


def evaluation(seed: int = 0) -> Evaluation:
    """Leaves of the graph, so that each has a gradient of its own."""
    generator = torch.Generator().manual_seed(seed)
    return Evaluation(*(torch.randn(SHAPE, generator=generator).requires_grad_() for _ in range(3)))


def batch(seed: int = 1, mask: Tensor | None = None) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return Batch(*(torch.randn(SHAPE, generator=generator) for _ in range(4)), mask=mask)


def a_mask() -> Tensor:
    mask = torch.ones(SHAPE)
    mask[1, 0] = mask[4, 2] = mask[3, 1] = 0
    return mask


def by_the_formula(x: Evaluation, y: Batch, value_coefficient: float, entropy: float) -> list[float]:
    """What each transition adds to the loss, in double precision; only the rows that count."""
    rows = zip(*(z.detach().double().flatten().tolist() for z in (x.log_probs, x.values, x.entropy)), strict=True)
    given = zip(*(z.double().flatten().tolist() for z in (y.advantages, y.targets)), strict=True)
    counts = [1.0] * COUNT if y.mask is None else y.mask.flatten().tolist()
    return [
        -log_prob * advantage + value_coefficient * 0.5 * (target - value) ** 2 - entropy * h
        for (log_prob, value, h), (advantage, target), counted in zip(rows, given, counts, strict=True)
        if counted
    ]


@pytest.mark.parametrize("mask", [None, a_mask()], ids=["every row", "some rows"])
def test_it_is_the_formula(mask: Tensor | None):
    x, y = evaluation(), batch(mask=mask)
    terms = by_the_formula(x, y, 0.25, 0.1)
    mean, _ = A3C(value_coefficient=0.25, entropy=0.1).loss(x, y, 0.0)
    total, _ = A3C(value_coefficient=0.25, entropy=0.1, reduction="sum").loss(x, y, 0.0)
    assert mean.item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)
    assert total.item() == pytest.approx(sum(terms), rel=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("mask", [None, a_mask()], ids=["every row", "some rows"])
def test_its_gradients_are_those_by_hand(reduction: str, mask: Tensor | None):
    """dL/dlog pi = -A, dL/dV = c_v (V - G), dL/dH = -c_e: over the count for a mean, 0 where a row does not count."""
    x, y = evaluation(), batch(mask=mask)
    loss, _ = A3C(value_coefficient=0.25, entropy=0.1, reduction=reduction).loss(x, y, 0.0)
    loss.backward()
    counted = torch.ones(SHAPE) if mask is None else mask
    weight = counted if reduction == "sum" else counted / counted.sum()
    torch.testing.assert_close(x.log_probs.grad, -y.advantages * weight)
    torch.testing.assert_close(x.values.grad, 0.25 * (x.values.detach() - y.targets) * weight)
    torch.testing.assert_close(x.entropy.grad, -0.1 * weight)


def test_its_gradient_reaches_the_logits_of_a_softmax_as_by_hand():
    """dL/dlogits = A (pi - onehot) + c_e pi (log pi + H), for one state."""
    logits = torch.tensor([0.5, -1.0, 0.2], requires_grad=True)
    log_pi = logits.log_softmax(0)
    entropy = -(log_pi.exp() * log_pi).sum()
    action, advantage, c = 2, 1.7, 0.3
    cells = [z.reshape(1, 1) for z in (log_pi[action], entropy, torch.zeros((), requires_grad=True))]
    one = torch.ones(1, 1)
    loss, _ = A3C(entropy=c).loss(Evaluation(*cells), Batch(0 * one, 0 * one, advantage * one, 0 * one), 0.0)
    loss.backward()
    pi, h = log_pi.detach().exp(), entropy.detach()
    expected = advantage * (pi - torch.eye(3)[action]) + c * pi * (log_pi.detach() + h)
    torch.testing.assert_close(logits.grad, expected)


@pytest.mark.parametrize("normalize", [False, True])
def test_no_gradient_flows_into_the_advantage_or_the_target(normalize: bool):
    """Not even where they come with a graph, as those made of the learner's own values do."""
    x, y = evaluation(), batch()
    values = torch.randn(SHAPE, requires_grad=True)
    y = replace(y, advantages=y.advantages - values, targets=y.targets + values)
    loss, _ = A3C(normalize_advantages=normalize).loss(x, y, 0.0)
    loss.backward()
    assert values.grad is None


def test_the_policy_learns_nothing_from_the_critics_error_nor_the_critic_from_the_advantage():
    x = evaluation()
    loss, _ = A3C(entropy=0.0).loss(x, replace(batch(), advantages=torch.zeros(SHAPE)), 0.0)
    loss.backward()
    assert not x.log_probs.grad.any()
    assert not x.entropy.grad.any()
    other = evaluation()
    loss, _ = A3C(value_coefficient=0.0).loss(other, batch(), 0.0)
    loss.backward()
    assert not other.values.grad.any()


def test_a_row_that_does_not_count_changes_nothing():
    """As if it were not there: loss, gradients, metrics."""
    algorithm = A3C(normalize_advantages=True)
    results = []
    for garbage in (0.0, 1e6):
        x, y = evaluation(), batch(mask=a_mask())
        hidden = y.mask == 0
        with torch.no_grad():
            for z in (x.log_probs, x.values, x.entropy, y.advantages, y.targets):
                z[hidden] = garbage
        loss, metrics = algorithm.loss(x, y, 0.0)
        loss.backward()
        assert not x.log_probs.grad[hidden].any()
        results.append([loss, *metrics.values(), x.log_probs.grad, x.values.grad, x.entropy.grad])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_a_mask_of_ones_is_no_mask():
    for algorithm in (A3C(), A3C(normalize_advantages=True, reduction="sum")):
        one, _ = algorithm.loss(evaluation(), batch(), 0.0)
        other, _ = algorithm.loss(evaluation(), batch(mask=torch.ones(SHAPE)), 0.0)
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("normalize", [False, True])
def test_a_batch_without_any_transition_has_no_gradient(normalize: bool):
    """One row of reset steps: possible, and no reason for a gradient that is not a number."""
    x = evaluation()
    loss, metrics = A3C(normalize_advantages=normalize).loss(x, batch(mask=torch.zeros(SHAPE)), 0.0)
    loss.backward()
    assert loss.item() == 0
    assert all(metric.item() == 0 for metric in metrics.values())
    assert not any(z.grad.any() for z in (x.log_probs, x.values, x.entropy))


def test_its_metrics_are_means_without_coefficients_or_a_graph():
    """The same for either reduction, so that curves can be compared."""
    x, y = evaluation(), batch()
    for reduction in ("mean", "sum"):
        _, metrics = A3C(value_coefficient=0.3, entropy=0.2, reduction=reduction).loss(x, y, 0.0)
        assert set(metrics) == {"policy_loss", "value_loss", "entropy"}
        assert not any(metric.requires_grad or metric.ndim for metric in metrics.values())
        torch.testing.assert_close(metrics["policy_loss"], -(x.log_probs * y.advantages).mean().detach())
        torch.testing.assert_close(metrics["value_loss"], 0.5 * ((y.targets - x.values) ** 2).mean().detach())
        torch.testing.assert_close(metrics["entropy"], x.entropy.mean().detach())


def test_the_entropy_bonus_follows_its_schedule():
    algorithm = A3C(entropy=Linear(start=0.2, end=0.0))
    for progress in (0.0, 0.5, 1.0):
        x = evaluation()
        loss, _ = algorithm.loss(x, batch(), progress)
        loss.backward()
        torch.testing.assert_close(x.entropy.grad, torch.full(SHAPE, -0.2 * (1 - progress) / COUNT))


@pytest.mark.parametrize("mask", [None, a_mask()], ids=["every row", "some rows"])
def test_normalised_advantages_have_mean_0_and_deviation_1(mask: Tensor | None):
    """Read off the gradient of the log-probabilities, which is -A."""
    x, y = evaluation(), batch(mask=mask)
    y = replace(y, advantages=7 + 30 * y.advantages)
    loss, _ = A3C(normalize_advantages=True, reduction="sum").loss(x, y, 0.0)
    loss.backward()
    counted = torch.ones(SHAPE, dtype=torch.bool) if mask is None else mask > 0
    used = -x.log_probs.grad[counted]
    expected = (y.advantages[counted] - y.advantages[counted].mean()) / y.advantages[counted].std(correction=0)
    torch.testing.assert_close(used, expected)


def test_equal_advantages_normalise_to_nothing():
    x = evaluation()
    y = replace(batch(), advantages=torch.full(SHAPE, 3.0))
    loss, _ = A3C(normalize_advantages=True).loss(x, y, 0.0)
    loss.backward()
    assert not x.log_probs.grad.any()


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


@settings(deadline=None)
@given(arrays(np.float32, (6, 2), elements=st.floats(-100, 100, width=32)), st.integers(0, 100))
def test_it_agrees_with_its_definition_in_float64(targets: np.ndarray, seed: int):
    values = np.random.default_rng(seed).normal(size=(6, 2)).astype(np.float32)
    wide, errors = targets.astype(np.float64), targets.astype(np.float64) - values
    if wide.var() > 1e-6:
        assert explained_variance(values, targets) == pytest.approx(1 - errors.var() / wide.var(), rel=1e-9, abs=1e-9)
