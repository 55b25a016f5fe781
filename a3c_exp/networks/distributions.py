"""Action distributions: one for each kind of action space.

A distribution has nothing to learn itself. It is given the parameters that a network computes,
float32 [N, P]: logits, or those of means and of standard deviations side by side. Actions are
sampled in numpy, with the worker's own generator. Log-probabilities and entropies to learn from are
computed in torch, which differentiates them. For the common distributions
`engine.distribution_kernels` computes the same on arrays, unless kernels=false.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, distributions
from torch.nn import functional

from a3c_exp.common.arrays import Array
from a3c_exp.errors import ConfigError

Continuous = Literal["gaussian", "squashed_gaussian", "beta"]
"""Distributions for a Box, by their names in a configuration."""

FORBIDDEN = np.float32(-1e9)
"""The logit of a forbidden action: finite, since 0 times infinity is not 0."""

# Sums over more choices are made in float64: in float32 the entropy of 10,000 is wrong by a
# thousandth.
MANY = 128

# exp(-5) of half an action range explores hardly at all, and exp(2) covers any range. Beyond is
# only overflow.
LOG_STD_RANGE = (-5.0, 2.0)

# Nodes and weights of the mean over a standard normal variable. For the entropy of a squashed
# Gaussian the sum is exact to 1e-5 where the standard deviation before the squash is at most 3, and
# to 0.006 at exp(2).
NODES = np.linspace(-6, 6, 41, dtype=np.float32)
WEIGHTS = np.exp(-0.5 * NODES * NODES) / np.exp(-0.5 * NODES * NODES).sum()

# Parameters of a Beta distribution beyond this have a standard deviation of 0.007 of half the
# range, as exp(-5).
MAX_CONCENTRATION = 1e4


class Distribution(ABC):
    """Actions of one action space, and their probabilities.

    Every distribution derives from this class: see `make_distribution`.

    size: P, the number of parameters of one distribution.
    spread: how many of them, the last, set standard deviations.
    """

    size: int
    spread: int = 0

    def initial_spread(self, std: float) -> Array:
        """Return the parameters of standard deviations that a network begins with, float32
        [spread].

        std: the standard deviation, as a share of half the action range.
        """
        return np.zeros(self.spread, np.float32)

    @abstractmethod
    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Sample actions [N, ...], and return them with their log-probabilities, float32 [N], which
        are those of `evaluate`.

        parameters: float32 [N, P].
        rng: the worker's generator.
        """

    @abstractmethod
    def evaluate(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log pi(a | s) and the entropy of pi(. | s), float32 [N] each, which torch
        differentiates by the parameters.

        parameters: float32 [N, P].
        actions: [N, ...], as `sample` has returned them.
        """

    def to_env(self, actions: Array) -> Array:
        """Return sampled actions [N, ...] as the environment takes them, within its range."""
        return actions

    @abstractmethod
    def mode_for_env(self, parameters: Tensor) -> Tensor:
        """Return the greedy actions [N, ...] as the environment takes them. In torch, since an
        exported policy computes them too.

        parameters: float32 [N, P].
        """


class SingleChoice(Distribution):
    """One of A choices, for Discrete spaces. Actions are int64 [N]."""

    def logits(self, parameters: Array) -> Array:
        """Return the logits of the choices, float32 [N, A], of parameters [N, P]: the parameters
        themselves."""
        return parameters

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        return _sample_choice(self.logits(parameters), rng)

    def sample_mixed(
        self, parameters: Array, rng: np.random.Generator, epsilon: float
    ) -> tuple[Array, Array]:
        """Sample as `sample` does, but with probability `epsilon` uniformly. Log-probabilities are
        those of the mixture."""
        return _sample_choice(mixed_with_uniform(self.logits(parameters), epsilon), rng)


class Categorical(SingleChoice):
    """A choice by its probability. Parameters are logits."""

    def __init__(self, space: gym.spaces.Discrete) -> None:
        self.size = int(space.n)

    def evaluate(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
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
        """Return 0 for the action with the largest Q(s, .), the first of equal ones, and minus
        infinity for the others."""
        best = parameters[:, : self._choices].argmax(-1)[:, None]
        return np.where(np.arange(self._choices) == best, np.float32(0), np.float32(-math.inf))

    def target_values(self, parameters: Array, actions: Array) -> Array:
        """Return Q^-(s, a) of actions [N]: float32 [N]."""
        return np.asarray(parameters[np.arange(len(actions)), self._choices + actions])

    def evaluate(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError(
            "the best action has no derivative: a QNetwork learns Q(s, a) itself"
        )

    def mode_for_env(self, parameters: Tensor) -> Tensor:
        return parameters[:, : self._choices].argmax(-1)


class MultiCategorical(Distribution):
    """Several independent choices, for MultiDiscrete spaces. Actions are int64 [N, choices].

    Log-probabilities add.
    """

    def __init__(self, space: gym.spaces.MultiDiscrete) -> None:
        self._sizes = [int(n) for n in space.nvec.ravel()]
        self.size = sum(self._sizes)
        self._ends = np.cumsum(self._sizes)[:-1]

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        choices = []
        log_probs = []
        for logits in np.split(parameters, self._ends, axis=-1):
            choice, log_prob = _sample_choice(logits, rng)
            choices.append(choice)
            log_probs.append(log_prob)
        return np.stack(choices, axis=-1), np.stack(log_probs).sum(0)

    def evaluate(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        pieces = torch.split(parameters, self._sizes, dim=-1)
        evaluated = map(_evaluate_choice, pieces, actions.unbind(-1))
        log_probs, entropies = zip(*evaluated, strict=True)
        return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)

    def mode_for_env(self, parameters: Tensor) -> Tensor:
        pieces = torch.split(parameters, self._sizes, dim=-1)
        return torch.stack([logits.argmax(-1) for logits in pieces], dim=-1)


class Bernoulli(Distribution):
    """Independent yes/no choices, for MultiBinary spaces. Actions are int8 [N, bits].

    Parameters are logits of 1.
    """

    def __init__(self, space: gym.spaces.MultiBinary) -> None:
        self.size = math.prod(space.shape)

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        # A logistic variate below the logit has probability sigmoid(logit).
        uniform = rng.random(parameters.shape)
        with np.errstate(divide="ignore"):  # of 0, which is below every logit
            actions = (np.log(uniform / (1 - uniform)) < parameters).astype(np.int8)
        log_probs = -np.logaddexp(0, np.where(actions, -parameters, parameters)).sum(-1)
        return actions, log_probs.astype(np.float32)

    def evaluate(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        log_one = functional.logsigmoid(parameters)
        log_zero = functional.logsigmoid(-parameters)
        log_probs = torch.where(actions > 0, log_one, log_zero)
        entropies = -(log_one.exp() * log_one + log_zero.exp() * log_zero)
        return log_probs.sum(-1), entropies.sum(-1)

    def mode_for_env(self, parameters: Tensor) -> Tensor:
        return (parameters > 0).to(torch.int8)


class Gaussian(Distribution):
    """Independent normal distributions, for Box spaces. Actions are float32 [N, D], D the size of
    the box, flattened.

    The distribution lies in a space of its own in which every bounded dimension reaches from -1 to
    1, so that one initial standard deviation means the same for every environment. Unbounded
    dimensions are left as they are, and those with one bound begin 1 beyond it. `to_env` maps to
    the environment's range and clips there. Log-probabilities are those of the action before the
    clip: the clip is part of the environment, so the policy gradient is unbiased. The clip has no
    effect on the entropy, which is overstated if actions are far outside.

    Parameters are D of means m and D of standard deviations s. A deviation is bounded by
    `LOG_STD_RANGE`, see `bounded`.

    squash_mean: the mean is tanh m, not m.
    softplus_std: the deviation is ln(1 + exp s), not exp s.
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
        self.squash_mean = squash_mean
        self.softplus_std = softplus_std
        self._clip_actions = clip_actions
        self.lowest, self.highest = (self._spread_of(math.exp(end)) for end in LOG_STD_RANGE)
        self._low = space.low.astype(np.float32).ravel()
        self._high = space.high.astype(np.float32).ravel()
        self._center, self._half_range = _center_and_half_range(self._low, self._high)
        self._bounds = (
            (self._low - self._center) / self._half_range,
            (self._high - self._center) / self._half_range,
        )

    def initial_spread(self, std: float) -> Array:
        return np.full(self.spread, self._spread_of(std), np.float32)

    def _spread_of(self, std: float) -> float:
        return math.log(math.expm1(std)) if self.softplus_std else math.log(std)

    def moments(self, parameters: Array) -> tuple[Array, Array]:
        """Return means and log standard deviations, [N, D] each."""
        mean = parameters[:, : self.spread]
        if self.squash_mean:
            mean = np.tanh(mean)
        spread = parameters[:, self.spread :].clip(self.lowest, self.highest)
        return mean, np.log(np.logaddexp(0, spread)) if self.softplus_std else spread

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        mean, log_std = self.moments(parameters)
        noise: Array = rng.standard_normal(mean.shape, dtype=np.float32)
        std = np.exp(log_std)
        actions = mean + std * noise
        if self._clip_actions:
            actions = actions.clip(*self._bounds)
            noise = (actions - mean) / std

        constant = 0.5 * math.log(2 * math.pi) * self.spread
        return actions, -(0.5 * noise * noise + log_std).sum(-1) - constant

    def evaluate(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        normal = self._normal(parameters)
        return normal.log_prob(actions).sum(-1), normal.entropy().sum(-1)

    def _normal(self, parameters: Tensor) -> Any:
        """Return the normal distributions, as torch has them."""
        mean, spread = parameters.chunk(2, dim=-1)
        spread = bounded(spread, self.lowest, self.highest)
        std = functional.softplus(spread) if self.softplus_std else spread.exp()
        if self.squash_mean:
            mean = mean.tanh()
        return distributions.Normal(mean, std, validate_args=False)

    def to_env(self, actions: Array) -> Array:
        scaled: Array = self._center + self._half_range * actions
        return scaled.clip(self._low, self._high)

    def mode_for_env(self, parameters: Tensor) -> Tensor:
        """Return the means, the most likely actions of a Gaussian."""
        mean = parameters[:, : self.spread]
        if self.squash_mean:
            mean = torch.tanh(mean)
        arrays = (self._center, self._half_range, self._low, self._high)
        center, half_range, low, high = map(torch.from_numpy, arrays)
        return torch.clamp(center + half_range * mean, low, high)


def _center_and_half_range(low: Array, high: Array) -> tuple[Array, Array]:
    """Return what -1 and 1 are mapped by: to both bounds; to 1 beyond the only bound; to
    themselves."""
    below = np.isfinite(low)
    above = np.isfinite(high)
    bounded_twice = below & above
    lowest = np.where(below, low, 0)
    highest = np.where(above, high, 0)
    beyond = np.where(below, 1, 0) - np.where(above, 1, 0)
    center = np.where(bounded_twice, lowest / 2 + highest / 2, lowest + highest + beyond)
    half_range = np.where(bounded_twice & (low < high), highest / 2 - lowest / 2, 1)

    return center.astype(np.float32), half_range.astype(np.float32)


class SquashedGaussian(Gaussian):
    """tanh u of a normal variable u, for Box spaces with bounds (Haarnoja et al. 2018, arXiv
    1801.01290, appendix C).

    Actions are kept as u. Log-probabilities are those of tanh u, which lies between -1 and 1, as is
    the entropy: it has no closed form, and is a sum over `NODES`. The greedy action is tanh of the
    mean, the median.
    """

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        actions, log_probs = super().sample(parameters, rng)
        return actions, log_probs - _log_slopes(actions).sum(-1)

    def evaluate(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        normal = self._normal(parameters)
        points = torch.from_numpy(NODES)
        weights = torch.from_numpy(WEIGHTS).to(parameters.dtype)
        at_points = normal.mean[..., None] + normal.stddev[..., None] * points  # [N, D, points]
        log_probs = normal.log_prob(actions) - _log_slopes_of(actions)
        entropies = normal.entropy() + _log_slopes_of(at_points) @ weights
        return log_probs.sum(-1), entropies.sum(-1)

    def to_env(self, actions: Array) -> Array:
        return super().to_env(np.tanh(actions))

    def mode_for_env(self, parameters: Tensor) -> Tensor:
        """Return tanh of the means."""
        return super().mode_for_env(torch.tanh(parameters))


class Beta(Distribution):
    """Independent Beta distributions, for Box spaces with bounds (Chou, Maturana and Scherer 2017).

    Actions are float32 [N, D], shares of the range from 0 to 1. Log-probabilities and entropies are
    those of the shares. Parameters are D of alpha and D of beta, each 1 + ln(1 + exp x), so that a
    density has one peak. The greedy action is the mean, which unlike the peak varies little where
    the density is nearly flat.
    """

    def __init__(self, space: gym.spaces.Box) -> None:
        self._actions = math.prod(space.shape)
        self.size = 2 * self._actions
        self.spread = self.size
        self._low = space.low.astype(np.float32).ravel()
        self._range = space.high.astype(np.float32).ravel() - self._low
        # Of alpha, beta and their sums side by side: ln B counts the sums with the opposite sign,
        # and what is above 1 in alpha and beta is above 2 in a sum.
        self.signs = np.repeat([1.0, -1.0], [self.size, self._actions])
        self.ones = np.repeat([1.0, 2.0], [self.size, self._actions])

    def initial_spread(self, std: float) -> Array:
        """See `Distribution.initial_spread`. 0.5 for more: a flat density has 0.577."""
        above = 0.5 / min(std, 0.5) ** 2 - 1.5  # ln(1 + exp x), of which x is wanted
        return np.full(self.spread, above + math.log(-math.expm1(-above)), np.float32)

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        # float64, since log-probabilities are small differences of large numbers
        alpha_beta = 1 + np.logaddexp(0, np.fmin(parameters, MAX_CONCENTRATION), dtype=np.float64)
        alpha = alpha_beta[:, : self._actions]
        beta = alpha_beta[:, self._actions :]
        shares = rng.beta(alpha, beta)
        actions = shares.clip(1e-6, 1 - 1e-6).astype(np.float32)  # 0 and 1 have no logarithm

        concentrations = np.concatenate([alpha_beta, alpha + beta], axis=-1)
        norms = torch.lgamma(torch.from_numpy(concentrations)).numpy() @ self.signs
        logs = np.log(np.concatenate([actions, 1 - actions], axis=-1))
        log_probs = ((alpha_beta - 1) * logs).sum(-1) - norms

        return actions, log_probs.astype(np.float32)

    def evaluate(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        limited = bounded(parameters.double(), -math.inf, MAX_CONCENTRATION)
        above = functional.softplus(limited)  # alpha - 1 and beta - 1
        alpha_above, beta_above = above.chunk(2, dim=-1)
        excess = torch.cat([above, alpha_above + beta_above], dim=-1)
        concentrations = excess + torch.from_numpy(self.ones)
        signs = torch.from_numpy(self.signs)

        norms = torch.lgamma(concentrations) @ signs  # ln B(alpha, beta)
        logs = torch.cat([actions, 1 - actions], dim=-1).log()
        log_probs = (above * logs).sum(-1) - norms
        entropies = norms - (excess * torch.digamma(concentrations)) @ signs

        return log_probs.to(parameters.dtype), entropies.to(parameters.dtype)

    def to_env(self, actions: Array) -> Array:
        return np.asarray(self._low + self._range * actions)

    def mode_for_env(self, parameters: Tensor) -> Tensor:
        """Return the means."""
        limited = parameters.clamp(max=MAX_CONCENTRATION)
        alpha, beta = (1 + functional.softplus(limited)).chunk(2, dim=-1)
        share = alpha / (alpha + beta)
        return torch.from_numpy(self._low) + torch.from_numpy(self._range) * share


class _Bounded(torch.autograd.Function):
    """See `bounded`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lowest: float, highest: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.ends = lowest, highest
        return x.clamp(lowest, highest)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        (grad,) = gradients
        lowest, highest = ctx.ends
        leads_out = (x < lowest) & (grad > 0) | (x > highest) & (grad < 0)
        return grad.masked_fill(leads_out, 0), None, None


def bounded(x: Tensor, lowest: float, highest: float) -> Tensor:
    """Return x within bounds. Beyond a bound a number's derivative is 0 only if a step against it
    would lead further out: rows together lead back."""
    limited: Tensor = _Bounded.apply(x, lowest, highest)  # type: ignore[no-untyped-call]
    return limited


def make_distribution(
    space: gym.Space[Any], continuous: Continuous = "gaussian", **gaussian: bool
) -> Distribution:
    """Return the distribution that fits an action space.

    continuous: of a Box.
    gaussian: squash_mean, softplus_std, clip_actions, see `Gaussian`. A squashed one has the second
        alone.
    Raises ConfigError for spaces that have none (Dict, Tuple, ...), or not this one.
    """
    if continuous != "gaussian" and not _has_bounds(space):
        problem = f"must be gaussian: actions {space} are no Box with bounds"
        raise ConfigError("network.distribution", continuous, problem)

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


def _has_bounds(space: gym.Space[Any]) -> bool:
    """Return whether a space is a Box of a finite range. A range beyond float32 is no range."""
    if not isinstance(space, gym.spaces.Box):
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.subtract(space.high, space.low, dtype=np.float32)).all())


def _log_slopes(u: Array) -> Array:
    """Return ln(1 - tanh^2 u), also where tanh u is rounded to 1."""
    size = np.abs(u)
    return np.asarray(2 * (math.log(2) - size - np.log1p(np.exp(-2 * size))))


def _log_slopes_of(u: Tensor) -> Tensor:
    """Return the same in torch."""
    return 2 * (math.log(2) - u - functional.softplus(-2 * u))


def mixed_with_uniform(logits: Array, epsilon: float) -> Array:
    """Return the logits, float32 [N, A], of a draw from softmax(logits) or, with probability
    `epsilon`, from the uniform distribution over the A choices: log((1 - epsilon) softmax(logits) +
    epsilon / A). Choices that are FORBIDDEN stay so."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities = weights * ((1 - epsilon) / weights.sum(-1, keepdims=True))
    allowed = logits != FORBIDDEN
    # of a late restart none is allowed
    share = (epsilon / np.maximum(allowed.sum(-1, keepdims=True), 1)).astype(np.float32)
    return np.where(allowed, np.log(probabilities + share), FORBIDDEN)


def _sample_choice(logits: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Sample choices int64 [B] from logits [B, A], and their log-probabilities float32 [B].

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
    chosen = shifted[choices, np.arange(len(choices))]

    return choices, chosen - np.log(total).astype(logits.dtype, copy=False)


def _sample_one_choice(logits: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Sample for logits [1, A], in plain numbers: a third of the time for a handful of actions."""
    row: list[float] = logits[0].tolist()
    largest = max(row)
    weights = [math.exp(logit - largest) for logit in row]
    total = sum(weights)
    remaining = rng.random() * total
    choice = 0
    for weight in weights[:-1]:
        remaining -= weight
        if remaining < 0:
            break
        choice += 1

    return np.array([choice]), np.array([row[choice] - largest - math.log(total)], np.float32)


def _evaluate_choice(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """See `Distribution.evaluate`, for logits [N, A], and which of the A was chosen, int64 [N]."""
    log_probs = torch.log_softmax(logits, dim=-1)
    entropies = -(log_probs.exp() * log_probs).sum(-1)
    return log_probs.gather(-1, actions[:, None])[:, 0], entropies
