"""Action distributions: one for each kind of action space.

A distribution has no parameters of its own to learn. It is given the parameters that a network
computes (float32
[N, P]: logits, or those of means and of standard deviations side by side), draws actions with the
worker's own generator, and computes log-probabilities and entropies with their derivatives.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from a3c_exp.common.arrays import Array
from a3c_exp.errors import ConfigError, require

Continuous = Literal["gaussian", "squashed_gaussian", "beta"]
"""Distributions for a Box, by their names in a configuration."""

# Log-probabilities [N], entropies [N], and the function from a loss's derivatives by these two to
# those by the
# distribution's parameters [N, P].
Evaluated = tuple[Array, Array, Callable[[Array, Array], Array]]


FORBIDDEN = np.float32(-1e9)
"""The logit of a forbidden action: finite, since 0 times infinity is not 0."""

# Sums over more choices are made in float64: in float32 the entropy of 10,000 is wrong by a
# thousandth.
MANY = 128


# exp(-5) of half an action range explores hardly at all, and exp(2) covers any range. Beyond is
# only overflow.
LOG_STD_RANGE = (-5.0, 2.0)

# Points and weights of the mean over a standard normal variable. For the entropy of a squashed
# Gaussian the sum is
# exact to 1e-5 where the standard deviation before the squash is at most 3, and to 0.006 at exp(2).
POINTS = np.linspace(-6, 6, 41, dtype=np.float32)
WEIGHTS = np.exp(-0.5 * POINTS * POINTS) / np.exp(-0.5 * POINTS * POINTS).sum()

# Parameters of a Beta distribution beyond this have a standard deviation of 0.007 of half the
# range, as exp(-5).
MAX_CONCENTRATION = 1e4


class Distribution(ABC):
    """Actions of one action space.

    size: P, the number of parameters of one distribution. spread: how many of them, the last, set
    standard deviations.
    """

    size: int
    spread: int = 0

    def initial_spread(self, std: float) -> Array:
        """Those parameters, float32 [spread], at a standard deviation, which is a share of half the
        action range."""
        return np.zeros(self.spread, np.float32)

    @abstractmethod
    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """parameters [N, P] -> actions [N, ...] and their log-probabilities, float32 [N]."""

    @abstractmethod
    def evaluate(self, parameters: Array, actions: Array) -> Evaluated:
        """parameters [N, P], actions [N, ...] -> see `Evaluated`. The returned function may be
        called once."""

    def to_env(self, actions: Array) -> Array:
        """The actions as the environment takes them, within its range."""
        return actions

    @abstractmethod
    def mode_for_env(self, parameters: Tensor) -> Tensor:
        """The greedy actions [N, ...] as the environment takes them. In torch, for exported
        policies too."""


class SingleChoice(Distribution):
    """One of A choices: Discrete spaces. Actions are int64 [N]."""

    def logits(self, parameters: Array) -> Array:
        """The logits of the choices, float32 [N, A], of parameters [N, P]: the parameters
        themselves."""
        return parameters

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        return _sample_choice(self.logits(parameters), rng)

    def sample_mixed(
        self, parameters: Array, epsilon: float, rng: np.random.Generator
    ) -> tuple[Array, Array]:
        """The same, but with probability `epsilon` uniformly random. Log-probabilities are those of
        the mixture."""
        return _sample_choice(mixed_with_uniform(self.logits(parameters), epsilon), rng)


class Categorical(SingleChoice):
    """A choice by its probability. Parameters are logits."""

    def __init__(self, space: gym.spaces.Discrete) -> None:
        self.size = int(space.n)

    def evaluate(self, parameters: Array, actions: Array) -> Evaluated:
        return _evaluate_choice(parameters, actions)

    def mode_for_env(self, parameters: Tensor) -> Tensor:
        return parameters.argmax(-1)


class Greedy(SingleChoice):
    """The choice with the largest value. `sample_mixed` is epsilon-greedy.

    Parameters are action values [N, 2 A], those of a network and of its target network side by
    side: Q(s, .), by which actions are chosen, and Q^-(s, .), of which targets are made.
    """

    def __init__(self, space: gym.spaces.Discrete) -> None:
        self._choices = int(space.n)
        self.size = 2 * self._choices

    def logits(self, parameters: Array) -> Array:
        """0 for the action with the largest Q(s, .), the first of equal ones, and minus infinity
        for the others."""
        best = parameters[:, : self._choices].argmax(-1)[:, None]
        return np.where(np.arange(self._choices) == best, np.float32(0), np.float32(-math.inf))

    def target_values(self, parameters: Array, actions: Array) -> Array:
        """Q^-(s, a) of actions [N]: float32 [N]."""
        return np.asarray(parameters[np.arange(len(actions)), self._choices + actions])

    def evaluate(self, parameters: Array, actions: Array) -> Evaluated:
        raise NotImplementedError(
            "the best action has no derivative: a QNetwork learns Q(s, a) itself"
        )

    def mode_for_env(self, parameters: Tensor) -> Tensor:
        return parameters[:, : self._choices].argmax(-1)


class MultiCategorical(Distribution):
    """Several independent choices: MultiDiscrete spaces. Actions are int64 [B, choices];
    log-probabilities add."""

    def __init__(self, space: gym.spaces.MultiDiscrete) -> None:
        self._sizes = [int(n) for n in space.nvec.ravel()]
        self.size = sum(self._sizes)
        self._ends = np.cumsum(self._sizes)[:-1]

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        drawn = [
            _sample_choice(logits, rng) for logits in np.split(parameters, self._ends, axis=-1)
        ]
        actions = np.stack([action for action, _ in drawn], axis=-1)
        log_probs = np.stack([log_prob for _, log_prob in drawn]).sum(0)
        return actions, log_probs

    def evaluate(self, parameters: Array, actions: Array) -> Evaluated:
        pieces = zip(np.split(parameters, self._ends, axis=-1), actions.T, strict=True)
        log_probs, entropies, backwards = zip(
            *itertools.starmap(_evaluate_choice, pieces), strict=True
        )

        def backward(grad_log_probs: Array, grad_entropy: Array) -> Array:
            return np.concatenate(
                [back(grad_log_probs, grad_entropy) for back in backwards], axis=-1
            )

        return np.add.reduce(log_probs), np.add.reduce(entropies), backward

    def mode_for_env(self, parameters: Tensor) -> Tensor:
        return torch.stack(
            [logits.argmax(-1) for logits in torch.split(parameters, self._sizes, dim=-1)], dim=-1
        )


class Bernoulli(Distribution):
    """Independent yes/no choices: MultiBinary spaces. Actions are int8 [B, bits]; parameters are
    logits of 1."""

    def __init__(self, space: gym.spaces.MultiBinary) -> None:
        self.size = math.prod(space.shape)

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        # A logistic variate below the logit has probability sigmoid(logit).
        uniform = rng.random(parameters.shape)
        actions = (np.log(uniform / (1 - uniform)) < parameters).astype(np.int8)
        log_probs = -np.logaddexp(0, np.where(actions, -parameters, parameters)).sum(-1)
        return actions, log_probs.astype(np.float32)

    def evaluate(self, parameters: Array, actions: Array) -> Evaluated:
        log_one = -np.logaddexp(0, -parameters)
        log_zero = -np.logaddexp(0, parameters)
        one = np.exp(log_one)
        log_probs = np.where(actions, log_one, log_zero).sum(-1)

        def backward(grad_log_probs: Array, grad_entropy: Array) -> Array:
            # dH/dx = -x p (1 - p), with p the probability of a 1 and x its logit.
            by_entropy = grad_entropy[:, None] * parameters * one * (1 - one)
            return np.asarray(grad_log_probs[:, None] * (actions - one) - by_entropy)

        return log_probs, -(one * log_one + (1 - one) * log_zero).sum(-1), backward

    def mode_for_env(self, parameters: Tensor) -> Tensor:
        return (parameters > 0).to(torch.int8)


class Gaussian(Distribution):
    """Independent normal distributions: Box spaces. Actions are float32 [N, D], D the size of the
    box, flattened.

    The distribution lies in a space of its own in which every bounded dimension reaches from -1 to
    1, so that one initial standard deviation means the same for every environment. Unbounded
    dimensions are left as they are, and those with one bound begin 1 beyond it. `to_env` maps to
    the environment's range and clips there. Log-probabilities are those of the action before the
    clip: the clip is part of the environment, so the policy gradient is unbiased. The clip has no
    effect on the entropy, which is overstated if actions are far outside.

    Parameters are D of means m and D of standard deviations s. A deviation is bounded by
    `LOG_STD_RANGE`, beyond which a row's derivative by its parameter is 0 if a step would lead
    further out: rows together lead back.

    squash_mean: the mean is tanh m, not m. softplus_std: the deviation is ln(1 + exp s), not exp s.
    clip_actions: an action is clipped as soon as it is drawn, and its probability is the density
        there, as some programs have it. The policy gradient is then biased.
    """

    def __init__(
        self,
        space: gym.spaces.Box,
        squash_mean: bool = False,
        softplus_std: bool = False,
        clip_actions: bool = False,
    ) -> None:
        self.spread = math.prod(space.shape)
        self.size = 2 * self.spread
        self._squash_mean = squash_mean
        self._softplus_std = softplus_std
        self._clip_actions = clip_actions
        self._lowest, self._highest = (self._spread_of(math.exp(end)) for end in LOG_STD_RANGE)
        low, high = space.low.astype(np.float32).ravel(), space.high.astype(np.float32).ravel()
        self._low = low
        self._high = high
        below = np.isfinite(low)
        above = np.isfinite(high)
        lowest = np.where(below, low, 0)
        highest = np.where(above, high, 0)
        both = below & above
        beyond = np.where(below, 1, 0) - np.where(above, 1, 0)
        self._center = np.where(both, lowest / 2 + highest / 2, lowest + highest + beyond).astype(
            np.float32
        )
        self._half_range = np.where(both & (low < high), highest / 2 - lowest / 2, 1).astype(
            np.float32
        )
        self._bounds = (
            (low - self._center) / self._half_range,
            (high - self._center) / self._half_range,
        )

    def initial_spread(self, std: float) -> Array:
        return np.full(self.spread, self._spread_of(std), np.float32)

    def _spread_of(self, std: float) -> float:
        return math.log(math.expm1(std)) if self._softplus_std else math.log(std)

    def moments(self, parameters: Array) -> tuple[Array, Array]:
        """Means and log standard deviations, [N, D] each."""
        mean, spread = (
            parameters[:, : self.spread],
            parameters[:, self.spread :].clip(self._lowest, self._highest),
        )
        if self._squash_mean:
            mean = np.tanh(mean)
        return mean, np.log(np.logaddexp(0, spread)) if self._softplus_std else spread

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        mean, log_std = self.moments(parameters)
        noise: Array = rng.standard_normal(mean.shape, dtype=np.float32)
        std = np.exp(log_std)
        actions = mean + std * noise
        if self._clip_actions:
            actions = actions.clip(*self._bounds)
            noise = (actions - mean) / std
        log_probs = (
            -(0.5 * noise * noise + log_std).sum(-1) - 0.5 * math.log(2 * math.pi) * self.spread
        )
        return actions, log_probs

    def evaluate(self, parameters: Array, actions: Array) -> Evaluated:
        log_probs, entropy, by_moments = self._normal(parameters, actions)

        def backward(grad_log_probs: Array, grad_entropy: Array) -> Array:
            return self._by_parameters(parameters, *by_moments(grad_log_probs, grad_entropy))

        return log_probs, entropy, backward

    def _normal(
        self, parameters: Array, actions: Array
    ) -> tuple[Array, Array, Callable[[Array, Array], tuple[Array, Array]]]:
        """`evaluate` of the normal distributions: derivatives by means and log standard deviations,
        [N, D]."""
        mean, log_std = self.moments(parameters)
        scale = np.exp(-log_std)
        noise = (actions - mean) * scale
        constant = 0.5 * math.log(2 * math.pi) * self.spread
        total_log_std = log_std.sum(-1)
        log_probs = -0.5 * (noise * noise).sum(-1) - total_log_std - constant

        def by_moments(grad_log_probs: Array, grad_entropy: Array) -> tuple[Array, Array]:
            grad_mean = grad_log_probs[:, None] * noise
            return grad_mean * scale, grad_mean * noise - grad_log_probs[:, None] + grad_entropy[
                :, None
            ]

        return log_probs, total_log_std + constant + 0.5 * self.spread, by_moments

    def _by_parameters(self, parameters: Array, grad_mean: Array, grad_log_std: Array) -> Array:
        """Derivatives by the parameters, [N, 2 D], from those by the moments, which may be
        overwritten."""
        spread = parameters[:, self.spread :]
        if self._squash_mean:
            grad_mean *= 1 - np.tanh(parameters[:, : self.spread]) ** 2
        if self._softplus_std:
            std = np.logaddexp(0, spread.clip(self._lowest, self._highest))
            grad_log_std *= -np.expm1(-std) / std  # d std / ds = 1 - exp(-std)
        leads_out = (spread < self._lowest) & (grad_log_std > 0) | (spread > self._highest) & (
            grad_log_std < 0
        )
        grad_log_std[leads_out] = 0
        return np.concatenate([grad_mean, grad_log_std], axis=-1)

    def to_env(self, actions: Array) -> Array:
        scaled: Array = self._center + self._half_range * actions
        return scaled.clip(self._low, self._high)

    def mode_for_env(self, parameters: Tensor) -> Tensor:
        """The means: the most likely actions of a Gaussian."""
        mean = parameters[:, : self.spread]
        arrays = (self._center, self._half_range, self._low, self._high)
        center, half_range, low, high = map(torch.from_numpy, arrays)
        return torch.clamp(
            center + half_range * (torch.tanh(mean) if self._squash_mean else mean), low, high
        )


class SquashedGaussian(Gaussian):
    """tanh u of a normal variable u: Box spaces with bounds (Haarnoja et al. 2018, arXiv
    1801.01290, appendix C).

    Actions are kept as u. Log-probabilities are those of tanh u, which lies between -1 and 1, as is
    the entropy: it has no closed form, and is a sum over `POINTS`. The greedy action is tanh of the
    mean, the median.
    """

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        actions, log_probs = super().sample(parameters, rng)
        return actions, log_probs - _log_slopes(actions).sum(-1)

    def evaluate(self, parameters: Array, actions: Array) -> Evaluated:
        log_probs, entropy, by_moments = self._normal(parameters, actions)
        mean, log_std = self.moments(parameters)
        steps = np.exp(log_std)[..., None] * POINTS
        points = mean[..., None] + steps  # [N, D, points]

        def backward(grad_log_probs: Array, grad_entropy: Array) -> Array:
            # d ln(1 - tanh^2 u) / du
            weighted = -2 * np.tanh(points) * WEIGHTS * grad_entropy[:, None, None]
            grad_mean, grad_log_std = by_moments(grad_log_probs, grad_entropy)
            grad_log_std = grad_log_std + (weighted * steps).sum(-1)
            return self._by_parameters(parameters, grad_mean + weighted.sum(-1), grad_log_std)

        slopes = _log_slopes(actions).sum(-1)
        return log_probs - slopes, entropy + (_log_slopes(points) @ WEIGHTS).sum(-1), backward

    def to_env(self, actions: Array) -> Array:
        return super().to_env(np.tanh(actions))

    def mode_for_env(self, parameters: Tensor) -> Tensor:
        """tanh of the means."""
        return super().mode_for_env(torch.tanh(parameters))


class Beta(Distribution):
    """Independent Beta distributions: Box spaces with bounds (Chou, Maturana and Scherer 2017).

    Actions are float32 [N, D], shares of the range from 0 to 1. Log-probabilities and entropies are
    those of the shares. Parameters are D of alpha and D of beta, each 1 + ln(1 + exp x), so that a
    density has one peak. The greedy action is the mean, which unlike the peak varies little where
    the density is nearly flat.
    """

    def __init__(self, space: gym.spaces.Box) -> None:
        self._actions = math.prod(space.shape)
        self.size = self.spread = 2 * self._actions
        self._low = space.low.astype(np.float32).ravel()
        self._range = space.high.astype(np.float32).ravel() - self._low
        self._signs = np.repeat([1.0, -1.0], [self.size, self._actions])
        self._ones = np.repeat([1.0, 2.0], [self.size, self._actions])

    def initial_spread(self, std: float) -> Array:
        """See `Distribution.initial_spread`. 0.5 for more: a flat density has 0.577."""
        above = 0.5 / min(std, 0.5) ** 2 - 1.5  # ln(1 + exp x), of which x is wanted
        return np.full(self.spread, above + math.log(-math.expm1(-above)), np.float32)

    def _concentrations(self, parameters: Array) -> Array:
        """alpha, beta and their sums side by side, [N, 3 D].

        They are float64, since log-probabilities are small differences of large numbers.
        """
        both = 1 + np.logaddexp(0, np.fmin(parameters, MAX_CONCENTRATION), dtype=np.float64)
        return np.concatenate([both, both[:, : self._actions] + both[:, self._actions :]], axis=-1)

    def _log_probs(self, concentrations: Array, actions: Array) -> tuple[Array, Array, Array]:
        """Log-probabilities [N], logarithms of the normalizers [N], and of x and 1 - x [N, 2 D] for
        the shares x."""
        logs = np.log(np.concatenate([actions, 1 - actions], axis=-1))
        norms = _by_torch(torch.lgamma, concentrations) @ self._signs
        return ((concentrations[:, : self.size] - 1) * logs).sum(-1) - norms, norms, logs

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        concentrations = self._concentrations(parameters)
        shares = rng.beta(
            concentrations[:, : self._actions], concentrations[:, self._actions : self.size]
        )
        actions = shares.clip(1e-6, 1 - 1e-6).astype(np.float32)  # 0 and 1 have no logarithm
        return actions, self._log_probs(concentrations, actions)[0].astype(np.float32)

    def evaluate(self, parameters: Array, actions: Array) -> Evaluated:
        concentrations = self._concentrations(parameters)
        log_probs, norms, logs = self._log_probs(concentrations, actions)
        # alpha - 1, beta - 1, 2 - alpha - beta
        excess = (concentrations - self._ones) * self._signs
        digamma = _by_torch(torch.digamma, concentrations)
        entropies = norms - (excess * digamma).sum(-1)

        def backward(grad_log_probs: Array, grad_entropy: Array) -> Array:
            curved = excess * _by_torch(lambda x: torch.polygamma(1, x), concentrations)
            by_log_prob, by_entropy = (
                array[:, : self.size] + np.tile(array[:, self.size :], 2)
                for array in (digamma * self._signs, curved)
            )
            grad: Array = (
                grad_log_probs[:, None] * (logs - by_log_prob) - grad_entropy[:, None] * by_entropy
            )
            grad *= -np.expm1(-excess[:, : self.size])  # d alpha / dx = 1 - exp(1 - alpha)
            return grad.astype(parameters.dtype, copy=False)

        return log_probs.astype(parameters.dtype), entropies.astype(parameters.dtype), backward

    def to_env(self, actions: Array) -> Array:
        return np.asarray(self._low + self._range * actions)

    def mode_for_env(self, parameters: Tensor) -> Tensor:
        """The means."""
        alpha, beta = (1 + functional.softplus(parameters)).chunk(2, dim=-1)
        return torch.from_numpy(self._low) + torch.from_numpy(self._range) * (
            alpha / (alpha + beta)
        )


def make_distribution(
    space: gym.Space[Any], continuous: Continuous = "gaussian", **gaussian: bool
) -> Distribution:
    """The distribution that fits an action space.

    continuous: of a Box. squash_mean, softplus_std, clip_actions: see `Gaussian`; a squashed one
    has the second alone. Raises ConfigError for spaces that have none (Dict, Tuple, ...), or not
    this one.
    """
    if continuous != "gaussian":
        bounded = False
        if isinstance(space, gym.spaces.Box):
            with np.errstate(over="ignore", invalid="ignore"):  # a range beyond float32 is no range
                bounded = bool(
                    np.isfinite(np.subtract(space.high, space.low, dtype=np.float32)).all()
                )
        require(
            bounded,
            "network.distribution",
            continuous,
            f"gaussian: actions {space} are no Box with bounds",
        )
    match space:
        case gym.spaces.Discrete():
            return Categorical(space)
        case gym.spaces.MultiDiscrete():
            return MultiCategorical(space)
        case gym.spaces.MultiBinary():
            return Bernoulli(space)
        case gym.spaces.Box() if np.issubdtype(space.dtype, np.floating):
            if continuous == "beta":
                return Beta(space)
            if continuous == "squashed_gaussian":
                return SquashedGaussian(space, softplus_std=gaussian.get("softplus_std", False))
            return Gaussian(space, **gaussian)
    raise ConfigError(
        "env.id",
        str(space),
        "its actions must be Discrete, MultiDiscrete, MultiBinary or a float Box",
    )


def _log_slopes(u: Array) -> Array:
    """ln(1 - tanh^2 u), also where tanh u is rounded to 1."""
    size = np.abs(u)
    return np.asarray(2 * (math.log(2) - size - np.log1p(np.exp(-2 * size))))


def _by_torch(function: Callable[[Tensor], Tensor], x: Array) -> Array:
    """A function of torch that numpy lacks."""
    return function(torch.from_numpy(x)).numpy()


def mixed_with_uniform(logits: Array, epsilon: float) -> Array:
    """The logits, float32 [N, A], of a draw from softmax(logits) or, with probability `epsilon`,
    from the uniform distribution over the A choices: log((1 - epsilon) softmax(logits) + epsilon /
    A). Choices that are FORBIDDEN stay so."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities = weights * ((1 - epsilon) / weights.sum(-1, keepdims=True))
    allowed = logits != FORBIDDEN
    # none: of a late restart
    share = (epsilon / np.maximum(allowed.sum(-1, keepdims=True), 1)).astype(np.float32)
    return np.where(allowed, np.log(probabilities + share), FORBIDDEN)


def _sample_choice(logits: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Choices int64 [B] from logits [B, A], and their log-probabilities float32 [B].

    A choice is the first action at which the summed probabilities exceed a uniform number.
    """
    if len(logits) == 1:
        return _sample_one_choice(logits, rng)
    # Actions first: adding up over an axis of two or three numbers takes ten times as long where
    # they lie side by side.
    shifted = logits.T.copy()
    shifted -= np.maximum.reduce(shifted, 0)
    sums = np.add.accumulate(np.exp(shifted), 0, np.float64 if len(shifted) > MANY else None)
    total = sums[-1]
    uniform = rng.random(len(logits))
    choices: Array = np.add.reduce(sums[:-1] <= uniform * total, 0)
    return choices, shifted[choices, np.arange(len(choices))] - np.log(total).astype(
        logits.dtype, copy=False
    )


def _sample_one_choice(logits: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """The same for logits [1, A], in plain numbers: a third of the time for a handful of
    actions."""
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
        grad: Array = log_probs + entropy
        grad *= grad_entropy
        grad += grad_log_probs
        grad *= probabilities
        np.negative(grad, grad)
        grad[actions, rows] += grad_log_probs
        return grad.T

    return log_probs[actions, rows], entropy, backward
