"""Action distributions: one for each kind of action space.

A distribution has no parameters of its own to learn. It is given the parameters that a network computes (float32
[N, P]: logits, or means and log standard deviations side by side), draws actions with the worker's own generator, and
computes log-probabilities and entropies with their derivatives.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a3c_exp.common.arrays import Array
from a3c_exp.errors import ConfigError

# Log-probabilities [N], entropies [N], and the function from a loss's derivatives by these two to those by the
# distribution's parameters [N, P].
Evaluated = tuple[Array, Array, Callable[[Array, Array], Array]]


# Environments for which a choice is searched for in plain numbers, in up to half the time.
FEW = 8

# Sums over more choices are made in float64: in float32 the entropy of 10,000 is wrong by a thousandth.
MANY = 128


class Distribution(ABC):
    """Actions of one action space. size: P, the number of parameters of one distribution."""

    size: int

    @abstractmethod
    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """parameters [N, P] -> actions [N, ...] and their log-probabilities, float32 [N]."""

    @abstractmethod
    def evaluate(self, parameters: Array, actions: Array) -> Evaluated:
        """parameters [N, P], actions [N, ...] -> see `Evaluated`. The returned function may be called once."""

    def to_env(self, actions: Array) -> Array:
        """The actions as the environment takes them, within its range."""
        return actions

    @abstractmethod
    def mode_for_env(self, parameters: Tensor) -> Tensor:
        """The most likely actions [N, ...] as the environment takes them. In torch, for exported policies too."""


class Categorical(Distribution):
    """One choice among `choices`: Discrete spaces. Actions are int64 [B]."""

    def __init__(self, space: gym.spaces.Discrete) -> None:
        self.size = int(space.n)

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        return _sample_choice(parameters, rng)

    def evaluate(self, parameters: Array, actions: Array) -> Evaluated:
        return _evaluate_choice(parameters, actions)

    def mode_for_env(self, parameters: Tensor) -> Tensor:
        return parameters.argmax(-1)


class MultiCategorical(Distribution):
    """Several independent choices: MultiDiscrete spaces. Actions are int64 [B, choices]; log-probabilities add."""

    def __init__(self, space: gym.spaces.MultiDiscrete) -> None:
        sizes = [int(n) for n in space.nvec.ravel()]
        self.size = sum(sizes)
        self._sizes = sizes
        self._ends = np.cumsum(sizes)[:-1]

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        drawn = [_sample_choice(logits, rng) for logits in np.split(parameters, self._ends, axis=-1)]
        actions = np.stack([action for action, _ in drawn], axis=-1)
        log_probs = np.stack([log_prob for _, log_prob in drawn]).sum(0)
        return actions, log_probs

    def evaluate(self, parameters: Array, actions: Array) -> Evaluated:
        pieces = zip(np.split(parameters, self._ends, axis=-1), actions.T, strict=True)
        log_probs, entropies, backwards = zip(*itertools.starmap(_evaluate_choice, pieces), strict=True)

        def backward(grad_log_probs: Array, grad_entropy: Array) -> Array:
            return np.concatenate([back(grad_log_probs, grad_entropy) for back in backwards], axis=-1)

        return np.add.reduce(log_probs), np.add.reduce(entropies), backward

    def mode_for_env(self, parameters: Tensor) -> Tensor:
        return torch.stack([logits.argmax(-1) for logits in torch.split(parameters, self._sizes, dim=-1)], dim=-1)


class Bernoulli(Distribution):
    """Independent yes/no choices: MultiBinary spaces. Actions are int8 [B, bits]; parameters are logits of 1."""

    def __init__(self, space: gym.spaces.MultiBinary) -> None:
        self.size = math.prod(space.shape)

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        # A logistic variate below the logit has probability sigmoid(logit).
        uniform = rng.random(parameters.shape)
        actions = (np.log(uniform / (1 - uniform)) < parameters).astype(np.int8)
        log_probs = -np.logaddexp(0, np.where(actions, -parameters, parameters)).sum(-1)
        return actions, log_probs.astype(np.float32)

    def evaluate(self, parameters: Array, actions: Array) -> Evaluated:
        log_one, log_zero = -np.logaddexp(0, -parameters), -np.logaddexp(0, parameters)
        one = np.exp(log_one)
        log_probs = np.where(actions, log_one, log_zero).sum(-1)

        def backward(grad_log_probs: Array, grad_entropy: Array) -> Array:
            # dH/dx = -x p (1 - p), with p the probability of a 1 and x its logit.
            by_entropy = grad_entropy[:, None] * parameters * one * (1 - one)
            grad: Array = grad_log_probs[:, None] * (actions - one) - by_entropy
            return grad

        return log_probs, -(one * log_one + (1 - one) * log_zero).sum(-1), backward

    def mode_for_env(self, parameters: Tensor) -> Tensor:
        return (parameters > 0).to(torch.int8)


class Gaussian(Distribution):
    """Independent normal distributions: Box spaces. Actions are float32 [N, D], D the size of the box, flattened.

    The distribution lies in a space of its own in which every bounded dimension reaches from -1 to 1, so that one
    initial standard deviation means the same for every environment. Unbounded dimensions are left as they are, and
    those with one bound begin 1 beyond it. `to_env` maps to the environment's range and clips there. Log-probabilities
    are those of the action before the clip: the clip is part of the environment, so the policy gradient is unbiased. (A
    tanh inside the policy would need its Jacobian and has no closed entropy.) The clip has no effect on the entropy,
    which is overstated if actions are far outside.

    Parameters are D means and D log standard deviations, which a network keeps within LOG_STD_RANGE (`networks.heads`).
    """

    def __init__(self, space: gym.spaces.Box) -> None:
        self._actions = math.prod(space.shape)
        self.size = 2 * self._actions
        low, high = space.low.astype(np.float32).ravel(), space.high.astype(np.float32).ravel()
        self._low = low
        self._high = high
        below, above = np.isfinite(low), np.isfinite(high)
        lowest, highest = np.where(below, low, 0), np.where(above, high, 0)
        both, beyond = below & above, np.where(below, 1, 0) - np.where(above, 1, 0)
        self._center = np.where(both, lowest / 2 + highest / 2, lowest + highest + beyond).astype(np.float32)
        self._half_range = np.where(both, highest / 2 - lowest / 2, 1).astype(np.float32)

    def _split(self, parameters: Array) -> tuple[Array, Array]:
        """Means and log standard deviations, [N, D] each."""
        return parameters[:, : self._actions], parameters[:, self._actions :]

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        mean, log_std = self._split(parameters)
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        log_probs = -(0.5 * noise * noise + log_std).sum(-1) - 0.5 * math.log(2 * math.pi) * self._actions
        return mean + np.exp(log_std) * noise, log_probs

    def evaluate(self, parameters: Array, actions: Array) -> Evaluated:
        mean, log_std = self._split(parameters)
        scale = np.exp(-log_std)
        noise = (actions - mean) * scale
        constant = 0.5 * math.log(2 * math.pi) * self._actions
        total_log_std = log_std.sum(-1)
        log_probs = -0.5 * (noise * noise).sum(-1) - total_log_std - constant

        def backward(grad_log_probs: Array, grad_entropy: Array) -> Array:
            grad_mean = grad_log_probs[:, None] * noise
            grad_log_std = grad_mean * noise - grad_log_probs[:, None] + grad_entropy[:, None]
            return np.concatenate([grad_mean * scale, grad_log_std], axis=-1)

        return log_probs, total_log_std + constant + 0.5 * self._actions, backward

    def to_env(self, actions: Array) -> Array:
        scaled: Array = self._center + self._half_range * actions
        return scaled.clip(self._low, self._high)

    def mode_for_env(self, parameters: Tensor) -> Tensor:
        arrays = (self._center, self._half_range, self._low, self._high)
        center, half_range, low, high = map(torch.from_numpy, arrays)
        return torch.clamp(center + half_range * parameters[:, : self._actions], low, high)


def make_distribution(space: gym.Space[Any]) -> Distribution:
    """The distribution that fits an action space. Raises ConfigError for spaces that have none (Dict, Tuple, ...)."""
    match space:
        case gym.spaces.Discrete():
            return Categorical(space)
        case gym.spaces.MultiDiscrete():
            return MultiCategorical(space)
        case gym.spaces.MultiBinary():
            return Bernoulli(space)
        case gym.spaces.Box() if np.issubdtype(space.dtype, np.floating):
            return Gaussian(space)
    raise ConfigError("env.id", str(space), "its actions must be Discrete, MultiDiscrete, MultiBinary or a float Box")


def mixed_with_uniform(logits: Array, epsilon: float) -> Array:
    """The logits, float32 [N, A], of a draw from softmax(logits) or, with probability `epsilon`, from the uniform
    distribution over the A choices: log((1 - epsilon) softmax(logits) + epsilon / A)."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities = weights * ((1 - epsilon) / weights.sum(-1, keepdims=True)) + epsilon / logits.shape[-1]
    mixed: Array = np.log(probabilities)
    return mixed


