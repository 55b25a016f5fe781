"""Optimizers of one flat vector: RMSProp, Adam, SGD, with learning rates for each parameter group.

They change numpy arrays in place, or torch tensors on a device: each formula is written once, with
the functions that both modules have (`functions_of`). Other workers may read and write these arrays
at the same time without a lock (Hogwild). A lost or half-applied update is acceptable then. A step
out of all proportion is not, since it spoils the parameters for good. So RMSProp divides a gradient
by the root of a mean square that surely includes it, and Adam skips an element whose two running
means do not belong together.
"""

from __future__ import annotations

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from a3c_exp.common.arrays import Floats, Vector
from a3c_exp.common.ranges import BelowOne, Checked, NotNegative, Positive, PositiveFloat32
from a3c_exp.errors import ConfigError

# Elements of an array that are updated at once. A large array is updated in pieces, so that all
# operations on a piece find it in the second-level cache.
CHUNK = 131_072


@dataclass(frozen=True, kw_only=True)
class ParamGroup(Checked):
    """Settings of one parameter group of the network (actor, critic, ...).

    learning_rate: >= 0; the schedule multiplies it as well. 0 freezes the group. None: the
        optimizer's.
    """

    learning_rate: NotNegative | None = None


@dataclass(frozen=True, kw_only=True)
class Optimizer(Checked, ABC):
    """Turns gradients into changes of one flat vector of P parameters. Every optimizer derives from
    this class.

    A subclass is a frozen dataclass with `state_rows` and `direction`. It holds no state itself:
    its state is an array [M, P] that the caller keeps, shares and saves.

    learning_rate: > 0, where the schedule is 1 and the parameter group has none of its own.
    max_grad_norm: gradients with a longer norm are shortened to it; None: never.
    staleness_power: p >= 0. The rate of an update is divided by max(1, its staleness)^p.
    param_groups: by the name of a parameter group of the network. All other parameters have the
        rate above.
    """

    learning_rate: Positive
    max_grad_norm: Positive | None = None
    staleness_power: NotNegative = 0.0
    param_groups: dict[str, ParamGroup] = field(default_factory=dict)

    @property
    @abstractmethod
    def state_rows(self) -> int:
        """Return M, how many numbers the optimizer keeps for each parameter; may be 0."""

    @abstractmethod
    def direction(self, state: Vector, gradient: Vector, scratch: Vector, t: int) -> Vector:
        """Update the state by one gradient, and return what the rate is multiplied with, [N].

        The result is `scratch`, a row of `state`, or `gradient`. Only the first two may be written
        to. On a GPU (GA3C) all of them are tensors there.

        state: float32 [M, N], changed in place.
        gradient: float32 [N].
        scratch: float32 [N], of any numbers.
        t: index of this update of the state, the first being 1.
        """

    def compensate(
        self, gradient: Vector, parameters: Vector, pulled: Vector, state: Vector
    ) -> Vector:
        """Return the gradient [P] of which `step` makes the update, for an optimizer that corrects
        a stale one. Workers hand over what they have pulled if a subclass overrides this.

        gradient: float32 [P], not changed.
        parameters: those that are about to be updated, float32 [P], not changed.
        pulled: those that the gradient is based on, float32 [P], not changed.
        state: before the update, float32 [M, P], not changed.
        """
        return gradient

    @property
    def needs_pulled(self) -> bool:
        """Return whether the class overrides `compensate`."""
        return type(self).compensate is not Optimizer.compensate

    def initial_state(self, size: int) -> Floats:
        """Return the state before the first update of `size` parameters, float32 [M, size]."""
        return np.zeros((self.state_rows, size), np.float32)

    def step(
        self, parameters: Vector, state: Vector, gradient: Vector, rate: float | Vector, t: int
    ) -> None:
        """Make one update, in place.

        parameters: float32 [P].
        state: float32 [M, P].
        gradient: float32 [P], finite, not changed.
        rate: learning rate of this update, one for all or float32 [P] (see `rates`).
        t: index of this update of the state, the first being 1.
        """
        xp = functions_of(parameters)
        size = len(parameters)
        length = CHUNK if xp is np else size
        scratch = xp.empty_like(parameters[:length])
        for start in range(0, size, length):
            piece = slice(start, min(start + length, size))
            change = scratch[: piece.stop - start]
            direction = self.direction(state[:, piece], gradient[piece], change, t)
            piece_rate = rate if isinstance(rate, int | float) else rate[piece]
            xp.multiply(direction, piece_rate, out=change)
            parameters[piece] -= change


