"""The losses of asynchronous Q-learning and Sarsa, and of deep Q-learning from a memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from a3c_exp.algorithms.algorithm import Algorithm, Metrics
from a3c_exp.algorithms.batch import Batch, PolicyOutputs
from a3c_exp.common.ranges import Count, Positive


@dataclass(frozen=True, kw_only=True)
class NStepQ(Algorithm):
    """The loss of asynchronous n-step Q-learning, Mnih et al. 2016 (arXiv 1602.01783, algorithm
    S2).

        L = sum_t  1/2 (G_t - Q(s_t, a_t))^2,
        G_t = r_t + gamma r_{t+1} + ... + gamma^n max_a Q^-(s_{t+n}, a)

    or the mean of it. Q^- is a target network: Q as it was at the last refresh. No gradient flows
    into G_t, which the returns make: `NStep`. The paper has the loss without the 1/2.

    G_t is the return of the actions that were taken. Beyond the first they need not be the best
    ones, so for n > 1 Q is the optimal action value only if exploration ends.

    target_every: steps of all workers between two refreshes of the target network (the paper's
        I_target). They come with updates: with the first one after so many steps.
    reduction: "sum" over transitions, as in the paper, or "mean".
    """

    target_every: Count = 10_000
    reduction: Literal["mean", "sum"] = "sum"

    one_step: ClassVar[bool] = False

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """Compute the loss of the class. Metrics: value_loss (with its 1/2).

        Unless kernels=false, `engine.losses` computes the same with derivatives written out.
        """
        losses = 0.5 * (batch.targets - policy.values) ** 2
        loss = batch.sum(losses) if self.reduction == "sum" else batch.mean(losses)
        return loss, {"value_loss": losses}


@dataclass(frozen=True, kw_only=True)
class OneStepQ(NStepQ):
    """One-step Q-learning (algorithm 1 of the same paper): G_t = r_t + gamma max_a Q^-(s_{t+1}, a).

    The target is right whatever explores: Q is the optimal action value.
    """

    one_step: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Sarsa(OneStepQ):
    """One-step Sarsa (section 4 of the same paper): G_t = r_t + gamma Q^-(s_{t+1}, a_{t+1}).

    a_{t+1} is the action that is taken in s_{t+1}, so Q is the action value of the policy that
    explores. Where a time limit ends an episode no action is taken: there the largest value counts.
    """

    value_of_action: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class DQN(NStepQ):
    """Deep Q-learning from a memory alone, Mnih et al. 2015 ("Human-level control through deep
    reinforcement learning", algorithm 1). With workers that push to shared parameters it is that of
    Nair et al. 2015 (Gorila, arXiv 1507.04296).

        L = mean_t h(G_t - Q(s_t, a_t)),  G_t = r_t + gamma max_a Q^-(s_{t+1}, a)
        h(x) = x^2 / 2 for |x| <= d,  d (|x| - d / 2) beyond

    The returns may have more steps, as those of `NStepQ`.

    double: G_t has Q^-(s, argmax_a Q(s, a)) in place of the maximum (van Hasselt et al. 2016, arXiv
        1509.06461).
    max_error: d, the largest derivative by an error; None: there is no bound.
    """

    reduction: Literal["mean", "sum"] = "mean"
    double: bool = False
    max_error: Positive | None = 1.0

    learns_fresh: ClassVar[bool] = False

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """Compute the loss of the class. Metrics: value_loss.

        Unless kernels=false, `engine.losses` computes the same with derivatives written out.
        """
        errors = batch.targets - policy.values
        bounded = (
            errors if self.max_error is None else errors.clamp(-self.max_error, self.max_error)
        )
        # equal to h: bounded is d or -d beyond the bound
        losses = bounded * (errors - 0.5 * bounded)
        loss = batch.sum(losses) if self.reduction == "sum" else batch.mean(losses)
        return loss, {"value_loss": losses}
