"""The inputs of a module: constructor arguments that come from the spaces, the form of
observations, scaled pixels."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, get_type_hints

import numpy as np
import torch
from gymnasium.spaces import Box, Dict
from torch import Tensor, nn

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.envs.parts import Part, PartsBox
from a3c_exp.errors import ConfigError

VECTOR = ("inputs",)
IMAGE = ("channels", "height", "width", "max_pixel")
SPACE = ("observation_space",)
WHOLE = ("action_space", "outputs")

LEAST_FOR_CNN = 20
"""Height and width that leave something after the convolutions of conf/network/cnn.yaml."""


def parameters_of(cls: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """Return the constructor's parameters by name, without `self`."""
    return dict(list(inspect.signature(cls.__init__).parameters.items())[1:])


def is_actor_critic(cls: type[nn.Module]) -> bool:
    """Return whether a module is a whole actor-critic, whose constructor asks for `outputs`. Others
    are encoders."""
    return "outputs" in parameters_of(cls)


def observation_form(cls: type[nn.Module]) -> tuple[str, ...]:
    """Return the names that a module's constructor may ask for about its observations: the first
    form of which it has one.

    SPACE: `observation_space`. VECTOR: `inputs`. IMAGE: `channels`, `height`, `width` and
    `max_pixel`. A module that asks for `inputs` may therefore have a setting called `width`.
    """
    names = parameters_of(cls)
    return next((form for form in (SPACE, VECTOR, IMAGE) if form[0] in names), ())