@dataclass(frozen=True, kw_only=True)
class RMSProp(Optimizer):
    """Gradients divided by the root of their running mean square (Tieleman and Hinton 2012, lecture
    6.5).

        s <- decay s + (1 - decay) g^2
        parameters <- parameters - rate g / (sqrt(s) + epsilon)
        or, with epsilon_inside,
        parameters <- parameters - rate g / sqrt(s + epsilon)

    torch has epsilon outside the root and s = 0 at first. Mnih et al. 2016 (section 4.5) and
    TensorFlow have it inside, TensorFlow with s = 1 at first. The start matters more: from 0, the
    first steps move every weight by rate / sqrt(1 - decay), ten times the rate at a decay of 0.99,
    however small its gradient.

    decay: from 0 to less than 1.
    epsilon: from 1e-38 to 3e38.
    epsilon_inside: whether epsilon is under the root.
    initial_mean_square: s before the first update.
    momentum: where it is not 0, the quotient is added to a velocity v <- momentum v + quotient, and
        the rate multiplies that.
    """

    decay: BelowOne = 0.99
    epsilon: PositiveFloat32 = 1e-5
    epsilon_inside: bool = False
    initial_mean_square: NotNegative = 0.0
    momentum: BelowOne = 0.0

    @property
    def state_rows(self) -> int:
        """Return 1, for the mean square, and 1 more for the velocity where there is momentum."""
        return 2 if self.momentum else 1

    def initial_state(self, size: int) -> Floats:
        state = super().initial_state(size)
        state[0] = self.initial_mean_square
        return state

    def direction(self, state: Vector, gradient: Vector, scratch: Vector, t: int) -> Vector:
        xp = functions_of(gradient)
        mean_square = state[0]
        _add_square(xp, mean_square, gradient, self.decay, scratch)
        if self.epsilon_inside:
            scratch += self.epsilon
            xp.sqrt(scratch, out=scratch)
        else:
            xp.sqrt(scratch, out=scratch)
            scratch += self.epsilon
        xp.divide(gradient, scratch, out=scratch)
        return _with_momentum(state, scratch, self.momentum)


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam, Kingma and Ba 2015 (arXiv 1412.6980, algorithm 1).

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) g^2
        parameters <- parameters - rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon)

    betas: b1 and b2, from 0 to less than 1.
    epsilon: from 1e-38 to 3e38.
    weight_decay: parameters <- (1 - rate weight_decay) parameters before each step, apart from the
        means (AdamW, Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2). Biases too, as in
        torch.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: PositiveFloat32 = 1e-8
    weight_decay: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError("betas", self.betas, "must be two numbers from 0 to less than 1")

    state_rows = 2  # the mean of the gradient and that of its square

    def step(
        self, parameters: Vector, state: Vector, gradient: Vector, rate: float | Vector, t: int
    ) -> None:
        if self.weight_decay:
            parameters *= 1 - rate * self.weight_decay
        super().step(parameters, state, gradient, rate, t)

    def direction(self, state: Vector, gradient: Vector, scratch: Vector, t: int) -> Vector:
        xp = functions_of(gradient)
        mean, mean_square = state
        first, second = self.betas
        xp.multiply(gradient, 1 - first, out=scratch)
        mean *= first
        mean += scratch
        _add_square(xp, mean_square, gradient, second, scratch)

        # Both bias corrections are in the denominator: one pass instead of two.
        correction = 1 - first**t
        square_correction = math.sqrt(1 - second**t)
        xp.sqrt(scratch, out=scratch)
        scratch *= correction / square_correction
        scratch += correction * self.epsilon
        xp.divide(mean, scratch, out=scratch)

        largest = self._max_ratio * square_correction / correction
        if max(scratch.max(), -scratch.min()) > largest:
            torn = xp.abs(scratch) > largest
            scratch[torn] = mean[torn] = 0
        return scratch

    @functools.cached_property
    def _max_ratio(self) -> float:
        """Return the largest |m| / sqrt(v) that any sequence of gradients can lead to; infinity
        unless b1^2 < b2.

        By Cauchy and Schwarz it is (1 - b1) / sqrt((1 - b2) (1 - b1^2 / b2)). A larger ratio means
        that another worker has written m and not yet v, or has overwritten one of them. If m
        includes a gradient that v lacks, the step would be m / epsilon.
        """
        first, second = self.betas
        if first**2 >= second:
            return math.inf
        # with a margin for rounding
        return 1.001 * (1 - first) / math.sqrt((1 - second) * (1 - first**2 / second))


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent, with momentum in torch's form.

        v <- momentum v + g
        parameters <- parameters - rate v

    momentum: from 0, with which v is g itself, to less than 1.
    """

    momentum: BelowOne = 0.0

    @property
    def state_rows(self) -> int:
        """Return 1, for the velocity, where there is momentum."""
        return 1 if self.momentum else 0

    def direction(self, state: Vector, gradient: Vector, scratch: Vector, t: int) -> Vector:
        return _with_momentum(state, gradient, self.momentum)


OF_TORCH = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD")
"""torch's optimizers that treat each element alone, so that a flat vector, or a piece of it, is
like its tensors."""

UNUSED = ("capturable", "differentiable", "foreach", "fused", "lr", "maximize", "params")
"""Arguments of their constructors that are no settings here."""

COMMON = ("max_grad_norm", "staleness_power", "param_groups")
"""Settings of every `Optimizer` that torch's optimizers have beside their own."""


