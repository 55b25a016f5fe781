"""The records that networks and losses exchange: outputs for a batch, and the derivatives of a loss by them."""

from __future__ import annotations

from dataclasses import dataclass

from a3c_exp.common.arrays import Floats


@dataclass(frozen=True, slots=True)
class PolicyOutputs:
    """Outputs of the learner's network for a batch.

    log_probs: float32 [T, B], log pi(a_t | s_t) of the actions that were taken, summed over the parts of an action.
    entropy: float32 [T, B], of pi(. | s_t), in nats.
    values: float32 [T, B], V(s_t).
    """

    log_probs: Floats
    entropy: Floats
    values: Floats


@dataclass(frozen=True, slots=True)
class OutputGradients:
    """A loss's derivatives by `PolicyOutputs`, each float32 [T, B]."""

    log_probs: Floats
    entropy: Floats
    values: Floats
