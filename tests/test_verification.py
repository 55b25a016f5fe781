"""Modules that a rollout cannot be reproduced with are refused before training, in one line that
says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from learning import compare_gradients
from nets import VECTORS, make_lstm, make_network, normal
from torch import nn
from user_modules import (
    Constants,
    Faulty,
    FaultyWhole,
    Gru,
    Images,
    Lazy,
    Normed,
    Plain,
    Residual,
    Seen,
    SeenRaw,
    Tied,
)

from a3c_exp.engine.check_network import verify
from a3c_exp.errors import ConfigError
from a3c_exp.networks import ActorCritic, Cnn, DictEncoder, Mlp
from a3c_exp.networks.recurrent import RecurrentInput

IMAGES = Box(0, 255, (8, 9, 3), np.uint8)
BOX = Box(-2, 2, (2,))


def refusal(call: Callable[[], Any], name: str) -> str:
    """The reason for which a network of the class `name` is refused, in one line."""
    with pytest.raises(ConfigError) as raised:
        call()
    text = str(raised.value)
    assert "\n" not in text
    assert text.startswith("network") and name in text
    return raised.value.problem


def verified(
    module: type[nn.Module], space: Box = VECTORS, actions: Any = None, **settings: Any
) -> ActorCritic:
    network = make_network(module, space, Discrete(2) if actions is None else actions, **settings)
    verify(network, space)
    return network


FAULTS = {
    "dropout": "in a second pass",
    "writes": "in a second pass",
    "batch norm": "than in evaluation mode",
    "training": "than in evaluation mode",
    "list": "a tensor of shape (6, 6) that is none of its parameters",
    "tensor": "a tensor of shape (6,) that is none of its parameters",
    "mean": "mixes the rows",
    "sum": "it returned (1,)",
    "no features": "it returned (1, 0)",
    "nothing": "it returned NoneType",
    "one row fewer": "for 3 observations: it returned (2, 6)",
    "NaN": "not finite",
    "float64": "must return float32",
    "float64 parameter": "first.weight must be float32",
    "raises": "RuntimeError: two lines",
}


class TestAnEncoder:
    @pytest.mark.parametrize("fault", FAULTS)
    def test_with_a_fault_is_refused(self, fault: str) -> None:
        assert FAULTS[fault] in refusal(
            lambda: verified(Faulty, fault=fault, shared=True), "Faulty"
        )

    @pytest.mark.parametrize("fault", ["dropout", "sum"])
    def test_of_the_critic_or_before_cells_is_tried_too(self, fault: str) -> None:
        assert FAULTS[fault] in refusal(lambda: verified(Faulty, critic_fault=fault), "Faulty")
        before_cells = refusal(
            lambda: verify(make_lstm(Faulty, encoder={"fault": fault}), VECTORS), "Faulty"
        )
        assert FAULTS[fault] in before_cells

    @pytest.mark.parametrize("module", [Residual, Lazy, Normed, Constants, Tied, Faulty, Mlp])
    def test_without_a_fault_is_accepted_and_left_as_it_was(self, module: type[nn.Module]) -> None:
        network = make_network(module, VECTORS, Discrete(2))
        vector, constants = (
            network.vector.copy(),
            {n: x.clone() for n, x in network.constants().items()},
        )
        modes = [module_inside.training for module_inside in network.modules()]
        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(7)
        verify(network, VECTORS)
        torch.testing.assert_close(torch.rand(3), expected, atol=0, rtol=0)
        np.testing.assert_array_equal(network.vector, vector)
        assert not network.gradient.any()
        assert modes == [module_inside.training for module_inside in network.modules()]
        assert all(torch.equal(x, constants[n]) for n, x in network.constants().items())


class TestTheFormOfObservations:
    """Inputs of a module, by its constructor's arguments: expected values are those of the
    documented form."""

    @pytest.mark.parametrize(
        ("given", "seen", "scale"),
        [
            (Box(-3, 3, (4,)), Box(-3, 3, (4,)), 1),
            (Box(-3, 3, (3, 5)), Box(-3, 3, (3, 5)), 1),
            (Box(0, 255, (3, 5), np.uint8), Box(0, 1, (1, 3, 5)), 255),
            (Box(0, 255, (8, 9, 3), np.uint8), Box(0, 1, (3, 8, 9)), 255),
            (Box(0, 255, (3, 8, 9), np.uint8), Box(0, 1, (3, 8, 9)), 255),
            (Box(-4, 2, (3, 8, 9)), Box(-1, 1, (3, 8, 9)), 4),
            (Box(0, 0.5, (3, 8, 9)), Box(0, 0.5, (3, 8, 9)), 1),
            (Box(0, 7, (2, 2, 2, 2, 2), np.uint8), Box(0, 7, (2, 2, 2, 2, 2)), 1),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("raw", [False, True])
    def test_observation_space_is_that_of_what_it_gets(
        self, given: Box, seen: Box, scale: float, raw: bool
    ) -> None:
        network = verified(SeenRaw if raw else Seen, given, shared=True)
        module: Any = dict(network.named_children())["actor_encoder"]
        is_image = given.shape != seen.shape or len(seen.shape) == 3
        observations = np.stack([given.sample() for _ in range(3)])
        network.act_forward(observations)
        rows = observations
        if given.shape != seen.shape:
            rows = np.moveaxis(rows, -1, 1) if len(given.shape) == 3 else rows[:, None]
        if raw and is_image:
            assert module.space.dtype == given.dtype
            assert module.space.high.max() == max(given.high.max(), -given.low.min())
            np.testing.assert_array_equal(module.last, rows)
            assert module.last.numpy().dtype == given.dtype
        else:
            np.testing.assert_allclose(module.last, rows / np.float32(scale), rtol=1e-6)
            assert module.last.dtype == torch.float32
            assert module.space == seen
        assert module.space.shape == seen.shape == tuple(module.last.shape[1:])

    @pytest.mark.parametrize(
        ("module", "space", "advice"),
        [
            (Mlp, Box(0, 255, (84, 84, 3), np.uint8), "network=cnn "),
            (Mlp, IMAGES, "network=cnn_impala"),
            (Mlp, IMAGES, "env.wrappers=[FlattenObservation]"),
            (Residual, Box(-1, 1, (3, 5)), "env.wrappers=[FlattenObservation]"),
            (DictEncoder, Box(-1, 1, (3,)), "network=mlp"),
            (Cnn, VECTORS, "network=mlp"),
            (Images, Box(-1, 1, (2, 2, 2, 2, 2)), "network=mlp"),
        ],
    )
    def test_a_module_for_others_is_refused_with_advice(
        self, module: type[nn.Module], space: Box, advice: str
    ) -> None:
        problem = refusal(lambda: verified(module, space), module.__name__)
        assert str(space.shape) in problem and advice in problem


def test_a_lazy_layer_that_is_not_used_is_refused() -> None:
    class Unused(Residual):
        def __init__(self, inputs: int) -> None:
            super().__init__(inputs)
            self.other = nn.LazyLinear(3)

    assert "other.weight must be float32, and have a size" in refusal(
        lambda: verified(Unused), "Unused"
    )


def test_a_constructor_that_exits_is_refused() -> None:
    class Silent(Residual):
        def __init__(self, inputs: int) -> None:
            raise SystemExit(7)

    assert "SystemExit: 7" in refusal(lambda: verified(Silent), "Silent")


WHOLE_FAULTS = {
    "parameters": "parameters of shape (3, 2) for 3 observations: it returned (3, 1)",
    "values": "values of shape (3,) for 3 observations: it returned (3, 1)",
    "a list in place of values": "values of shape (3,) for 3 observations: it returned list",
    "state": "a state of shape (3, 5) for 3 observations: it returned (3, 2)",
    "no initial state": "a state needs initial_state(count)",
    "initial state of ones": "must return zeros",
    "one tensor": "TypeError: forward must return",
    "NaN": "not finite",
    "one state for all": "mixes the rows",
}


class TestAWholeActorCritic:
    @pytest.mark.parametrize("fault", WHOLE_FAULTS)
    def test_with_a_fault_is_refused(self, fault: str) -> None:
        assert WHOLE_FAULTS[fault] in refusal(
            lambda: verified(FaultyWhole, fault=fault), "FaultyWhole"
        )

    @pytest.mark.parametrize("space", [Discrete(3), BOX], ids=str)
    def test_without_a_state_has_the_gradient_of_torch(self, space: gym.Space[Any]) -> None:
        network = verified(Plain, VECTORS, space)
        assert not network.recurrent and network.initial_state(3) is None
        assert list(network.param_slices) == ["network"]
        assert network.runtime.description == (
            "kernels: numpy, but torch for the network (WholeActorCritic)"
        )
        compare_gradients(network, normal(3, 2, 4), space)

    def test_is_given_the_spaces_that_its_constructor_asks_for(self) -> None:
        network: Any = verified(Gru, Box(-3, 3, (4,)), BOX)
        assert network.module.action_space == BOX and network.module.policy.out_features == 4
        assert network.state_size == 5

    def test_has_standard_deviations_within_their_range(self) -> None:
        network: Any = verified(Plain, VECTORS, BOX)
        with torch.no_grad():
            network.module.policy.bias[2:] = torch.tensor([90.0, -90.0])
        parameters, _, _ = network.act_forward(normal(1, 4))
        assert network.distribution.moments(parameters)[1].tolist() == [[2.0, -5.0]]

    @pytest.mark.parametrize("space", [Discrete(3), BOX], ids=str)
    def test_with_a_state_has_the_gradient_of_torch(self, space: gym.Space[Any]) -> None:
        network = verified(Gru, VECTORS, space)
        ends = np.random.default_rng(5).random((6, 3)) < 0.3
        compare_gradients(
            network, normal(6, 3, 4), space, RecurrentInput(0.3 * normal(3, 5, seed=6), ends)
        )
