"""Layers whose forward pass exists twice over the same weights: in torch to learn, in numpy to act.

One module call of torch costs tens of microseconds whatever its size; the numpy expressions here cost a few, which
is most of the time of a worker with few environments. Both read the same memory, and tests hold them equal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float32]
Initialisation = Literal["orthogonal", "glorot", "normalized_columns", "default"]
ActivationName = Literal["tanh", "relu", "relu6", "leaky_relu", "elu", "silu"]


def _relu(x: Array) -> Array:
    return np.maximum(x, 0, out=x)


def _relu6(x: Array) -> Array:
    return np.clip(x, 0, 6, out=x)


def _tanh(x: Array) -> Array:
    np.tanh(x, x)
    return x


def _leaky_relu(x: Array) -> Array:
    y: Array = np.maximum(x, np.float32(0.01) * x, out=x)
    return y


def _elu(x: Array) -> Array:
    y: Array = np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
    return y


def _silu(x: Array) -> Array:
    y: Array = x / (1 + np.exp(-x))
    return y


# The numpy functions may write over their argument, which is always a fresh matrix product.
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "tanh": (torch.tanh, _tanh),
    "relu": (torch.relu, _relu),
    "relu6": (nn.functional.relu6, _relu6),
    "leaky_relu": (nn.functional.leaky_relu, _leaky_relu),
    "elu": (nn.functional.elu, _elu),
    "silu": (nn.functional.silu, _silu),
}


def torch_generator(rng: np.random.Generator | None) -> torch.Generator | None:
    """A generator for `initialise`, seeded by the next number of `rng`; None, with which nothing is drawn, without."""
    return None if rng is None else torch.Generator().manual_seed(int(rng.integers(2**63)))


def initialise(
    layer: nn.Linear | nn.Conv2d, scheme: Initialisation, gain: float, generator: torch.Generator | None
) -> None:
    """Draw the weights of one layer; biases start at 0 (`default`: torch's own, biases drawn too).

    What is said of an output's incoming weights holds for a convolution's kernel of one output channel.
    orthogonal: Saxe et al. 2014, scaled by `gain`. glorot: Glorot and Bengio 2010, uniform; `gain` is not used.
    normalized_columns: normal, each output's incoming weights scaled to the norm `gain` (universe-starter-agent).
    Without a generator the layer stays as torch made it: orthogonal weights of a large layer cost a second.
    """
    if generator is None:
        return
    weight, bias = layer.weight, layer.bias
    assert bias is not None
    with torch.no_grad():
        if scheme == "orthogonal":
            nn.init.orthogonal_(weight, gain, generator=generator)
            bias.zero_()
        elif scheme == "glorot":
            nn.init.xavier_uniform_(weight, generator=generator)
            bias.zero_()
        elif scheme == "normalized_columns":
            weight.normal_(generator=generator)
            rows = weight.view(len(weight), -1)
            rows.mul_(gain / rows.norm(dim=1, keepdim=True))
            bias.zero_()
        else:
            nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
            bound = 1 / math.sqrt(weight[0].numel())
            bias.uniform_(-bound, bound, generator=generator)


class Linear(nn.Linear):
    """An affine layer that can also be applied to arrays, over the same weights."""

    def bind(self) -> None:
        """Take views of the parameters as they lie now. Call it after they have been moved."""
        self._affine = self.weight, self.bias
        self._weight_t: Array = self.weight.detach().numpy().T
        self._bias: Array = self.bias.detach().numpy()

    def __call__(self, x: Tensor) -> Tensor:
        """[N, in_features] -> [N, out_features].

        Without the search for hooks and parameters of a torch module, which takes as long as a small product.
        """
        return nn.functional.linear(x, *self._affine)

    def infer(self, x: Array) -> Array:
        """The same on arrays; the result is a fresh array."""
        y: Array = x.dot(self._weight_t)
        y += self._bias
        return y


class MlpBody:
    """Affine layers with an activation behind each: float32 [N, inputs] -> [N, features]."""

    def __init__(self, inputs: int, sizes: tuple[int, ...], activation: ActivationName) -> None:
        widths = [inputs, *sizes]
        self.features = widths[-1]
        self.layers = [Linear(a, b) for a, b in itertools.pairwise(widths)]
        self._activate, self._activate_array = ACTIVATIONS[activation]

    def parameters(self) -> list[nn.Parameter]:
        return [parameter for layer in self.layers for parameter in layer.parameters()]

    def bind(self) -> None:
        for layer in self.layers:
            layer.bind()

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self._activate(layer(x))
        return x

    def infer(self, x: Array) -> Array:
        for layer in self.layers:
            x = self._activate_array(layer.infer(x))
        return x
