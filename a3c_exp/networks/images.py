"""Pictures: how observations are arranged as channels, and in which format convolutions are computed."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The axes of a picture observation. Stacked frames are channels, as colors are.

    Of three axes the last is that of colors if it is the shortest, or if the first two have the same length. Otherwise
    the first axis is that of channels.

    channels, height, width: as a convolution sees them. axes: the permutation from [N, ...] to channels first.
    """

    channels: int
    height: int
    width: int
    axes: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> ImageLayout | None:
        """[H, W], [channels, H, W], [H, W, colors], or a stack of either of the last two; None for any other shape."""
        match shape:
            case (height, width):
                return cls(1, height, width, (0, 1, 2))
            case (height, width, colors) if colors < min(height, width) or height == width != colors:
                return cls(colors, height, width, (0, 3, 1, 2))
            case (channels, height, width):
                return cls(channels, height, width, (0, 1, 2, 3))
            case (stack, *frame):
                one = cls.of(tuple(frame)) if len(frame) == 3 else None
                if one is not None:
                    axes = (0, 1, *(axis + 1 for axis in one.axes[1:]))
                    return cls(stack * one.channels, one.height, one.width, axes)
        return None

    def channels_first(self, observations: Tensor) -> Tensor:
        """Observations [N, ...] as [N, C, H, W], without a copy if possible."""
        return observations.permute(self.axes).reshape(-1, self.channels, self.height, self.width)


class PixelScaling:
    """(x - center) * scale of the pixels x of pictures, before the first layer of an encoder.

    Without `normalize` the center is 0, and the largest pixel becomes 1.

    center, scale: one number for all pixels; or float32 [C, H, W], one for each.
    """

    # A hundredth of the largest pixel: a picture of a single color has no deviation to divide by.
    LEAST_DEVIATION = 0.01
    # As with other observations, see `core.normalization`: beyond it a pixel says no more than that it is extreme.
    CLIP = 10.0

    def __init__(self, max_pixel: float) -> None:
        self.max_pixel = max_pixel
        self.center: float | Tensor = 0.0
        self.scale: float | Tensor = 1 / max_pixel

    def normalize(self, layout: ImageLayout, mean: NDArray[np.float32], inverse_std: NDArray[np.float32]) -> None:
        """Subtract a mean, and multiply by the inverse of a standard deviation, from now on.

        mean, inverse_std: float32 [] for all pixels together, or one for each, shaped like an observation.
        One mean is rounded to a whole number: a byte less a byte is exact in bfloat16.
        """
        limited = np.minimum(inverse_std, 1 / (self.LEAST_DEVIATION * self.max_pixel))
        if mean.ndim:
            self.center, self.scale = (layout.channels_first(torch.from_numpy(x)[None])[0] for x in (mean, limited))
        else:
            self.center = float(mean.round())
            self.scale = float(limited)

    def __call__(self, pictures: Tensor) -> Tensor:
        """Pictures [N, C, H, W] as float32, scaled. Of pixels with a scale of their own the results are clipped."""
        x = pictures.float()
        if isinstance(self.center, Tensor) and isinstance(self.scale, Tensor):
            return ((x - self.center.to(x.device)) * self.scale.to(x.device)).clamp(-self.CLIP, self.CLIP)
        return (x - self.center) * self.scale if self.center else x * self.scale


@functools.cache
def multiplies_bfloat16() -> bool:
    """Return whether this processor multiplies bfloat16 by instructions for matrices (AMX) or vectors (AVX-512)."""
    try:
        cpu_info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return not {"amx_bf16", "avx512_bf16"}.isdisjoint(cpu_info.split())


def to_format(pictures: Tensor, dtype: torch.dtype, channels_last: bool) -> Tensor:
    """Pictures [N, C, H, W] in a type and a memory layout."""
    if not channels_last:
        return pictures.contiguous().to(dtype)
    if pictures.is_contiguous(memory_format=torch.channels_last):
        return pictures.to(dtype)
    out = torch.empty(pictures.shape, dtype=dtype, device=pictures.device, memory_format=torch.channels_last)
    for channel in range(pictures.shape[1]):  # in half the time of one permuted copy (bench/PROFILE.md)
        out[:, channel] = pictures[:, channel]
    return out
