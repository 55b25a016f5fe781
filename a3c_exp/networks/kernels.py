"""Numpy kernels of known layers, forward and backward, over the parameters of torch modules.

An operation of torch takes several microseconds whatever its size, and twice that if it builds a
graph. One of numpy takes one or two, which is most of the time of networks and batches as small as
they are here (notes/speed.md). So a module that consists of known layers in sequence is run by
these kernels. Any other module is run by torch. Tests hold the two equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from a3c_exp.common.arrays import Array, Floats

# From a loss's derivatives by outputs to those by inputs. Derivatives by parameters are added to
# their gradients. The
# argument may be overwritten.
Backward = Callable[[Floats], Floats]

aten = torch.ops.aten


def array_of(tensor: Tensor) -> Floats:
    """A tensor as an array: a view of one on the host, a copy of one on another device."""
    return tensor.detach().cpu().numpy()


def gradient_of(parameter: Tensor) -> Floats:
    """A view of a parameter's gradient. A missing gradient is created, with zeros."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad.numpy()


class Activation(NamedTuple):
    """y = f(x) on arrays, and its derivative.

    apply: returns y, which it may write into its second argument. That may be x.
    times_slope: multiplies its first argument, in place, by dy/dx at x and y. It may overwrite y.
        If `apply` has overwritten x, x is y.
    """

    apply: Callable[[Floats, Floats], Floats]
    times_slope: Callable[[Floats, Floats, Floats], None]


def _times_tanh_slope(grad: Floats, _: Floats, y: Floats) -> None:
    y *= y
    y *= grad
    grad -= y


def _times_relu_slope(grad: Floats, _: Floats, y: Floats) -> None:
    grad *= y > 0


def _by_torch(
    forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor, Tensor], Tensor]
) -> Activation:
    """torch's operations, without a graph. backward: from derivatives by y, and x, to those by
    x."""

    def times_slope(grad: Floats, x: Floats, _: Floats) -> None:
        grad[:] = backward(torch.from_numpy(grad), torch.from_numpy(x)).numpy()

    return Activation(lambda x, _: forward(torch.from_numpy(x)).numpy(), times_slope)


ACTIVATIONS: dict[type[nn.Module], Callable[[Any], Activation]] = {
    nn.Tanh: lambda _: Activation(np.tanh, _times_tanh_slope),
    nn.ReLU: lambda _: Activation(lambda x, out: np.maximum(x, 0, out=out), _times_relu_slope),
    nn.ReLU6: lambda _: _by_torch(
        functional.relu6, lambda grad, x: aten.hardtanh_backward(grad, x, 0, 6)
    ),
    nn.LeakyReLU: lambda layer: _by_torch(
        lambda x: functional.leaky_relu(x, layer.negative_slope),
        lambda grad, x: aten.leaky_relu_backward(grad, x, layer.negative_slope, False),
    ),
    nn.ELU: lambda layer: _by_torch(
        lambda x: functional.elu(x, layer.alpha),
        lambda grad, x: aten.elu_backward(grad, layer.alpha, 1, 1, False, x),
    ),
    nn.SiLU: lambda _: _by_torch(functional.silu, aten.silu_backward),
}
"""The activations with a kernel."""


class Kernel(ABC):
    """One step of a sequence of layers, on rows [N, F]."""

    def act_forward(self, x: Floats) -> Floats:
        """The outputs, in a new array or, of an activation that may, in place of the inputs."""
        return self.train_forward(x)[0]

    @abstractmethod
    def train_forward(self, x: Floats) -> tuple[Floats, Any]:
        """The outputs, which the next call overwrites, and what `backward` needs."""

    @abstractmethod
    def backward(self, saved: Any, grad: Floats, needs_input: bool = True) -> Floats:
        """See `Backward`. Without `needs_input` the result is of no use."""


class LinearKernel(Kernel):
    """An affine layer: [N, in_features] -> [N, out_features]. For `backward` its inputs are saved.

    To act, rows may come as [T, N, in_features]: each product is the one of [N, in_features], bit
    for bit.
    """

    def __init__(self, layer: nn.Linear) -> None:
        self._weight = array_of(layer.weight)
        self._weight_gradient = gradient_of(layer.weight)
        self._weight_t = self._weight.T
        bias = layer.bias
        # of two axes: half the time for one row
        self._bias = None if bias is None else array_of(bias)[None]
        self._bias_gradient = None if bias is None else gradient_of(bias)
        self._outputs = np.empty((0, layer.out_features), np.float32)

    def act_forward(self, x: Floats, out: Floats | None = None) -> Floats:
        """The outputs, in a new array or in `out`."""
        # `dot` is a third faster than np.dot, and than `@` for a matrix; of more axes it does not
        # call BLAS.
        y: Floats = x.dot(self._weight_t, out) if x.ndim == 2 else x @ self._weight_t
        if self._bias is not None:
            y += self._bias
        return y

    def train_forward(self, x: Floats) -> tuple[Floats, Any]:
        # Memory that is returned to the system is cleared each time it is allocated again, which
        # takes longer than the arithmetic of large batches. So the kernel keeps the memory of its
        # outputs.
        if len(x) > len(self._outputs):
            self._outputs = np.empty((len(x), self._outputs.shape[1]), np.float32)
        return self.act_forward(x, self._outputs[: len(x)]), x

    def backward(self, saved: Floats, grad: Floats, needs_input: bool = True) -> Floats:
        self._weight_gradient += grad.T.dot(saved)
        if self._bias_gradient is not None:
            self._bias_gradient += np.add.reduce(grad, 0)
        return grad.dot(self._weight) if needs_input else grad


