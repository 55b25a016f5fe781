"""Schemes that draw the initial weights of a network's layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers whose weights, [outputs, inputs, ...], a scheme knows."""

Initialization = Literal["orthogonal", "glorot", "normalized_columns", "normal", "default"]


def torch_generator(rng: np.random.Generator | None) -> torch.Generator | None:
    """Return a torch generator, seeded by the next number of `rng`; None, with which nothing is
    drawn, without `rng`."""
    return None if rng is None else torch.Generator().manual_seed(int(rng.integers(2**63)))


@dataclass(frozen=True, slots=True)
class Initializer:
    """Draws the weights of layers. Biases start at 0; with `default` they are drawn as torch does.

    scheme: of the weights:
        orthogonal: Saxe et al. 2014, scaled by a gain.
        glorot: Glorot and Bengio 2010, uniform; the gain is not used.
        normalized_columns: normal, the incoming weights of each output scaled to a norm, the gain
            (universe-starter-agent).
        normal: normal, with mean 0 and the standard deviation `std`; the gain is not used.
        default: torch's own; the gain is not used.
        A convolution's kernel of one output channel counts as the incoming weights of one output.
    std: of `normal`.
    generator: without one a layer keeps what torch has drawn: orthogonal weights of a large layer
        take a second.
    """

    scheme: Initialization
    std: float
    generator: torch.Generator | None

    def draw_encoder(self, module: nn.Module) -> list[str]:
        """Draw every affine layer and convolution in `module`, in the order in which they are
        registered.

        The gain is sqrt(2) for orthogonal weights, 1 for normalized columns. Returns the layers
        with weights that keep what their constructor has drawn, as `name (class)`.
        """
        gain = math.sqrt(2) if self.scheme == "orthogonal" else 1.0
        undrawn = []
        for name, layer in module.named_modules():
            if isinstance(layer, LAYERS):
                drawn = self.draw(layer, gain)
            else:
                is_parametrization = isinstance(layer, ParametrizationList)
                drawn = is_parametrization or all(
                    parameter.dim() < 2 for parameter in layer.parameters(recurse=False)
                )

            if not drawn:
                kind = type(layer).__name__
                undrawn.append(f"{name} ({kind})" if name else kind)

        return undrawn

    def draw(self, layer: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d, gain: float = 1.0) -> bool:
        """Draw the weights of one layer, and set its bias. Returns False for weights that cannot be
        set, since a hook or a parametrization computes them before each forward pass, or since they
        are constants: workers, which draw nothing, must have the same ones."""
        if self.generator is None:
            return True
        if not isinstance(layer.weight, nn.Parameter):
            return False

        with torch.no_grad():
            if layer.weight.requires_grad:
                self._draw_weight(layer.weight, gain, self.generator)
            if layer.bias is not None and layer.bias.requires_grad:
                layer.bias.zero_()
                if self.scheme == "default":
                    bound = 1 / math.sqrt(layer.weight[0].numel())
                    layer.bias.uniform_(-bound, bound, generator=self.generator)

        return layer.weight.requires_grad

    def _draw_weight(self, weight: Tensor, gain: float, generator: torch.Generator) -> None:
        """Draw a weight [outputs, inputs, ...] in place."""
        if self.scheme == "orthogonal":
            nn.init.orthogonal_(weight, gain, generator=generator)
        elif self.scheme == "glorot":
            nn.init.xavier_uniform_(weight, generator=generator)
        elif self.scheme == "normalized_columns":
            weight.normal_(generator=generator)
            rows = weight.view(len(weight), -1)
            rows.mul_(gain / rows.norm(dim=1, keepdim=True))
        elif self.scheme == "normal":
            weight.normal_(0.0, self.std, generator=generator)
        else:
            nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
