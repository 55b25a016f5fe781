"""The loss of actor-critic with experience replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from a3c_exp.algorithms.algorithm import Algorithm, Metrics
from a3c_exp.algorithms.batch import Batch, PolicyOutputs
from a3c_exp.common.ranges import Finite, NotNegative, Positive, Share
from a3c_exp.schedules import Schedule, value

LARGEST_LOG = 30.0
"""The largest logarithm of a ratio of probabilities: the square of the ratio is finite in
float32."""

NOT_ALLOWED = -1e8
"""Logits below it are of actions that a mask forbids."""


@dataclass(frozen=True, kw_only=True)
class ACER(Algorithm):
    """The loss of ACER for discrete actions, Wang et al. 2017 (arXiv 1611.01224, section 3 and
    algorithm 2).

    With p(a) = pi(a | s_t), mu the policy that acted, and rho(a) = p(a) / mu(a), the direction by
    the probabilities is

        g(a) = [a = a_t] min(c, rho(a)) (Q^ret_t - V(s_t)) / p(a)
               + max(0, 1 - c / rho(a)) (Q(s_t, a) - V(s_t))

    the trust region around an average policy p_a is

        z = g - max(0, (k . g - delta) / |k|^2) k,  k = d KL(p_a || p) / dp = - p_a / p

    and the loss, with z held constant,

        L = mean_t  - sum_a z(a) p(a)  +  c_v 1/2 (Q^ret_t - Q(s_t, a_t))^2  -  c_e H(pi(. | s_t))

    The returns make Q^ret: `Retrace`. Memories make it off-policy; without one it learns on-policy
    alone.

    truncation: c, the largest weight of an action that was taken. The second term of g corrects the
        bias of the truncation.
    trust_region: delta; None: z = g.
    target_decay: alpha, of the average policy's parameters theta_a, which are alpha theta_a +
        (1 - alpha) theta after each update.
    value_coefficient: c_v.
    entropy_coefficient: c_e, a number, or a schedule of one.
    """

    truncation: Positive = 10.0
    trust_region: Positive | None = 1.0
    target_decay: Share = 0.99
    value_coefficient: NotNegative = 0.5
    entropy_coefficient: Finite | Schedule = 0.01

    needs_behaviour: ClassVar[bool] = True

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """Compute the loss of the class. Metrics: policy_loss (- sum z p), value_loss (with its
        1/2), entropy, policy_distance (KL of the average policy to the policy), and limited: the
        share of transitions whose g lies outside the trust region.

        Unless kernels=false, `engine.losses` computes the same with derivatives written out.
        """
        logits, action_values, average = policy.parameters.chunk(3, dim=-1)
        with torch.no_grad():
            direction, is_limited = self._direction(logits, action_values, average, batch)
            log_average = average.log_softmax(-1)
            distances = (log_average.exp() * (log_average - logits.log_softmax(-1))).sum(-1)

        policy_losses = -(direction * logits.softmax(-1)).sum(-1)
        values_taken = action_values.gather(-1, batch.actions[..., None])[..., 0]
        value_losses = 0.5 * (batch.targets - values_taken) ** 2
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
            "policy_distance": distances,
            "limited": is_limited,
        }

    def _direction(
        self, logits: Tensor, action_values: Tensor, average: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Return z, [T, B, A], and whether g lies outside the trust region, [T, B]."""
        assert batch.behaviour is not None
        log_p = logits.log_softmax(-1)
        p = log_p.exp()
        log_mu = batch.behaviour.log_softmax(-1)
        state_values = (p * action_values).sum(-1, keepdim=True)

        log_c = torch.tensor(self.truncation).log()
        # min(c, rho) / p is min(c / p, 1 / mu)
        weights = torch.minimum(log_c - log_p, -log_mu).clamp(max=LARGEST_LOG).exp()
        is_taken = torch.zeros_like(p).scatter(-1, batch.actions[..., None], 1.0)
        correction = (1 - (log_c - log_p + log_mu).clamp(max=LARGEST_LOG).exp()).clamp(min=0)
        g = is_taken * weights * batch.advantages[..., None]
        g = g + correction * (action_values - state_values)
        k = -(average.log_softmax(-1) - log_p).clamp(max=LARGEST_LOG).exp()

        allowed = logits > NOT_ALLOWED
        g = torch.where(allowed, g, 0.0)
        k = torch.where(allowed, k, 0.0)
        bound = torch.inf if self.trust_region is None else self.trust_region
        excess = (k * g).sum(-1, keepdim=True) - bound
        z = g - (excess / k.square().sum(-1, keepdim=True)).clamp(min=0) * k
        return z, excess[..., 0] > 0
