"""Bodies for pictures. torch's forward pass both learns and acts here: a convolution takes long enough.

A picture stays what it is, uint8 as a rule, until the moment it is convolved, and its scale (1/255, unless its space
has another bound) goes into the first layer's weights, which are far fewer numbers.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from a3c_exp.common.arrays import Floats
from a3c_exp.networks.layers import ACTIVATIONS, ActivationName, Linear, through_torch

Precision = Literal["auto", "float32", "bfloat16"]

# Pictures are convolved so many at a time that one layer's output stays within this: about what caches hold. Whole
# rollouts take a third longer (bench/PROFILE.md).
CHUNK_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How convolutions are computed; only speed and rounding depend on it. Parameters, gradients and features are
    float32 in any case: `dtype` is that of what flows between layers.

    precision: bfloat16, float32, or auto: bfloat16 where the processor multiplies it (AMX, or AVX-512's own), for
        pictures that are not few. For few, converting the weights takes longer than is gained.
    channels_last: whether the channels of a point lie side by side in memory. auto: with AVX-512, in bfloat16, and in
        float32 where it pays.

    On a GPU nothing has been measured: there `auto` is float32, as torch computes it, with channels first.
    """

    precision: Precision
    channels_last: bool | Literal["auto"]

    def of(self, many: bool, last_pays: bool) -> tuple[torch.dtype, bool]:
        """The type, and whether channels lie last. `auto` goes by how many pictures there are and what the processor
        can do, so that every worker of a run decides alike; bench/PROFILE.md has what was measured.

        many: whether the pictures are not few. last_pays: whether channels last are faster in float32 too.
        """
        half = self.precision == "bfloat16" or (self.precision == "auto" and many and multiplies_bfloat16())
        last = self.channels_last
        if last == "auto":
            last = (half or last_pays) and torch.backends.cpu.get_cpu_capability() == "AVX512"
        return (torch.bfloat16 if half else torch.float32), last


@functools.cache
def multiplies_bfloat16() -> bool:
    """Whether this processor has instructions for products of bfloat16: of matrices (AMX) or vectors (AVX-512)."""
    try:
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return not {"amx_bf16", "avx512_bf16"}.isdisjoint(described.split())