def _sample_choice(logits: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Choices int64 [B] from logits [B, A], and their log-probabilities float32 [B].

    A choice is the first action at which the summed probabilities exceed a uniform number.
    """
    if len(logits) == 1:
        return _sample_one_choice(logits, rng)
    # Actions first: adding up over an axis of two or three numbers takes ten times as long where they lie side by side.
    shifted = logits.T.copy()
    shifted -= np.maximum.reduce(shifted, 0)
    sums = np.add.accumulate(np.exp(shifted), 0, np.float64 if len(shifted) > MANY else None)
    total, uniform = sums[-1], rng.random(len(logits))
    choices: Array
    if len(logits) <= FEW:
        columns, last = zip(sums.T.tolist(), uniform.tolist(), strict=True), len(sums) - 1
        choices = np.array([bisect_right(column, number * column[last], 0, last) for column, number in columns])
    else:
        choices = np.add.reduce(sums[:-1] <= uniform * total, 0)
    return choices, shifted[choices, _rows(len(choices))] - np.log(total).astype(logits.dtype, copy=False)


def _sample_one_choice(logits: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """The same for logits [1, A], in plain numbers: a third of the time for a handful of actions."""
    row: list[float] = logits[0].tolist()
    largest = max(row)
    weights = [math.exp(logit - largest) for logit in row]
    total = sum(weights)
    left = rng.random() * total
    choice = 0
    for weight in weights[:-1]:
        left -= weight
        if left < 0:
            break
        choice += 1
    return np.array([choice]), np.array([row[choice] - largest - math.log(total)], np.float32)


def _sum(numbers: Array) -> Array:
    """Over the first axis, along which numpy adds up one after another."""
    many = len(numbers) > MANY
    total: Array = np.add.reduce(numbers, 0, np.float64 if many else None)
    return total.astype(numbers.dtype) if many else total


@functools.cache
def _rows(count: int) -> NDArray[np.intp]:
    return np.arange(count)


def _evaluate_choice(logits: Array, actions: Array) -> Evaluated:
    """See `Evaluated`: for logits [N, A], and which of the A was chosen, int64 [N]."""
    log_probs = logits.T.copy()  # actions first, as above
    log_probs -= np.maximum.reduce(log_probs, 0)
    probabilities = np.exp(log_probs)
    total = _sum(probabilities)
    log_probs -= np.log(total)
    probabilities /= total
    entropy = -_sum(probabilities * log_probs)
    rows = np.arange(len(actions))

    def backward(grad_log_probs: Array, grad_entropy: Array) -> Array:
        # d log pi(a) / dx_k = [k = a] - p_k, dH / dx_k = -p_k (log p_k + H)
        grad = log_probs + entropy
        grad *= grad_entropy
        grad += grad_log_probs
        grad *= probabilities
        np.negative(grad, grad)
        grad[actions, rows] += grad_log_probs
        grad_logits: Array = grad.T
        return grad_logits

    return log_probs[actions, rows], entropy, backward
