"""Action distributions: one head for each kind of action space.

A head turns features into the parameters of a distribution (float32 [..., P]: logits, or means and log standard
deviations side by side), draws from it with the worker's own generator, and says how likely an action is and how that
moves with the parameters.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from a3c_exp.common.arrays import Array
from a3c_exp.errors import ConfigError
from a3c_exp.networks.layers import Backward, Initialisation, Linear, array_of, gradient_of, initialise

# Log-probabilities [N], entropies [N], and from the loss's derivatives by these two to those by the parameters [N, P].
Evaluated = tuple[Array, Array, Callable[[Array, Array], Array]]

# exp(-5) of half an action range is exploration in name only, exp(2) covers any range: beyond lies only overflow.
LOG_STD_RANGE = (-5.0, 2.0)


class Head(ABC):
    """From features to actions. [B] is the number of observations, P the size of the distribution's parameters.

    linear: the last layer, which makes the parameters.
    """

    def __init__(self, linear: Linear) -> None:
        self.linear = linear

    def parameters(self) -> list[nn.Parameter]:
        """What is learned, of this head."""
        return list(self.linear.parameters())

    def bind(self) -> None:
        """Take views of the learned parameters as they lie now."""
        self.linear.bind()

    def distribution(self) -> Head:
        """The same without what is learned: it can `sample` and `to_env`, and is small enough to be sent elsewhere."""
        bare = copy.copy(self)
        learned = (nn.Module, nn.Parameter)
        bare.__dict__ = {name: kept for name, kept in vars(self).items() if not isinstance(kept, learned)}
        return bare

    def forward(self, features: Tensor) -> Tensor:
        """[N, features] -> parameters [N, P], where torch computes."""
        return self.linear(features)

    def infer(self, features: Array) -> Array:
        """The same on float32 arrays."""
        return self.linear.infer(features)

    def learn(self, features: Array) -> tuple[Array, Backward]:
        """The same, and the way back."""
        return self.linear.infer(features), functools.partial(self.linear.backward, features)

    @abstractmethod
    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """parameters [B, P] -> actions [B, ...] and their log-probabilities, float32 [B]."""

    @abstractmethod
    def mode(self, parameters: Array) -> Array:
        """The most likely actions [B, ...]."""

    @abstractmethod
    def evaluate(self, parameters: Array, actions: Array) -> Evaluated:
        """parameters [N, P], actions [N, ...] -> see `Evaluated`. The way back can be taken once."""

    def to_env(self, actions: Array) -> Array:
        """What the environment is given for `actions`: within its own range."""
        return actions


class Categorical(Head):
    """One choice among `choices`: Discrete spaces. Actions are int64 [B]."""

    def __init__(self, features: int, space: gym.spaces.Discrete) -> None:
        super().__init__(Linear(features, int(space.n)))

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        return _sample_choice(parameters, rng)

    def mode(self, parameters: Array) -> Array:
        choices: Array = parameters.argmax(-1)
        return choices

    def evaluate(self, parameters: Array, actions: Array) -> Evaluated:
        return _evaluate_choice(parameters, actions)


class MultiCategorical(Head):
    """Several independent choices: MultiDiscrete spaces. Actions are int64 [B, choices]; log-probabilities add."""

    def __init__(self, features: int, space: gym.spaces.MultiDiscrete) -> None:
        self._sizes = [int(n) for n in space.nvec.ravel()]
        self._ends = np.cumsum(self._sizes)[:-1]
        super().__init__(Linear(features, sum(self._sizes)))

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        drawn = [_sample_choice(logits, rng) for logits in np.split(parameters, self._ends, axis=-1)]
        actions = np.stack([action for action, _ in drawn], axis=-1)
        log_probs = np.stack([log_prob for _, log_prob in drawn]).sum(0)
        return actions, log_probs

    def mode(self, parameters: Array) -> Array:
        return np.stack([logits.argmax(-1) for logits in np.split(parameters, self._ends, axis=-1)], axis=-1)

    def evaluate(self, parameters: Array, actions: Array) -> Evaluated:
        pieces = zip(np.split(parameters, self._ends, axis=-1), actions.T, strict=True)
        log_probs, entropies, backwards = zip(*itertools.starmap(_evaluate_choice, pieces), strict=True)

        def backward(by_log_probs: Array, by_entropy: Array) -> Array:
            return np.concatenate([back(by_log_probs, by_entropy) for back in backwards], axis=-1)

        return np.add.reduce(log_probs), np.add.reduce(entropies), backward


class Bernoulli(Head):
    """Independent yes/no choices: MultiBinary spaces. Actions are int8 [B, bits]; parameters are logits of 1."""

    def __init__(self, features: int, space: gym.spaces.MultiBinary) -> None:
        super().__init__(Linear(features, math.prod(space.shape)))

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        # A logistic variate below the logit has probability sigmoid(logit).
        uniform = rng.random(parameters.shape)
        actions = (np.log(uniform / (1 - uniform)) < parameters).astype(np.int8)
        log_probs = -np.logaddexp(0, np.where(actions, -parameters, parameters)).sum(-1)
        return actions, log_probs.astype(np.float32)

    def mode(self, parameters: Array) -> Array:
        return (parameters > 0).astype(np.int8)

    def evaluate(self, parameters: Array, actions: Array) -> Evaluated:
        log_one, log_zero = -np.logaddexp(0, -parameters), -np.logaddexp(0, parameters)
        one = np.exp(log_one)
        log_probs = np.where(actions, log_one, log_zero).sum(-1)

        def backward(by_log_probs: Array, by_entropy: Array) -> Array:
            # dH/dx = -x p (1 - p), with p the probability of a 1 and x its logit.
            by: Array = by_log_probs[:, None] * (actions - one) - by_entropy[:, None] * parameters * one * (1 - one)
            return by

        return log_probs, -(one * log_one + (1 - one) * log_zero).sum(-1), backward


class Gaussian(Head):
    """Independent normals: Box spaces. Actions are float32 [B, D], D the size of the box, flattened.

    The normal lives in a space of its own in which every bounded dimension reaches from -1 to 1, so that one initial
    standard deviation means the same for every environment; unbounded dimensions are left as they are, and those with
    one bound begin 1 beyond it. `to_env` maps to the environment's range and clips there. Log-probabilities are those
    of the action before the clip: the clip is part of the environment, so the policy gradient is unbiased (a tanh
    inside the policy would need its Jacobian and has no closed entropy). Where an action is far outside, the clip takes
    its effect away and entropy is overstated.

    state_dependent_std: the log standard deviation is an output of the network, else a free parameter a dimension.
        Either is held within LOG_STD_RANGE where the parameters are made: in `forward`, `infer` and `learn`.
    """

    def __init__(self, features: int, space: gym.spaces.Box, state_dependent_std: bool, initial_std: float) -> None:
        size = math.prod(space.shape)
        super().__init__(Linear(features, 2 * size if state_dependent_std else size))
        self._size = size
        low, high = space.low.astype(np.float32).ravel(), space.high.astype(np.float32).ravel()
        self._low, self._high = low, high
        below, above = np.isfinite(low), np.isfinite(high)
        lowest, highest = np.where(below, low, 0), np.where(above, high, 0)
        both, beyond = below & above, np.where(below, 1, 0) - np.where(above, 1, 0)
        self._centre = np.where(both, lowest / 2 + highest / 2, lowest + highest + beyond).astype(np.float32)
        self._half_range = np.where(both, highest / 2 - lowest / 2, 1).astype(np.float32)
        self.initial_log_std = math.log(initial_std)
        self.log_std = None if state_dependent_std else nn.Parameter(torch.full((size,), self.initial_log_std))

    def start_std(self) -> None:
        """After the weights have been drawn: make the state-dependent standard deviation start at its initial value."""
        with torch.no_grad():
            if self.log_std is None:
                self.linear.bias[self._size :] = self.initial_log_std
            else:
                self.log_std.fill_(self.initial_log_std)

    def parameters(self) -> list[nn.Parameter]:
        return super().parameters() + ([] if self.log_std is None else [self.log_std])

    def forward(self, features: Tensor) -> Tensor:
        outputs = self.linear(features)
        if self.log_std is None:
            mean, log_std = torch.split(outputs, self._size, dim=-1)
            return torch.cat([mean, _Within.apply(log_std, *LOG_STD_RANGE)], dim=-1)  # type: ignore[no-untyped-call]
        # Before it is spread over the rows: where it is outside, all of them together say which way it goes.
        log_std = _Within.apply(self.log_std, *LOG_STD_RANGE)  # type: ignore[no-untyped-call]
        return torch.cat([outputs, log_std.expand_as(outputs)], dim=-1)

    def bind(self) -> None:
        super().bind()
        self._log_std = None if self.log_std is None else array_of(self.log_std)
        self._log_std_gradient = None if self.log_std is None else gradient_of(self.log_std)

    def infer(self, features: Array) -> Array:
        return self._with_log_std(self.linear.infer(features))[0]

    def learn(self, features: Array) -> tuple[Array, Backward]:
        parameters, log_std = self._with_log_std(self.linear.infer(features))

        def backward(by: Array) -> Array:
            by_log_std = by[:, self._size :]
            if self._log_std_gradient is not None:
                by, by_log_std = by[:, : self._size], by_log_std.sum(0)
            by_log_std[_further_out(log_std, by_log_std, *LOG_STD_RANGE)] = 0
            if self._log_std_gradient is not None:
                self._log_std_gradient += by_log_std
            return self.linear.backward(features, by)

        return parameters, backward

    def _with_log_std(self, outputs: Array) -> tuple[Array, Array]:
        """The parameters, and the log standard deviations before they were held within their range."""
        log_std = outputs[:, self._size :].copy() if self._log_std is None else self._log_std
        means, held = outputs[:, : self._size], log_std.clip(*LOG_STD_RANGE)
        return np.concatenate([means, np.broadcast_to(held, means.shape)], axis=-1), log_std

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        mean, log_std = parameters[:, : self._size], parameters[:, self._size :]
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        log_probs = -(0.5 * noise * noise + log_std).sum(-1) - 0.5 * math.log(2 * math.pi) * self._size
        return mean + np.exp(log_std) * noise, log_probs

    def mode(self, parameters: Array) -> Array:
        return parameters[:, : self._size]

    def evaluate(self, parameters: Array, actions: Array) -> Evaluated:
        mean, log_std = parameters[:, : self._size], parameters[:, self._size :]
        scale = np.exp(-log_std)
        noise = (actions - mean) * scale
        constant = 0.5 * math.log(2 * math.pi) * self._size
        total_log_std = log_std.sum(-1)
        log_probs = -0.5 * (noise * noise).sum(-1) - total_log_std - constant

        def backward(by_log_probs: Array, by_entropy: Array) -> Array:
            by_mean = by_log_probs[:, None] * noise
            by_log_std = by_mean * noise - by_log_probs[:, None] + by_entropy[:, None]
            return np.concatenate([by_mean * scale, by_log_std], axis=-1)

        return log_probs, total_log_std + constant + 0.5 * self._size, backward

    def to_env(self, actions: Array) -> Array:
        wanted: Array = self._centre + self._half_range * actions
        return wanted.clip(self._low, self._high)


class _Within(torch.autograd.Function):
    """x.clamp(low, high), whose gradient still leads back: where x is outside, what would drive it further is 0 and
    what drives it back is not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (x,), (gradient,), bounds = ctx.saved_tensors, gradients, ctx.bounds
        return gradient.masked_fill(_further_out(x, gradient, *bounds), 0.0), None, None


