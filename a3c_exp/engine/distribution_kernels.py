"""Log-probabilities and entropies of the actions that were taken, on arrays.

Their derivatives are written out for the common distributions, in `DISTRIBUTIONS`. torch
differentiates those of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.engine.kernels import add_gradients
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.action_values import AveragedActorCritic, QNetwork
from a3c_exp.networks.distributions import (
    MANY,
    MAX_CONCENTRATION,
    Beta,
    Categorical,
    Distribution,
    Gaussian,
)

Evaluated = tuple[Floats, Floats, Callable[[Floats, Floats], Floats]]
"""Log-probabilities [N], entropies [N], and the function from a loss's derivatives by these two to
those by the distribution's parameters [N, P]. It may be called once."""

EvaluatedActions = tuple[
    Floats, Floats, Floats, Callable[[Floats, Floats, Floats], tuple[Floats, Floats]]
]
"""The same with values [N] after the entropies: see `ActorCritic.evaluate_actions`. The function
returns derivatives by parameters [N, P] and values [N]."""

EvaluateActions = Callable[[Floats, Floats, Array], EvaluatedActions]
"""Evaluates actions [N, ...], given parameters [N, P] and values [N]."""


def actions_evaluation(network: ActorCritic, kernels: bool) -> EvaluateActions:
    """Return what evaluates a network's actions: a fast form, if there is one and `kernels` allows
    it, or torch."""
    if kernels and type(network) is QNetwork:
        return _evaluate_action_values
    if kernels and isinstance(network, AveragedActorCritic):
        assert isinstance(network.distribution, Categorical)
        return partial(_evaluate_averaged, network.distribution)
    evaluate = DISTRIBUTIONS.get(type(network.distribution)) if kernels else None
    if evaluate is None:
        return partial(evaluate_actions_by_torch, network)
    return partial(_evaluate_policy, partial(evaluate, network.distribution))


def evaluate_actions_by_torch(
    network: ActorCritic, parameters: Floats, values: Floats, actions: Array
) -> EvaluatedActions:
    """Evaluate actions by `ActorCritic.evaluate_actions`, which torch differentiates."""
    parameters_leaf = torch.from_numpy(parameters).requires_grad_()
    values_leaf = torch.from_numpy(values).requires_grad_()
    outputs = network.evaluate_actions(parameters_leaf, values_leaf, torch.from_numpy(actions))

    def backward(*gradients: Floats) -> tuple[Floats, Floats]:
        add_gradients(zip(outputs, gradients, strict=True))
        by_parameters, by_values = (
            torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            for leaf in (parameters_leaf, values_leaf)
        )
        return by_parameters.numpy(), by_values.numpy()

    log_probs, entropies, taken_values = (output.detach().numpy() for output in outputs)
    return log_probs, entropies, taken_values, backward


def _evaluate_policy(
    evaluate: Callable[[Floats, Array], Evaluated],
    parameters: Floats,
    values: Floats,
    actions: Array,
) -> EvaluatedActions:
    log_probs, entropies, by_parameters = evaluate(parameters, actions)

    def backward(
        grad_log_probs: Floats, grad_entropies: Floats, grad_values: Floats
    ) -> tuple[Floats, Floats]:
        return by_parameters(grad_log_probs, grad_entropies), grad_values

    return log_probs, entropies, values, backward


def _evaluate_action_values(parameters: Floats, values: Floats, actions: Array) -> EvaluatedActions:
    """See `QNetwork.evaluate_actions`."""
    rows = np.arange(len(parameters))

    def backward(
        grad_log_probs: Floats, grad_entropies: Floats, grad_values: Floats
    ) -> tuple[Floats, Floats]:
        grad_parameters = np.zeros_like(parameters)
        grad_parameters[rows, actions] = grad_values
        return grad_parameters, grad_values

    nothing = np.zeros(len(parameters), np.float32)
    return nothing, nothing, parameters[rows, actions], backward


def _evaluate_averaged(
    distribution: Categorical, parameters: Floats, values: Floats, actions: Array
) -> EvaluatedActions:
    """See `AveragedActorCritic.evaluate_actions`."""
    size = distribution.size
    log_probs, entropies, by_logits = _categorical(distribution, parameters[:, :size], actions)

    def backward(
        grad_log_probs: Floats, grad_entropies: Floats, grad_values: Floats
    ) -> tuple[Floats, Floats]:
        grad_parameters = np.zeros_like(parameters)
        grad_parameters[:, :size] = by_logits(grad_log_probs, grad_entropies)
        return grad_parameters, grad_values

    return log_probs, entropies, values, backward


# -- fast forms of distributions
# ----------------------------------------------------------------------------------------------


def _categorical(_: Categorical, logits: Array, actions: Array) -> Evaluated:
    # Actions first: adding up over an axis of two or three numbers takes ten times as long where
    # they lie side by side.
    log_probs = logits.T.copy()
    log_probs -= np.maximum.reduce(log_probs, 0)
    probabilities = np.exp(log_probs)
    sums = _sum(probabilities)
    log_probs -= np.log(sums)
    probabilities /= sums
    entropy = -_sum(probabilities * log_probs)
    rows = np.arange(len(actions))

    def backward(grad_log_probs: Array, grad_entropy: Array) -> Array:
        # d log pi(a) / dx_k = [k = a] - p_k, dH / dx_k = -p_k (log p_k + H)
        grad: Array = log_probs + entropy
        grad *= grad_entropy
        grad += grad_log_probs
        grad *= probabilities
        np.negative(grad, grad)
        grad[actions, rows] += grad_log_probs
        return grad.T

    return log_probs[actions, rows], entropy, backward


