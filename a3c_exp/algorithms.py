"""Losses: what the gradient is taken of. With returns.py the only reinforcement-learning mathematics of the project."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a3c_exp.errors import ConfigError, require
from a3c_exp.schedules import Schedule, require_throughout, value


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the learner's network says about a batch, with the graph that leads back to its parameters.

    log_probs: float32 [T, B], log pi(a_t | s_t) of the actions that were taken, summed over the parts of an action.
    entropy: float32 [T, B], of pi(. | s_t), in nats.
    values: float32 [T, B], V(s_t).
    """

    log_probs: Tensor
    entropy: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """What was collected, and what the returns made of it. Constants to a loss.

    log_probs, values: float32 [T, B], the behaviour's, from the rollout.
    advantages, targets: float32 [T, B], from the returns.
    mask: float32 [T, B], 1 where a row is a transition, 0 where it is not; None where every row is one.
    """

    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    targets: Tensor
    mask: Tensor | None = None


@runtime_checkable
class Algorithm(Protocol):
    """A loss of a batch."""

    def loss(self, evaluation: Evaluation, batch: Batch, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to take the gradient of, and metrics: detached scalars, each a mean over the transitions.

        The metrics have at least policy_loss, value_loss and entropy, without their coefficients.
        progress: share of the run that is done, for coefficients that follow a schedule.
        """
        ...


@runtime_checkable
class Reusing(Protocol):
    """What an algorithm has besides its loss if it learns from a rollout more than once, in minibatches.

    Each of them is a pull, a gradient and a push. The loss gets its transitions as [1, N], or as the whole sequences
    [T, N] of some environments where a network has a memory.
    """

    def check_rollout(self, count: int, length: int) -> None:
        """Raise ConfigError where a whole rollout of `count` sequences of `length` transitions cannot be used; count 0:
        it is not known yet how many there will be."""

    def minibatches(self, count: int, length: int, rng: np.random.Generator) -> Iterator[NDArray[np.intp]]:
        """Which of the `count` sequences of `length` transitions go into each gradient, in the order of the pushes."""
        ...

    def enough(self, metrics: Mapping[str, float]) -> bool:
        """Whether the minibatch that reported these was to be the last of its rollout."""
        ...


@dataclass(frozen=True, kw_only=True)
class A3C:
    """The loss of asynchronous advantage actor-critic, Mnih et al. 2016 (arXiv 1602.01783, section 4, algorithm S3).

        L = sum_t  - log pi(a_t | s_t) A_t  +  c_v 1/2 (G_t - V(s_t))^2  -  c_e H(pi(. | s_t))

    or the mean of it. No gradient flows into the advantages A_t or the targets G_t.

    value_coefficient: c_v, a number >= 0.
    entropy: c_e, a number, or a schedule of one. Below 0 it drives exploration out, which makes sense late in a run.
    normalize_advantages: subtract the batch's mean and divide by its standard deviation. Not in the paper. A batch of
        a single transition then teaches the actor nothing.
    reduction: "mean" over transitions, or "sum", as the paper has it; with "sum" the learning rate has to fit the
        number of transitions in an update.
    """

    value_coefficient: float = 0.5
    entropy: float | Schedule = 0.01
    normalize_advantages: bool = False
    reduction: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        _require_coefficients(self.value_coefficient, self.entropy)
        require(self.reduction in ("mean", "sum"), "reduction", self.reduction, "mean or sum")

    def loss(self, evaluation: Evaluation, batch: Batch, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        """See the class; metrics: policy_loss, value_loss (with its 1/2), entropy."""
        mask = batch.mask
        advantages = batch.advantages.detach()
        count = _count(advantages, mask)
        if self.normalize_advantages:
            advantages = _normalized(advantages, mask, count)
        if mask is not None:
            advantages = advantages * mask

        policy_loss = torch.dot(evaluation.log_probs.flatten(), (advantages * (-1 / count)).flatten())
        squares = _sum_of_squares(evaluation.values - batch.targets.detach(), mask)
        entropy = _total(evaluation.entropy, mask)
        loss, metrics = _combined(self, policy_loss, squares, entropy, count, progress)
        return (loss * count if self.reduction == "sum" else loss), metrics


@dataclass(frozen=True, kw_only=True)
class PPO:
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
    value_coefficient, entropy: c_v and c_e, as for A3C.
    normalize_advantages: mean 0 and standard deviation 1 in each minibatch. One of a single transition then teaches the
        actor nothing.
    """

    clip: float | Schedule = 0.2
    epochs: int = 4
    minibatch_size: int | None = 64
    target_kl: float | None = None
    value_clip: float | Schedule | None = None
    value_coefficient: float = 0.5
    entropy: float | Schedule = 0.0
    normalize_advantages: bool = True

    def __post_init__(self) -> None:
        _require_coefficients(self.value_coefficient, self.entropy)
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
            raise ConfigError("minibatch_size", size, problem)
        if size is not None and size % length:
            problem = f"must be a multiple of rollout_length={length}: a network with a memory learns whole sequences"
            raise ConfigError("minibatch_size", size, problem)

    def minibatches(self, count: int, length: int, rng: np.random.Generator) -> Iterator[NDArray[np.intp]]:
        """All of them, by their numbers, `epochs` times. Nothing is drawn where one minibatch takes them all."""
        parts = 1 if self.minibatch_size is None else min(count, -(-count * length // self.minibatch_size))
        for _ in range(self.epochs if count else 0):
            yield from np.array_split(rng.permutation(count) if parts > 1 else np.arange(count), parts)

    def enough(self, metrics: Mapping[str, float]) -> bool:
        return self.target_kl is not None and metrics["approx_kl"] > self.target_kl

    def loss(self, evaluation: Evaluation, batch: Batch, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        """See the class; metrics: policy_loss, value_loss (with its 1/2), entropy, approx_kl: the mean of r - 1 - ln r,
        which estimates KL(mu || pi) (Schulman 2020, "Approximating KL divergence"), clip_fraction: the share of
        transitions whose r lies outside the clip range."""
        mask, advantages = batch.mask, batch.advantages.detach()
        count = _count(advantages, mask)
        if self.normalize_advantages:
            advantages = _normalized(advantages, mask, count)
        log_ratios = evaluation.log_probs - batch.log_probs
        if mask is not None:
            # What does not count may be anything, and 0 times infinity is not 0.
            advantages, log_ratios = advantages * mask, log_ratios * mask

        # min(r A, clip(r) A) is A times r held below 1 + epsilon where A > 0, and above 1 - epsilon where A < 0. It is
        # ln r that is held: an r too large for float32 would have a gradient of 0 times infinity.
        epsilon, gains = value(self.clip, progress), advantages >= 0
        lowest = torch.where(gains, -math.inf, math.log1p(-epsilon))
        highest = torch.where(gains, math.log1p(epsilon), math.inf)
        held = log_ratios.clamp(lowest, highest).exp()
        policy_loss = torch.dot(held.flatten(), (advantages * (-1 / count)).flatten())
        squares, entropy = self._squares(evaluation.values, batch, progress), _total(evaluation.entropy, mask)
        loss, metrics = _combined(self, policy_loss, squares, entropy, count, progress)
        with torch.no_grad():
            ratios = log_ratios.exp()
            metrics["approx_kl"] = _total(ratios - 1 - log_ratios, mask) / count
            metrics["clip_fraction"] = _total(((ratios - 1).abs() > epsilon).float(), mask) / count
        return loss, metrics

    def _squares(self, values: Tensor, batch: Batch, progress: float) -> Tensor:
        """The sum of the critic's squared errors, over the rows that count."""
        targets = batch.targets.detach()
        errors = values - targets
        if self.value_clip is None:
            return _sum_of_squares(errors, batch.mask)
        bound = value(self.value_clip, progress)
        clipped = batch.values + (values - batch.values).clamp(-bound, bound)
        return _total(torch.maximum(errors.square(), (clipped - targets).square()), batch.mask)


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


def _require_coefficients(value_coefficient: float, entropy: float | Schedule) -> None:
    require(0 <= value_coefficient < math.inf, "value_coefficient", value_coefficient, "a number >= 0")
    require_throughout(math.isfinite, "entropy", entropy, "a finite number")


def _combined(
    weights: A3C | PPO, policy_loss: Tensor, squares: Tensor, entropy: Tensor, count: float, progress: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, and what both algorithms report, from the mean of the policy's part and the sums of the others.

    Here and above dot products, and coefficients given to an addition: half the nodes of the formula as it is written,
    and at this size a node costs more than its arithmetic.
    """
    loss = torch.add(policy_loss, squares, alpha=0.5 * weights.value_coefficient / count)
    loss = torch.sub(loss, entropy, alpha=value(weights.entropy, progress) / count)
    metrics = {
        "policy_loss": policy_loss.detach(),
        "value_loss": squares.detach() * (0.5 / count),
        "entropy": entropy.detach() / count,
    }
    return loss, metrics


def _count(rows: Tensor, mask: Tensor | None) -> float:
    """At least 1: a rollout of one row can hold no transition at all, and then its gradient is 0."""
    return float(rows.numel()) if mask is None else max(float(mask.sum()), 1.0)


def _total(rows: Tensor, mask: Tensor | None) -> Tensor:
    """The sum over the rows that count."""
    return rows.sum() if mask is None else torch.dot(rows.flatten(), mask.flatten())


def _sum_of_squares(rows: Tensor, mask: Tensor | None) -> Tensor:
    counted = (rows if mask is None else rows * mask).flatten()
    return torch.dot(counted, counted)


def _normalized(advantages: Tensor, mask: Tensor | None, count: float) -> Tensor:
    """Mean 0 and standard deviation 1 over the rows that count; rows that do not count are unspecified."""
    counted = advantages if mask is None else advantages * mask
    deviations = advantages - counted.sum() / count
    spread: Tensor = torch.linalg.vector_norm(deviations if mask is None else deviations * mask) / math.sqrt(count)
    return deviations / (spread + 1e-8)


def _squared_deviations(x: NDArray[np.float64]) -> float:
    """Sum of squared deviations from the mean; 0 for an empty array. (`var` takes longer at this size.)"""
    deviations = x - np.add.reduce(x) / max(x.size, 1)
    return float(deviations.dot(deviations))
