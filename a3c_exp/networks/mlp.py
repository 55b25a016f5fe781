"""Multi-layer perceptrons, for observations that are vectors."""

from __future__ import annotations

import itertools
from typing import Literal

from torch import nn

from a3c_exp.errors import require

ActivationName = Literal["tanh", "relu", "relu6", "leaky_relu", "elu", "silu"]

ACTIVATIONS: dict[ActivationName, type[nn.Module]] = {
    "tanh": nn.Tanh, "relu": nn.ReLU, "relu6": nn.ReLU6, "leaky_relu": nn.LeakyReLU, "elu": nn.ELU, "silu": nn.SiLU,
}  # fmt: skip


class Mlp(nn.Sequential):
    """Affine layers, each with an activation after it: float32 [N, inputs] -> [N, hidden_sizes[-1]].

    hidden_sizes: units of each layer. Without any, the features are the inputs.
    """

    def __init__(
        self, inputs: int, hidden_sizes: tuple[int, ...] = (64, 64), activation: ActivationName = "tanh"
    ) -> None:
        require(all(size >= 1 for size in hidden_sizes), "hidden_sizes", hidden_sizes, "whole numbers >= 1")
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise([inputs, *hidden_sizes]):
            layers += [nn.Linear(before, after), ACTIVATIONS[activation]()]
        super().__init__(*layers)
