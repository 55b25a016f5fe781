import numpy as np

from a3c_exp.engine.arrays import BatchArrays, NetworkOutputs, OutputGradients
from a3c_exp.engine.losses import LOSSES, LossGradient
from a3c_exp.schedules import value
from my_a3c.huber import HuberA3C


def derivatives(
    algorithm: HuberA3C, outputs: NetworkOutputs, batch: BatchArrays, progress: float
) -> LossGradient:
    """The derivatives of `HuberA3C.loss`, and its metrics."""
    valid = np.ones(batch.shape, np.bool_) if batch.valid is None else batch.valid
    weight = np.float32(1 / max(batch.transitions, 1))
    entropy_coefficient = value(algorithm.entropy_coefficient, progress)

    # a row that is no transition may hold anything
    advantages = np.where(valid, batch.advantages, 0)
    errors = np.where(valid, outputs.values - batch.targets, 0)
    clipped = errors.clip(-algorithm.delta, algorithm.delta)  # the derivative of the Huber loss

    gradients = OutputGradients(
        log_probs=-weight * advantages,
        entropy=valid * np.float32(-weight * entropy_coefficient),
        values=np.float32(algorithm.value_coefficient) * weight * clipped,
    )
    return gradients, {
        "policy_loss": float((gradients.log_probs * outputs.log_probs)[valid].sum()),
        "value_loss": float(weight * (clipped * (errors - clipped / 2)).sum()),
        "entropy": float(weight * outputs.entropy[valid].sum()),
    }


LOSSES[HuberA3C] = derivatives
