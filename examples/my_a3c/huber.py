from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import huber_loss

from a3c_exp.algorithms import Algorithm, Batch, Metrics, PolicyOutputs
from a3c_exp.common.ranges import Positive
from a3c_exp.schedules import Schedule, value


@dataclass(frozen=True, kw_only=True)
class HuberA3C(Algorithm):
    delta: Positive = 1.0
    value_coefficient: float = 0.5
    entropy_coefficient: float | Schedule = 0.01

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        policy_loss = -batch.mean(policy.log_probs * batch.advantages)
        value_loss = batch.mean(
            huber_loss(policy.values, batch.targets, delta=self.delta, reduction="none")
        )
        entropy = batch.mean(policy.entropy)
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        weight = value(self.entropy_coefficient, progress)
        return policy_loss + self.value_coefficient * value_loss - weight * entropy, metrics