@dataclass(frozen=True, kw_only=True)
class TorchOptimizer(Optimizer):
    """One of torch's optimizers: `optimizer={_target_: torch.optim.AdamW, lr: 1e-3, weight_decay:
    0.01}`.

    Its state has a row for each tensor that torch keeps; of a single number, one that is full of
    it. It has no guard against workers that write over one another, as those above have.

    name: of the class in torch.optim.
    settings: arguments of its constructor.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def settings_of(cls, node: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of this class for a mapping that names a class of torch.optim. Raises
        ConfigError."""
        import torch

        target = str(node["_target_"])
        name = target.rpartition(".")[2]
        if target != f"torch.optim.{name}" or name not in OF_TORCH:
            raise ConfigError("_target_", target, f"must be one of {', '.join(OF_TORCH)}")
        arguments = inspect.signature(getattr(torch.optim, name)).parameters
        rate = node.get("lr", arguments["lr"].default)
        if type(rate) not in (int, float) or not rate > 0:
            raise ConfigError("lr", rate, "must be a number > 0")

        allowed = [argument for argument in arguments if argument not in UNUSED]
        common = {}
        settings = {}
        for key, value in node.items():
            if key in COMMON:
                common[key] = value
            elif key in allowed:
                settings[key] = value
            elif key not in ("_target_", "lr"):
                names = ", ".join(["lr", *allowed, *COMMON])
                raise ConfigError(key, value, f"must be a setting of {target}: {names}")
        return {"name": name, "learning_rate": rate, "settings": settings, **common}

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self._state_names is not None  # torch raises for settings that it refuses

    @functools.cached_property
    def _state_names(self) -> dict[str, bool]:
        """Return what torch keeps besides the number of steps, and whether it is a single
        number."""
        import torch

        parameter = torch.zeros(2)
        parameter.grad = torch.ones(2)
        optimizer = self._make([parameter])
        optimizer.step()
        return {
            name: value.dim() == 0
            for name, value in optimizer.state[parameter].items()
            if torch.is_tensor(value) and name != "step"
        }

    def _make(self, parameters: Any) -> Any:
        """Make the optimizer, whose rate is 1: each change is in proportion to it."""
        settings = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in self.settings.items()
        }
        return _without_compiler(self.name)(parameters, lr=1.0, **settings)

    @property
    def state_rows(self) -> int:
        return len(self._state_names)

    def direction(self, state: Vector, gradient: Vector, scratch: Vector, t: int) -> Vector:
        raise NotImplementedError("torch makes whole steps")

    def step(
        self, parameters: Vector, state: Vector, gradient: Vector, rate: float | Vector, t: int
    ) -> None:
        import torch

        vector = torch.as_tensor(parameters)
        rows = torch.as_tensor(state)
        moved = vector.clone()
        moved.grad = torch.asarray(gradient, copy=True)
        optimizer = self._make([moved])
        if t > 1:
            state_of_torch = {"step": torch.tensor(t - 1.0)}
            for (name, is_number), row in zip(self._state_names.items(), rows, strict=True):
                state_of_torch[name] = row[0].clone() if is_number else row
            optimizer.state[moved] = state_of_torch
        optimizer.step()

        for name, row in zip(self._state_names, rows, strict=True):
            row[:] = optimizer.state[moved][name]
        vector -= (vector - moved) * torch.as_tensor(rate)


