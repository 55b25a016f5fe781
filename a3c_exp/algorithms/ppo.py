"""The loss of proximal policy optimization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a3c_exp.algorithms.algorithm import Metrics, MinibatchAlgorithm
from a3c_exp.algorithms.batch import Batch, PolicyOutputs
from a3c_exp.common.ranges import BelowOne, Count, Finite, NotNegative, Positive, whole
from a3c_exp.errors import ConfigError
from a3c_exp.schedules import Schedule, value

MAX_EPOCHS = 1000
"""A larger number is taken for a typing error: the first rollout would have no end."""


@dataclass(frozen=True, kw_only=True)
class PPO(MinibatchAlgorithm):
    """Proximal policy optimization, Schulman et al. 2017 (arXiv 1707.06347, equations 7 and 9).

        L = mean_t  - min(r_t A_t, clip(r_t, 1 - epsilon, 1 + epsilon) A_t)
                    + c_v 1/2 (G_t - V(s_t))^2  -  c_e H(pi(. | s_t))
        r_t = pi(a_t | s_t) / mu(a_t | s_t)

    with pi the policy that learns and mu the one that acted. No gradient flows into A_t or G_t,
    which are those of the rollout for all epochs. Workers that push when they are ready, or in
    rounds, make it the distributed form (Heess et al. 2017, arXiv 1707.02286).

    clip: epsilon, a number between 0 and 1, or a schedule.
    epochs: how often each transition of a rollout is learned from.
    minibatch_size: transitions of a minibatch, null for whole rollouts. A minibatch is a random
        part of the rollout, drawn anew in each epoch. A rollout that an episode's end has cut short
        is divided evenly into as few as do not exceed the size. For a network with a recurrent
        state a minibatch is the whole sequences of some environments.
    target_kl: learn no more from a rollout once a minibatch finds its policy farther than this from
        the one that acted (`approx_kl`, in nats). That minibatch is the last; null: never.
    value_coefficient, entropy_coefficient: c_v and c_e, as for A3C.
    normalize_advantages: mean 0 and standard deviation 1 in each minibatch. From one of a single
        transition the actor then learns nothing.
    """

    clip: BelowOne | Schedule = 0.2
    epochs: Annotated[int, whole(1, MAX_EPOCHS)] = 4
    minibatch_size: Count | None = 64
    target_kl: Positive | None = None
    value_coefficient: NotNegative = 0.5
    entropy_coefficient: Finite | Schedule = 0.0
    normalize_advantages: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        # A schedule may end at 0; a number of 0, by someone who wants no clip, would be one that
        # lets nothing through.
        if self.clip == 0:
            raise ConfigError("clip", self.clip, "must be a number between 0 and 1, or a schedule")

    def check_rollout(self, count: int, length: int) -> None:
        """Raise ConfigError where the minibatches do not divide a rollout, or cut its sequences."""
        size = self.minibatch_size
        if size is None:
            return

        transitions = count * length
        if transitions % size:
            problem = (
                f"must be a divisor of rollout_length x envs_per_worker = {transitions} "
                "transitions (experiment=ppo sets all of them)"
            )
            raise ConfigError("minibatch_size", size, problem)
        if size % length:
            problem = (
                f"must be a multiple of rollout_length={length}: "
                "a recurrent network learns whole sequences"
            )
            raise ConfigError("minibatch_size", size, problem)

    def minibatches(
        self, count: int, length: int, rng: np.random.Generator
    ) -> Iterator[NDArray[np.intp]]:
        """All of them, by their numbers, `epochs` times. Nothing is drawn where one minibatch takes
        them all."""
        if not count:
            return
        parts = 1
        if self.minibatch_size is not None:
            parts = min(count, -(-count * length // self.minibatch_size))
        for _ in range(self.epochs):
            sequences = rng.permutation(count) if parts > 1 else np.arange(count)
            yield from np.array_split(sequences, parts)

    def should_stop_early(self, metrics: Mapping[str, float]) -> bool:
        """Return whether the policy has moved farther than `target_kl` from the one that acted."""
        return self.target_kl is not None and metrics["approx_kl"] > self.target_kl

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """Compute the loss of the class. Metrics: policy_loss, value_loss (with its 1/2), entropy,
        approx_kl, and clip_fraction: the share of transitions whose r lies outside the clip range.

        Unless kernels=false, `engine.losses` computes the same with derivatives written out.
        """
        advantages = batch.advantages
        if self.normalize_advantages:
            advantages = batch.normalize(advantages)

        epsilon = value(self.clip, progress)
        clipped_ratio = policy.ratio.clamp(1 - epsilon, 1 + epsilon)
        policy_losses = -torch.minimum(policy.ratio * advantages, clipped_ratio * advantages)
        value_losses = 0.5 * (batch.targets - policy.values) ** 2
        entropy_coefficient = value(self.entropy_coefficient, progress)
        losses = (
            policy_losses
            + self.value_coefficient * value_losses
            - entropy_coefficient * policy.entropy
        )

        return batch.mean(losses), {
            "policy_loss": policy_losses,
            "value_loss": value_losses,
            "entropy": policy.entropy,
            "approx_kl": policy.approx_kl,
            "clip_fraction": (policy.ratio - 1).abs() > epsilon,
        }
