"""Modules that a rollout cannot be reproduced with are refused before training, in one line that says why."""

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
from runs import SCRIPTED
from torch import nn
from user_modules import (
    Constants,
    Faulty,
    FaultyWhole,
    Gru,
    Lazy,
    Normed,
    Pictures,
    Plain,
    Residual,
    Seen,
    SeenRaw,
    Tied,
)

from a3c_exp.core.rollout import Actor
from a3c_exp.core.store import Snapshot
from a3c_exp.envs import Gym
from a3c_exp.errors import ConfigError
from a3c_exp.networks import ActorCritic, Cnn, Mlp
from a3c_exp.networks.recurrent import RecurrentInput
from a3c_exp.networks.verification import verify

PICTURES = Box(0, 255, (8, 9, 3), np.uint8)
BOX = Box(-2, 2, (2,))


def refusal(call: Callable[[], Any], name: str) -> str:
    """The reason for which a network of the class `name` is refused, in one line."""
    with pytest.raises(ConfigError) as raised:
        call()
    text = str(raised.value)
    assert "\n" not in text
    assert text.startswith("network") and name in text
    return raised.value.problem


def verified(module: type[nn.Module], space: Box = VECTORS, actions: Any = None, **settings: Any) -> ActorCritic:
    network = make_network(module, space, Discrete(2) if actions is None else actions, **settings)
    verify(network, space)
    return network


RANDOM = "returns other numbers in a second pass (dropout or noise do)"
FAULTS = {
    "dropout": RANDOM,
    "noise": RANDOM,
    "batch norm": "returns other numbers in training than in evaluation mode (dropout or batch normalization do)",
    "training": "returns other numbers in training than in evaluation mode",
    "list": "learns a tensor of shape (6, 6) that is none of its parameters: modules belong into attributes",
    "tensor": "learns a tensor of shape (6,) that is none of its parameters",
    "mean": "mixes the rows of a batch",
    "neighbour": "mixes the rows of a batch",
    "sum": "must return features [N, F]: for 1 observation it returned (1,)",
    "flat": "must return features [N, F]: for 1 observation it returned (6,)",
    "no features": "must return features [N, F]: for 1 observation it returned (1, 0)",
    "nothing": "must return features [N, F]: for 1 observation it returned NoneType",
    "one row fewer": "must return features of shape (3, 6) for 3 observations: it returned (2, 6)",
    "NaN": "returns numbers that are not finite for ordinary observations",
    "infinity": "returns numbers that are not finite for ordinary observations",
    "float64": "must return float32, not torch.float64",
    "float64 parameter": "its parameter first.weight must be float32",
    "writes": RANDOM,
    "raises": "its forward failed for observations (1, 4): RuntimeError: two lines",
}


class TestAnEncoder:
    @pytest.mark.parametrize("fault", FAULTS)
    def test_with_a_fault_is_refused_of_the_actor_of_the_critic_and_before_cells(self, fault: str) -> None:
        calls = (
            lambda: verified(Faulty, fault=fault, shared=True),
            lambda: verified(Faulty, critic_fault=fault),
            lambda: verify(make_lstm(Faulty, encoder={"fault": fault}), VECTORS),
        )
        for call in calls:
            assert refusal(call, "Faulty").startswith(FAULTS[fault])

    @pytest.mark.parametrize("module", [Residual, Lazy, Normed, Constants, Tied, Faulty, Seen, Mlp])
    @pytest.mark.parametrize("shared", [True, False])
    def test_without_a_fault_is_accepted_and_left_as_it_was(self, module: type[nn.Module], shared: bool) -> None:
        network = make_network(module, VECTORS, Discrete(2), shared=shared)
        vector, constants = network.vector.copy(), {n: x.clone() for n, x in network.constants().items()}
        modes = [each.training for each in network.modules()]
        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(7)
        verify(network, VECTORS)
        torch.testing.assert_close(torch.rand(3), expected, atol=0, rtol=0)
        np.testing.assert_array_equal(network.vector, vector)
        assert not network.gradient.any()
        assert modes == [each.training for each in network.modules()]
        assert all(torch.equal(x, constants[n]) for n, x in network.constants().items())

    @pytest.mark.parametrize("module", [Residual, Lazy, Normed, Constants, Tied])
    def test_of_a_user_has_the_gradient_of_torch(self, module: type[nn.Module]) -> None:
        for space, kernels in ((BOX, "auto"), (Discrete(2), "torch")):
            network = verified(module, actions=space, policy_gain=1.0, kernels=kernels)
            compare_gradients(network, normal(3, 2, 4), space)

    def test_with_layers_that_are_lazy_is_like_one_without(self) -> None:
        network = verified(Lazy, Box(-1, 1, (2, 3)), width=4, shared=True)
        assert len(network.vector) == (6 * 4 + 4) + (4 * 3 + 3) + (3 * 2 + 2) + (3 + 1)