def _sum(numbers: Array) -> Array:
    """Sum over the first axis, along which numpy adds up one after another."""
    many = len(numbers) > MANY
    sums: Array = np.add.reduce(numbers, 0, np.float64 if many else None)
    return sums.astype(numbers.dtype) if many else sums


def _gaussian(distribution: Gaussian, parameters: Array, actions: Array) -> Evaluated:
    mean, log_std = distribution.moments(parameters)
    scale = np.exp(-log_std)
    noise = (actions - mean) * scale
    constant = 0.5 * math.log(2 * math.pi) * distribution.spread
    total_log_std = log_std.sum(-1)
    log_probs = -0.5 * (noise * noise).sum(-1) - total_log_std - constant
    entropy = total_log_std + constant + 0.5 * distribution.spread

    def backward(grad_log_probs: Array, grad_entropy: Array) -> Array:
        by_log_prob = grad_log_probs[:, None]
        grad_mean = by_log_prob * noise
        grad_log_std = grad_mean * noise - by_log_prob + grad_entropy[:, None]
        return _by_parameters(distribution, parameters, grad_mean * scale, grad_log_std)

    return log_probs, entropy, backward


def _by_parameters(
    distribution: Gaussian, parameters: Array, grad_mean: Array, grad_log_std: Array
) -> Array:
    """Derivatives by the parameters, [N, 2 D], from those by the moments, which are overwritten."""
    mean = parameters[:, : distribution.spread]
    spread = parameters[:, distribution.spread :]
    lowest = distribution.lowest
    highest = distribution.highest
    if distribution.squash_mean:
        grad_mean *= 1 - np.tanh(mean) ** 2
    if distribution.softplus_std:
        std = np.logaddexp(0, spread.clip(lowest, highest))
        grad_log_std *= -np.expm1(-std) / std  # d std / ds = 1 - exp(-std)

    leads_out = (spread < lowest) & (grad_log_std > 0) | (spread > highest) & (grad_log_std < 0)
    grad_log_std[leads_out] = 0
    return np.concatenate([grad_mean, grad_log_std], axis=-1)


def _beta(distribution: Beta, parameters: Array, actions: Array) -> Evaluated:
    # float64, since log-probabilities are small differences of large numbers
    limited = np.fmin(parameters, MAX_CONCENTRATION)
    above = np.logaddexp(0, limited, dtype=np.float64)  # alpha - 1 and beta - 1, [N, 2 D]
    alpha_above, beta_above = np.split(above, 2, axis=-1)

    # Alpha, beta and their sums side by side, [N, 3 D]: few calls on large arrays.
    excess = np.concatenate([above, alpha_above + beta_above], axis=-1)
    concentrations = torch.from_numpy(excess + distribution.ones)
    digamma = torch.digamma(concentrations).numpy()

    norms = torch.lgamma(concentrations).numpy() @ distribution.signs  # ln B(alpha, beta)
    logs = np.log(np.concatenate([actions, 1 - actions], axis=-1))
    log_probs = (above * logs).sum(-1) - norms
    entropies = norms - (excess * digamma) @ distribution.signs

    def backward(grad_log_probs: Array, grad_entropy: Array) -> Array:
        # d ln B / d alpha = psi(alpha) - psi(alpha + beta),
        # dH / d alpha = -(alpha - 1) psi'(alpha) + (alpha + beta - 2) psi'(alpha + beta)
        trigamma = torch.polygamma(1, concentrations).numpy()
        by_log_prob = logs - _by_each(digamma * distribution.signs)
        by_entropy = -_by_each(excess * trigamma * distribution.signs)

        grad: Array = grad_log_probs[:, None] * by_log_prob + grad_entropy[:, None] * by_entropy
        grad *= -np.expm1(-above)  # d alpha / dx = 1 - exp(1 - alpha)
        leads_out = (parameters > MAX_CONCENTRATION) & (grad < 0)
        grad[leads_out] = 0
        return grad.astype(parameters.dtype)

    return log_probs.astype(parameters.dtype), entropies.astype(parameters.dtype), backward


def _by_each(derivatives: Array) -> Array:
    """Add the derivatives by the sums of alpha and beta, the last third of [N, 3 D], to those by
    alpha and by beta, which each of them has."""
    by_alpha, by_beta, by_sum = np.split(derivatives, 3, axis=-1)
    return np.concatenate([by_alpha + by_sum, by_beta + by_sum], axis=-1)


DISTRIBUTIONS: dict[type[Distribution], Callable[[Any, Floats, Array], Evaluated]] = {
    Categorical: _categorical,
    Gaussian: _gaussian,
    Beta: _beta,
}
"""The distributions with a fast form: a function of one of exactly this class, its parameters
[N, P] and the actions [N, ...] that were taken."""
