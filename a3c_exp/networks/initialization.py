"""Schemes that draw the initial weights of a network's layers."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

Initialization = Literal["orthogonal", "glorot", "normalized_columns", "default"]


def torch_generator(rng: np.random.Generator | None) -> torch.Generator | None:
    """A torch generator, seeded by the next number of `rng`; None, with which nothing is drawn, without `rng`."""
    return None if rng is None else torch.Generator().manual_seed(int(rng.integers(2**63)))


def initialize_layers(module: nn.Module, scheme: Initialization, generator: torch.Generator | None) -> None:
    """Draw every affine layer and convolution in `module`, in the order in which they are registered.

    Orthogonal weights are scaled by sqrt(2), normalized columns by 1.
    """
    gain = math.sqrt(2) if scheme == "orthogonal" else 1.0
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            initialize(layer, scheme, gain, generator)


def initialize(
    layer: nn.Linear | nn.Conv2d, scheme: Initialization, gain: float, generator: torch.Generator | None
) -> None:
    """Draw the weights of one layer. Its bias starts at 0; with `default` it is drawn as torch does.

    orthogonal: Saxe et al. 2014, scaled by `gain`.
    glorot: Glorot and Bengio 2010, uniform; `gain` is not used.
    normalized_columns: normal, the incoming weights of each output scaled to the norm `gain` (universe-starter-agent).
    A convolution's kernel of one output channel counts as the incoming weights of one output.
    Without a generator the layer keeps what torch has drawn: orthogonal weights of a large layer take a second.
    """
    if generator is not None:
        with torch.no_grad():
            draw_weight(layer.weight, scheme, gain, generator)
            if layer.bias is not None and scheme != "default":
                layer.bias.zero_()
            elif layer.bias is not None:
                bound = 1 / math.sqrt(layer.weight[0].numel())
                layer.bias.uniform_(-bound, bound, generator=generator)


def draw_weight(weight: Tensor, scheme: Initialization, gain: float, generator: torch.Generator) -> None:
    """Draw a weight [outputs, inputs, ...] in place. See `initialize`."""
    if scheme == "orthogonal":
        nn.init.orthogonal_(weight, gain, generator=generator)
    elif scheme == "glorot":
        nn.init.xavier_uniform_(weight, generator=generator)
    elif scheme == "normalized_columns":
        weight.normal_(generator=generator)
        rows = weight.view(len(weight), -1)
        rows.mul_(gain / rows.norm(dim=1, keepdim=True))
    else:
        nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
