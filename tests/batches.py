"""Batches, as losses take them."""

from __future__ import annotations

from typing import Any

import numpy as np

from a3c_exp.common.arrays import Bools, Floats
from a3c_exp.engine.arrays import BatchArrays, NetworkOutputs, OutputGradients


def make_batch(
    log_probs: Any, values: Any, advantages: Any, targets: Any, valid: Bools | None = None
) -> BatchArrays:
    """A batch for a loss, which needs neither observations nor actions. All rewards are 0."""
    nothing = np.zeros((*targets.shape, 1), np.float32)
    rewards = np.zeros(targets.shape, np.float32)
    return BatchArrays(
        observations=nothing,
        actions=nothing,
        log_probs=log_probs,
        values=values,
        rewards=rewards,
        advantages=advantages,
        targets=targets,
        valid=valid,
    )


def parts(x: NetworkOutputs | OutputGradients) -> tuple[Floats, Floats, Floats]:
    """Those by log-probabilities, entropies and values."""
    return x.log_probs, x.entropy, x.values