def injected_names(cls: type[nn.Module]) -> set[str]:
    """Return the constructor arguments that are no settings, since they come from the spaces."""
    allowed = observation_form(cls) + (WHOLE if is_actor_critic(cls) else ())
    return set(parameters_of(cls)) & set(allowed)


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The axes of an image observation. Stacked frames are channels, as colors are.

    Of three axes the last is that of colors if it is the shortest, or if the first two have the
    same length. Otherwise the first axis is that of channels.

    shape: channels, height and width, as a convolution sees them.
    axes: the permutation from [N, ...] to channels first.
    """

    shape: tuple[int, int, int]
    axes: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> ImageLayout | None:
        """Return the layout of [H, W], [channels, H, W], [H, W, colors], or a stack of either of
        the last two; None for any other shape."""
        match shape:
            case (height, width):
                return cls((1, height, width), (0, 1, 2))
            case (height, width, colors) if (
                colors < min(height, width) or height == width != colors
            ):
                return cls((colors, height, width), (0, 3, 1, 2))
            case (channels, height, width):
                return cls((channels, height, width), (0, 1, 2, 3))
            case (stack, *frame):
                of_frame = cls.of(tuple(frame)) if len(frame) == 3 else None
                if of_frame is not None:
                    axes = (0, 1, *(axis + 1 for axis in of_frame.axes[1:]))
                    return cls((stack * of_frame.shape[0], *of_frame.shape[1:]), axes)
        return None

    def channels_first(self, observations: Tensor) -> Tensor:
        """Return observations [N, ...] as [N, C, H, W], without a copy if possible."""
        return observations.permute(self.axes).reshape(-1, *self.shape)


def stacked_frames(space: Box) -> int:
    """Return the number of frames in an observation whose first axis may be that of a stack; 1 for
    other observations. [3, H, W] is taken for an image in colors."""
    layout = ImageLayout.of(space.shape) if space.dtype == np.uint8 else None
    is_stack = layout is not None and layout.axes[1] == 1 and space.shape[:-2] not in ((), (3,))
    return space.shape[0] if is_stack else 1


class PixelScaling:
    """(x - center) * scale of the pixels x of images, before the first layer of an encoder.

    Without `normalize` the center is 0, and the largest pixel becomes 1.

    center, scale: one number for all pixels; or float32 [C, H, W], one for each.
    """

    # A hundredth of the largest pixel: an image of a single color has no deviation to divide by.
    LEAST_DEVIATION = 0.01
    # As with other observations, see `core.normalization`: beyond it a pixel says no more than that
    # it is extreme.
    CLIP = 10.0

    def __init__(self, max_pixel: float) -> None:
        self.max_pixel = max_pixel
        self.center: float | Tensor = 0.0
        self.scale: float | Tensor = 1 / max_pixel

    def normalize(self, layout: ImageLayout, mean: Floats, inverse_std: Floats) -> None:
        """Subtract a mean, and multiply by the inverse of a standard deviation, from now on.

        mean, inverse_std: float32 [] for all pixels together, or one for each, shaped like an
            observation.

        One mean is rounded to a whole number: a byte less a byte is exact in bfloat16.
        """
        limited = np.minimum(inverse_std, 1 / (self.LEAST_DEVIATION * self.max_pixel))
        if mean.ndim:
            self.center = layout.channels_first(torch.from_numpy(mean)[None])[0]
            self.scale = layout.channels_first(torch.from_numpy(limited)[None])[0]
        else:
            self.center = float(mean.round())
            self.scale = float(limited)

    def __call__(self, images: Tensor) -> Tensor:
        """Return images [N, C, H, W] as float32, scaled. Of pixels with a scale of their own the
        results are clipped."""
        x = images.float()
        if isinstance(self.center, Tensor) and isinstance(self.scale, Tensor):
            scaled = (x - self.center.to(x.device)) * self.scale.to(x.device)
            return scaled.clamp(-self.CLIP, self.CLIP)
        return (x - self.center) * self.scale if self.center else x * self.scale


@dataclass(frozen=True)
class ObservationInput:
    """The form in which a module gets observations [N, ...].

    arguments: what comes from the space, by the names that its constructor may ask for.
    axes: of one observation. layout, pixels: of images; None for what is no image.
    raw: whether the module scales the pixels itself.
    parts: of observations of several, for a module that asks for `observation_space`: it gets a
        dictionary of them. Each with the layout of its images.
    """

    arguments: dict[str, Any]
    axes: int
    layout: ImageLayout | None = None
    pixels: PixelScaling | None = None
    raw: bool = False
    parts: tuple[tuple[Part, ImageLayout | None], ...] = ()

    @classmethod
    def of(cls, module: type[nn.Module], space: Box) -> ObservationInput:
        """Return the form that suits a module's constructor. Raises ConfigError if it cannot take
        such observations."""
        form = observation_form(module)
        shape = space.shape
        if isinstance(space, PartsBox):
            if form == SPACE:
                parts = tuple(
                    (part, ImageLayout.of(part.box.shape) if part.is_image else None)
                    for part in space.parts
                )
                dictionary = Dict({part.name: _space_of(part, layout) for part, layout in parts})
                return cls({"observation_space": dictionary}, 1, parts=parts)
            if form == IMAGE or any(part.is_image for part in space.parts):
                names = ", ".join(part.name for part in space.parts)
                raise _unsuitable(
                    module, names, "one array", "For a Dict or a Tuple network=dict", "of the parts"
                )
        elif form == SPACE and get_type_hints(module.__init__).get("observation_space") is Dict:
            raise _unsuitable(
                module,
                shape,
                "a Dict or a Tuple",
                "For vectors network=mlp, for images network=cnn",
            )

        if form == VECTOR and len(shape) != 1:
            smallest = f"{LEAST_FOR_CNN} x {LEAST_FOR_CNN}"
            advice = (
                f"For images network=cnn (smaller than {smallest}: network=cnn_impala; "
                "before LSTM cells network@network.encoder=cnn). "
                "For other arrays env.wrappers=[FlattenObservation]"
            )
            raise _unsuitable(module, shape, "vectors", advice)

        looks_like_image = space.dtype == np.uint8 or len(shape) >= 3
        is_image = form == IMAGE or (form == SPACE and looks_like_image)
        layout = ImageLayout.of(shape) if is_image else None
        if form == IMAGE and layout is None:
            advice = "For vectors network=mlp (before LSTM cells network@network.encoder=mlp)"
            raise _unsuitable(module, shape, "images", advice)
        if layout is None:
            low = space.low.astype(np.float32)
            high = space.high.astype(np.float32)
            vectors = Box(low, high, dtype=np.float32)
            inputs = shape[0] if shape else 0
            return cls({"inputs": inputs, "observation_space": vectors}, len(shape))

        return cls._of_images(module, space, layout)

    @classmethod
    def _of_images(
        cls, module: type[nn.Module], space: Box, layout: ImageLayout
    ) -> ObservationInput:
        """Return the form for images, whose pixels the module may scale itself."""
        raw = bool(getattr(module, "raw_images", False))
        largest = max(float(np.abs(bound).max()) for bound in (space.low, space.high))
        # Images without a bound are taken as they are, and so are those of small numbers.
        pixels = PixelScaling(max(largest, 1.0) if largest < np.finfo(np.float32).max else 1.0)
        bound = largest if raw else largest / pixels.max_pixel
        lowest = 0.0 if float(space.low.min()) >= 0 else -bound
        images = Box(lowest, bound, layout.shape, space.dtype.type if raw else np.float32)
        arguments = dict(zip(IMAGE, (*layout.shape, pixels.max_pixel), strict=True))
        axes = len(space.shape)

        return cls(arguments | {"observation_space": images}, axes, layout, pixels, raw)

    def share_pixels(self, module: nn.Module) -> None:
        """Let a module that takes raw images, and has an attribute `pixels` to scale them, use the
        `PixelScaling` of this input."""
        if self.raw and hasattr(module, "pixels"):
            module.pixels = self.pixels  # type: ignore[assignment]

    def prepare(self, observations: Tensor) -> Tensor:
        """Return observations [N, ...] as the module takes them: float32, or images as they are
        with `raw_images`; parts in a dictionary, see `_space_of`."""
        if self.parts:
            return {  # type: ignore[return-value]
                part.name: _of_part(observations[:, part.columns], part, layout)
                for part, layout in self.parts
            }
        if self.layout is None or self.pixels is None:
            return observations.float()

        images = self.layout.channels_first(observations)
        return images if self.raw else self.pixels(images)


def sample_observations(space: Box, count: int) -> Array:
    """Return observations [count, ...] of a space, the same at each call, to try a network with."""
    rows = np.random.default_rng(0).uniform(-1, 1, (count, *space.shape))
    if isinstance(space, PartsBox) and space.mask is not None:
        rows[:, space.mask] = 1
    low = np.maximum(space.low.astype(np.float64), -1)
    high = space.high.astype(np.float64)
    if space.dtype != np.uint8:
        high = np.minimum(high, 1)
    high = np.maximum(low, high)

    return (low + (high - low) * (rows + 1) / 2).astype(space.dtype)


def _space_of(part: Part, layout: ImageLayout | None) -> Box:
    """Return the space of a part as a module gets it: a vector, or images [C, H, W] of numbers from
    0 to 1."""
    if layout is not None:
        return Box(0.0, 1.0, layout.shape, np.float32)
    return Box(-np.inf, np.inf, (int(np.prod(part.box.shape)),), np.float32)


def _of_part(columns: Tensor, part: Part, layout: ImageLayout | None) -> Tensor:
    """Return the columns [N, size] of a part: a vector, or images [N, C, H, W] of numbers up to 1,
    whatever their bound is."""
    if layout is None:
        return columns
    images = layout.channels_first(columns.reshape(-1, *part.box.shape))
    # `PartsBox.join` has divided bytes by 255
    return images * (255 / max(int(part.box.high.max()), 1))


def _unsuitable(
    module: type[nn.Module], shape: object, takes: str, advice: str, of: str = "of shape"
) -> ConfigError:
    problem = (
        f"must be a network for observations {of} {shape}: {module.__name__} takes {takes}. "
        f"{advice}"
    )
    return ConfigError("network", module.__name__, problem)
