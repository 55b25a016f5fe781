"""Multi-layer perceptrons, for observations that are vectors."""

from __future__ import annotations

import itertools
from typing import Literal

from torch import nn

from a3c_exp.errors import ConfigError

ActivationName = Literal["tanh", "relu", "relu6", "leaky_relu", "elu", "silu"]

ACTIVATIONS: dict[ActivationName, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
}

# Of layers of one kind, and of units or channels in a layer. A larger number is taken for a typing
# error: it would fill the memory, or take minutes.
MAX_LAYERS = 100
MAX_WIDTH = 4096


class Mlp(nn.Sequential):
    """Affine layers, each with an activation after it: float32 [N, inputs] -> [N,
    hidden_sizes[-1]].

    inputs: numbers of an observation.
    hidden_sizes: units of each layer. Without any, the features are the inputs.
    activation: after each layer.
    """

    def __init__(
        self,
        inputs: int,
        hidden_sizes: tuple[int, ...] = (64, 64),
        activation: ActivationName = "tanh",
    ) -> None:
        widths_fit = all(1 <= size <= MAX_WIDTH for size in hidden_sizes)
        if len(hidden_sizes) > MAX_LAYERS or not widths_fit:
            problem = f"must be at most {MAX_LAYERS} whole numbers from 1 to {MAX_WIDTH}"
            raise ConfigError("hidden_sizes", hidden_sizes, problem)

        layers: list[nn.Module] = []
        for before, after in itertools.pairwise([inputs, *hidden_sizes]):
            layers += [nn.Linear(before, after), ACTIVATIONS[activation]()]
        super().__init__(*layers)
