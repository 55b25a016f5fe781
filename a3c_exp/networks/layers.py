"""Layers in numpy, forward and backward, over weights that torch can compute with too.

An operation of torch costs several microseconds whatever its size, and twice that with a graph behind it; numpy's cost
one or two, which is most of the time of networks and batches as small as they are here (bench/PROFILE.md). Torch's form
is there for what torch computes: convolutions, and everything on a GPU. Tests hold the two equal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from a3c_exp.common.arrays import Floats

# From the loss's derivatives by a layer's outputs to those by its inputs; those by its parameters are added to their
# gradients. The argument may be written over.
Backward = Callable[[Floats], Floats]
Initialisation = Literal["orthogonal", "glorot", "normalized_columns", "default"]
ActivationName = Literal["tanh", "relu", "relu6", "leaky_relu", "elu", "silu"]


def _relu(x: Floats) -> Floats:
    return np.maximum(x, 0, out=x)


def _relu6(x: Floats) -> Floats:
    return np.clip(x, 0, 6, out=x)


def _tanh(x: Floats) -> Floats:
    np.tanh(x, x)
    return x


def _leaky_relu(x: Floats) -> Floats:
    y: Floats = np.maximum(x, np.float32(0.01) * x, out=x)
    return y


def _elu(x: Floats) -> Floats:
    y: Floats = np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
    return y


def _silu(x: Floats) -> Floats:
    y: Floats = x / (1 + np.exp(-x))
    return y


def _times_tanh_slope(by: Floats, _: Floats, y: Floats) -> None:
    y *= y
    y *= by
    by -= y


def _times_silu_slope(by: Floats, x: Floats, y: Floats) -> None:
    sigmoid: Floats = np.reciprocal(1 + np.exp(-x))
    by *= sigmoid + y * (1 - sigmoid)


class Activation(NamedTuple):
    """y = f(x), for tensors and for arrays, and the way back.

    of_array: may write over its argument, which is always a matrix product; `times_slope` then gets y as both.
    times_slope: multiplies its first argument, in place, by dy/dx at x and y; both are then of no use any more.
    """

    of_tensor: Callable[[Tensor], Tensor]
    of_array: Callable[[Floats], Floats]
    times_slope: Callable[[Floats, Floats, Floats], None]


def _times(slope: Callable[[Floats], NDArray[Any]]) -> Callable[[Floats, Floats, Floats], None]:
    def times_slope(by: Floats, _: Floats, y: Floats) -> None:
        by *= slope(y)

    return times_slope


ACTIVATIONS = {
    "tanh": Activation(torch.tanh, _tanh, _times_tanh_slope),
    "relu": Activation(torch.relu, _relu, _times(lambda y: y > 0)),
    "relu6": Activation(nn.functional.relu6, _relu6, _times(lambda y: (y > 0) & (y < 6))),
    "leaky_relu": Activation(
        nn.functional.leaky_relu, _leaky_relu, _times(lambda y: np.where(y > 0, np.float32(1), np.float32(0.01)))
    ),
    "elu": Activation(nn.functional.elu, _elu, _times(lambda y: np.minimum(y, 0) + 1)),
    "silu": Activation(nn.functional.silu, _silu, _times_silu_slope),
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


def through_torch(module: Callable[[Tensor], Tensor], inputs: NDArray[Any]) -> tuple[Floats, Callable[[Floats], None]]:
    """The outputs of what torch computes, and what adds their derivatives to the gradients of its parameters."""
    outputs = module(torch.from_numpy(inputs))

    def backward(by_outputs: Floats) -> None:
        if outputs.requires_grad:  # something is learned in it
            outputs.backward(torch.from_numpy(by_outputs))  # type: ignore[no-untyped-call]

    return outputs.detach().numpy(), backward


class Linear(nn.Linear):
    """An affine layer that can also be applied to arrays, over the same weights."""

    def bind(self) -> None:
        """Take views of the parameters as they lie now, and of their gradients. Call it after they have been moved."""
        self._affine = self.weight, self.bias
        self._weight, self._bias = array_of(self.weight), array_of(self.bias)
        self._weight_gradient, self._bias_gradient = gradient_of(self.weight), gradient_of(self.bias)
        self._weight_t = self._weight.T

    def __call__(self, x: Tensor) -> Tensor:
        """[N, in_features] -> [N, out_features].

        Without the search for hooks and parameters of a torch module, which takes as long as a small product.
        """
        return nn.functional.linear(x, *self._affine)

    def infer(self, x: Floats, out: Floats | None = None) -> Floats:
        """The same on arrays; the result is a fresh array, or `out`."""
        y: Floats = np.dot(x, self._weight_t, out)
        y += self._bias
        return y

    def backward(self, x: Floats, by_y: Floats) -> Floats:
        """See `Backward`: for the inputs that it was given, [N, in_features], and [N, out_features] -> as x."""
        self.add_gradient(x, by_y)
        by_x: Floats = by_y.dot(self._weight)
        return by_x

    def add_gradient(self, x: Floats, by_y: Floats) -> None:
        """The same, for inputs that are given."""
        weight, bias = self._weight_gradient, self._bias_gradient
        weight += by_y.T.dot(x)  # not of `self.`: torch would look at what is assigned, for longer than this takes
        bias += np.add.reduce(by_y, 0)


class MlpBody:
    """Affine layers with an activation behind each: float32 [N, inputs] -> [N, features]."""

    def __init__(self, inputs: int, sizes: tuple[int, ...], activation: ActivationName) -> None:
        widths = [inputs, *sizes]
        self.features = widths[-1]
        self.layers = [Linear(a, b) for a, b in itertools.pairwise(widths)]
        self._activation = ACTIVATIONS[activation]
        self._rows, self._kept = 0, list[Floats]()

    def parameters(self) -> list[nn.Parameter]:
        return [parameter for layer in self.layers for parameter in layer.parameters()]

    def bind(self) -> None:
        for layer in self.layers:
            layer.bind()

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self._activation.of_tensor(layer(x))
        return x

    def infer(self, x: Floats) -> Floats:
        for layer in self.layers:
            x = self._activation.of_array(layer.infer(x))
        return x

    def learn(self, x: Floats) -> tuple[Floats, Callable[[Floats], None]]:
        """See `networks.actor_critic.Body`. The features are overwritten by the next call."""
        seen, sums, outputs = [], self._room(len(x)), []
        for layer, room in zip(self.layers, sums, strict=True):
            seen.append(x)
            x = self._activation.of_array(layer.infer(x, room))
            outputs.append(x)

        def backward(by: Floats) -> None:
            for i in range(len(seen) - 1, -1, -1):
                self._activation.times_slope(by, sums[i], outputs[i])
                if i == 0:
                    self.layers[0].add_gradient(seen[0], by)
                else:
                    by = self.layers[i].backward(seen[i], by)

        return x, backward

    def _room(self, count: int) -> list[Floats]:
        """For the layers' outputs, of so many rows. Kept: what is given back to the system is cleared each time it is
        asked for again, which takes longer than the arithmetic where batches are large."""
        if count > self._rows:
            self._rows = count
            self._kept = [np.empty((count, layer.out_features), np.float32) for layer in self.layers]
        return [kept[:count] for kept in self._kept]


def array_of(parameter: Tensor) -> Floats:
    """The numbers themselves, not a copy."""
    array: Floats = parameter.detach().numpy()
    return array


def gradient_of(parameter: Tensor) -> Floats:
    """Its gradient itself, not a copy. Made, with zeros, where there is none yet."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    array: Floats = parameter.grad.numpy()
    return array
