"""Convolutional encoders, for observations that are images.

The encoders take the bytes themselves (`raw_images`): the scale goes into the first layer's
weights, which are far fewer numbers than the pixels. The center is subtracted from the pixels, so
that the zeros around them have its color.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from a3c_exp.errors import ConfigError
from a3c_exp.networks.inputs import PixelScaling
from a3c_exp.networks.mlp import ACTIVATIONS, MAX_LAYERS, MAX_WIDTH, ActivationName

Padding = Literal["valid", "same"]
Precision = Literal["auto", "float32", "bfloat16"]

# Images are convolved in portions, so that one layer's output stays within this: about the size of
# a processor's caches. Whole rollouts at once take a third longer (evidence/notes/speed.md).
CHUNK_BYTES = 8 * 2**20


@functools.cache
def multiplies_bfloat16() -> bool:
    """Return whether this processor multiplies bfloat16 by instructions for matrices (AMX) or
    vectors (AVX-512)."""
    with suppress(OSError):
        return not {"amx_bf16", "avx512_bf16"}.isdisjoint(
            Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
        )
    return False


def to_format(images: Tensor, dtype: torch.dtype, channels_last: bool) -> Tensor:
    """Return images [N, C, H, W] in a type and a memory layout."""
    if not channels_last:
        return images.contiguous().to(dtype)
    if images.is_contiguous(memory_format=torch.channels_last):
        return images.to(dtype)

    out = torch.empty(
        images.shape, dtype=dtype, device=images.device, memory_format=torch.channels_last
    )
    # in half the time of one permuted copy (evidence/notes/speed.md)
    for channel in range(images.shape[1]):
        out[:, channel] = images[:, channel]

    return out


class CastingConv2d(nn.Conv2d):
    """A convolution that computes in its input's type, over parameters of float32."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """Convolve scale * x: [N, C, H, W] -> [N, C', H', W']."""
        assert self.bias is not None
        weight = self.weight if scale == 1 else self.weight * scale
        return functional.conv2d(
            x, weight.to(x.dtype), self.bias.to(x.dtype), self.stride, self.padding
        )


class CastingLinear(nn.Linear):
    """An affine layer that computes in its input's type, over parameters of float32."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the numbers of zeros before and after `size` inputs of a convolution, with which it
    has ceil(size / stride) outputs.

    As in TensorFlow (padding SAME) the smaller half is before them: 0 before and 1 after an even
    number of inputs with a kernel of 3 and a stride of 2.
    """
    outputs = -(-size // stride)
    total = max((outputs - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


class ImageEncoder(nn.Module, ABC):
    """Convolutions, and an affine layer that makes the features: uint8 or float32 [N, C, H, W] ->
    float32 [N, F].

    Without the affine layer the features are the outputs of the convolutions, side by side.

    The type and the memory layout in which convolutions are computed change speed and rounding
    alone. Parameters, gradients and features are always float32. Channels lie last in bfloat16, and
    in float32 where it pays, if the processor has AVX-512. evidence/notes/speed.md has what was
    measured. On a GPU nothing has been: `auto` is float32 there, with channels first.

    precision: of the numbers between layers: bfloat16, float32, or auto: bfloat16 if the processor
        multiplies it (AMX, or AVX-512's own), for batches that are not small. In small batches the
        conversion of the weights takes longer than bfloat16 gains. It depends on the batch and the
        processor alone, so that all workers of a run decide alike.
    pixels: how pixels are scaled; shared by the encoders of a network.
    min_bf16_batch: smaller batches are not computed in bfloat16 unless that is asked for.
    plain: compute all images at once and in float32, whatever the batch and the processor.
    last_pays: whether channels last are faster in float32 even if no gradient is needed.
    """

    raw_images = True
    min_bf16_batch: ClassVar[int] = 12
    last_pays: ClassVar[bool] = False

    def __init__(
        self,
        convolutions: list[CastingConv2d],
        sizes: list[int],
        features_dim: int | None,
        activation: ActivationName,
        max_pixel: float,
        precision: Precision,
    ) -> None:
        """Make the affine layer after the convolutions.

        convolutions: all of them, in their order.
        sizes: how many numbers a layer's output has for one image; the last is that of the
            convolutions' end.
        features_dim: units of the affine layer; None: there is none.
        activation: after the affine layer, and for subclasses.
        max_pixel: the pixel that is scaled to 1.
        precision: see the class.
        """
        super().__init__()
        if features_dim is not None and not 1 <= features_dim <= MAX_WIDTH:
            problem = f"must be a whole number from 1 to {MAX_WIDTH}"
            raise ConfigError("features_dim", features_dim, problem)

        self.convolutions = nn.ModuleList(convolutions)
        self.last = None if features_dim is None else CastingLinear(sizes[-1], features_dim)
        self.activation = ACTIVATIONS[activation]()
        self.pixels = PixelScaling(max_pixel)
        self._precision = precision
        self._largest_output = max(sizes)
        self.plain = False

    @abstractmethod
    def _convolve(self, x: Tensor, scale: float) -> Tensor:
        """Compute all layers but the last: [N, C, H, W] times `scale` -> [N, C', H', W']."""

    def forward(self, images: Tensor) -> Tensor:
        if self.plain:
            return self._encode(images, torch.float32, channels_last=False)

        count = len(images)
        on_cpu = images.device.type == "cpu"
        large_batch = on_cpu and count >= self.min_bf16_batch
        half = self._precision == "bfloat16"
        if self._precision == "auto":
            half = large_batch and multiplies_bfloat16()
        dtype = torch.bfloat16 if half else torch.float32
        last_pays = half or (on_cpu and (torch.is_grad_enabled() or self.last_pays))
        channels_last = last_pays and torch.backends.cpu.get_cpu_capability() == "AVX512"

        size = count
        if on_cpu:
            size = max(1, CHUNK_BYTES // (self._largest_output * dtype.itemsize))
        portions = torch.tensor_split(images, -(-count // size))
        features = [self._encode(portion, dtype, channels_last) for portion in portions]

        return features[0] if len(features) == 1 else torch.cat(features)

    def _encode(self, images: Tensor, dtype: torch.dtype, channels_last: bool) -> Tensor:
        center = self.pixels.center
        scale = self.pixels.scale
        if isinstance(scale, Tensor):  # each pixel has its own
            x = to_format(self.pixels(images), dtype, channels_last)
            scale = 1.0
        else:
            x = to_format(images, dtype, channels_last)
            if center:
                x = x - center

        features = self._convolve(x, scale).flatten(1)
        if self.last is not None:
            features = self.activation(self.last(features))

        return features.float()


class Cnn(ImageEncoder):
    """Convolutions, one after another, with an activation after each: uint8 or float32 [N, C, H, W]
    -> float32 [N, F].

    The default is the network of Mnih et al. 2013 (arXiv 1312.5602, section 4.1), with which A3C
    was published (Mnih et al. 2016, arXiv 1602.01783, section 8).

    channels, height, width, max_pixel: of an image, whose pixel `max_pixel` is scaled to 1.
    layers: (channels, kernel size, stride) of each convolution.
    features_dim: units of the affine layer after the convolutions. None: there is none, and F is
        the size of the last convolution's output, C' H' W'.
    activation: after each layer.
    padding: 'valid': none, a height or width of n becomes (n - kernel) // stride + 1. 'same': zeros
        around the inputs of each convolution, n becomes ceil(n / stride), as in TensorFlow. See
        `same_padding`.
    precision: see `ImageEncoder`.
    """

    def __init__(
        self,
        channels: int,
        height: int,
        width: int,
        max_pixel: float,
        layers: tuple[tuple[int, int, int], ...] = ((16, 8, 4), (32, 4, 2)),
        features_dim: int | None = 256,
        activation: ActivationName = "relu",
        padding: Padding = "valid",
        precision: Precision = "auto",
    ) -> None:
        numbers_fit = all(1 <= number <= MAX_WIDTH for layer in layers for number in layer)
        if not 1 <= len(layers) <= MAX_LAYERS or not numbers_fit:
            problem = (
                f"must be 1 to {MAX_LAYERS} lists of channels, kernel size and stride, "
                f"each from 1 to {MAX_WIDTH}"
            )
            raise ConfigError("layers", layers, problem)

        # Zeros added left, right, top and bottom of a convolution's inputs; None: the convolution
        # adds its own.
        margins: list[tuple[int, int, int, int] | None] = []
        convolutions = []
        sizes = [channels * height * width]
        before = channels
        rows = height
        columns = width
        for after, kernel, stride in layers:
            top, bottom = same_padding(rows, kernel, stride) if padding == "same" else (0, 0)
            left, right = same_padding(columns, kernel, stride) if padding == "same" else (0, 0)
            rows = (top + rows + bottom - kernel) // stride + 1
            columns = (left + columns + right - kernel) // stride + 1
            if min(rows, columns) < 1:
                problem = (
                    f"leave nothing of images of {height} x {width}: padding=same does, "
                    "or network=cnn_impala"
                )
                raise ConfigError("layers", [list(layer) for layer in layers], problem)

            # Torch's convolution pads both sides alike, without a copy of its inputs.
            symmetric = (top, left) == (bottom, right)
            own_padding = (top, left) if symmetric else 0
            convolutions.append(CastingConv2d(before, after, kernel, stride, own_padding))
            margins.append(None if symmetric else (left, right, top, bottom))
            sizes.append(after * rows * columns)
            before = after

        super().__init__(convolutions, sizes, features_dim, activation, max_pixel, precision)
        self._margins = margins

    def _convolve(self, x: Tensor, scale: float) -> Tensor:
        for convolution, margin in zip(self.convolutions, self._margins, strict=True):
            if margin is not None:
                x = functional.pad(x, margin)
            x = self.activation(convolution(x, scale))
            scale = 1.0
        return x


class Impala(ImageEncoder):
    """The residual network of Espeholt et al. 2018 (arXiv 1802.01561, figure 3, right): 15
    convolutions, without the LSTM, all activations relu.

    A section is a convolution, a maximum over 3 x 3 points at every second one, and residual blocks
    of two convolutions each. All convolutions are of 3 x 3, padded so that only the maximum makes
    an image smaller.

    channels, height, width, max_pixel: of an image, whose pixel `max_pixel` is scaled to 1.
    sections: channels of each section.
    blocks: residual blocks in a section.
    features_dim: units of the affine layer after them.
    precision: see `ImageEncoder`.
    """

    min_bf16_batch = 4
    last_pays = True

    def __init__(
        self,
        channels: int,
        height: int,
        width: int,
        max_pixel: float,
        sections: tuple[int, ...] = (16, 32, 32),
        blocks: int = 2,
        features_dim: int = 256,
        precision: Precision = "auto",
    ) -> None:
        widths_fit = all(1 <= number <= MAX_WIDTH for number in sections)
        if not 1 <= len(sections) <= MAX_LAYERS or not widths_fit:
            problem = f"must be 1 to {MAX_LAYERS} whole numbers from 1 to {MAX_WIDTH}"
            raise ConfigError("sections", sections, problem)
        if not 0 <= blocks <= MAX_LAYERS:
            problem = f"must be a whole number from 0 to {MAX_LAYERS}"
            raise ConfigError("blocks", blocks, problem)

        convolutions = []
        sizes = [channels * height * width]
        before = channels
        rows = height
        columns = width
        for after in sections:
            convolutions.append(CastingConv2d(before, after, 3, padding=1))
            convolutions += [CastingConv2d(after, after, 3, padding=1) for _ in range(2 * blocks)]
            sizes.append(after * rows * columns)
            before = after
            rows = (rows + 1) // 2
            columns = (columns + 1) // 2

        sizes.append(before * rows * columns)
        super().__init__(convolutions, sizes, features_dim, "relu", max_pixel, precision)
        self._blocks = blocks

    def _convolve(self, x: Tensor, scale: float) -> Tensor:
        layers = list(self.convolutions)
        for start in range(0, len(layers), 1 + 2 * self._blocks):
            x = functional.max_pool2d(layers[start](x, scale), 3, 2, 1)
            for block in range(self._blocks):
                first, second = layers[start + 1 + 2 * block : start + 3 + 2 * block]
                x = x + second(torch.relu(first(torch.relu(x))))
            scale = 1.0
        return torch.relu(x)
