"""The records that networks and losses exchange, as arrays: outputs for a batch, and a loss's derivatives by them."""

from __future__ import annotations

from dataclasses import dataclass

from a3c_exp.common.arrays import Floats


@dataclass(frozen=True, slots=True)
class NetworkOutputs:
    """Outputs of the learner's network for a batch.

    log_probs: float32 [T, B], log pi(a_t | s_t) of the actions that were taken, summed over the parts of an action.
    entropy: float32 [T, B], of pi(. | s_t), in nats.
    values: float32 [T, B], V(s_t).
    features: float32 [T, B, F], from which the policy is computed; None for a network that has none to show. The memory
        is the network's own, which overwrites it as soon as the gradient is added.
    """

    log_probs: Floats
    entropy: Floats
    values: Floats
    features: Floats | None = None


@dataclass(frozen=True, slots=True)
class OutputGradients:
    """A loss's derivatives by `NetworkOutputs`, in their shapes. features: None if the loss does not use them."""

    log_probs: Floats
    entropy: Floats
    values: Floats
    features: Floats | None = None