class TestTheFormOfObservations:
    """Inputs of a module, by its constructor's arguments: expected values are those of the documented form."""

    @pytest.mark.parametrize(
        ("given", "seen", "scale"),
        [
            (Box(-3, 3, (4,)), Box(-3, 3, (4,)), 1),
            (Box(-np.inf, np.inf, (4,)), Box(-np.inf, np.inf, (4,)), 1),
            (Box(-3, 3, (3, 5)), Box(-3, 3, (3, 5)), 1),
            (Box(0, 255, (3, 5), np.uint8), Box(0, 1, (1, 3, 5)), 255),
            (Box(0, 255, (8, 9, 3), np.uint8), Box(0, 1, (3, 8, 9)), 255),
            (Box(0, 255, (3, 8, 9), np.uint8), Box(0, 1, (3, 8, 9)), 255),
            (Box(0, 1, (3, 8, 9), np.uint8), Box(0, 1, (3, 8, 9)), 1),
            (Box(-4, 2, (3, 8, 9)), Box(-1, 1, (3, 8, 9)), 4),
            (Box(0, 0.5, (3, 8, 9)), Box(0, 0.5, (3, 8, 9)), 1),
            (Box(0, 7, (2, 2, 2, 2, 2), np.uint8), Box(0, 7, (2, 2, 2, 2, 2)), 1),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("raw", [False, True])
    def test_observation_space_is_that_of_what_it_gets(self, given: Box, seen: Box, scale: float, raw: bool) -> None:
        network = verified(SeenRaw if raw else Seen, given, shared=True)
        module: Any = dict(network.named_children())["actor_encoder"]
        is_picture = given.shape != seen.shape or len(seen.shape) == 3
        observations = np.stack([given.sample() for _ in range(3)])
        network.act_forward(observations)
        rows = observations
        if given.shape != seen.shape:
            rows = np.moveaxis(rows, -1, 1) if len(given.shape) == 3 else rows[:, None]
        if raw and is_picture:
            assert module.space.dtype == given.dtype
            assert module.space.high.max() == max(given.high.max(), -given.low.min())
            np.testing.assert_array_equal(module.last, rows)
            assert module.last.numpy().dtype == given.dtype
        else:
            np.testing.assert_allclose(module.last, rows / np.float32(scale), rtol=1e-6)
            assert module.last.dtype == torch.float32
            assert module.space == seen
        assert module.space.shape == seen.shape == tuple(module.last.shape[1:])

    def test_a_form_for_pictures_gives_channels_first_and_numbers_up_to_1(self) -> None:
        network = verified(Pictures, PICTURES, shared=True)
        module: Any = dict(network.named_children())["actor_encoder"]
        assert module[0].weight.shape == (4, 3, 3, 3) and module[3].in_features == 4 * 6 * 7
        pictures = np.stack([PICTURES.sample() for _ in range(2)])
        expected = module(torch.from_numpy(np.moveaxis(pictures, -1, 1) / np.float32(255)))
        features = network.evaluate(pictures[None], np.zeros((1, 2), np.int64))[0].features
        np.testing.assert_allclose(features[0], expected.detach(), atol=1e-5)  # type: ignore[index]

    @pytest.mark.parametrize(
        ("module", "space", "takes", "advice"),
        [
            (Residual, PICTURES, "takes vectors", "For pictures network=cnn"),
            (Mlp, PICTURES, "takes vectors", "For pictures network=cnn"),
            (Residual, Box(-1, 1, (3, 5)), "takes vectors", "for other arrays env.wrappers=[FlattenObservation]"),
            (Pictures, VECTORS, "takes pictures", "For vectors network=mlp"),
            (Cnn, VECTORS, "takes pictures", "For vectors network=mlp"),
            (Pictures, Box(-1, 1, (2, 2, 2, 2, 2)), "takes pictures", "For vectors network=mlp"),
        ],
    )
    def test_a_module_for_others_is_refused_with_advice(
        self, module: type[nn.Module], space: Box, takes: str, advice: str
    ) -> None:
        problem = refusal(lambda: verified(module, space), module.__name__)
        assert f"observations of shape {space.shape}: {module.__name__} {takes}" in problem
        assert advice in problem


class TestMistakesOfNewcomers:
    """Each ends in one line that names the class."""

    def test_a_lazy_layer_that_is_not_used(self) -> None:
        class Unused(Residual):
            def __init__(self, inputs: int) -> None:
                super().__init__(inputs)
                self.other = nn.LazyLinear(3)

        problem = refusal(lambda: verified(Unused), "Unused")
        assert problem.startswith("its parameter other.weight must be float32, and have a size")

    @pytest.mark.parametrize(("error", "text"), [(ValueError(), "ValueError"), (SystemExit(7), "SystemExit: 7")])
    def test_a_constructor_that_says_nothing(self, error: BaseException, text: str) -> None:
        class Silent(Residual):
            def __init__(self, inputs: int) -> None:
                raise error

        assert refusal(lambda: verified(Silent), "Silent") == f"it cannot be made with {{}}: {text}"


WHOLE_FAULTS = {
    "parameters": "must return parameters of shape (3, 2) for 3 observations: it returned (3, 1)",
    "values": "must return values of shape (3,) for 3 observations: it returned (3, 1)",
    "a list in place of values": "must return values of shape (3,) for 3 observations: it returned list",
    "state": "must return a state of shape (3, 5) for 3 observations: it returned (3, 2)",
    "no initial state": "returned a state: a state needs initial_state(count)",
    "initial state of ones": "its initial_state(count) must return zeros, float32 [count, S]",
    "flat initial state": "its initial_state(count) must return zeros, float32 [count, S]",
    "one tensor": "its forward failed for observations (1, 4): TypeError: forward must return",
    "NaN": "returns numbers that are not finite for ordinary observations",
    "one state for all": "mixes the rows of a batch",
}


class TestAWholeActorCritic:
    @pytest.mark.parametrize("fault", WHOLE_FAULTS)
    def test_with_a_fault_is_refused(self, fault: str) -> None:
        problem = refusal(lambda: verified(FaultyWhole, fault=fault), "FaultyWhole")
        assert problem.startswith(WHOLE_FAULTS[fault])

    @pytest.mark.parametrize("space", [Discrete(3), BOX], ids=str)
    def test_without_a_state_has_the_gradient_of_torch(self, space: gym.Space[Any]) -> None:
        network = verified(Plain, VECTORS, space)
        assert not network.recurrent and network.initial_state(3) is None
        assert list(network.param_slices) == ["network"]
        assert network.runtime.description == "torch computes the network"
        compare_gradients(network, normal(3, 2, 4), space)

    def test_is_given_the_spaces_that_its_constructor_asks_for(self) -> None:
        network: Any = verified(Gru, Box(-3, 3, (4,)), BOX)
        assert network.module.action_space == BOX and network.module.policy.out_features == 4
        assert network.state_size == 5

    def test_has_standard_deviations_within_their_range(self) -> None:
        network: Any = verified(Plain, VECTORS, BOX)
        with torch.no_grad():
            network.module.policy.bias[2:] = torch.tensor([90.0, -90.0])
        assert network.act_forward(normal(1, 4))[0][0, 2:].tolist() == [2.0, -5.0]

    @pytest.mark.parametrize("space", [Discrete(3), BOX], ids=str)
    def test_with_a_state_has_the_gradient_of_torch(self, space: gym.Space[Any]) -> None:
        network = verified(Gru, VECTORS, space)
        ends = np.random.default_rng(5).random((6, 3)) < 0.3
        compare_gradients(network, normal(6, 3, 4), space, RecurrentInput(0.3 * normal(3, 5, seed=6), ends))

    def test_learns_from_rollouts_as_it_acted_in_them(self) -> None:
        network = verified(Gru, Box(-np.inf, np.inf, (4,)))
        env = Gym(id=SCRIPTED, kwargs={"lengths": (3, 9, 4)}).make(3, [0, 1, 2])
        actor = Actor(env, network, np.random.default_rng(0), rollout_length=7, gamma=0.9)
        for _ in range(4):
            rollout = actor.collect(Snapshot(version=0, steps=0, normalizer=None))
            outputs, _ = network.evaluate(rollout.observations, rollout.actions, rollout.recurrent_input)
            np.testing.assert_allclose(outputs.values, rollout.values, atol=1e-5)
            np.testing.assert_allclose(outputs.log_probs, rollout.log_probs, atol=1e-5)
