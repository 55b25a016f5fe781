"""A network in training is a torch module whose parameters lie in one vector, whatever computes
it."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from learning import compare_gradients, learned
from nets import (
    VECTORS,
    by_torch,
    draw_actions,
    draw_recurrent_input,
    make_lstm,
    make_network,
    normal,
)
from torch import nn
from user_modules import Constants, Residual

from a3c_exp.common.arrays import Array
from a3c_exp.errors import ConfigError, FolderError
from a3c_exp.networks import ActorCritic, Cnn, Mlp

IMAGES = Box(0, 255, (2, 20, 18), np.uint8)
MLP: dict[str, Any] = {"hidden_sizes": (5,), "policy_gain": 1.0, "init": "orthogonal"}
CNN: dict[str, Any] = {
    "layers": ((4, 4, 2),),
    "features_dim": 8,
    "precision": "float32",
    "init": "orthogonal",
}


PADDED = CNN | {"features_dim": None, "padding": "same", "activation": "elu"}
SPACES: dict[str, gym.Space[Any]] = {
    "box": Box(-1, 1, (2,)),
    "no layers": MultiDiscrete([3, 4]),
    "bits": MultiBinary(3),
}
SPACES |= {"cnns": Discrete(3), "lstm of a box": SPACES["box"], "no biases": SPACES["box"]}
CELLS: dict[str, Any] = {"hidden_size": 4, "policy_gain": 1.0}
APART: dict[str, Any] = {"hidden_sizes": (5,), "critic_hidden_sizes": (6,)}
OF_CRITIC: dict[str, Any] = {"hidden_size": 0, "critic_hidden_size": 3}
NETWORKS: dict[str, Callable[..., ActorCritic]] = {
    "mlp": lambda **more: make_network(Mlp, VECTORS, **MLP | more),
    "shared": lambda **more: make_network(Mlp, VECTORS, shared=True, **MLP | more),
    "box": lambda **more: make_network(Mlp, VECTORS, SPACES["box"], **MLP | more),
    "no layers": lambda **more: make_network(
        Mlp, VECTORS, SPACES["no layers"], **MLP | {"hidden_sizes": ()} | more
    ),
    "bits": lambda **more: make_network(Mlp, VECTORS, SPACES["bits"], **MLP | more),
    "cnns": lambda **more: make_network(Cnn, IMAGES, Discrete(3), policy_gain=1.0, **CNN | more),
    "constants": lambda **more: make_network(Constants, VECTORS, policy_gain=1.0, **more),
    "lstm": lambda **more: make_lstm(Mlp, VECTORS, encoder={"hidden_sizes": (5,)}, **CELLS | more),
    "lstm of a box": lambda **more: make_lstm(
        Residual, VECTORS, SPACES["box"], state_dependent_std=True, **CELLS | more
    ),
    "no biases": lambda **more: make_network(
        Mlp, VECTORS, SPACES["no biases"], head_bias=False, **MLP | more
    ),
    "lstm without biases": lambda **more: make_lstm(
        Mlp, VECTORS, encoder={"hidden_sizes": (5,)}, head_bias=False, **CELLS | more
    ),
    "lstms": lambda **more: make_lstm(
        Mlp, VECTORS, encoder=APART, shared=False, critic_hidden_size=3, **CELLS | more
    ),
    "lstm of the critic": lambda **more: make_lstm(
        Mlp, VECTORS, encoder=APART, shared=False, **CELLS | OF_CRITIC | more
    ),
    "lstm of images": lambda **more: make_lstm(Cnn, IMAGES, encoder=PADDED, **CELLS | more),
}
ALL = pytest.mark.parametrize("name", NETWORKS)


def draw_observations(name: str, *rows: int) -> Array:
    if "cnn" in name or "images" in name:
        return np.random.default_rng(2).integers(0, 256, (*rows, *IMAGES.shape)).astype(np.uint8)
    return normal(*rows, 4)


def outputs_of(network: ActorCritic, observations: Array) -> list[Array]:
    """Parameters, values and, if there is one, the state after the first step, by torch."""
    with torch.no_grad():
        outputs = network(torch.from_numpy(observations))
    return [tensor.numpy() for tensor in outputs if tensor is not None]


def assert_same_outputs(
    one: ActorCritic, other: ActorCritic, observations: Array, tolerance: float = 0.0
) -> None:
    for mine, theirs in zip(
        outputs_of(one, observations), outputs_of(other, observations), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=tolerance, rtol=0)


class TestTheVector:
    @ALL
    def test_holds_every_trained_parameter_and_its_gradient_once(self, name: str) -> None:
        network = NETWORKS[name]()
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        assert sum(parameter.numel() for parameter in trained) == len(network.vector)
        places = []
        for parameter in trained:
            assert parameter.grad is not None
            for tensor, flat in (
                (parameter.detach(), network.vector),
                (parameter.grad, network.gradient),
            ):
                assert np.shares_memory(tensor.numpy(), flat)
            places.append((parameter.data_ptr() - network.vector.ctypes.data) // 4)
            offset = (parameter.grad.data_ptr() - network.gradient.ctypes.data) // 4
            assert offset == places[-1]
        ends = [place + parameter.numel() for place, parameter in zip(places, trained, strict=True)]
        assert sorted(places) == [0, *sorted(ends)[:-1]]
        edges = [(part.start, part.stop) for part in network.param_slices.values()]
        assert [start for start, _ in edges] == [0, *[end for _, end in edges[:-1]]]
        assert edges[-1][1] == len(network.vector)

    @ALL
    def test_who_writes_to_it_changes_parameters_state_dict_and_outputs(self, name: str) -> None:
        network = NETWORKS[name]()
        observations = draw_observations(name, 3)
        network.vector[:] = 0.25
        assert all(
            (parameter == 0.25).all()
            for parameter in network.parameters()
            if parameter.requires_grad
        )
        trained = {
            key for key, p in network.named_parameters(remove_duplicate=False) if p.requires_grad
        }
        state = network.state_dict()
        assert trained and all((state[key] == 0.25).all() for key in trained)
        network.vector[:] = 0
        parameters, values, _ = network.act_forward(observations, network.initial_state(3))
        assert not parameters.any() and not values.any()

    @ALL
    def test_zero_grad_keeps_gradients_in_their_place(self, name: str) -> None:
        """Since torch 2, zero_grad() sets gradients to None, which would silently cut them off the
        flat vector."""
        network = NETWORKS[name]()
        observations = draw_observations(name, 2, 3)
        network.gradient.fill(1)
        network.zero_grad()
        assert not network.gradient.any()
        recurrent_input = draw_recurrent_input(network, 2, 3)
        learned(
            network,
            observations,
            draw_actions(network, observations),
            recurrent_input,
            values=1,
            entropy=1,
        )
        assert network.gradient.any()
        for parameter in network.parameters():
            assert parameter.grad is None or np.shares_memory(
                parameter.grad.numpy(), network.gradient
            )

    def test_zero_grad_of_a_copy_on_its_own_is_torchs(self) -> None:
        copy = deepcopy(NETWORKS["mlp"]())
        parameter = next(copy.parameters())
        parameter.square().sum().backward()  # type: ignore[no-untyped-call]
        copy.zero_grad()
        assert parameter.grad is None


def order(network: ActorCritic) -> list[str]:
    """The names of the trained parameters as they lie in the vector."""
    placed = {
        parameter.data_ptr(): name
        for name, parameter in network.named_parameters()
        if parameter.requires_grad
    }
    return [placed[pointer] for pointer in sorted(placed)]


LINEAR = ("weight", "bias")
CORE = ("core.inputs", "core.recurrent", "core.bias")
CRITIC_CORE = tuple(f"critic_{name}" for name in CORE)


def names(*modules: str) -> list[str]:
    return [f"{module}.{kind}" for module in modules for kind in LINEAR]


class TestTheOrderOfParameters:
    @pytest.mark.parametrize(
        ("name", "parameters", "sizes"),
        [
            (
                "box",
                [
                    *names("actor_encoder.0", "head.linear"),
                    "head.spread",
                    *names("critic_encoder.0", "value"),
                ],
                {"actor": 4 * 5 + 5 + 5 * 2 + 2 + 2, "critic": 4 * 5 + 5 + 5 + 1},
            ),
            (
                "lstm",
                [*names("actor_encoder.0"), *CORE, *names("head.linear", "value")],
                {"encoder": 4 * 5 + 5 + 16 * (5 + 4 + 1), "actor": 4 * 2 + 2, "critic": 4 + 1},
            ),
            (
                "lstms",
                [
                    *names("actor_encoder.0"),
                    *CORE,
                    *names("head.linear", "critic_encoder.0"),
                    *CRITIC_CORE,
                    *names("value"),
                ],
                {
                    "actor": 4 * 5 + 5 + 16 * (5 + 4 + 1) + 4 * 2 + 2,
                    "critic": 4 * 6 + 6 + 12 * (6 + 3 + 1) + 3 + 1,
                },
            ),
            (
                "no biases",
                [
                    *names("actor_encoder.0"),
                    "head.linear.weight",
                    "head.spread",
                    *names("critic_encoder.0"),
                    "value.weight",
                ],
                {"actor": 4 * 5 + 5 + 5 * 2 + 2, "critic": 4 * 5 + 5 + 5},
            ),
        ],
    )
    def test_is_that_of_the_groups(
        self, name: str, parameters: list[str], sizes: dict[str, int]
    ) -> None:
        network = NETWORKS[name]()
        assert order(network) == parameters
        assert {
            group: part.stop - part.start for group, part in network.param_slices.items()
        } == sizes

    def test_frozen_parameters_and_buffers_are_not_in_it_but_among_the_constants(self) -> None:
        network = NETWORKS["constants"]()
        encoders = ("actor_encoder", "critic_encoder")
        expected = {f"{encoder}.{name}" for encoder in encoders for name in ("projection", "scale")}
        assert network.constants().keys() == expected
        assert len(network.vector) == 2 * (4 * 5 + 5) + (5 * 2 + 2) + (5 + 1)

    def test_constants_are_read_and_written_by_name(self) -> None:
        """A buffer of no axis among them."""
        one = NETWORKS["constants"](seed=1)
        other = NETWORKS["constants"](seed=2)
        constants = {name: tensor.numpy().copy() for name, tensor in one.constants().items()}
        constants["actor_encoder.scale"] = np.array(0.75, np.float32)
        other.load_constants(constants)
        for name, tensor in other.constants().items():
            np.testing.assert_array_equal(tensor.numpy(), constants[name])
        with pytest.raises(ValueError, match="has the constants"):
            NETWORKS["mlp"]().load_constants(constants)
        saved = constants | {"actor_encoder.projection": np.zeros((4, 4))}
        with pytest.raises(
            FolderError, match=r"network with the same constants: actor_encoder\.projection differs"
        ):
            one.check_constants({"constants": saved}, "run")


class TestAnUnboundCopy:
    @ALL
    def test_has_parameters_of_its_own_and_goes_through_state_dicts_and_files(
        self, name: str
    ) -> None:
        """A network in training is loaded as such a copy."""
        network = NETWORKS[name]()
        other = NETWORKS[name]()
        observations = draw_observations(name, 3)
        copied = deepcopy(network)
        before = outputs_of(copied, observations)
        acted = [
            x for x in network.act_forward(observations, network.initial_state(3)) if x is not None
        ]
        for mine, theirs in zip(before, acted, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)
        for saved in (copied, network):
            file = io.BytesIO()
            torch.save(saved, file)
            file.seek(0)
            assert_same_outputs(
                torch.load(file, weights_only=False).to(torch.float64).float(), copied, observations
            )

        network.vector[:] = 0
        for one, after in zip(before, outputs_of(copied, observations), strict=True):
            np.testing.assert_array_equal(one, after)
        other.vector[:] = 0.5
        assert other.load_state_dict(copied.state_dict(), strict=True).missing_keys == []
        assert other.vector.any() and len(np.unique(other.vector)) > 1
        assert_same_outputs(other, copied, observations)


class TestTies:
    def test_of_actor_and_critic_are_refused(self) -> None:
        layer = nn.Linear(4, 3)

        class Shares(nn.Sequential):
            def __init__(self, inputs: int) -> None:
                super().__init__(layer, nn.Tanh())

        make_network(Shares, VECTORS, shared=True)
        with pytest.raises(ConfigError, match="must not share parameters"):
            make_network(Shares, VECTORS)


class TestKernels:
    @pytest.mark.parametrize("of_torch", [False, True])
    @ALL
    def test_give_the_gradient_of_torchs_graph_step_by_step(
        self, name: str, of_torch: bool
    ) -> None:
        network = NETWORKS[name]()
        observations = draw_observations(name, 4, 3)
        network = by_torch(network) if of_torch else network
        recurrent_input = draw_recurrent_input(network, 4, 3)
        compare_gradients(network, observations, SPACES.get(name, Discrete(2)), recurrent_input)
        state = None if recurrent_input is None else recurrent_input.state
        parameters, values, _ = network.act_forward(observations[0], state)
        assert parameters.dtype == values.dtype == np.float32
        np.testing.assert_allclose(network.values(observations[0], state), values, atol=1e-6)

    @ALL
    def test_a_critic_apart_values_a_whole_rollout_at_its_end(self, name: str) -> None:
        network = NETWORKS[name]()
        observations = draw_observations(name, 4, 3)
        _, values, _ = network.policy_forward(observations[0], network.initial_state(3))
        assert (values is None) == (name in ("mlp", "box", "no layers", "bits", "no biases"))
        if values is None:
            each = [network.act_forward(row)[1] for row in observations]
            np.testing.assert_allclose(network.values(observations), each, atol=1e-6)


class TestSeeds:
    @pytest.mark.parametrize("fails", [False, True])
    def test_building_leaves_torchs_generator_as_it_was(self, fails: bool) -> None:
        class Draws(nn.Module):
            def __init__(self, inputs: int) -> None:
                torch.rand(3)
                raise ValueError("no")

        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(7)
        with pytest.raises(ConfigError) if fails else nullcontext():
            make_network(Draws) if fails else NETWORKS["lstm of images"]()
        torch.testing.assert_close(torch.rand(3), expected, atol=0, rtol=0)
