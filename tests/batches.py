"""Batches and network outputs of drawn numbers, as losses take them."""

from __future__ import annotations

from typing import Any

import numpy as np

from a3c_exp.algorithms import BatchArrays
from a3c_exp.common.arrays import Floats
from a3c_exp.networks import NetworkOutputs, OutputGradients


def _draw(seed: int, count: int, shape: tuple[int, int], scale: float) -> list[Floats]:
    return list(scale * np.random.default_rng(seed).standard_normal((count, *shape)).astype(np.float32))


def draw_outputs(shape: tuple[int, int], scale: float = 1.0) -> NetworkOutputs:
    """Outputs [T, B] whose numbers are normally distributed."""
    return NetworkOutputs(*_draw(0, 3, shape, scale))


def draw_batch(shape: tuple[int, int], scale: float = 1.0, mask: Floats | None = None) -> BatchArrays:
    """A batch [T, B] whose numbers are normally distributed."""
    log_probs, values, advantages, targets = _draw(1, 4, shape, scale)
    return make_batch(log_probs, values, advantages, targets, mask)


def make_batch(log_probs: Any, values: Any, advantages: Any, targets: Any, mask: Floats | None = None) -> BatchArrays:
    """A batch for a loss, which needs neither observations nor actions. All rewards are 0."""
    nothing, rewards = np.zeros((*targets.shape, 1), np.float32), np.zeros(targets.shape, np.float32)
    return BatchArrays(
        observations=nothing,
        actions=nothing,
        log_probs=log_probs,
        values=values,
        rewards=rewards,
        advantages=advantages,
        targets=targets,
        mask=mask,
    )


def parts(x: NetworkOutputs | OutputGradients) -> tuple[Floats, Floats, Floats]:
    """Those by log-probabilities, entropies and values."""
    return x.log_probs, x.entropy, x.values
