"""Losses and their derivatives: closed forms, torch and the formulas agree, and padded rows have no
part in them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from batches import make_batch, parts
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as drawn_arrays
from numpy.typing import NDArray
from torch import Tensor, nn

from a3c_exp.algorithms import A3C, PPO, Algorithm, Batch, BatchArrays, Metrics, PolicyOutputs
from a3c_exp.algorithms.algorithm import differentiate, has_closed_form
from a3c_exp.algorithms.batch import explained_variance
from a3c_exp.common.arrays import Array, Floats
from a3c_exp.networks import NetworkOutputs
from a3c_exp.schedules import Linear, value

Wide = NDArray[np.float64]

FEATURES = 3
FALLING = Linear(start=0.3, end=0.1)

LOSSES: dict[str, A3C | PPO] = {
    "a3c": A3C(value_coefficient=0.25, entropy_coefficient=0.1),
    "a3c, sum": A3C(reduction="sum", entropy_coefficient=-0.1),
    "a3c, normalized, sum": A3C(normalize_advantages=True, reduction="sum"),
    "a3c, schedule": A3C(entropy_coefficient=FALLING),
    "ppo": PPO(),
    "ppo, another weight": PPO(value_coefficient=2.0),
    "ppo, schedules": PPO(clip=FALLING, entropy_coefficient=FALLING),
    "ppo, target": PPO(target_kl=0.05, normalize_advantages=False),
}


# -- drawn batches
# --------------------------------------------------------------------------------------------------


@st.composite
def samples(draw: st.DrawFn) -> tuple[NetworkOutputs, BatchArrays]:
    """Outputs with features, and a batch: of any size, with ratios near 1 or far from it, with or
    without a mask."""
    shape = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.01, 0.3, 1.0]))
    shift = draw(st.sampled_from([0.0, 30.0]))
    share = draw(st.sampled_from([None, 0.0, 0.5, 0.9]))

    def normal(*more: int) -> Floats:
        return rng.standard_normal((*shape, *more)).astype(np.float32)

    log_probs = -np.abs(normal())
    values = normal()
    targets = normal()
    advantages = (shift + normal()).astype(np.float32)
    if draw(st.booleans()):
        advantages = np.full(shape, advantages[0, 0])
    mask = None if share is None else (rng.random(shape) < share).astype(np.float32)
    outputs = NetworkOutputs(
        (log_probs + spread * normal()).astype(np.float32),
        np.abs(normal()),
        (values + spread * normal()).astype(np.float32),
        normal(FEATURES),
    )
    batch = make_batch(log_probs, values, advantages, targets, mask)
    return outputs, replace(batch, rewards=normal())


def wide(*arrays: Floats) -> list[Wide]:
    return [array.astype(np.float64) for array in arrays]


def kinks(
    algorithm: A3C | PPO, outputs: NetworkOutputs, batch: BatchArrays, progress: float
) -> Wide:
    """The distances from the places at which the loss has no derivative."""
    if isinstance(algorithm, A3C):
        return np.ones(1)
    now, before = wide(outputs.log_probs, batch.log_probs)
    distances: Wide = np.abs(np.abs(np.exp(now - before) - 1) - value(algorithm.clip, progress))
    return distances


def formula(
    algorithm: A3C | PPO, outputs: Sequence[Wide], batch: BatchArrays, progress: float
) -> tuple[float, dict[str, float]]:
    """The loss and its metrics in float64, as the classes have them in their docstrings."""
    log_probs, entropy, values = outputs
    rows = np.ones(batch.shape, np.bool_) if batch.mask is None else batch.mask != 0
    count = max(int(rows.sum()), 1)
    old_log_probs, advantages, targets = wide(batch.log_probs, batch.advantages, batch.targets)
    if algorithm.normalize_advantages and rows.any():
        advantages = (advantages - advantages[rows].mean()) / (advantages[rows].std() + 1e-8)
    gains = log_probs * advantages
    errors = (targets - values) ** 2
    more = {}
    if isinstance(algorithm, PPO):
        ratios = np.exp(log_probs - old_log_probs)
        epsilon = value(algorithm.clip, progress)
        gains = np.minimum(
            ratios * advantages, np.clip(ratios, 1 - epsilon, 1 + epsilon) * advantages
        )
        more = {
            "approx_kl": ratios - 1 - np.log(ratios),
            "clip_fraction": np.abs(ratios - 1) > epsilon,
        }
    parts = {"policy_loss": -gains, "value_loss": 0.5 * errors, "entropy": entropy} | more
    metrics = {name: float(part[rows].sum()) / count for name, part in parts.items()}
    loss = metrics["policy_loss"] + algorithm.value_coefficient * metrics["value_loss"]
    loss -= value(algorithm.entropy_coefficient, progress) * metrics["entropy"]
    return loss * count if algorithm.reduction == "sum" else loss, metrics


def assert_close(one: NDArray[Any], other: NDArray[Any], rtol: float) -> None:
    """Equal within `rtol` of the largest number."""
    scale = max(float(np.abs(other).max(initial=0)), 1e-2)
    np.testing.assert_allclose(one, other, rtol=0, atol=rtol * scale)


# -- closed forms, torch and the formulas
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", LOSSES.values(), ids=LOSSES)
class TestDerivatives:
    @settings(max_examples=40)
    @given(samples(), st.sampled_from([0.0, 0.4, 1.0]))
    def test_the_closed_form_is_what_torch_finds(
        self, algorithm: A3C | PPO, sample: tuple[NetworkOutputs, BatchArrays], progress: float
    ) -> None:
        outputs, batch = sample
        assume(kinks(algorithm, outputs, batch, progress).min() > 1e-4)
        by_hand, metrics = algorithm.closed_form(outputs, batch, progress)
        by_torch, torch_metrics = differentiate(algorithm, outputs, batch, progress)
        for one, other in zip(parts(by_hand), parts(by_torch), strict=True):
            assert one.dtype == other.dtype == np.float32
            assert_close(one, other, 1e-5)
        assert by_hand.features is by_torch.features is None
        assert metrics == pytest.approx(torch_metrics, rel=1e-4, abs=1e-5)
        assert all(type(number) is float for number in (*metrics.values(), *torch_metrics.values()))

    @settings(max_examples=20)
    @given(samples(), st.sampled_from([0.0, 0.4, 1.0]))
    def test_the_loss_and_its_metrics_are_those_of_the_formula(
        self, algorithm: A3C | PPO, sample: tuple[NetworkOutputs, BatchArrays], progress: float
    ) -> None:
        """Metrics are means over the transitions, without coefficients, whatever the reduction
        is."""
        outputs, arrays = sample
        assume(kinks(algorithm, outputs, arrays, progress).min() > 1e-4)
        batch = Batch(arrays)
        loss, _ = algorithm.loss(PolicyOutputs(outputs, batch, None), batch, progress)
        expected, metrics = formula(algorithm, wide(*parts(outputs)), arrays, progress)
        assert float(loss.detach()) == pytest.approx(expected, rel=1e-4, abs=1e-3)
        assert algorithm.closed_form(outputs, arrays, progress)[1] == pytest.approx(
            metrics, rel=1e-4, abs=1e-3
        )


# -- subclasses
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Doubled(A3C):
    """Twice the loss."""

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        loss, metrics = super().loss(policy, batch, progress)
        return 2 * loss, {**metrics, "doubled": 1.0}


class TestSubclasses:
    def test_one_with_a_loss_of_its_own_has_its_own_derivatives(self) -> None:
        """Not the closed form of its parent, which is that of another loss."""
        outputs, batch = drawn()
        gradient, metrics = Doubled().gradient(outputs, batch, 0.0)
        for one, other in zip(
            parts(gradient), parts(A3C().gradient(outputs, batch, 0.0)[0]), strict=True
        ):
            np.testing.assert_allclose(one, 2 * other, rtol=1e-5, atol=1e-7)
        assert not has_closed_form(Doubled) and "doubled" in metrics


# -- losses of a user's own
# --------------------------------------------------------------------------------------------

Term = Callable[[PolicyOutputs, Batch], Tensor]


def _through_the_module(policy: PolicyOutputs, batch: Batch) -> Tensor:
    assert policy.module is not None
    guesses: Tensor = policy.module(policy.features)
    return (guesses[..., 0] - batch.rewards) ** 2


TERMS: dict[str, Term] = {
    "normalized": lambda policy, batch: -policy.log_probs * batch.normalize(batch.advantages),
    "ratio": lambda policy, batch: -policy.ratio * batch.advantages,
    "kl": lambda policy, batch: policy.approx_kl,
    "entropy": lambda policy, batch: -policy.entropy,
    "mse": lambda policy, batch: (policy.values - batch.targets) ** 2,
    "old values": lambda policy, batch: (policy.values - batch.values).abs(),
    "features": lambda policy, batch: policy.features.square().sum(-1),
    "module": _through_the_module,
}


@dataclass(frozen=True, kw_only=True)
class OneTerm(Algorithm):
    """The mean or the sum of one term."""

    term: str
    summed: bool

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        values = TERMS[self.term](policy, batch)
        return batch.sum(values) if self.summed else batch.mean(values), {self.term: values}


def drawn(
    shape: tuple[int, int] = (5, 3), masked: bool = True
) -> tuple[NetworkOutputs, BatchArrays]:
    """Outputs with features, and a batch, some of whose rows are no transitions."""
    rng = np.random.default_rng(4)
    log_probs, values, advantages, targets, rewards, mask = rng.standard_normal((6, *shape)).astype(
        np.float32
    )
    entropy, new_values = rng.standard_normal((2, *shape)).astype(np.float32)
    features = rng.standard_normal((*shape, FEATURES)).astype(np.float32)
    outputs = NetworkOutputs(log_probs + np.float32(0.3), entropy, new_values, features)
    rows = (mask > -0.5).astype(np.float32) if masked else None
    return outputs, replace(
        make_batch(log_probs, values, advantages, targets, rows), rewards=rewards
    )


def soiled(
    sample: tuple[NetworkOutputs, BatchArrays], garbage: float
) -> tuple[NetworkOutputs, BatchArrays]:
    """The same, with garbage in each number of the rows that are no transitions."""
    outputs, batch = sample

    def soil(record: Any, *names: str) -> Any:
        arrays = {name: getattr(record, name).copy() for name in names}
        for array in arrays.values():
            array[batch.mask == 0] = garbage
        return replace(record, **arrays)

    names = ("log_probs", "values", "rewards", "advantages", "targets")
    return soil(outputs, "log_probs", "entropy", "values", "features"), soil(batch, *names)


def module() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, 1)


def differentiated(
    algorithm: Algorithm, sample: tuple[NetworkOutputs, BatchArrays]
) -> tuple[list[Floats], dict[str, float]]:
    """The derivatives by all outputs and by the parameters of the loss's module, and the
    metrics."""
    own = module()
    gradient, metrics = algorithm.gradient(*sample, 0.5, own)
    by_features = (
        np.zeros_like(sample[0].features) if gradient.features is None else gradient.features
    )
    by_parameters = [torch.zeros_like(p) if p.grad is None else p.grad for p in own.parameters()]
    return [*parts(gradient), by_features, *(each.numpy() for each in by_parameters)], metrics


class TestRowsThatAreNoTransitions:
    @pytest.mark.parametrize("term", TERMS)
    @pytest.mark.parametrize(
        ("summed", "garbage"), [(False, math.nan), (False, math.inf), (True, 1e30)]
    )
    def test_what_stands_in_them_changes_nothing(
        self, term: str, summed: bool, garbage: float
    ) -> None:
        algorithm = OneTerm(term=term, summed=summed)
        sample = drawn()
        mask = sample[1].mask
        assert mask is not None and 0 < mask.sum() < mask.size
        one, metrics = differentiated(algorithm, sample)
        other, same_metrics = differentiated(algorithm, soiled(sample, garbage))
        assert metrics == same_metrics and all(map(math.isfinite, metrics.values()))
        for by, and_by in zip(one, other, strict=True):
            np.testing.assert_array_equal(by, and_by)
            assert np.isfinite(by).all()
        assert not any(by[mask == 0].any() for by in one[:4])

    @pytest.mark.parametrize("algorithm", LOSSES.values(), ids=LOSSES)
    @pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
    @np.errstate(over="ignore", invalid="ignore")  # as in a worker
    def test_nor_for_the_losses_here(self, algorithm: A3C | PPO, garbage: float) -> None:
        for derive in (algorithm.closed_form, functools.partial(differentiate, algorithm)):
            (one, metrics), (other, same_metrics) = (
                derive(*sample, 0.5) for sample in (drawn(), soiled(drawn(), garbage))
            )
            assert metrics == same_metrics
            for by, and_by in zip(parts(one), parts(other), strict=True):
                np.testing.assert_array_equal(by, and_by)
                assert not by[drawn()[1].mask == 0].any()


class TestWhatALossIsGiven:
    @pytest.mark.parametrize("masked", [False, True])
    def test_numbers_of_the_batch_are_those_of_its_transitions(self, masked: bool) -> None:
        _, arrays = drawn(masked=masked)
        batch = Batch(arrays)
        rows = np.ones(arrays.shape, np.bool_) if arrays.mask is None else arrays.mask != 0
        assert batch.mask.dtype == torch.bool and batch.count == rows.sum()
        np.testing.assert_array_equal(batch.mask, rows)
        for name in ("advantages", "targets", "log_probs", "values", "rewards"):
            tensor: Tensor = getattr(batch, name)
            assert tensor.dtype == torch.float32 and not tensor.requires_grad
            array = getattr(arrays, name)
            np.testing.assert_array_equal(tensor, np.where(rows, array, array[rows][0]))
        x = np.random.default_rng(7).standard_normal(arrays.shape).astype(np.float32)
        tensor = torch.from_numpy(x)
        assert float(batch.sum(tensor)) == pytest.approx(x[rows].sum(), rel=1e-5)
        assert float(batch.mean(tensor)) == pytest.approx(x[rows].mean(), rel=1e-5)
        normalized = batch.normalize(tensor)
        assert normalized.dtype == torch.float32
        np.testing.assert_allclose(
            normalized.numpy()[rows], (x[rows] - x[rows].mean()) / x[rows].std(), atol=1e-5
        )

    @pytest.mark.parametrize("masked", [False, True])
    def test_ratios_and_the_divergence_are_by_definition(self, masked: bool) -> None:
        outputs, arrays = drawn(masked=masked)
        policy = PolicyOutputs(outputs, Batch(arrays), None)
        rows = np.ones(arrays.shape, np.bool_) if arrays.mask is None else arrays.mask != 0
        difference = (outputs.log_probs.astype(np.float64) - arrays.log_probs)[rows]
        ratio = np.exp(difference)
        np.testing.assert_allclose(policy.log_ratio.detach().numpy()[rows], difference, atol=1e-6)
        np.testing.assert_allclose(policy.ratio.detach().numpy()[rows], ratio, rtol=1e-5)
        np.testing.assert_allclose(
            policy.approx_kl.detach().numpy()[rows], ratio - 1 - np.log(ratio), atol=1e-6
        )
        np.testing.assert_allclose(policy.ratio.detach().numpy()[~rows], ratio[0], rtol=1e-5)

    def test_a_loss_that_is_finite_for_transitions_is_finite_for_rows_that_are_none(self) -> None:
        """A logarithm has no finite derivative at 0: zeros in these rows would spoil the gradient
        of a module."""
        outputs, arrays = drawn(masked=True)
        outputs = replace(outputs, values=np.abs(outputs.values) + 1)
        batch = Batch(arrays)
        scale = nn.Linear(1, 1)
        policy = PolicyOutputs(outputs, batch, scale)
        torch.autograd.backward(batch.mean(scale(policy.values.log()[..., None])[..., 0]))
        assert scale.weight.grad is not None and scale.weight.grad.isfinite().all()
        values = policy.gradients().values
        assert np.isfinite(values).all()
        assert arrays.mask is not None and not values[arrays.mask == 0].any()

    @pytest.mark.parametrize("masked", [True, False])
    def test_a_mean_of_numbers_that_are_not_one_a_transition_is_refused(self, masked: bool) -> None:
        arrays = make_batch(*np.zeros((4, 3, 2), np.float32))
        batch = Batch(
            replace(arrays, mask=np.array([[1, 1], [1, 1], [1, 0]], np.float32))
            if masked
            else arrays
        )
        for wrong in (torch.zeros(2), torch.zeros(()), torch.zeros(3, 2, 1)):
            with pytest.raises(ValueError, match=r"must be \[3, 2\]"):
                batch.mean(wrong)

    def test_the_mean_of_no_transition_is_0(self) -> None:
        _, arrays = drawn()
        batch = Batch(replace(arrays, mask=np.zeros(arrays.shape, np.float32)))
        ones = torch.ones(arrays.shape)
        assert (batch.count, float(batch.sum(ones)), float(batch.mean(ones))) == (1, 0.0, 0.0)
        assert not batch.mask.any() and torch.isfinite(batch.normalize(ones)).all()


@pytest.mark.parametrize("advantage", [3.0, -0.4427041, 0.1, -50.3])
def test_equal_advantages_normalize_to_nothing(advantage: float) -> None:
    """The rounding error of a mean in float32, scaled to 1, would push towards whatever actions
    were drawn."""
    one = np.zeros((512, 1), np.float32)
    y = make_batch(one, one, one + np.float32(advantage), one)
    by, _ = A3C(normalize_advantages=True, reduction="sum").gradient(
        NetworkOutputs(one, one, one), y, 0.0
    )
    np.testing.assert_allclose(by.log_probs, 0, atol=1e-6)


# -- explained variance
# ------------------------------------------------------------------------------------------------


def floats(*x: float) -> Floats:
    return np.array(x, np.float32).reshape(-1, 1)


@pytest.mark.parametrize("same", [0.0, 0.1, 1e6 + 0.1])
def test_it_is_undefined_where_targets_do_not_vary(same: float) -> None:
    """Not some huge number made of rounding errors, whatever the targets are."""
    assert math.isnan(explained_variance(floats(*range(7)), floats(*[same] * 7)))


def test_rows_that_do_not_count_are_left_out() -> None:
    values = floats(1, 99, 2, 5)
    targets = floats(1, 7, 2, 5)
    mask = floats(1, 0, 1, 1)
    assert explained_variance(values, targets, mask) == 1
    assert math.isnan(explained_variance(values, targets, 0 * mask))


@given(
    drawn_arrays(np.float32, (6, 2), elements=st.floats(-100, 100, width=32)), st.integers(0, 100)
)
def test_it_agrees_with_its_definition_in_float64(targets: Array, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(6, 2)).astype(np.float32)
    wide = targets.astype(np.float64)
    errors = targets.astype(np.float64) - values
    if wide.var() > 1e-6:
        assert explained_variance(values, targets) == pytest.approx(
            1 - errors.var() / wide.var(), rel=1e-9, abs=1e-9
        )