@functools.cache
def _without_compiler(name: str) -> Any:
    """Return a class of torch.optim whose methods do not import torch's compiler, which takes
    seconds in each process."""
    import torch

    cls = getattr(torch.optim, name)
    methods = {
        method: inspect.unwrap(getattr(cls, method)) for method in ("add_param_group", "step")
    }
    return type(name, (cls,), methods)


def check_param_groups(optimizer: Optimizer, names: Collection[str]) -> None:
    """Raise ConfigError unless every parameter group of the optimizer is one of the network.

    names: of the network's groups.
    """
    for name in optimizer.param_groups:
        if name not in names:
            problem = f"the network has no such parameter group, only {', '.join(sorted(names))}"
            raise ConfigError("param_groups", name, problem)


def rates(
    optimizer: Optimizer,
    slices: Mapping[str, slice],
    parameters: Vector,
    factor: float,
    staleness: int = 0,
) -> float | Vector:
    """Return the learning rate of an update: a number, or a vector like the parameters [P] if a
    parameter group has its own.

    slices: where each parameter group lies in the flat vector.
    factor: the schedule's value.
    staleness: of the gradient, in updates. With a power of 1 the rate is divided by it, as in
        Zhang, Gupta, Lian and Liu 2016, arXiv 1511.05950.
    """
    if optimizer.staleness_power and staleness > 1:
        factor /= staleness**optimizer.staleness_power
    common_rate = optimizer.learning_rate * factor
    group_rates = {
        name: group.learning_rate
        for name, group in optimizer.param_groups.items()
        if group.learning_rate is not None
    }
    if not group_rates:
        return common_rate

    rate = functions_of(parameters).full_like(parameters, common_rate)
    for name, learning_rate in group_rates.items():
        rate[slices[name]] = learning_rate * factor
    return rate


def clip(gradient: Vector, longest: float | None) -> float:
    """Shorten a gradient [P] in place to the norm `longest`, if that is a number, and return its
    norm before that.

    Pascanu et al. 2013, arXiv 1211.5063, algorithm 1. A gradient whose norm is not finite is left
    as it is: the caller refuses it.
    """
    norm = euclidean_norm(gradient)
    if longest is not None and longest < norm < math.inf:
        gradient *= longest / norm
    return norm


def functions_of(vector: Vector) -> Any:
    """Return the module whose functions take this vector: numpy or torch."""
    if isinstance(vector, np.ndarray):
        return np
    import torch  # here, since commands that only read files do without it

    return torch


def euclidean_norm(vector: Vector) -> float:
    """Return the Euclidean norm of a vector [P], an array or a tensor."""
    xp = functions_of(vector)
    square = float(xp.vdot(vector, vector))  # dot, but without a warning of each overflow
    if math.isinf(square):  # the squares of large finite numbers overflow in single precision
        wide = xp.asarray(vector, dtype=xp.float64)
        square = float(xp.vdot(wide, wide))
    return math.sqrt(square)


def _with_momentum(state: Vector, change: Vector, momentum: float) -> Vector:
    """Compute velocity <- momentum velocity + change, in the last row of `state`; without momentum
    the change itself."""
    if not momentum:
        return change
    velocity = state[-1]
    velocity *= momentum
    velocity += change
    return velocity


def _add_square(
    xp: Any, mean_square: Vector, gradient: Vector, decay: float, scratch: Vector
) -> None:
    """Compute mean_square <- decay mean_square + (1 - decay) gradient^2. The result is also in
    `scratch`.

    There it is at least (1 - decay) gradient^2, even if another worker writes to `mean_square`.
    """
    xp.multiply(gradient, gradient, out=scratch)
    scratch *= 1 - decay
    mean_square *= decay
    mean_square += scratch
    xp.maximum(scratch, mean_square, out=scratch)
