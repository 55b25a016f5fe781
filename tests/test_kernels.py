"""Numpy kernels compute what torch computes with the same layers, and modules that they do not know
are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st
from learning import compare_gradients
from nets import CHOICES, make_network, normal
from torch import Tensor, nn

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.engine.kernels import LAYERS, SequenceKernel, find_obstacle
from a3c_exp.engine.runtime import RUNTIMES, TorchRuntime, make_runtime
from a3c_exp.networks import mlp
from a3c_exp.networks.composed import EncoderActorCritic

ACTIVATION_LAYERS: list[Callable[[], nn.Module]] = [
    nn.Tanh,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    lambda: nn.LeakyReLU(-1.5),
    nn.ELU,
    lambda: nn.ELU(-2.0),
    nn.SiLU,
]


class Pair(nn.Sequential):
    """A sequence of a class of its own, which inherits `forward`."""


@st.composite
def sequences(draw: st.DrawFn, inputs: int, depth: int = 1) -> tuple[nn.Sequential, int]:
    """Layers with a kernel in any order, nested sequences among them, and the width of their
    outputs.

    A square affine layer may be used twice.
    """
    layers: list[nn.Module] = []
    width = inputs
    for kind in draw(
        st.lists(st.sampled_from(["linear", "activation", "norm", "plain", "sequence"]), max_size=6)
    ):
        if kind == "linear":
            after = draw(st.integers(1, 6))
            layer = nn.Linear(width, after, bias=draw(st.booleans()))
            layers += [layer] * (1 + (width == after and draw(st.booleans())))
            width = after
        elif kind == "activation":
            layers.append(draw(st.sampled_from(ACTIVATION_LAYERS))())
        elif kind == "norm":
            affine = draw(st.booleans())
            layers.append(
                redrawn(nn.LayerNorm(width, 1e-2, affine, bias=affine and draw(st.booleans())))
            )
        elif kind == "plain":
            layers.append(draw(st.sampled_from([nn.Flatten, nn.Identity]))())
        elif depth:
            inner, width = draw(sequences(width, depth - 1))
            layers.append(inner)
    return draw(st.sampled_from([nn.Sequential, Pair]))(*layers), width


def redrawn(layer: nn.Module) -> nn.Module:
    """The layer with parameters that are neither 0 nor 1."""
    for index, parameter in enumerate(layer.parameters()):
        parameter.data = torch.from_numpy(normal(*parameter.shape, seed=index))
    return layer


def compare_with_torch(
    module: nn.Sequential, inputs: Floats, kernel: SequenceKernel | None = None
) -> None:
    """Outputs when acting and learning, and the gradient, which is added."""
    kernel, untouched = SequenceKernel(module) if kernel is None else kernel, inputs.copy()
    module.zero_grad(set_to_none=False)
    outputs: Tensor = module(torch.from_numpy(inputs.copy()))
    weights = normal(*outputs.shape, seed=len(inputs))
    if outputs.requires_grad:
        torch.autograd.backward(outputs, torch.from_numpy(weights))
    expected = [
        np.zeros(1) if p.grad is None else p.grad.numpy().copy() for p in module.parameters()
    ]
    acted = kernel.act_forward(inputs)
    assert_close(acted, outputs.detach().numpy())
    learned, backward = kernel.train_forward(inputs)
    np.testing.assert_array_equal(learned, acted)
    backward(weights.copy())
    np.testing.assert_array_equal(inputs, untouched)
    for parameter, gradient in zip(module.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert_close(parameter.grad.numpy(), 2 * gradient)


def assert_close(found: Floats, expected: Array) -> None:
    assert found.dtype == np.float32
    np.testing.assert_allclose(
        found, expected, rtol=0, atol=1e-4 * max(float(np.abs(expected).max(initial=0)), 1.0)
    )


@settings(max_examples=60)
@given(data=st.data(), inputs=st.integers(1, 5))
def test_any_sequence_has_the_outputs_and_the_gradient_of_torch(
    data: st.DataObject, inputs: int
) -> None:
    """Also with batches of other sizes in turn: memory is kept from one call to the next."""
    module, _ = data.draw(sequences(inputs))
    assert find_obstacle(module) is None
    kernel = SequenceKernel(module)
    for rows in (3, 7, 1):
        compare_with_torch(module, 2 * normal(rows, inputs, seed=rows), kernel)


class Flat(nn.Sequential):
    """Observations of any form as rows, in nested sequences."""

    def __init__(self, observation_space: Box) -> None:
        inputs = int(np.prod(observation_space.shape))
        super().__init__(
            nn.Identity(), nn.Sequential(nn.Flatten(), nn.Linear(inputs, 3)), nn.Tanh()
        )


@pytest.mark.parametrize("space", [Box(-1, 1, (2, 3)), Box(0, 255, (4, 5, 3), np.uint8)], ids=str)
def test_arrays_of_several_axes_are_flattened_first(space: Box) -> None:
    """Images become what a module of torch would be given: scaled, and with channels first."""
    network = make_network(Flat, space)
    assert network.runtime.description == "kernels: numpy"
    compare_gradients(
        network, np.stack([[space.sample() for _ in range(3)] for _ in range(4)]), CHOICES
    )
    obstacle = find_obstacle(nn.Sequential(nn.Linear(3, 3), nn.Flatten()), axes=2)
    assert obstacle is not None and "Flatten" in obstacle


@pytest.mark.parametrize(
    "make", [*ACTIVATION_LAYERS, lambda: nn.ReLU(inplace=True)], ids=lambda make: str(make())
)
@pytest.mark.parametrize("before", ["nothing", "affine", "norm", "activation"])
def test_every_activation_is_that_of_torch(make: Callable[[], nn.Module], before: str) -> None:
    """Inputs reach the flat parts of the activations, and far beyond."""
    first = {
        "nothing": nn.Identity(),
        "affine": nn.Linear(3, 3),
        "norm": nn.LayerNorm(3),
        "activation": nn.ELU(),
    }
    inputs = normal(40, 3) * np.geomspace(0.1, 300, 40, dtype=np.float32)[:, None]
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        compare_with_torch(nn.Sequential(first[before], make(), nn.Linear(3, 2)), inputs)


def test_every_activation_of_the_setting_has_a_kernel() -> None:
    assert set(mlp.ACTIVATIONS.values()) < set(LAYERS)


def test_every_kernel_is_held_against_torch() -> None:
    shipped = {cls for cls in LAYERS if cls.__module__.startswith("torch.")}
    assert shipped == {nn.Linear, nn.LayerNorm, *(type(make()) for make in ACTIVATION_LAYERS)}


class OwnNetwork(EncoderActorCritic):
    """A subclass, whose methods may do anything."""


def test_a_subclass_of_a_network_has_no_fast_runtime() -> None:
    network = make_network(mlp.Mlp)
    assert type(network.runtime) is RUNTIMES[EncoderActorCritic]
    network.__class__ = OwnNetwork
    runtime = make_runtime(network)
    assert isinstance(runtime, TorchRuntime)
    assert "torch for the network (OwnNetwork)" in runtime.description


def test_integers_become_floats() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
    inputs = np.array([[1, 2], [250, 0]], np.uint8)
    assert_close(
        SequenceKernel(module).act_forward(inputs),
        module(torch.from_numpy(inputs).float()).detach().numpy(),
    )


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


def with_forward(module: nn.Module) -> nn.Module:
    module.forward = lambda x: x
    return module


UNKNOWN = "none of the layers with a kernel"
HOOK = "has a hook"
FROZEN = "frozen or not float32"
OBSTACLES: list[tuple[Callable[[], nn.Module], str]] = [
    (lambda: OwnLinear(4, 4), UNKNOWN),
    (lambda: with_forward(nn.Linear(4, 4)), UNKNOWN),
    (nn.GELU, UNKNOWN),
    (lambda: OwnForward(nn.Linear(4, 4)), UNKNOWN),
    (lambda: OwnOrder(nn.Linear(4, 4)), UNKNOWN),
    (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), UNKNOWN),
    (lambda: hooked(lambda layer: layer.register_forward_hook(lambda *_: None)), HOOK),
    (lambda: hooked(lambda layer: layer.register_full_backward_pre_hook(lambda *_: None)), HOOK),
    (lambda: nn.Linear(4, 4).requires_grad_(False), FROZEN),
    (lambda: nn.Linear(4, 4).double(), FROZEN),
    (lambda: nn.Flatten(0), "does not keep the first axis alone"),
    (lambda: nn.Flatten(1, 2), "does not keep the first axis alone"),
]


@pytest.mark.parametrize(("make", "text"), OBSTACLES)
def test_a_layer_that_kernels_do_not_compute_is_found(
    make: Callable[[], nn.Module], text: str
) -> None:
    layer = make()
    for module in (layer, nn.Sequential(nn.Linear(4, 4), nn.Sequential(layer))):
        obstacle = find_obstacle(module)
        assert obstacle is not None and text in obstacle and type(layer).__name__ in obstacle
