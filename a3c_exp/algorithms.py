"""Losses, as the gradient that is taken of them. With returns.py the only reinforcement-learning mathematics of the
project."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.errors import ConfigError, require
from a3c_exp.networks.outputs import OutputGradients, PolicyOutputs
from a3c_exp.networks.recurrent import RecurrentInput
from a3c_exp.schedules import Schedule, require_throughout, value

Metrics = dict[str, float]
Real = TypeVar("Real", np.float32, np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Collected transitions with their advantages and targets. Constants to a loss.

    Transitions in order, [T, B, ...]; or without their order, [1, N, ...], where minibatches are drawn from them.
    observations, actions: as the network takes them.
    log_probs, values: float32 [T, B], of the policy that acted.
    advantages, targets: float32 [T, B], from the returns.
    mask: float32 [T, B], 1 where a row is a transition, 0 where it is not; None where every row is one.
    recurrent_input: what a network with a recurrent state needs besides; None for one without.
    """

    observations: Array
    actions: Array
    log_probs: Floats
    values: Floats
    advantages: Floats
    targets: Floats
    mask: Floats | None = None
    recurrent_input: RecurrentInput | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """T and B."""
        length, count = self.targets.shape
        return length, count

    @property
    def transitions(self) -> int:
        """Number of rows that are transitions."""
        return self.targets.size if self.mask is None else int(self.mask.sum())

    def without_order(self) -> Batch:
        """Its transitions alone, [1, N, ...]: what minibatches of single transitions are drawn from."""
        valid = None if self.mask is None else np.flatnonzero(self.mask)

        def in_a_row(array: Array) -> Array:
            rows = array.reshape(-1, *array.shape[2:])
            return (rows if valid is None else rows.take(valid, axis=0))[None]

        return self._map(in_a_row, None, None)

    def take(self, columns: NDArray[np.intp]) -> Batch:
        """Some of the B columns."""

        def part(array: Array) -> Array:
            return array.take(columns, axis=1)  # faster than [:, columns]

        mask = None if self.mask is None else part(self.mask)
        return self._map(part, mask, None if self.recurrent_input is None else self.recurrent_input.take(columns))

    def _map(self, f: Callable[[Array], Array], mask: Floats | None, recurrent_input: RecurrentInput | None) -> Batch:
        names = ("observations", "actions", "log_probs", "values", "advantages", "targets")
        arrays = {name: f(getattr(self, name)) for name in names}
        return Batch(**arrays, mask=mask, recurrent_input=recurrent_input)


class Algorithm(ABC):
    """A loss of a batch. Every algorithm derives from this class.

    reduction: whether the loss is a mean over transitions or their sum. In synchronous rounds the gradients of means
        are weighted by their transitions, those of sums are not.
    """

    reduction: Literal["mean", "sum"] = "mean"

    @abstractmethod
    def gradient(self, outputs: PolicyOutputs, batch: Batch, progress: float) -> tuple[OutputGradients, Metrics]:
        """The loss's derivatives by the network's outputs, and metrics, each a mean over the transitions.

        The metrics have at least policy_loss, value_loss and entropy, without their coefficients.
        progress: share of the run that is done, for coefficients that follow a schedule.
        """


class MinibatchAlgorithm(Algorithm):
    """An algorithm that learns from a rollout more than once, in minibatches.

    Each of them is a pull, a gradient and a push. The loss gets its transitions as [1, N], or as the whole sequences
    [T, N] of some environments if the network has a recurrent state.
    """

    @abstractmethod
    def check_rollout(self, count: int, length: int) -> None:
        """Raise ConfigError if a rollout of `count` sequences of `length` transitions cannot be used.

        count: 0 if the number of sequences is not known yet.
        """

    @abstractmethod
    def minibatches(self, count: int, length: int, rng: np.random.Generator) -> Iterator[NDArray[np.intp]]:
        """Indices of the sequences in each gradient, in the order of the pushes: of `count`, `length` steps each."""

    def should_stop_early(self, metrics: Mapping[str, float]) -> bool:
        """Whether the minibatch that reported these metrics is the last of its rollout."""
        return False


