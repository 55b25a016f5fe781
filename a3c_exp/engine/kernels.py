"""Numpy kernels of layers, forward and backward, over the parameters of torch modules.

An operation of torch takes several microseconds whatever its size, and twice that if it builds a
graph. One of numpy takes one or two, which is most of the time of networks and batches as small as
they are here (evidence/notes/speed.md). So a module that consists of the layers in `LAYERS`, one
after another, is run by these kernels. Torch runs any other module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.networks.action_values import DuelingHead
from a3c_exp.networks.heads import PolicyHead

Backward = Callable[[Floats], Floats]
"""A function from a loss's derivatives by outputs to those by inputs, which adds the derivatives by
parameters to their gradients. It may overwrite its argument."""

aten = torch.ops.aten


def array_of(tensor: Tensor) -> Floats:
    """A tensor as an array: a view of one on the host, a copy of one on another device."""
    return tensor.detach().cpu().numpy()


def gradient_of(parameter: Tensor) -> Floats:
    """A view of a parameter's gradient. A missing gradient is created, with zeros."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad.numpy()


def add_gradients(pairs: Iterable[tuple[Tensor, Floats]]) -> None:
    """Add the gradients of all parameters that tensors depend on, given a loss's derivatives by
    each tensor. A tensor without a graph is left out."""
    # `torch.autograd.backward(tensors, gradients)` imports sympy: 34 MB and a second in each
    # process.
    terms = [
        (tensor * torch.from_numpy(np.ascontiguousarray(grad)).to(tensor.device)).sum()
        for tensor, grad in pairs
        if tensor.requires_grad
    ]
    if terms:
        torch.autograd.backward(torch.stack(terms).sum())


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


class Kernel(ABC):
    """One layer of a sequence, on rows [N, F]."""

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
    """An activation.

    in_place: whether it may overwrite its inputs, because the kernel before has no more use for
        them.
    """

    in_place = False

    def __init__(self, activation: Activation) -> None:
        self._apply, self._times_slope = activation

    def act_forward(self, x: Floats) -> Floats:
        return self._apply(x, x if self.in_place else np.empty_like(x))

    def train_forward(self, x: Floats) -> tuple[Floats, Any]:
        y = self.act_forward(x)
        return y, (x, y)

    def backward(self, saved: Any, grad: Floats, needs_input: bool = True) -> Floats:
        self._times_slope(grad, *saved)
        return grad


class LayerNormKernel(Kernel):
    """Layer normalization of each row by torch's operations, without a graph (Ba et al. 2016, arXiv
    1607.06450, equation 4)."""

    def __init__(self, layer: nn.LayerNorm) -> None:
        self._shape = layer.normalized_shape
        self._epsilon = layer.eps
        parameters = [layer.weight, layer.bias]
        self._parameters = [None if p is None else p.detach() for p in parameters]
        self._gradients = [None if p is None else gradient_of(p) for p in parameters]
        self._needs_gradients = [True, *(p is not None for p in parameters)]

    def train_forward(self, x: Floats) -> tuple[Floats, Any]:
        rows = torch.from_numpy(x)
        weight, bias = self._parameters
        y, *scales = torch.native_layer_norm(rows, self._shape, weight, bias, self._epsilon)
        return y.numpy(), (rows, scales)

    def backward(self, saved: Any, grad: Floats, needs_input: bool = True) -> Floats:
        rows, scales = saved
        by_input, *by_parameters = aten.native_layer_norm_backward(
            torch.from_numpy(grad),
            rows,
            self._shape,
            *scales,
            *self._parameters,
            self._needs_gradients,
        )
        for gradient, by_parameter in zip(self._gradients, by_parameters, strict=True):
            if gradient is not None:
                gradient += by_parameter.numpy()

        return array_of(by_input)


class FreeStdKernel(LinearKernel):
    """A head of the policy with free standard deviations: see `PolicyHead`."""

    def __init__(self, linear: nn.Linear, spread: Tensor) -> None:
        super().__init__(linear)
        self._means = linear.out_features
        self._spread = array_of(spread)
        self._spread_gradient = gradient_of(spread)

    def act_forward(self, x: Floats, out: Floats | None = None) -> Floats:
        means = super().act_forward(x)
        return np.concatenate([means, np.broadcast_to(self._spread, means.shape)], axis=-1, out=out)

    def backward(self, saved: Floats, grad: Floats, needs_input: bool = True) -> Floats:
        self._spread_gradient += grad[:, self._means :].sum(0)
        return super().backward(saved, grad[:, : self._means], needs_input)


def head_kernel(head: PolicyHead) -> LinearKernel:
    """The kernel of a policy's head."""
    if head.spread is None:
        return LinearKernel(head.linear)
    return FreeStdKernel(head.linear, head.spread)


def _leaky_relu(layer: nn.LeakyReLU) -> ActivationKernel:
    slope = layer.negative_slope
    return ActivationKernel(
        _by_torch(
            lambda x: functional.leaky_relu(x, slope),
            lambda grad, x: aten.leaky_relu_backward(grad, x, slope, False),
        )
    )


def _elu(layer: nn.ELU) -> ActivationKernel:
    alpha = layer.alpha
    return ActivationKernel(
        _by_torch(
            lambda x: functional.elu(x, alpha),
            lambda grad, x: aten.elu_backward(grad, alpha, 1, 1, False, x),
        )
    )


_TANH = Activation(np.tanh, _times_tanh_slope)
_RELU = Activation(lambda x, out: np.maximum(x, 0, out=out), _times_relu_slope)
_RELU6 = _by_torch(functional.relu6, lambda grad, x: aten.hardtanh_backward(grad, x, 0, 6))
_SILU = _by_torch(functional.silu, aten.silu_backward)