class ActivationKernel(Kernel):
    """An activation. in_place: whether it may overwrite its inputs, which are of no more use to the
    kernel before."""

    def __init__(self, activation: Activation, in_place: bool) -> None:
        self._apply, self._times_slope = activation
        self._in_place = in_place

    def act_forward(self, x: Floats) -> Floats:
        return self._apply(x, x if self._in_place else np.empty_like(x))

    def train_forward(self, x: Floats) -> tuple[Floats, Any]:
        y = self.act_forward(x)
        return y, (x, y)

    def backward(self, saved: Any, grad: Floats, needs_input: bool = True) -> Floats:
        self._times_slope(grad, *saved)
        return grad


class LayerNormKernel(Kernel):
    """Layer normalization of each row (Ba et al. 2016, arXiv 1607.06450, equation 4): torch's
    operations, no graph."""

    def __init__(self, layer: nn.LayerNorm) -> None:
        self._shape = layer.normalized_shape
        self._epsilon = layer.eps
        given = [layer.weight, layer.bias]
        self._parameters = [None if each is None else each.detach() for each in given]
        self._gradients = [None if each is None else gradient_of(each) for each in given]

    def train_forward(self, x: Floats) -> tuple[Floats, Any]:
        rows, (weight, bias) = torch.from_numpy(x), self._parameters
        y, *scales = torch.native_layer_norm(rows, self._shape, weight, bias, self._epsilon)
        return y.numpy(), (rows, scales)

    def backward(self, saved: Any, grad: Floats, needs_input: bool = True) -> Floats:
        rows, scales = saved
        wanted = [True, *(each is not None for each in self._gradients)]
        by_input, *by_parameters = aten.native_layer_norm_backward(
            torch.from_numpy(grad), rows, self._shape, *scales, *self._parameters, wanted
        )
        for gradient, found in zip(self._gradients, by_parameters, strict=True):
            if gradient is not None:
                gradient += found.numpy()
        return array_of(by_input)


def _as_floats(x: Array) -> Floats:
    return np.asarray(x, np.float32)


class SequenceKernel:
    """Known layers, one after another: [N, ...] -> float32 [N, F]. See `find_obstacle`.

    prepare: makes flat rows, float32 [N, D], of observations.
    """

    def __init__(self, module: nn.Module, prepare: Callable[[Array], Floats] = _as_floats) -> None:
        self._prepare = prepare
        self._kernels: list[Kernel] = []
        for layer in _layers(module):
            if isinstance(layer, nn.Linear):
                self._kernels.append(LinearKernel(layer))
            elif isinstance(layer, nn.LayerNorm):
                self._kernels.append(LayerNormKernel(layer))
            elif type(layer) is not nn.Flatten:  # rows are flat from the start
                in_place = bool(self._kernels) and not isinstance(
                    self._kernels[-1], ActivationKernel
                )
                self._kernels.append(ActivationKernel(ACTIVATIONS[type(layer)](layer), in_place))

    def act_forward(self, x: Array) -> Floats:
        """The forward pass to act, of vectors also [T, N, D] -> [T, N, F]. The result may be `x`
        itself."""
        x = self._prepare(x)
        for kernel in self._kernels:
            x = kernel.act_forward(x)
        return x

    def train_forward(self, x: Array) -> tuple[Floats, Callable[[Floats], None]]:
        """The forward pass to learn, and a function that adds the gradient, given a loss's
        derivatives by the outputs.

        The next call overwrites the outputs. The function may be called once.
        """
        x = self._prepare(x)
        saved = []
        for kernel in self._kernels:
            x, kept = kernel.train_forward(x)
            saved.append(kept)

        def backward(grad: Floats) -> None:
            for i in range(len(saved) - 1, -1, -1):
                grad = self._kernels[i].backward(saved[i], grad, i > 0)

        return x, backward


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of nested sequences, in order. An identity is left out."""
    if isinstance(module, nn.Sequential):
        for child in module:
            yield from _layers(child)
    elif not isinstance(module, nn.Identity):
        yield module


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_KNOWN = {nn.Linear, nn.LayerNorm, nn.Flatten, nn.Identity, *ACTIVATIONS}


def find_obstacle(module: nn.Module, axes: int = 1) -> str | None:
    """The reason why a module cannot be run by kernels; None if it can.

    axes: of one row of its inputs. A subclass of `nn.Sequential` counts as a sequence if it
    inherits `forward`. Every other layer must be exactly of a known class, without hooks and frozen
    parameters.
    """
    for each in module.modules():
        name = type(each).__name__
        kind = type(each)
        # A subclass may have methods of its own, but for those that decide what is computed.
        is_sequence = isinstance(each, nn.Sequential) and all(
            getattr(kind, method) == getattr(nn.Sequential, method)
            for method in ("forward", "__call__", "__iter__")
        )
        if not (is_sequence or kind in _KNOWN) or "forward" in vars(each):
            return f"{name} is none of the layers with a kernel"
        if any(getattr(each, hooks) for hooks in _HOOKS):
            return f"{name} has a hook"
        if any(
            not p.requires_grad or p.dtype != torch.float32 for p in each.parameters(recurse=False)
        ):
            return f"{name} has a parameter that is frozen or not float32"
        if isinstance(each, nn.Flatten) and (each.start_dim, each.end_dim) != (1, -1):
            return f"{name} does not keep the first axis alone"
    if axes != 1 and not isinstance(next(_layers(module), None), nn.Flatten):
        return "its first layer is no Flatten, which observations that are no vectors need"
    return None