@dataclass(frozen=True, kw_only=True)
class A3C(Algorithm):
    """The loss of asynchronous advantage actor-critic, Mnih et al. 2016 (arXiv 1602.01783, section 4, algorithm S3).

        L = sum_t  - log pi(a_t | s_t) A_t  +  c_v 1/2 (G_t - V(s_t))^2  -  c_e H(pi(. | s_t))

    or the mean of it. No gradient flows into the advantages A_t or the targets G_t.

    value_coefficient: c_v, a number >= 0.
    entropy_coefficient: c_e, a number, or a schedule of one. Below 0 it drives exploration out, which makes sense
        late in a run.
    normalize_advantages: subtract the batch's mean and divide by its standard deviation. Not in the paper. A batch of
        a single transition then teaches the actor nothing.
    reduction: "mean" over transitions, or "sum", as the paper has it; with "sum" the learning rate has to fit the
        number of transitions in an update.
    """

    value_coefficient: float = 0.5
    entropy_coefficient: float | Schedule = 0.01
    normalize_advantages: bool = False
    reduction: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        _require_coefficients(self.value_coefficient, self.entropy_coefficient)
        require(self.reduction in ("mean", "sum"), "reduction", self.reduction, "mean or sum")

    def gradient(self, outputs: PolicyOutputs, batch: Batch, progress: float) -> tuple[OutputGradients, Metrics]:
        """See the class; metrics: policy_loss, value_loss (with its 1/2), entropy."""
        mask, advantages = batch.mask, batch.advantages
        count = _count(advantages, mask)
        if self.normalize_advantages:
            advantages = _normalized(advantages, mask, count)
        advantages = _masked(advantages, mask)
        errors = _masked(outputs.values - batch.targets, mask)
        entropy = value(self.entropy_coefficient, progress)

        scale = 1.0 if self.reduction == "sum" else 1 / count
        by = OutputGradients(
            log_probs=advantages * -scale,
            entropy=_spread(-entropy * scale, outputs.entropy, mask),
            values=errors * (self.value_coefficient * scale),
        )
        return by, {
            "policy_loss": -_dot(_masked(outputs.log_probs, mask), advantages) / count,
            "value_loss": 0.5 * _dot(errors, errors) / count,
            "entropy": _total(outputs.entropy, mask) / count,
        }


