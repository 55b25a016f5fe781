"""Losses and their derivatives: closed forms, torch and the formulas agree, and padded rows have no
part in them."""

from __future__ import annotations

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

from a3c_exp.algorithms import (
    A3C,
    ACER,
    DQN,
    PPO,
    Algorithm,
    Batch,
    Metrics,
    NStepQ,
    OneStepQ,
    PolicyOutputs,
    Sarsa,
)
from a3c_exp.common.arrays import Array, Bools, Floats
from a3c_exp.engine.arrays import BatchArrays, NetworkOutputs, explained_variance
from a3c_exp.engine.losses import LOSSES, batch_of, differentiate, loss_gradient
from a3c_exp.schedules import Linear, value

Wide = NDArray[np.float64]

FEATURES = 3
FALLING = Linear(start=0.3, end=0.1)

POLICY_LOSSES: dict[str, A3C | PPO] = {
    "a3c": A3C(value_coefficient=0.25, entropy_coefficient=0.1),
    "a3c, sum": A3C(reduction="sum", entropy_coefficient=-0.1),
    "a3c, normalized, sum": A3C(normalize_advantages=True, reduction="sum"),
    "a3c, schedule": A3C(entropy_coefficient=FALLING),
    "ppo": PPO(),
    "ppo, another weight": PPO(value_coefficient=2.0),
    "ppo, schedules": PPO(clip=FALLING, entropy_coefficient=FALLING),
    "ppo, target": PPO(target_kl=0.05, normalize_advantages=False),
}
ALL_LOSSES: dict[str, Algorithm] = POLICY_LOSSES | {
    "n-step q": NStepQ(),
    "dqn": DQN(max_error=0.5),
    "one-step q, mean": OneStepQ(reduction="mean"),
    "sarsa": Sarsa(),
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
    valid = None if share is None else rng.random(shape) < share
    outputs = NetworkOutputs(
        (log_probs + spread * normal()).astype(np.float32),
        np.abs(normal()),
        (values + spread * normal()).astype(np.float32),
        normal(FEATURES),
    )
    batch = make_batch(log_probs, values, advantages, targets, valid)
    return outputs, replace(batch, rewards=normal())


def transitions_of(batch: BatchArrays) -> Bools:
    return np.ones(batch.shape, np.bool_) if batch.valid is None else batch.valid


def policy_of(outputs: NetworkOutputs, batch: Batch, module: nn.Module | None) -> PolicyOutputs:
    """The outputs as a loss is given them, where every row is a transition."""
    names = ("log_probs", "entropy", "values")
    leaves = {
        name: torch.from_numpy(getattr(outputs, name)).clone().requires_grad_() for name in names
    }
    return PolicyOutputs(batch, **leaves, module=module)


def wide(*arrays: Floats) -> list[Wide]:
    return [array.astype(np.float64) for array in arrays]


def kinks(
    algorithm: Algorithm, outputs: NetworkOutputs, batch: BatchArrays, progress: float
) -> Wide:
    """The distances from the places at which the loss has no derivative."""
    if not isinstance(algorithm, PPO):
        return np.ones(1)
    now, before = wide(outputs.log_probs, batch.log_probs)
    distances: Wide = np.abs(np.abs(np.exp(now - before) - 1) - value(algorithm.clip, progress))
    return distances


def formula(
    algorithm: A3C | PPO, outputs: Sequence[Wide], batch: BatchArrays, progress: float
) -> tuple[float, dict[str, float]]:
    """The loss and its metrics in float64, as the classes have them in their docstrings."""
    log_probs, entropy, values = outputs
    rows = transitions_of(batch)
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


class TestDerivatives:
    @pytest.mark.parametrize("algorithm", ALL_LOSSES.values(), ids=ALL_LOSSES)
    @settings(max_examples=40)
    @given(samples(), st.sampled_from([0.0, 0.4, 1.0]))
    def test_the_closed_form_is_what_torch_finds(
        self, algorithm: Algorithm, sample: tuple[NetworkOutputs, BatchArrays], progress: float
    ) -> None:
        outputs, batch = sample
        assume(kinks(algorithm, outputs, batch, progress).min() > 1e-4)
        by_hand, metrics = LOSSES[type(algorithm)](algorithm, outputs, batch, progress)
        by_torch, torch_metrics = differentiate(algorithm, None, outputs, batch, progress)
        for one, other in zip(parts(by_hand), parts(by_torch), strict=True):
            assert one.dtype == other.dtype == np.float32
            assert_close(one, other, 1e-5)
        assert by_hand.features is by_torch.features is None
        assert metrics == pytest.approx(torch_metrics, rel=1e-4, abs=1e-5)
        assert all(type(number) is float for number in (*metrics.values(), *torch_metrics.values()))

    def test_every_closed_form_is_held_against_torch(self) -> None:
        shipped = {cls for cls in LOSSES if cls.__module__.startswith("a3c_exp.")}
        of_others = {ACER}  # which test_acer has, since it is made of other outputs
        assert shipped == {type(algorithm) for algorithm in ALL_LOSSES.values()} | of_others

    @pytest.mark.parametrize("algorithm", POLICY_LOSSES.values(), ids=POLICY_LOSSES)
    @settings(max_examples=20)
    @given(samples(), st.sampled_from([0.0, 0.4, 1.0]))
    def test_the_loss_and_its_metrics_are_those_of_the_formula(
        self, algorithm: A3C | PPO, sample: tuple[NetworkOutputs, BatchArrays], progress: float
    ) -> None:
        """Metrics are means over the transitions, without coefficients, whatever the reduction
        is."""
        outputs, arrays = sample
        assume(kinks(algorithm, outputs, arrays, progress).min() > 1e-4)
        batch = batch_of(arrays)
        loss, _ = algorithm.loss(policy_of(outputs, batch, None), batch, progress)
        expected, metrics = formula(algorithm, wide(*parts(outputs)), arrays, progress)
        assert float(loss.detach()) == pytest.approx(expected, rel=1e-4, abs=1e-3)
        by_hand = LOSSES[type(algorithm)](algorithm, outputs, arrays, progress)[1]
        assert by_hand == pytest.approx(metrics, rel=1e-4, abs=1e-3)


# -- subclasses
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Doubled(A3C):
    """Twice the loss."""

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        loss, metrics = super().loss(policy, batch, progress)
        return 2 * loss, {**metrics, "doubled": 1.0}


@dataclass(frozen=True, kw_only=True)
class Renamed(A3C):
    """The same loss, in a class of its own."""


class TestSubclasses:
    def test_one_with_a_loss_of_its_own_has_its_own_derivatives(self) -> None:
        """Not the closed form of its parent, which is that of another loss."""
        outputs, batch = drawn()
        gradient, metrics = loss_gradient(Doubled(), None)(outputs, batch, 0.0)
        of_parent, _ = loss_gradient(A3C(), None)(outputs, batch, 0.0)
        for one, other in zip(parts(gradient), parts(of_parent), strict=True):
            np.testing.assert_allclose(one, 2 * other, rtol=1e-5, atol=1e-7)
        assert "doubled" in metrics

    def test_none_has_the_closed_form_of_its_parent(self) -> None:
        assert Doubled not in LOSSES and Renamed not in LOSSES
        for algorithm in (Doubled(), Renamed()):
            assert loss_gradient(algorithm, None).func is differentiate  # type: ignore[attr-defined]


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
    log_probs, values, advantages, targets, rewards, lots = rng.standard_normal((6, *shape)).astype(
        np.float32
    )
    entropy, new_values = rng.standard_normal((2, *shape)).astype(np.float32)
    features = rng.standard_normal((*shape, FEATURES)).astype(np.float32)
    outputs = NetworkOutputs(log_probs + np.float32(0.3), entropy, new_values, features)
    rows = lots > -0.5 if masked else None
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
            array[~transitions_of(batch)] = garbage
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
    loss_module = module()
    gradient, metrics = loss_gradient(algorithm, loss_module)(*sample, 0.5)
    by_features = (
        np.zeros_like(sample[0].features) if gradient.features is None else gradient.features
    )
    by_parameters = [
        torch.zeros_like(p) if p.grad is None else p.grad for p in loss_module.parameters()
    ]
    return [
        *parts(gradient),
        by_features,
        *(part_gradient.numpy() for part_gradient in by_parameters),
    ], metrics


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
        valid = transitions_of(sample[1])
        assert 0 < valid.sum() < valid.size
        one, metrics = differentiated(algorithm, sample)
        other, same_metrics = differentiated(algorithm, soiled(sample, garbage))
        assert metrics == same_metrics and all(map(math.isfinite, metrics.values()))
        for by, and_by in zip(one, other, strict=True):
            np.testing.assert_array_equal(by, and_by)
            assert np.isfinite(by).all()
        assert not any(by[~valid].any() for by in one[:4])

    @pytest.mark.parametrize("algorithm", ALL_LOSSES.values(), ids=ALL_LOSSES)
    @pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
    @pytest.mark.parametrize("kernels", [True, False])
    @np.errstate(over="ignore", invalid="ignore")  # as in a worker
    def test_nor_for_the_losses_here(
        self, algorithm: Algorithm, garbage: float, kernels: bool
    ) -> None:
        derive = loss_gradient(algorithm, None, kernels)
        one, metrics = derive(*drawn(), 0.5)
        other, same_metrics = derive(*soiled(drawn(), garbage), 0.5)
        assert metrics == same_metrics
        for by, and_by in zip(parts(one), parts(other), strict=True):
            np.testing.assert_array_equal(by, and_by)
            assert not by[~transitions_of(drawn()[1])].any()


@dataclass(frozen=True, kw_only=True)
class Watched(A3C):
    """A3C that keeps what it is given."""

    seen: list[PolicyOutputs]

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        self.seen.append(policy)
        return super().loss(policy, batch, progress)


@dataclass(frozen=True, kw_only=True)
class Logarithm(Algorithm):
    """The mean of a linear function of ln V(s)."""

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        assert policy.module is not None
        return batch.mean(policy.module(policy.values.log()[..., None])[..., 0]), {}


class TestWhatALossIsGiven:
    @pytest.mark.parametrize("masked", [False, True])
    def test_numbers_of_the_batch_are_those_of_its_transitions(self, masked: bool) -> None:
        _, arrays = drawn(masked=masked)
        batch = batch_of(arrays)
        rows = transitions_of(arrays)
        assert batch.valid.dtype == torch.bool and batch.count == rows.sum()
        np.testing.assert_array_equal(batch.valid, rows)
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
        seen: list[PolicyOutputs] = []
        loss_gradient(Watched(seen=seen), None)(outputs, arrays, 0.0)
        [policy] = seen
        rows = transitions_of(arrays)
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
        scale = nn.Linear(1, 1)
        gradient, _ = loss_gradient(Logarithm(), scale)(outputs, arrays, 0.0)
        assert scale.weight.grad is not None and scale.weight.grad.isfinite().all()
        assert np.isfinite(gradient.values).all()
        assert not gradient.values[~transitions_of(arrays)].any()

    @pytest.mark.parametrize("masked", [True, False])
    def test_a_mean_of_numbers_that_are_not_one_a_transition_is_refused(self, masked: bool) -> None:
        arrays = make_batch(*np.zeros((4, 3, 2), np.float32))
        valid = np.array([[1, 1], [1, 1], [1, 0]], np.bool_)
        batch = batch_of(replace(arrays, valid=valid) if masked else arrays)
        for wrong in (torch.zeros(2), torch.zeros(()), torch.zeros(3, 2, 1)):
            with pytest.raises(ValueError, match=r"must be \[3, 2\]"):
                batch.mean(wrong)

    def test_the_mean_of_no_transition_is_0(self) -> None:
        _, arrays = drawn()
        batch = batch_of(replace(arrays, valid=np.zeros(arrays.shape, np.bool_)))
        ones = torch.ones(arrays.shape)
        assert (batch.count, float(batch.sum(ones)), float(batch.mean(ones))) == (1, 0.0, 0.0)
        assert not batch.valid.any() and torch.isfinite(batch.normalize(ones)).all()


@pytest.mark.parametrize("advantage", [3.0, -0.4427041, 0.1, -50.3])
def test_equal_advantages_normalize_to_nothing(advantage: float) -> None:
    """The rounding error of a mean in float32, scaled to 1, would push towards whatever actions
    were drawn."""
    one = np.zeros((512, 1), np.float32)
    y = make_batch(one, one, one + np.float32(advantage), one)
    algorithm = A3C(normalize_advantages=True, reduction="sum")
    by, _ = loss_gradient(algorithm, None)(NetworkOutputs(one, one, one), y, 0.0)
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
    valid = floats(1, 0, 1, 1) > 0
    assert explained_variance(values, targets, valid) == 1
    assert math.isnan(explained_variance(values, targets, ~valid & valid))


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