class DuelingKernel(Kernel):
    """A `DuelingHead`."""

    def __init__(self, head: DuelingHead) -> None:
        self._value = _kernels((head.value_hidden, nn.ReLU(), head.value))
        self._advantage = _kernels((head.advantage_hidden, nn.ReLU(), head.advantage))

    def train_forward(self, x: Floats) -> tuple[Floats, Any]:
        values, saved_by_value = _forward(self._value, x)
        advantages, saved_by_advantage = _forward(self._advantage, x)
        centered = advantages - advantages.mean(-1, keepdims=True)
        return values + centered, (saved_by_value, saved_by_advantage)

    def backward(self, saved: Any, grad: Floats, needs_input: bool = True) -> Floats:
        saved_by_value, saved_by_advantage = saved
        centered = grad - grad.mean(-1, keepdims=True)
        by_input = _backward(self._value, saved_by_value, grad.sum(-1, keepdims=True), needs_input)
        return by_input + _backward(self._advantage, saved_by_advantage, centered, needs_input)


LAYERS: dict[type[nn.Module], Callable[[Any], Kernel]] = {
    nn.Linear: LinearKernel,
    nn.LayerNorm: LayerNormKernel,
    nn.Tanh: lambda _: ActivationKernel(_TANH),
    nn.ReLU: lambda _: ActivationKernel(_RELU),
    nn.ReLU6: lambda _: ActivationKernel(_RELU6),
    nn.LeakyReLU: _leaky_relu,
    nn.ELU: _elu,
    nn.SiLU: lambda _: ActivationKernel(_SILU),
    DuelingHead: DuelingKernel,
}
"""The layers with a kernel: what makes it of a layer of exactly this class."""


def _kernels(layers: Iterable[nn.Module]) -> list[Kernel]:
    """The kernels of layers, one after another, without those that flatten rows, which are flat
    from the start."""
    kernels: list[Kernel] = []
    for layer in layers:
        if type(layer) is nn.Flatten:
            continue

        kernel = LAYERS[type(layer)](layer)
        if isinstance(kernel, ActivationKernel):
            kernel.in_place = bool(kernels) and not isinstance(kernels[-1], ActivationKernel)
        kernels.append(kernel)

    return kernels


def _forward(kernels: Sequence[Kernel], x: Floats) -> tuple[Floats, list[Any]]:
    """The outputs of kernels, one after another, and what each has saved."""
    saved = []
    for kernel in kernels:
        x, saved_by_kernel = kernel.train_forward(x)
        saved.append(saved_by_kernel)
    return x, saved


def _backward(
    kernels: Sequence[Kernel], saved: Sequence[Any], grad: Floats, needs_input: bool
) -> Floats:
    """See `Kernel.backward`. saved: by each of them."""
    for i in range(len(kernels) - 1, -1, -1):
        grad = kernels[i].backward(saved[i], grad, needs_input or i > 0)
    return grad


def _as_floats(x: Array) -> Floats:
    return np.asarray(x, np.float32)


class SequenceKernel:
    """Layers with a kernel, one after another: [N, ...] -> float32 [N, F]. See `find_obstacle`.

    prepare: makes flat rows, float32 [N, D], of observations.
    """

    def __init__(self, module: nn.Module, prepare: Callable[[Array], Floats] = _as_floats) -> None:
        self._prepare = prepare
        self._kernels = _kernels(_layers(module))

    def act_forward(self, x: Array) -> Floats:
        """Return the outputs to act, of vectors also [T, N, D] -> [T, N, F]. They may be `x`
        itself."""
        x = self._prepare(x)
        for kernel in self._kernels:
            x = kernel.act_forward(x)
        return x

    def train_forward(self, x: Array) -> tuple[Floats, Callable[[Floats], None]]:
        """Return the outputs to learn, and a function that adds the gradient, given a loss's
        derivatives by the outputs.

        The next call overwrites the outputs. The function may be called once.
        """
        outputs, saved = _forward(self._kernels, self._prepare(x))

        def backward(grad: Floats) -> None:
            _backward(self._kernels, saved, grad, needs_input=False)

        return outputs, backward


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of nested sequences, in order. An identity is left out."""
    if isinstance(module, nn.Sequential):
        for child in module:
            yield from _layers(child)
    elif not isinstance(module, nn.Identity):
        yield module


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def find_obstacle(module: nn.Module, axes: int = 1) -> str | None:
    """The reason why a module cannot be run by kernels; None if it can.

    axes: of one row of its inputs. A subclass of `nn.Sequential` counts as a sequence if it
    inherits `forward`. Every other layer must be exactly of a class in `LAYERS`, without hooks and
    frozen parameters.
    """
    for layer in module.modules():
        kind = type(layer)
        name = kind.__name__
        # A subclass may have methods of its own, but for those that decide what is computed.
        is_sequence = isinstance(layer, nn.Sequential) and all(
            getattr(kind, method) == getattr(nn.Sequential, method)
            for method in ("forward", "__call__", "__iter__")
        )
        has_kernel = is_sequence or kind in LAYERS or kind in (nn.Flatten, nn.Identity)
        if not has_kernel or "forward" in vars(layer):
            return f"{name} is none of the layers with a kernel"

        if any(getattr(layer, hooks) for hooks in _HOOKS):
            return f"{name} has a hook"

        if any(
            not p.requires_grad or p.dtype != torch.float32 for p in layer.parameters(recurse=False)
        ):
            return f"{name} has a parameter that is frozen or not float32"

        if isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) != (1, -1):
            return f"{name} does not keep the first axis alone"

    if axes != 1 and not isinstance(next(_layers(module), None), nn.Flatten):
        return "its first layer is no Flatten, which observations that are no vectors need"

    return None