@dataclass(frozen=True, kw_only=True)
class PPO(MinibatchAlgorithm):
    """Proximal policy optimisation, Schulman et al. 2017 (arXiv 1707.06347, equations 7 and 9).

        L = mean_t  - min(r_t A_t, clip(r_t, 1 - epsilon, 1 + epsilon) A_t)  +  c_v 1/2 (G_t - V(s_t))^2
                    - c_e H(pi(. | s_t)),    r_t = pi(a_t | s_t) / mu(a_t | s_t)

    with pi the policy that learns and mu the one that acted. No gradient flows into A_t or G_t, which are those of the
    rollout for all epochs. Workers that push when they are ready, or in rounds, make it the distributed form (Heess et
    al. 2017, arXiv 1707.02286).

    clip: epsilon, a number between 0 and 1, or a schedule.
    epochs: how often each transition of a rollout is learned from.
    minibatch_size: transitions of a minibatch, null for whole rollouts. A minibatch is a random part of the rollout,
        drawn anew in each epoch. A rollout that an episode's end has cut short is divided evenly into as few as do not
        exceed the size. For a network with a memory a minibatch is the whole sequences of some environments.
    target_kl: learn no more from a rollout once a minibatch finds its policy farther than this from the one that acted
        (`approx_kl`, in nats). That minibatch is the last; null: never.
    value_clip: the critic gains nothing by moving V(s_t) farther than this from what it was in the rollout: the greater
        of the errors of V(s_t) and of V(s_t) clipped to that range counts. Not in the paper, but in its authors' code.
        A number > 0, a schedule, or null.
    value_coefficient, entropy_coefficient: c_v and c_e, as for A3C.
    normalize_advantages: mean 0 and standard deviation 1 in each minibatch. One of a single transition then teaches the
        actor nothing.
    """

    clip: float | Schedule = 0.2
    epochs: int = 4
    minibatch_size: int | None = 64
    target_kl: float | None = None
    value_clip: float | Schedule | None = None
    value_coefficient: float = 0.5
    entropy_coefficient: float | Schedule = 0.0
    normalize_advantages: bool = True

    def __post_init__(self) -> None:
        _require_coefficients(self.value_coefficient, self.entropy_coefficient)
        size, kl = self.minibatch_size, self.target_kl
        # A schedule may end at 0; a number of 0, by someone who wants no clip, would be one that lets nothing through.
        require(self.clip != 0, "clip", self.clip, "a number between 0 and 1, or a schedule")
        require_throughout(lambda clip: 0 <= clip < 1, "clip", self.clip, "a number between 0 and 1")
        if self.value_clip is not None:
            require(self.value_clip != 0, "value_clip", self.value_clip, "a number > 0, a schedule, or null")
            require_throughout(lambda clip: 0 <= clip < math.inf, "value_clip", self.value_clip, "a number > 0")
        require(self.epochs >= 1, "epochs", self.epochs, "a whole number >= 1")
        require(size is None or size >= 1, "minibatch_size", size, "a whole number >= 1, or null for whole rollouts")
        require(kl is None or 0 < kl < math.inf, "target_kl", kl, "a number > 0, or null")

    def check_rollout(self, count: int, length: int) -> None:
        """Raise ConfigError where the minibatches do not divide a rollout, or cut its sequences."""
        size, transitions = self.minibatch_size, count * length
        if size is not None and transitions % size:
            problem = f"must divide a rollout: rollout_length x envs_per_worker is {transitions} transitions"
            problem += " (experiment=ppo sets all of them)"
            raise ConfigError("minibatch_size", size, problem)
        if size is not None and size % length:
            problem = f"must be a multiple of rollout_length={length}: a network with a memory learns whole sequences"
            raise ConfigError("minibatch_size", size, problem)

    def minibatches(self, count: int, length: int, rng: np.random.Generator) -> Iterator[NDArray[np.intp]]:
        """All of them, by their numbers, `epochs` times. Nothing is drawn where one minibatch takes them all."""
        parts = 1 if self.minibatch_size is None else min(count, -(-count * length // self.minibatch_size))
        for _ in range(self.epochs if count else 0):
            yield from np.array_split(rng.permutation(count) if parts > 1 else np.arange(count), parts)

    def should_stop_early(self, metrics: Mapping[str, float]) -> bool:
        """Whether the policy has moved farther than `target_kl` from the one that acted."""
        return self.target_kl is not None and metrics["approx_kl"] > self.target_kl

    def gradient(self, outputs: PolicyOutputs, batch: Batch, progress: float) -> tuple[OutputGradients, Metrics]:
        """See the class; metrics: policy_loss, value_loss (with its 1/2), entropy, approx_kl: the mean of r - 1 - ln r,
        which estimates KL(mu || pi) (Schulman 2020, "Approximating KL divergence"), clip_fraction: the share of
        transitions whose r lies outside the clip range."""
        mask, advantages = batch.mask, batch.advantages
        count = _count(advantages, mask)
        if self.normalize_advantages:
            advantages = _normalized(advantages, mask, count)
        # What does not count may be anything, and 0 times infinity is not 0.
        advantages, log_ratios = _masked(advantages, mask), _masked(outputs.log_probs - batch.log_probs, mask)

        # min(r A, clip(r) A) is A times r held below 1 + epsilon where A > 0, and above 1 - epsilon where A < 0; where
        # it is held it does not change with r. It is ln r that is held: r itself may be too large for float32.
        epsilon, gains = value(self.clip, progress), advantages >= 0
        lowest = np.where(gains, np.float32(-math.inf), np.float32(math.log1p(-epsilon)))
        highest = np.where(gains, np.float32(math.log1p(epsilon)), np.float32(math.inf))
        held = np.clip(log_ratios, lowest, highest)
        free = held == log_ratios
        with np.errstate(over="ignore"):
            ratios, weighted = np.exp(log_ratios), np.exp(held) * advantages
        squares, by_values = self._squares(outputs.values, batch, progress)

        by = OutputGradients(
            log_probs=np.where(free, weighted * (-1 / count), np.float32(0)),
            entropy=_spread(-value(self.entropy_coefficient, progress) / count, outputs.entropy, mask),
            values=by_values * (self.value_coefficient / count),
        )
        return by, {
            "policy_loss": -float(weighted.sum()) / count,
            "value_loss": 0.5 * squares / count,
            "entropy": _total(outputs.entropy, mask) / count,
            "approx_kl": _total(ratios - 1 - log_ratios, mask) / count,
            "clip_fraction": _total(np.abs(ratios - 1) > epsilon, mask) / count,
        }

    def _squares(self, values: Floats, batch: Batch, progress: float) -> tuple[float, Floats]:
        """The sum of the critic's squared errors, over the rows that count, and half its derivative by the values."""
        errors = _masked(values - batch.targets, batch.mask)
        if self.value_clip is None:
            return _dot(errors, errors), errors
        bound = value(self.value_clip, progress)
        moved = values - batch.values
        clipped = _masked(batch.values + moved.clip(-bound, bound) - batch.targets, batch.mask)
        worse = clipped * clipped > errors * errors
        counted = np.where(worse, clipped, errors)
        return _dot(counted, counted), np.where(worse & (np.abs(moved) > bound), np.float32(0), counted)


def explained_variance(
    values: NDArray[np.float32], targets: NDArray[np.float32], mask: NDArray[Any] | None = None
) -> float:
    """1 - Var[targets - values] / Var[targets]: 1 for a perfect critic, 0 for one no better than a constant.

    values, targets: float32 [T, B], what the critic said and what it was to learn.
    mask: [T, B], other than 0 where a row counts; None where every row does.
    NaN where the targets do not vary, since the ratio means nothing there.
    """
    # In double precision the variance of equal numbers is exactly 0, and what is left of nearly equal ones is right.
    wanted = targets.ravel().astype(np.float64)
    errors = wanted - values.ravel()
    if mask is not None:
        counted = mask.ravel() != 0
        wanted, errors = wanted[counted], errors[counted]
    total = _squared_deviations(wanted)
    return 1 - _squared_deviations(errors) / total if total > 0 else math.nan


def _require_coefficients(value_coefficient: float, entropy_coefficient: float | Schedule) -> None:
    require(0 <= value_coefficient < math.inf, "value_coefficient", value_coefficient, "a number >= 0")
    require_throughout(math.isfinite, "entropy_coefficient", entropy_coefficient, "a finite number")


def _count(rows: Floats, mask: Floats | None) -> float:
    """At least 1: a rollout of one row can hold no transition at all, and then its gradient is 0."""
    return float(rows.size) if mask is None else max(float(mask.sum()), 1.0)


def _masked(rows: NDArray[Real], mask: Floats | None) -> NDArray[Real]:
    """0 where a row does not count, whatever stands there."""
    return rows if mask is None else np.where(mask != 0, rows, rows.dtype.type(0))


def _total(rows: NDArray[Any], mask: Floats | None) -> float:
    """The sum over the rows that count."""
    return float(rows.sum()) if mask is None else float(rows[mask != 0].sum())


def _dot(a: NDArray[Any], b: NDArray[Any]) -> float:
    return float(np.vdot(a, b))


def _spread(number: float, like: Floats, mask: Floats | None) -> Floats:
    """The number in every row that counts, 0 in the others."""
    return np.full_like(like, number) if mask is None else mask * np.float32(number)


def _normalized(advantages: Floats, mask: Floats | None, count: float) -> Floats:
    """Mean 0 and standard deviation 1 over the rows that count; rows that do not count are unspecified.

    In float64: where all advantages are the same, float32's error in their mean would be all that is left of them, and
    blown up to 1."""
    wide = advantages.astype(np.float64)
    deviations = wide - _total(wide, mask) / count
    counted = _masked(deviations, mask)
    normalized = deviations / (math.sqrt(_dot(counted, counted) / count) + 1e-8)
    return normalized.astype(np.float32)


def _squared_deviations(x: NDArray[np.float64]) -> float:
    """Sum of squared deviations from the mean; 0 for an empty array. (`var` takes longer at this size.)"""
    deviations = x - np.add.reduce(x) / max(x.size, 1)
    return float(deviations.dot(deviations))