def _further_out(x: Any, gradient: Any, low: float, high: float) -> Any:
    """Where a step would drive what is beyond its range further, arrays or tensors alike. A step goes against the
    gradient: it is further out below `low` where the gradient is above 0."""
    return ((x < low) & (gradient > 0)) | ((x > high) & (gradient < 0))


def make_head(features: int, space: gym.Space[Any], state_dependent_std: bool, initial_std: float) -> Head:
    """The head that fits an action space. Raises ConfigError for spaces that have none (Dict, Tuple, ...)."""
    match space:
        case gym.spaces.Discrete():
            return Categorical(features, space)
        case gym.spaces.MultiDiscrete():
            return MultiCategorical(features, space)
        case gym.spaces.MultiBinary():
            return Bernoulli(features, space)
        case gym.spaces.Box() if np.issubdtype(space.dtype, np.floating):
            return Gaussian(features, space, state_dependent_std, initial_std)
    raise ConfigError("env.id", str(space), "its actions must be Discrete, MultiDiscrete, MultiBinary or a float Box")


def mixed_with_uniform(logits: Array, epsilon: float) -> Array:
    """The logits, float32 [B, A], of drawing from softmax(logits [B, A]) or, with probability `epsilon`, any of the A
    choices alike: log((1 - epsilon) softmax(logits) + epsilon / A)."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities = weights * ((1 - epsilon) / weights.sum(-1, keepdims=True)) + epsilon / logits.shape[-1]
    mixed: Array = np.log(probabilities)
    return mixed


def initialise_heads(
    head: Head, value: Linear, scheme: Initialisation, policy_gain: float, generator: torch.Generator | None
) -> None:
    """Draw the last layers of the policy, with gain `policy_gain`, and of the value function, with gain 1."""
    initialise(head.linear, scheme, policy_gain, generator)
    initialise(value, scheme, 1.0, generator)
    if isinstance(head, Gaussian):
        head.start_std()


def _sample_choice(logits: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Choices int64 [B] from logits [B, A], and their log-probabilities float32 [B].

    A choice is the first action at which the summed probabilities exceed a uniform number.
    """
    if len(logits) == 1:
        return _sample_one_choice(logits, rng)
    # Actions first: adding up over an axis of two or three numbers takes ten times as long where they lie side by side.
    shifted = logits.T.copy()
    shifted -= np.maximum.reduce(shifted, 0)
    sums = np.add.accumulate(np.exp(shifted), 0)
    total = sums[-1]
    choices: Array = np.add.reduce(sums[:-1] <= rng.random(len(total)) * total, 0)
    return choices, shifted[choices, _rows(len(choices))] - np.log(total)


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


@functools.cache
def _rows(count: int) -> NDArray[np.intp]:
    return np.arange(count)


def _evaluate_choice(logits: Array, actions: Array) -> Evaluated:
    """See `Evaluated`: for logits [N, A], and which of the A was chosen, int64 [N]."""
    log_probs = logits.T.copy()  # actions first, as above
    log_probs -= np.maximum.reduce(log_probs, 0)
    probabilities = np.exp(log_probs)
    total = np.add.reduce(probabilities, 0)
    log_probs -= np.log(total)
    probabilities /= total
    entropy = -np.add.reduce(probabilities * log_probs, 0)
    rows = np.arange(len(actions))

    def backward(by_log_probs: Array, by_entropy: Array) -> Array:
        # d log pi(a) / dx_k = [k = a] - p_k, dH / dx_k = -p_k (log p_k + H)
        by = log_probs + entropy
        by *= by_entropy
        by += by_log_probs
        by *= probabilities
        np.negative(by, by)
        by[actions, rows] += by_log_probs
        by_logits: Array = by.T
        return by_logits

    return log_probs[actions, rows], entropy, backward
