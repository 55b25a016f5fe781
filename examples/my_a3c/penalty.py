from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from a3c_exp.algorithms import Batch, Metrics, MinibatchAlgorithm, PolicyOutputs
from a3c_exp.errors import ConfigError, require


@dataclass(frozen=True, kw_only=True)
class PenaltyPPO(MinibatchAlgorithm):
    """PPO with a penalty in place of the clip (Schulman et al. 2017, arXiv 1707.06347, equation 8,
    with a fixed beta).

    beta: weight of the divergence from the policy that acted. epochs: passes over each rollout.
    parts: minibatches of each pass.
    """

    beta: float = 1.0
    epochs: int = 4
    parts: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.epochs >= 1, "epochs", self.epochs, "a whole number >= 1")
        require(self.parts >= 1, "parts", self.parts, "a whole number >= 1")

    def check_rollout(self, count: int, length: int) -> None:
        if 0 < count < self.parts:
            raise ConfigError(
                "parts",
                self.parts,
                f"must be at most {count}, the number of sequences in a rollout",
            )

    def minibatches(
        self, count: int, length: int, rng: np.random.Generator
    ) -> Iterator[NDArray[np.intp]]:
        for _ in range(self.epochs if count else 0):
            yield from np.array_split(rng.permutation(count), min(self.parts, count))

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        policy_loss = -batch.mean(policy.ratio * batch.normalize(batch.advantages))
        value_loss = 0.5 * batch.mean((policy.values - batch.targets) ** 2)
        divergence, entropy = batch.mean(policy.approx_kl), batch.mean(policy.entropy)
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": divergence,
        }
        return policy_loss + 0.5 * value_loss + self.beta * divergence, metrics
