"""The inputs of a module: the constructor arguments that come from the spaces, and the form of its observations."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from torch import Tensor, nn

from a3c_exp.common.arrays import Array
from a3c_exp.errors import ConfigError
from a3c_exp.networks.images import ImageLayout, PixelScaling

VECTOR = ("inputs",)
PICTURE = ("channels", "height", "width", "max_pixel")
SPACE = ("observation_space",)
WHOLE = ("action_space", "outputs")


def parameters_of(cls: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """The constructor's parameters by name, without `self`."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    return {parameter.name: parameter for parameter in parameters}


def is_actor_critic(cls: type[nn.Module]) -> bool:
    """Return whether a module is a whole actor-critic, whose constructor asks for `outputs`. Others are encoders."""
    return "outputs" in parameters_of(cls)


def observation_form(cls: type[nn.Module]) -> tuple[str, ...]:
    """The names that a module's constructor may ask for about its observations: the first form of which it has one.

    SPACE: `observation_space`. VECTOR: `inputs`. PICTURE: `channels`, `height`, `width` and `max_pixel`. A module that
    asks for `inputs` may therefore have a setting called `width`.
    """
    names = parameters_of(cls)
    return next((form for form in (SPACE, VECTOR, PICTURE) if form[0] in names), ())


def injected_names(cls: type[nn.Module]) -> set[str]:
    """The constructor arguments that are no settings, since they come from the spaces."""
    allowed = observation_form(cls) + (WHOLE if is_actor_critic(cls) else ())
    return set(parameters_of(cls)) & set(allowed)


@dataclass(frozen=True)
class ObservationInput:
    """The form in which a module gets observations [N, ...].

    space: of one row as the module gets it. arguments: those of its constructor that come from the space.
    layout, pixels: of pictures; None for what is no picture. raw: whether the module scales the pixels itself.
    dtype: of observations before `prepare`.
    """

    space: Box
    arguments: dict[str, Any]
    layout: ImageLayout | None = None
    pixels: PixelScaling | None = None
    raw: bool = False
    dtype: Any = np.float32

    @classmethod
    def of(cls, module: type[nn.Module], space: gym.Space[Any]) -> ObservationInput:
        """The form that suits a module's constructor. Raises ConfigError if it cannot take such observations."""
        form = observation_form(module)
        shape, is_bytes = space.shape or (), space.dtype == np.uint8
        if form == VECTOR and len(shape) != 1:
            others = "" if len(shape) == 3 and is_bytes else ", for other arrays env.wrappers=[FlattenObservation]"
            advice = f"For pictures network=cnn (before LSTM cells network@network.encoder=cnn){others}"
            raise _misfit(module, shape, "vectors", advice)
        is_picture = form == PICTURE or (form == SPACE and (is_bytes or len(shape) >= 3))
        layout = ImageLayout.of(shape) if is_picture else None
        if form == PICTURE and layout is None:
            advice = "For vectors network=mlp (before LSTM cells network@network.encoder=mlp)"
            raise _misfit(module, shape, "pictures", advice)
        if layout is None:
            return cls._plain(module, space)
        assert isinstance(space, Box)  # only a Box has two axes or more
        return cls._pictures(module, space, layout)

    @classmethod
    def _plain(cls, module: type[nn.Module], space: gym.Space[Any]) -> ObservationInput:
        own = Box(-np.inf, np.inf, space.shape or (), np.float32)
        if isinstance(space, Box):
            own = Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
        arguments = {"observation_space": own, "inputs": own.shape[0] if own.shape else 0}
        return cls(own, _injected(module, arguments), dtype=space.dtype)

    @classmethod
    def _pictures(cls, module: type[nn.Module], space: Box, layout: ImageLayout) -> ObservationInput:
        raw = bool(getattr(module, "raw_pictures", False))
        largest = max(float(np.abs(bound).max()) for bound in (space.low, space.high))
        # Pictures without a bound are taken as they are, and so are those of small numbers.
        max_pixel = max(largest, 1.0) if largest < np.finfo(np.float32).max else 1.0
        shape = layout.channels, layout.height, layout.width
        bound = largest if raw else largest / max_pixel
        low = 0.0 if float(space.low.min()) >= 0 else -bound
        own = Box(low, bound, shape, space.dtype.type if raw else np.float32)
        arguments = {"observation_space": own, "max_pixel": max_pixel, **dict(zip(PICTURE, shape, strict=False))}
        return cls(own, _injected(module, arguments), layout, PixelScaling(max_pixel), raw)

    @property
    def axes(self) -> int:
        """Number of axes of one row."""
        return len(self.space.shape)

    def share_pixels(self, module: nn.Module) -> None:
        """Let a module that takes raw pictures, and has an attribute `pixels` to scale them, use the `PixelScaling` of
        this input."""
        if self.raw and hasattr(module, "pixels"):
            module.pixels = self.pixels  # type: ignore[assignment]

    def is_scaled_by(self, module: nn.Module) -> bool:
        """Return whether pictures have been scaled when a module has seen them: by this input, or by the module."""
        return not self.raw or getattr(module, "pixels", None) is self.pixels

    def prepare(self, observations: Tensor) -> Tensor:
        """Observations [N, ...] as the module takes them: float32, or pictures as they are with `raw_pictures`."""
        if self.layout is None or self.pixels is None:
            return observations.float()
        pictures = self.layout.channels_first(observations)
        return pictures if self.raw else self.pixels(pictures)


def _injected(module: type[nn.Module], arguments: dict[str, Any]) -> dict[str, Any]:
    names = injected_names(module)
    return {name: value for name, value in arguments.items() if name in names}


def sample_observations(space: gym.Space[Any], count: int) -> Array:
    """Observations [count, ...] of a space, the same at each call, to try a network with."""
    shape, dtype = space.shape or (), np.dtype(space.dtype or np.float32)
    rows = np.random.default_rng(0).uniform(-1, 1, (count, *shape))
    if isinstance(space, Box):
        low, high = np.maximum(space.low.astype(np.float64), -1), space.high.astype(np.float64)
        high = np.maximum(low, high if dtype == np.uint8 else np.minimum(high, 1))
        rows = low + (high - low) * (rows + 1) / 2
    return rows.astype(dtype)


def _misfit(module: type[nn.Module], shape: tuple[int, ...], takes: str, advice: str) -> ConfigError:
    problem = f"must be a network for observations of shape {shape}: {module.__name__} takes {takes}. {advice}"
    return ConfigError("network", module.__name__, problem)
