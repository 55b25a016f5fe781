"""Numpy kernels compute what torch computes with the same layers, and modules that they do not know are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import normal
from torch import Tensor, nn

from a3c_exp.common.arrays import Floats
from a3c_exp.networks.kernels import ACTIVATIONS, SequenceKernel, find_obstacle

ACTIVATION_LAYERS: list[Callable[[], nn.Module]] = [
    nn.Tanh,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    lambda: nn.LeakyReLU(0.2),
    lambda: nn.LeakyReLU(-1.5),
    nn.ELU,
    lambda: nn.ELU(0.5),
    lambda: nn.ELU(-2.0),
    nn.SiLU,
]


class Pair(nn.Sequential):
    """A sequence of a class of its own, which inherits `forward`."""


@st.composite
def sequences(draw: st.DrawFn, inputs: int, depth: int = 2) -> tuple[nn.Sequential, int]:
    """A sequence of layers with a kernel, nested up to `depth` deep, and the width of its outputs."""
    layers: list[nn.Module] = []
    width = inputs
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["linear", "activation", "norm", "flatten", "identity", "sequence", "again"]))
        if kind == "linear":
            after = draw(st.integers(1, 6))
            layers.append(nn.Linear(width, after, bias=draw(st.booleans())))
            width = after
        elif kind == "activation":
            layers.append(draw(st.sampled_from(ACTIVATION_LAYERS))())
        elif kind == "norm":
            affine = draw(st.booleans())
            layers.append(nn.LayerNorm(width, 1e-2, elementwise_affine=affine, bias=affine and draw(st.booleans())))
        elif kind == "flatten":
            layers.append(nn.Flatten())
        elif kind == "identity":
            layers.append(nn.Identity())
        elif kind == "sequence" and depth:
            inner, width = draw(sequences(width, depth - 1))
            layers.append(inner)
        elif layers:  # a layer used twice: with tied parameters, if it has any
            again = draw(st.sampled_from(layers))
            if keeps_width(again, width):
                layers.append(again)
    return draw(st.sampled_from([nn.Sequential, Pair]))(*layers), width


def keeps_width(layer: nn.Module, width: int) -> bool:
    """Return whether a layer takes and gives rows of this width."""
    with torch.no_grad():
        try:
            return tuple(layer(torch.zeros(1, width)).shape) == (1, width)
        except RuntimeError:
            return False


def redraw(module: nn.Module, seed: int) -> None:
    """Give all parameters numbers that are neither 0 nor 1, and no gradient."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(0, 0.7, parameter.shape)))
            parameter.grad = None


def compare_with_torch(module: nn.Module, inputs: Floats, seed: int = 0) -> None:
    """Outputs when acting and learning, and the gradient, twice: memory is kept from one call to the next."""
    redraw(module, seed)
    tensor = torch.from_numpy(inputs.copy())
    outputs: Tensor = module(tensor.clone())
    weights = np.random.default_rng(seed).standard_normal(outputs.shape).astype(np.float32)
    if outputs.requires_grad:
        torch.autograd.backward(outputs, torch.from_numpy(weights))
    expected = {name: None if p.grad is None else p.grad.numpy().copy() for name, p in module.named_parameters()}
    module.zero_grad()

    kernel, untouched = SequenceKernel(module), inputs.copy()
    for times in (1, 2):
        acted = kernel.act_forward(inputs)
        assert_close(acted, outputs.detach().numpy())
        learned, backward = kernel.train_forward(inputs)
        np.testing.assert_array_equal(learned, acted)
        np.testing.assert_array_equal(inputs, untouched)
        backward(weights.copy())
        np.testing.assert_array_equal(inputs, untouched)
        for name, parameter in module.named_parameters():
            gradient = expected[name]
            assert parameter.grad is not None
            if gradient is not None:  # it is None if no output depends on the parameter
                assert_close(parameter.grad.numpy(), times * gradient)


def assert_close(found: Floats, expected: Floats) -> None:
    """Equal to 1e-4 of the largest number: in the gradient of a LayerNorm over two numbers nearly all cancels."""
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * max(float(np.abs(expected).max(initial=0)), 1.0))


@given(data=st.data(), inputs=st.integers(1, 5), rows=st.integers(1, 7), seed=st.integers(0, 2**16))
def test_any_sequence_of_known_layers_has_the_outputs_and_the_gradient_of_torch(
    data: st.DataObject, inputs: int, rows: int, seed: int
) -> None:
    module, _ = data.draw(sequences(inputs))
    assert find_obstacle(module, 1) is None
    compare_with_torch(module, 2 * normal(rows, inputs, seed=seed), seed)


@settings(max_examples=40)
@given(data=st.data(), height=st.integers(1, 4), width=st.integers(1, 4), seed=st.integers(0, 2**16))
def test_arrays_of_several_axes_are_flattened_first(data: st.DataObject, height: int, width: int, seed: int) -> None:
    module, _ = data.draw(sequences(height * width))
    flat = nn.Sequential(nn.Flatten(), module)
    assert find_obstacle(flat, 2) is None
    compare_with_torch(flat, normal(3, height, width, seed=seed), seed)