class Conv(nn.Conv2d):
    """A convolution that computes in its input's type, over parameters of float32."""

    def bind(self) -> None:
        """Take views of the parameters as they lie now. Call it after they have been moved."""
        assert self.bias is not None
        self._affine = self.weight, self.bias

    def __call__(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """[N, C, H, W] -> [N, C', H', W'], of scale * x."""
        weight, bias = self._affine
        scaled = weight if scale == 1 else weight * scale
        return functional.conv2d(x, scaled.to(x.dtype), bias.to(x.dtype), self.stride, self.padding)


@dataclass(frozen=True, slots=True)
class Picture:
    """How observations are laid out. Of three axes the last is that of colours if it is the shortest, or if the first
    two are as long as one another; else the first is that of channels.

    channels, height, width: as a convolution sees them. Stacked frames are channels, as colours are.
    brightest: the largest number that a picture may hold, which a convolution sees as 1.
    """

    channels: int
    height: int
    width: int
    axes: tuple[int, ...]
    brightest: float = 255

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Picture | None:
        """[H, W], [channels, H, W], [H, W, colours], or a stack of either of these two; None for what is no picture."""
        match shape:
            case (height, width):
                return cls(1, height, width, (0, 1, 2))
            case (height, width, colours) if colours < min(height, width) or height == width != colours:
                return cls(colours, height, width, (0, 3, 1, 2))
            case (channels, height, width):
                return cls(channels, height, width, (0, 1, 2, 3))
            case (stack, *frame):
                one = cls.of(tuple(frame)) if len(frame) == 3 else None
                if one is not None:
                    axes = (0, 1, *(axis + 1 for axis in one.axes[1:]))
                    return cls(stack * one.channels, one.height, one.width, axes)
        return None

    def arrange(self, x: Tensor, dtype: torch.dtype, channels_last: bool) -> Tensor:
        """Observations [N, ...] as [N, C, H, W] of `dtype`."""
        x = x.permute(self.axes).reshape(-1, self.channels, self.height, self.width)
        if not channels_last:
            return x.contiguous().to(dtype)
        if x.is_contiguous(memory_format=torch.channels_last):
            return x.to(dtype)
        arranged = torch.empty(x.shape, dtype=dtype, device=x.device, memory_format=torch.channels_last)
        for channel in range(self.channels):  # in half the time of one permuted copy (bench/PROFILE.md)
            arranged[:, channel] = x[:, channel]
        return arranged


class PictureBody(ABC):
    """Convolutions, and one affine layer that makes the features: uint8 or float32 [N, ...] -> float32 [N, features].

    few: fewer pictures than this are not computed in bfloat16 unless that is asked for.
    last_pays: whether channels last are faster in float32 even where no gradient is wanted.
    widest: how many numbers the largest output of a layer has, for one picture.
    """

    few: ClassVar[int] = 12
    last_pays: ClassVar[bool] = False

    def __init__(
        self,
        picture: Picture,
        convolutions: list[Conv],
        flat: int,
        features: int,
        activation: ActivationName,
        arithmetic: Arithmetic,
        widest: int,
    ) -> None:
        self.features = features
        self.convolutions, self.last = convolutions, Linear(flat, features)
        self._picture, self._arithmetic = picture, arithmetic
        self._activate = ACTIVATIONS[activation].of_tensor
        self._widest = widest

    @property
    def layers(self) -> list[nn.Linear | nn.Conv2d]:
        return [*self.convolutions, self.last]

    def parameters(self) -> list[nn.Parameter]:
        return [parameter for layer in self.layers for parameter in layer.parameters()]

    def bind(self) -> None:
        for convolution in self.convolutions:
            convolution.bind()
        self.last.bind()

    def __call__(self, observations: Tensor) -> Tensor:
        return self._forward(observations, learning=True)

    def learn(self, observations: NDArray[Any]) -> tuple[Floats, Callable[[Floats], None]]:
        return through_torch(self, observations)

    def infer(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        with torch.inference_mode():
            features = self._forward(torch.from_numpy(observations), learning=False)
        result: NDArray[np.float32] = features.numpy()
        return result

    @abstractmethod
    def _convolve(self, x: Tensor, scale: float) -> Tensor:
        """[N, C, H, W] times `scale` -> [N, C', H', W'], all layers but the last."""

    def _forward(self, observations: Tensor, learning: bool) -> Tensor:
        count, on_cpu = len(observations), observations.device.type == "cpu"
        many, last_pays = on_cpu and count >= self.few, on_cpu and (learning or self.last_pays)
        dtype, channels_last = self._arithmetic.of(many, last_pays)
        at_once = max(1, CHUNK_BYTES // (self._widest * dtype.itemsize)) if on_cpu else count
        portions = -(-count // at_once)
        parts = [self._encode(part, dtype, channels_last) for part in torch.tensor_split(observations, portions)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _encode(self, observations: Tensor, dtype: torch.dtype, channels_last: bool) -> Tensor:
        picture = self._picture.arrange(observations, dtype, channels_last)
        x = self._convolve(picture, 1 / self._picture.brightest).flatten(1)
        if dtype == torch.float32:
            return self._activate(self.last(x))
        x = functional.linear(x, self.last.weight.to(dtype), self.last.bias.to(dtype))
        return self._activate(x).float()


class PlainBody(PictureBody):
    """Convolutions without padding, an activation behind each. layers: (channels, kernel size, stride) of each."""

    def __init__(
        self,
        picture: Picture,
        layers: tuple[tuple[int, int, int], ...],
        features: int,
        activation: ActivationName,
        arithmetic: Arithmetic,
    ) -> None:
        convolutions, sizes = [], [picture.channels * picture.height * picture.width]
        channels, height, width = picture.channels, picture.height, picture.width
        for size, kernel, stride in layers:
            convolutions.append(Conv(channels, size, kernel, stride))
            channels, height, width = size, output_size(height, kernel, stride), output_size(width, kernel, stride)
            sizes.append(channels * height * width)
        super().__init__(picture, convolutions, sizes[-1], features, activation, arithmetic, max(sizes))

    def _convolve(self, x: Tensor, scale: float) -> Tensor:
        for convolution in self.convolutions:
            x = self._activate(convolution(x, scale))
            scale = 1.0
        return x


class ResidualBody(PictureBody):
    """Sections of a convolution, a maximum over 3 x 3 points at every second one, and residual blocks of two
    convolutions each; all of them of 3 x 3, padded so that only the maximum makes a picture smaller.

    channels: of each section. blocks: residual ones in a section.
    """

    few = 4
    last_pays = True

    def __init__(
        self, picture: Picture, channels: tuple[int, ...], blocks: int, features: int, arithmetic: Arithmetic
    ) -> None:
        convolutions, self._blocks = [], blocks
        before, height, width = picture.channels, picture.height, picture.width
        widest = before * height * width
        for size in channels:
            convolutions.append(Conv(before, size, 3, padding=1))
            convolutions += [Conv(size, size, 3, padding=1) for _ in range(2 * blocks)]
            widest = max(widest, size * height * width)
            before, height, width = size, (height + 1) // 2, (width + 1) // 2
        super().__init__(picture, convolutions, before * height * width, features, "relu", arithmetic, widest)

    def _convolve(self, x: Tensor, scale: float) -> Tensor:
        layers = iter(self.convolutions)
        for first in layers:
            x = functional.max_pool2d(first(x, scale), 3, 2, 1)
            for _ in range(self._blocks):
                x = x + next(layers)(torch.relu(next(layers)(torch.relu(x))))
            scale = 1.0
        return torch.relu(x)


def output_size(size: int, kernel: int, stride: int) -> int:
    """Points that a convolution without padding leaves of `size`; less than 1 where it does not fit."""
    return (size - kernel) // stride + 1
