"""The loss of A3C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from a3c_exp.algorithms.algorithm import Algorithm, Metrics
from a3c_exp.algorithms.batch import Batch, PolicyOutputs
from a3c_exp.common.ranges import Finite, NotNegative
from a3c_exp.schedules import Schedule, value


@dataclass(frozen=True, kw_only=True)
class A3C(Algorithm):
    """The loss of asynchronous advantage actor-critic, Mnih et al. 2016 (arXiv 1602.01783, section
    4, algorithm S3).

        L = sum_t  - log pi(a_t | s_t) A_t  +  c_v 1/2 (G_t - V(s_t))^2  -  c_e H(pi(. | s_t))

    or the mean of it. No gradient flows into the advantages A_t or the targets G_t.

    value_coefficient: c_v, a number >= 0.
    entropy_coefficient: c_e, a number, or a schedule of one. Below 0 it reduces exploration, which
        makes sense late in a run.
    normalize_advantages: subtract the batch's mean and divide by its standard deviation. Not in the
        paper. From a batch of a single transition the actor then learns nothing.
    reduction: "mean" over transitions, or "sum", as the paper has it. With "sum" the learning rate
        has to fit the number of transitions in an update.
    """

    value_coefficient: NotNegative = 0.5
    entropy_coefficient: Finite | Schedule = 0.01
    normalize_advantages: bool = False
    reduction: Literal["mean", "sum"] = "mean"

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """Compute the loss of the class. Metrics: policy_loss, value_loss (with its 1/2), entropy.

        Unless kernels=false, `engine.losses` computes the same with derivatives written out. A
        subclass is differentiated by torch.
        """
        advantages = batch.advantages
        if self.normalize_advantages:
            advantages = batch.normalize(advantages)

        policy_losses = -policy.log_probs * advantages
        value_losses = 0.5 * (batch.targets - policy.values) ** 2
        entropy_coefficient = value(self.entropy_coefficient, progress)
        losses = (
            policy_losses
            + self.value_coefficient * value_losses
            - entropy_coefficient * policy.entropy
        )

        loss = batch.sum(losses) if self.reduction == "sum" else batch.mean(losses)
        return loss, {
            "policy_loss": policy_losses,
            "value_loss": value_losses,
            "entropy": policy.entropy,
        }