@pytest.mark.parametrize("make", [*ACTIVATION_LAYERS, lambda: nn.ReLU(inplace=True)], ids=lambda make: str(make()))
@pytest.mark.parametrize("before", ["nothing", "affine", "norm", "activation"])
def test_every_activation_is_that_of_torch_wherever_it_stands(make: Callable[[], nn.Module], before: str) -> None:
    """Inputs reach the flat parts of the activations, and far beyond."""
    first = {"nothing": nn.Identity(), "affine": nn.Linear(3, 3), "norm": nn.LayerNorm(3), "activation": nn.ELU()}
    inputs = normal(40, 3) * np.geomspace(0.1, 300, 40, dtype=np.float32)[:, None]
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        compare_with_torch(nn.Sequential(first[before], make(), nn.Linear(3, 2)), inputs)


def test_batches_of_other_sizes_are_not_mixed() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    kernel = SequenceKernel(module)
    for rows in (5, 2, 9, 1):
        inputs = normal(rows, 4, seed=rows)
        outputs, backward = kernel.train_forward(inputs)
        assert_close(outputs, module(torch.from_numpy(inputs)).detach().numpy())
        expected = torch.autograd.grad(module(torch.from_numpy(inputs)).sum(), list(module.parameters()))
        for parameter in module.parameters():
            assert parameter.grad is not None
            parameter.grad.zero_()
        backward(np.ones_like(outputs))
        for parameter, gradient in zip(module.parameters(), expected, strict=True):
            assert parameter.grad is not None
            assert_close(parameter.grad.numpy(), gradient.numpy())


def test_every_activation_of_the_setting_has_a_kernel() -> None:
    from a3c_exp.networks import mlp

    assert set(mlp.ACTIVATIONS.values()) == set(ACTIVATIONS)


class OwnLinear(nn.Linear):
    """A subclass, whose methods may do anything."""


class OwnForward(nn.Sequential):
    def forward(self, x: Tensor) -> Any:
        return 2 * x


class OwnOrder(nn.Sequential):
    def __iter__(self) -> Any:
        return reversed(list(super().__iter__()))


def hooked(register: Callable[[nn.Module], Any]) -> nn.Module:
    layer = nn.Linear(4, 4)
    register(layer)
    return layer


def frozen(layer: nn.Module) -> nn.Module:
    next(layer.parameters()).requires_grad_(False)
    return layer


def with_forward(module: nn.Module) -> nn.Module:
    module.forward = lambda x: x
    return module


def parametrized() -> nn.Module:
    layer = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Tanh())
    return layer


OBSTACLES: list[tuple[str, Callable[[], nn.Module], str]] = [
    ("subclass", lambda: OwnLinear(4, 4), "OwnLinear is none of the layers with a kernel"),
    ("own forward", lambda: OwnForward(nn.Linear(4, 4)), "OwnForward is none of the layers with a kernel"),
    ("own order", lambda: OwnOrder(nn.Linear(4, 4)), "OwnOrder is none of the layers with a kernel"),
    ("forward of a layer", lambda: with_forward(nn.Linear(4, 4)), "Linear is none of the layers with a kernel"),
    ("forward of a sequence", lambda: with_forward(nn.Sequential()), "Sequential is none of the layers with a kernel"),
    ("GELU", nn.GELU, "GELU is none of the layers with a kernel"),
    ("hook", lambda: hooked(lambda layer: layer.register_forward_hook(lambda *_: None)), "Linear has a hook"),
    ("pre-hook", lambda: hooked(lambda layer: layer.register_forward_pre_hook(lambda *_: None)), "Linear has a hook"),
    ("backward", lambda: hooked(lambda layer: layer.register_full_backward_hook(lambda *_: None)), "Linear has a hook"),
    ("to gradients", lambda: hooked(lambda x: x.register_full_backward_pre_hook(lambda *_: None)), "Linear has a hook"),
    ("parametrization", parametrized, "ParametrizedLinear is none of the layers with a kernel"),
    ("frozen", lambda: frozen(nn.Linear(4, 4)), "Linear has a parameter that is frozen or not float32"),
    ("frozen norm", lambda: frozen(nn.LayerNorm(4)), "LayerNorm has a parameter that is frozen or not float32"),
    ("float64", lambda: nn.Linear(4, 4).double(), "Linear has a parameter that is frozen or not float32"),
    ("two axes", lambda: nn.LayerNorm((2, 4)), "LayerNorm normalizes over several axes"),
    ("batch too", lambda: nn.Flatten(0), "Flatten does not keep the first axis alone"),
    ("not to the end", lambda: nn.Flatten(1, 2), "Flatten does not keep the first axis alone"),
]


@pytest.mark.parametrize(("make", "text"), [each[1:] for each in OBSTACLES], ids=[each[0] for each in OBSTACLES])
def test_what_kernels_do_not_compute_is_found(make: Callable[[], nn.Module], text: str) -> None:
    for module in (make(), Pair(nn.Sequential(nn.Linear(4, 4), make()), nn.Tanh())):
        assert find_obstacle(module, 1) == text


@pytest.mark.parametrize("layers", [[], [nn.Linear(4, 4), nn.Flatten()], [nn.Tanh(), nn.Flatten()]], ids=str)
def test_observations_of_several_axes_need_a_flatten_first(layers: list[nn.Module]) -> None:
    module = nn.Sequential(*layers)
    assert find_obstacle(module, 1) is None
    text = "its first layer is no Flatten, which observations that are no vectors need"
    assert find_obstacle(module, 3) == find_obstacle(module, 2) == text
    assert find_obstacle(nn.Sequential(nn.Identity(), nn.Flatten(), module), 3) is None
