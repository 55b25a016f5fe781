"""What a network says about a batch, and the derivatives of a loss by it: what networks and losses exchange."""

from __future__ import annotations

from dataclasses import dataclass

from a3c_exp.common.arrays import Floats


@dataclass(frozen=True, slots=True)
class PolicyOutputs:
    """What the learner's network says about a batch.

    log_probs: float32 [T, B], log pi(a_t | s_t) of the actions that were taken, summed over the parts of an action.
    entropy: float32 [T, B], of pi(. | s_t), in nats.
    values: float32 [T, B], V(s_t).
    """

    log_probs: Floats
    entropy: Floats
    values: Floats


class OutputGradients(PolicyOutputs):
    """A loss's derivatives by `PolicyOutputs`, each float32 [T, B]."""

    __slots__ = ()
