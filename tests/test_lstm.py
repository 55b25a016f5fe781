"""Recurrent networks: the cells, and that a rollout is learned from as it was acted in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from nets import make_lstm, normal
from refusals import refused
from runs import SCRIPTED
from torch import Tensor

from a3c_exp.common.arrays import Array
from a3c_exp.core.acting import ActingPolicy
from a3c_exp.core.rollout import Actor
from a3c_exp.core.store import Snapshot
from a3c_exp.engine.lstm import LstmKernel
from a3c_exp.envs import Gym
from a3c_exp.networks import ActorCritic, Mlp
from a3c_exp.networks.composed import EncoderActorCritic
from a3c_exp.networks.initialization import Initializer
from a3c_exp.networks.recurrent import LstmCore, RecurrentInput

SPACE = Box(-1, 1, (4,))
T = 9
B = 5
F = 3
C = 6
CRITIC_ALONE: dict[str, Any] = {"hidden_size": 0, "critic_hidden_size": 6}
START = Snapshot(version=0, steps=0, normalizer=None)


def build(**settings: Any) -> EncoderActorCritic:
    # A large last layer, so that a wrong one shows: by default the first policy is nearly uniform.
    encoder = {"hidden_sizes": (5,), "init": "orthogonal"}
    defaults: dict[str, Any] = {"hidden_size": 8, "policy_gain": 1.0, "encoder": encoder}
    network = make_lstm(Mlp, SPACE, **defaults | settings)
    assert isinstance(network, EncoderActorCritic)
    return network


def core() -> LstmCore:
    cells = LstmCore(F, C, None, 1.0)
    cells.initialize(Initializer("orthogonal", 0.1, torch.Generator().manual_seed(3)))
    return cells


def as_torch(matrix: Tensor) -> Tensor:
    """Columns o, i, f, g -> rows i, f, g, o."""
    o, i, f, g = torch.split(matrix.detach().T, C)
    return torch.cat([i, f, g, o])


class TestTheCells:
    def test_they_are_those_of_torch(self) -> None:
        cells = core()
        theirs = torch.nn.LSTM(F, C)
        with torch.no_grad():
            their_parameters = dict(theirs.named_parameters())
            their_parameters["weight_ih_l0"].copy_(as_torch(cells.inputs))
            their_parameters["weight_hh_l0"].copy_(as_torch(cells.recurrent))
            their_parameters["bias_ih_l0"].copy_(as_torch(cells.bias[None])[:, 0])
            their_parameters["bias_hh_l0"].zero_()
        observations = normal(T, B, F)
        state = normal(B, 2 * C)
        expected, (h, c) = theirs(
            torch.from_numpy(observations),
            (torch.from_numpy(state[None, :, :C]), torch.from_numpy(state[None, :, C:])),
        )
        last = np.concatenate([h[0].detach(), c[0].detach()], 1)
        kernel = LstmKernel(cells)
        unrolled, _ = kernel.train_forward(
            observations, RecurrentInput(state, np.zeros((T, B), np.bool_))
        )
        np.testing.assert_allclose(unrolled, expected.detach(), atol=1e-6, rtol=1e-5)

        acted = state
        by_torch = torch.from_numpy(state)
        for t, row in enumerate(observations):
            hidden, acted = kernel.act_forward(row, acted)
            hidden_by_torch, by_torch = cells(torch.from_numpy(row), by_torch)
            np.testing.assert_allclose(hidden, expected[t].detach(), atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(hidden_by_torch, expected[t], atol=1e-6, rtol=1e-5)
        np.testing.assert_allclose(acted, last, atol=1e-6)
        np.testing.assert_allclose(by_torch.detach(), last, atol=1e-6)

    def test_forget_gates_start_open_and_each_gate_is_drawn_by_itself(self) -> None:
        cells = core()
        bias = cells.bias.detach().reshape(4, C)
        assert (bias[2] == 1).all() and not bias[[0, 1, 3]].any()
        for gate in torch.split(cells.recurrent.detach(), C, dim=1):
            torch.testing.assert_close(gate @ gate.T, torch.eye(C), atol=1e-5, rtol=0)


def make_actor(
    count: int, vectorized: bool, settings: dict[str, Any], **kwargs: Any
) -> tuple[ActorCritic, Actor]:
    """A network, and an actor with it in scripted environments. settings: of the network."""
    network = build(**settings)
    game = Gym(id=SCRIPTED, kwargs=kwargs, vectorized=vectorized)
    env = game.make(count, list(range(count)))
    policy = ActingPolicy(network, np.random.default_rng(0))
    return network, Actor(env, policy, game, rollout_length=7, gamma=0.9)


class TestTheNextValueOfARow:
    """Scripted episodes, identified by their observations, and valued again one by one from their
    first step on."""

    @pytest.mark.parametrize(
        "settings", [{}, {"shared": False}, {"shared": False} | CRITIC_ALONE], ids=str
    )
    @pytest.mark.parametrize("ends", [("terminated",), ("truncated", "both")], ids=str)
    @pytest.mark.parametrize(("count", "vectorized"), [(1, False), (3, False), (2, True)])
    def test_is_that_of_the_state_that_the_episode_has_reached(
        self, count: int, vectorized: bool, ends: Any, settings: dict[str, Any]
    ) -> None:
        """A vector environment restarts late: the row after an end is no transition."""
        network, actor = make_actor(count, vectorized, settings, lengths=(3, 5, 4), ends=ends)
        rollouts = [actor.collect(START) for _ in range(5)]
        assert vectorized != all(rollout.valid.all() for rollout in rollouts)
        for rollout in rollouts:
            again, _ = network.runtime.evaluate(
                rollout.observations, rollout.actions, rollout.recurrent_input
            )
            np.testing.assert_allclose(
                again.values[rollout.valid], rollout.values[rollout.valid], atol=1e-5
            )
        for env in range(count):
            episode: list[Array] = []
            for rollout in rollouts:
                for t in np.flatnonzero(rollout.valid[:, env]):
                    observation = rollout.observations[t, env]
                    action = rollout.actions[t, env]
                    episode.append(observation)
                    following = np.array(
                        [observation[0], observation[1], observation[2] + 1, action], np.float32
                    )
                    terminated = rollout.terminated[t, env]
                    expected = 0.0 if terminated else last_value(network, [*episode, following])
                    assert rollout.next_values[t, env] == pytest.approx(expected, abs=1e-5)
                    if terminated or rollout.truncated[t, env]:
                        episode = []


def last_value(network: ActorCritic, observations: list[Array]) -> float:
    """V of the last of an episode's observations, given to the network one after the other from the
    first on."""
    state = network.initial_state(1)
    for observation in observations:
        _, values, state = network.act_forward(observation[None], state)
    return float(values[0])


class TestTheComponent:
    def test_warns_of_settings_for_heads_that_its_encoder_has_not(self) -> None:
        encoder = {"policy_gain": 5.0, "initial_std": 0.5, "init": "normal", "init_std": 0.5}
        assert [warning.split()[1] for warning in build(encoder=encoder).warnings] == [
            "encoder.policy_gain=5.0",
            "encoder.initial_std=0.5",
        ]

    def test_the_critic_may_have_cells_of_its_own(self) -> None:
        encoder = {"hidden_sizes": (5,), "critic_hidden_sizes": (7,)}
        network = build(encoder=encoder, shared=False, **CRITIC_ALONE)
        assert network.core is None and network.critic_core is not None
        assert (network.critic_core.inputs.shape, network.state_size) == ((7, 24), 12)
        assert (network.head.linear.in_features, network.value.in_features) == (5, 6)
        refused(lambda: build(critic_hidden_size=6), "critic_hidden_size", 6)
        assert not network.warnings
        assert any("encoder.critic_*" in warning for warning in build(encoder=encoder).warnings)

    def test_the_cells_may_have_another_scheme_than_the_last_layers(self) -> None:
        """Torch's own has the bound 1 / sqrt(cells) for both matrices."""
        encoder = {"hidden_sizes": (64,), "init": "normal", "init_std": 0.5}
        schemes: dict[str, Any] = {
            "init": "normalized_columns",
            "core_init": "default",
            "policy_gain": 0.01,
        }
        network: Any = build(encoder=encoder, hidden_size=64, **schemes)
        assert network.actor_encoder[0].weight.std().item() == pytest.approx(0.5, rel=0.25)
        for matrix in (network.core.inputs, network.core.recurrent):
            assert 0.95 / 8 < matrix.abs().max().item() <= 1 / 8
            assert matrix.std().item() == pytest.approx(1 / 8 / 3**0.5, rel=0.05)
        torch.testing.assert_close(
            network.head.linear.weight.detach().norm(dim=1), torch.full((2,), 0.01)
        )
        torch.testing.assert_close(network.value.weight.detach().norm(), torch.tensor(1.0))
        np.testing.assert_array_equal(
            build(init="glorot", core_init="glorot").vector, build(init="glorot").vector
        )
