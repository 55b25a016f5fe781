"""Losses: what the gradient is taken of. With returns.py the only reinforcement-learning mathematics of the project."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a3c_exp.errors import require
from a3c_exp.schedules import Schedule, value


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


@dataclass(frozen=True, kw_only=True)
class A3C:
    """The loss of asynchronous advantage actor-critic, Mnih et al. 2016 (arXiv 1602.01783, section 4, algorithm S3).

        L = sum_t  - log pi(a_t | s_t) A_t  +  c_v 1/2 (G_t - V(s_t))^2  -  c_e H(pi(. | s_t))

    or the mean of it. No gradient flows into the advantages A_t or the targets G_t.

    value_coefficient: c_v, a number >= 0.
    entropy: c_e, a number >= 0, or a schedule of one.
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
        require(0 <= self.value_coefficient < math.inf, "value_coefficient", self.value_coefficient, "a number >= 0")
        if isinstance(self.entropy, (int, float)):
            require(0 <= self.entropy < math.inf, "entropy", self.entropy, "a number >= 0, or a schedule")
        require(self.reduction in ("mean", "sum"), "reduction", self.reduction, "mean or sum")

    def loss(self, evaluation: Evaluation, batch: Batch, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        """See the class; metrics: policy_loss, value_loss (with its 1/2), entropy."""
        mask = batch.mask
        advantages = batch.advantages.detach()
        errors = evaluation.values - batch.targets.detach()
        if mask is None:
            count = float(errors.numel())
            entropy = evaluation.entropy.sum()
        else:
            # At least 1: a rollout of one row can hold no transition at all, and then its gradient is 0.
            count = max(float(mask.sum()), 1.0)
            entropy = torch.dot(evaluation.entropy.flatten(), mask.flatten())
            errors = errors * mask
        if self.normalize_advantages:
            advantages = _normalized(advantages, mask, count)
        if mask is not None:
            advantages = advantages * mask

        # Dot products, and coefficients given to an addition: half the nodes of the formula as it is written, and at
        # this size a node costs more than its arithmetic.
        policy_loss = torch.dot(evaluation.log_probs.flatten(), (advantages * (-1 / count)).flatten())
        errors = errors.flatten()
        squares = torch.dot(errors, errors)
        loss = torch.add(policy_loss, squares, alpha=0.5 * self.value_coefficient / count)
        loss = torch.sub(loss, entropy, alpha=value(self.entropy, progress) / count)
        metrics = {
            "policy_loss": policy_loss.detach(),
            "value_loss": squares.detach() * (0.5 / count),
            "entropy": entropy.detach() / count,
        }
        return (loss * count if self.reduction == "sum" else loss), metrics


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
