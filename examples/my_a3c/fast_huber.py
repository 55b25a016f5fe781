from dataclasses import dataclass

import numpy as np

from a3c_exp.algorithms import BatchArrays
from a3c_exp.networks import NetworkOutputs, OutputGradients
from a3c_exp.schedules import value
from my_a3c.huber import HuberA3C


@dataclass(frozen=True, kw_only=True)
class FastHuberA3C(HuberA3C):
    """HuberA3C with its derivatives written out."""

    def closed_form(
        self, outputs: NetworkOutputs, batch: BatchArrays, progress: float
    ) -> tuple[OutputGradients, dict[str, float]]:
        valid = np.ones(batch.shape, np.bool_) if batch.mask is None else batch.mask != 0
        weight = np.float32(1 / max(batch.transitions, 1))
        # a row that is no transition may hold anything
        advantages = np.where(valid, batch.advantages, 0)
        errors = np.where(valid, outputs.values - batch.targets, 0)
        clipped = errors.clip(-self.delta, self.delta)  # the derivative of the Huber loss
        gradients = OutputGradients(
            log_probs=-weight * advantages,
            entropy=valid * np.float32(-weight * value(self.entropy_coefficient, progress)),
            values=np.float32(self.value_coefficient) * weight * clipped,
        )
        return gradients, {
            "policy_loss": float((gradients.log_probs * outputs.log_probs)[valid].sum()),
            "value_loss": float(weight * (clipped * (errors - clipped / 2)).sum()),
            "entropy": float(weight * outputs.entropy[valid].sum()),
        }
