"""Derivatives of losses by the network's outputs: written out for the losses in `LOSSES`, by torch
for others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from a3c_exp.algorithms import (
    A3C,
    ACER,
    DQN,
    PPO,
    Algorithm,
    Batch,
    NStepQ,
    OneStepQ,
    PolicyOutputs,
    Sarsa,
)
from a3c_exp.algorithms.acer import LARGEST_LOG, NOT_ALLOWED
from a3c_exp.common.arrays import Bools, Floats
from a3c_exp.engine.arrays import (
    BatchArrays,
    NetworkOutputs,
    OutputGradients,
    broadcast,
    count_of,
    dot,
    filled,
    log_softmax,
    of_transitions,
    total,
)
from a3c_exp.schedules import value

LossGradient = tuple[OutputGradients, dict[str, float]]
"""A loss's derivatives by the network's outputs, and its metrics as numbers."""

ClosedForm = Callable[[Any, NetworkOutputs, BatchArrays, float], LossGradient]
"""The derivatives of a loss, written out: a function of the algorithm, the network's outputs, the
batch and the completed share of the run. Rows that are no transitions have derivatives of 0."""


def loss_gradient(
    algorithm: Algorithm, module: nn.Module | None, kernels: bool = True
) -> Callable[[NetworkOutputs, BatchArrays, float], LossGradient]:
    """Return the function that differentiates a loss: its closed form, if `LOSSES` has one and
    `kernels` allows it, or `differentiate`.

    module: the loss's own, to whose parameters' gradients the function adds; None if it has none.
    """
    closed_form = LOSSES.get(type(algorithm)) if kernels else None
    if closed_form is None:
        return partial(differentiate, algorithm, module)
    return partial(closed_form, algorithm)


# -- by torch
# ----------------------------------------------------------------------------------------------


def differentiate(
    algorithm: Algorithm,
    module: nn.Module | None,
    outputs: NetworkOutputs,
    arrays: BatchArrays,
    progress: float,
) -> LossGradient:
    """Differentiate `Algorithm.loss` by torch."""
    device = None if module is None else next((p.device for p in module.parameters()), None)
    batch = batch_of(arrays, device)
    leaves = {
        name: torch.from_numpy(filled(rows, arrays.valid)).to(device).requires_grad_()
        for name in ("log_probs", "entropy", "values", "features", "parameters")
        if (rows := getattr(outputs, name)) is not None
    }
    returned: object = algorithm.loss(
        PolicyOutputs(batch, module=module, **leaves), batch, progress
    )
    match returned:
        case (Tensor() as loss, Mapping() as metrics):
            pass
        case _:
            raise TypeError("loss must return a tensor and a mapping of metrics")
    if loss.dim():
        raise TypeError(
            "loss must return one number: batch.mean and batch.sum reduce "
            f"{tuple(loss.shape)} to it"
        )

    if loss.requires_grad:
        torch.autograd.backward(loss)

    gradients = {
        name: of_transitions(leaf.grad.cpu().numpy(), arrays.valid)
        for name, leaf in leaves.items()
        if leaf.grad is not None
    }
    for name in ("log_probs", "entropy", "values"):
        gradients.setdefault(name, np.zeros(arrays.shape, np.float32))
    numbers = {name: _number(name, metric, arrays) for name, metric in metrics.items()}

    return OutputGradients(**gradients), numbers


def batch_of(arrays: BatchArrays, device: torch.device | None = None) -> Batch:
    """Return a batch as a loss sees it, of the arrays' own memory where every row is a
    transition."""
    valid = np.ones(arrays.shape, np.bool_) if arrays.valid is None else arrays.valid
    rows = {name: filled(array, arrays.valid) for name, array in arrays.rows.items()}
    tensors = {name: torch.from_numpy(array).to(device) for name, array in rows.items()}
    return Batch(
        **tensors, valid=torch.from_numpy(valid).to(device), from_memory=arrays.from_memory
    )


def _number(name: str, metric: Tensor | float, arrays: BatchArrays) -> float:
    """A metric as a number. Raises TypeError, with its name, if it is none, nor one for each
    row."""
    try:
        if isinstance(metric, Tensor) and metric.shape == arrays.shape:
            numbers = metric.detach().cpu().numpy()
            return total(numbers, arrays.valid) / count_of(arrays.targets, arrays.valid)
        return float(metric.detach() if isinstance(metric, Tensor) else metric)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"the metric {name} must be one number, or one for each row") from error


# -- written out
# ----------------------------------------------------------------------------------------------


def _a3c(
    algorithm: A3C, outputs: NetworkOutputs, batch: BatchArrays, progress: float
) -> LossGradient:
    """See `A3C.loss`."""
    valid = batch.valid
    advantages = _advantages(batch.advantages, valid, algorithm.normalize_advantages)
    errors: Floats = of_transitions(outputs.values - batch.targets, valid)
    entropy_coefficient = value(algorithm.entropy_coefficient, progress)

    count = count_of(errors, valid)
    scale = 1.0 if algorithm.reduction == "sum" else 1 / count
    grad = OutputGradients(
        log_probs=advantages * -scale,
        entropy=broadcast(-entropy_coefficient * scale, outputs.entropy, valid),
        values=errors * (algorithm.value_coefficient * scale),
    )

    return grad, {
        "policy_loss": -dot(of_transitions(outputs.log_probs, valid), advantages) / count,
        "value_loss": 0.5 * dot(errors, errors) / count,
        "entropy": total(outputs.entropy, valid) / count,
    }


def _ppo(
    algorithm: PPO, outputs: NetworkOutputs, batch: BatchArrays, progress: float
) -> LossGradient:
    """See `PPO.loss`."""
    valid = batch.valid
    advantages = _advantages(batch.advantages, valid, algorithm.normalize_advantages)
    log_ratios = of_transitions(outputs.log_probs - batch.log_probs, valid)

    # min(r A, clip(r) A) is A times r bounded above by 1 + epsilon if A > 0, and below by 1 -
    # epsilon if A < 0. Outside the bound it does not change with r. The bound is on ln r, since r
    # may be too large for float32.
    epsilon = value(algorithm.clip, progress)
    positive = advantages >= 0
    lowest = np.where(positive, np.float32(-math.inf), np.float32(math.log1p(-epsilon)))
    highest = np.where(positive, np.float32(math.log1p(epsilon)), np.float32(math.inf))
    clipped_log_ratios = np.clip(log_ratios, lowest, highest)
    unclipped = clipped_log_ratios == log_ratios
    with np.errstate(over="ignore"):
        ratios = np.exp(log_ratios)
        weighted = np.exp(clipped_log_ratios) * advantages

    errors: Floats = of_transitions(outputs.values - batch.targets, valid)
    entropy_coefficient = value(algorithm.entropy_coefficient, progress)

    count = count_of(errors, valid)
    grad = OutputGradients(
        log_probs=np.where(unclipped, weighted * (-1 / count), np.float32(0)),
        entropy=broadcast(-entropy_coefficient / count, outputs.entropy, valid),
        values=errors * (algorithm.value_coefficient / count),
    )
    return grad, {
        "policy_loss": -float(weighted.sum()) / count,
        "value_loss": 0.5 * dot(errors, errors) / count,
        "entropy": total(outputs.entropy, valid) / count,
        "approx_kl": total(ratios - 1 - log_ratios, valid) / count,
        "clip_fraction": total(np.abs(ratios - 1) > epsilon, valid) / count,
    }


def _n_step_q(
    algorithm: NStepQ, outputs: NetworkOutputs, batch: BatchArrays, progress: float
) -> LossGradient:
    """See `NStepQ.loss`, and `DQN.loss`, whose errors may be bounded."""
    errors: Floats = of_transitions(outputs.values - batch.targets, batch.valid)
    nothing = np.zeros_like(errors)
    bounded = errors
    if isinstance(algorithm, DQN) and algorithm.max_error is not None:
        bounded = errors.clip(-algorithm.max_error, algorithm.max_error)

    count = count_of(errors, batch.valid)
    scale = 1.0 if algorithm.reduction == "sum" else 1 / count
    grad = OutputGradients(log_probs=nothing, entropy=nothing, values=bounded * scale)
    return grad, {"value_loss": (dot(bounded, errors) - 0.5 * dot(bounded, bounded)) / count}


def _acer(
    algorithm: ACER, outputs: NetworkOutputs, batch: BatchArrays, progress: float
) -> LossGradient:
    """See `ACER.loss`."""
    assert outputs.parameters is not None
    valid = batch.valid
    taken = batch.actions[..., None]
    logits, action_values, average = np.split(outputs.parameters, 3, axis=-1)
    log_p = log_softmax(logits)
    p = np.exp(log_p)
    log_average = log_softmax(average)
    allowed = logits > NOT_ALLOWED
    z, is_limited = _acer_direction(algorithm, batch, log_p, log_average, action_values, allowed)

    gains = (p * z).sum(-1)
    errors: Floats = of_transitions(
        np.take_along_axis(action_values, taken, -1)[..., 0] - batch.targets, valid
    )
    entropy_coefficient = value(algorithm.entropy_coefficient, progress)

    count = count_of(errors, valid)
    grad = np.zeros_like(outputs.parameters)
    by_logits, by_values, _ = np.split(grad, 3, axis=-1)
    # d (z . p) / d logit_j = p_j (z_j - z . p)
    by_logits[:] = of_transitions(p * (gains[..., None] - z), valid) / count
    scale = np.float32(algorithm.value_coefficient / count)
    np.put_along_axis(by_values, taken, errors[..., None] * scale, -1)
    nothing = np.zeros_like(errors)
    by_entropy = broadcast(-entropy_coefficient / count, outputs.entropy, valid)

    distances = (np.exp(log_average) * (log_average - log_p)).sum(-1)
    return OutputGradients(nothing, by_entropy, nothing, None, grad), {
        "policy_loss": -total(gains, valid) / count,
        "value_loss": 0.5 * dot(errors, errors) / count,
        "entropy": total(outputs.entropy, valid) / count,
        "policy_distance": total(distances, valid) / count,
        "limited": total(is_limited, valid) / count,
    }


def _acer_direction(
    algorithm: ACER,
    batch: BatchArrays,
    log_p: Floats,
    log_average: Floats,
    action_values: Floats,
    allowed: Bools,
) -> tuple[Floats, Bools]:
    """Return z of `ACER`, [T, B, A], and whether g lies outside the trust region, [T, B].

    log_p, log_average: log-probabilities [T, B, A] of the policy and of the average one.
    allowed: bool [T, B, A], actions that no mask forbids.
    """
    assert batch.behaviour is not None
    largest = np.float32(LARGEST_LOG)
    log_mu = log_softmax(batch.behaviour)
    state_values = (np.exp(log_p) * action_values).sum(-1, keepdims=True)
    taken = batch.actions[..., None]

    log_c = np.float32(math.log(algorithm.truncation))
    correction = np.maximum(1 - np.exp(np.minimum(log_c - log_p + log_mu, largest)), 0)
    g = correction * (action_values - state_values)
    log_weights = np.take_along_axis(np.minimum(log_c - log_p, -log_mu), taken, -1)
    of_taken = np.exp(np.minimum(log_weights, largest)) * batch.advantages[..., None]
    np.put_along_axis(g, taken, np.take_along_axis(g, taken, -1) + of_taken, -1)
    k = -np.exp(np.minimum(log_average - log_p, largest))

    g[~allowed] = 0
    k[~allowed] = 0
    bound = math.inf if algorithm.trust_region is None else algorithm.trust_region
    excess = (k * g).sum(-1, keepdims=True) - np.float32(bound)
    z = g - np.maximum(excess / (k * k).sum(-1, keepdims=True), 0) * k
    return z, excess[..., 0] > 0


def _advantages(advantages: Floats, valid: Bools | None, normalize: bool) -> Floats:
    """The advantages [T, B], 0 for rows that are no transitions.

    normalize: to mean 0 and standard deviation 1, in float64: if all advantages are the same,
        float32's error in their mean would be all that is left of them, and would be scaled to 1.
    """
    if normalize:
        count = count_of(advantages, valid)
        wide = advantages.astype(np.float64)
        deviations = wide - total(wide, valid) / count
        counted = of_transitions(deviations, valid)
        std = math.sqrt(dot(counted, counted) / count)
        advantages = (deviations / (std + 1e-8)).astype(np.float32)

    # Masked last: a row that is no transition may hold anything, and 0 times infinity is not 0.
    return of_transitions(advantages, valid)


LOSSES: dict[type[Algorithm], ClosedForm] = {
    A3C: _a3c,
    PPO: _ppo,
    ACER: _acer,
    NStepQ: _n_step_q,
    DQN: _n_step_q,
    OneStepQ: _n_step_q,
    Sarsa: _n_step_q,
}
"""The algorithms whose derivatives are written out. A package of plugins may add its own when it is
imported. A subclass needs its own entry."""
