"""Explanation of a gradient that is not finite: which array is not, and whether the environment or
the learning rate is to blame."""

from __future__ import annotations

import math

import numpy as np

from a3c_exp.common.arrays import Array, Vector
from a3c_exp.engine.arrays import BatchArrays
from a3c_exp.networks import ActorCritic

# Numbers from here on have squares that float32 cannot hold.
TOO_LARGE = math.sqrt(np.finfo(np.float32).max)

_REMEDIES = {
    "observations": "Set env.normalize_observations=true, or scale them in a wrapper.",
    "rewards": "Set env.reward_scale or env.reward_clip.",
}

_HINT = (
    "A smaller learning rate, optimizer.max_grad_norm or smaller rewards "
    "(env.reward_scale) may help."
)


@np.errstate(all="ignore")
def explain_divergence(network: ActorCritic, batch: BatchArrays) -> str:
    """Name the first array that is not finite with its largest value, and say what to do.

    network: bound, with the refused gradient.
    batch: the one that the gradient is of.
    """
    for name, remedy in _REMEDIES.items():
        largest = _largest(_column(batch, name))
        if not largest < TOO_LARGE:  # NaN is not either
            problem = "too large to learn from" if math.isfinite(largest) else "not finite"
            return f"The environment's {name} are {problem} (largest {largest:.2g}). {remedy}"

    groups = network.param_slices.items()
    arrays: dict[str, Vector] = {
        f"parameters of {group}": network.vector[part] for group, part in groups
    }
    for name in ("log_probs", "values", "advantages", "targets"):
        arrays[name] = _column(batch, name)
    for group, part in groups:
        arrays[f"gradient of {group}"] = network.gradient[part]

    sizes = {name: _largest(array) for name, array in arrays.items()}
    name = next(
        (name for name, size in sizes.items() if not math.isfinite(size)),
        max(sizes, key=sizes.__getitem__),
    )
    problem = "Too large" if math.isfinite(sizes[name]) else "Not finite"
    return f"{problem}: {name} (largest {sizes[name]:.2g}). {_HINT}"


def _column(batch: BatchArrays, name: str) -> Array:
    """One field of all transitions, [N, ...]."""
    array: Array = getattr(batch, name)
    return array if batch.valid is None else array[batch.valid]


def _largest(numbers: Vector) -> float:
    """The largest absolute value of an array or a tensor; NaN if it has one."""
    return float(abs(numbers).max()) if len(numbers) else 0.0
