"""Acting and learning use one network: the same numbers, and the gradient that torch finds."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from nets import make_network
from refusals import refused
from runs import train
from torch import nn
from torch.nn.utils import parametrize, prune

from a3c_exp.common.arrays import Floats
from a3c_exp.config.modules import network_of
from a3c_exp.networks import ActorCritic, Lstm, Mlp
from a3c_exp.networks.distributions import make_distribution, mixed_with_uniform

OBSERVATIONS = Box(-1, 1, (8,))
ACTION_SPACES: list[gym.Space[Any]] = [
    Discrete(4),
    MultiDiscrete([3, 4]),
    MultiBinary(3),
    Box(-2, 2, (3,)),
]


def build(space: gym.Space[Any] = ACTION_SPACES[0], **settings: Any) -> ActorCritic:
    # A large last layer, so that a wrong one shows: by default the first policy is nearly uniform.
    return make_network(
        Mlp, OBSERVATIONS, space, **{"policy_gain": 1.0, "init": "orthogonal", **settings}
    )


def draw_observations(count: int = 7) -> Floats:
    return np.random.default_rng(2).standard_normal((count, 8)).astype(np.float32)


@pytest.mark.parametrize("space", [Discrete(4), MultiDiscrete([2, 2]), MultiBinary(2)], ids=str)
def test_sampling_follows_the_probabilities_it_reports(space: gym.Space[Any]) -> None:
    network = build(space)
    count = 40_000
    parameters, _, _ = network.act_forward(draw_observations(1))
    actions, log_probs = network.distribution.sample(
        np.repeat(parameters, count, 0), np.random.default_rng(3)
    )
    probabilities = np.exp(log_probs)
    for action in np.unique(actions, axis=0):
        rows = (actions == action).reshape(count, -1).all(1)
        expected = probabilities[rows][0]
        assert abs(rows.mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / count)


def test_epsilon_mixes_the_policy_with_a_uniform_one() -> None:
    """The logits of the mixture, for a policy with the probabilities 1/2, 1/4, 1/4, 0."""
    epsilon = 0.1
    logits = np.log([[0.5, 0.25, 0.25, 1e-30], [3.0, 1.5, 1.5, 1e-30]]).astype(np.float32)
    mixed = np.exp(mixed_with_uniform(logits, epsilon))
    expected = (1 - epsilon) * np.array([0.5, 0.25, 0.25, 0]) + epsilon / 4
    np.testing.assert_allclose(mixed, [expected, expected], rtol=1e-6)
    assert mixed.dtype == np.float32


@pytest.mark.parametrize("space", [Discrete(4), MultiDiscrete([3, 4])], ids=str)
def test_a_single_observation_is_acted_on_as_one_of_many(space: gym.Space[Any]) -> None:
    """A single row has code of its own. Its random numbers, action and probability are the same."""
    network = build(space)
    parameters, _, _ = network.act_forward(draw_observations(50))
    for row in parameters:
        actions, log_probs = network.distribution.sample(
            np.stack([row, row]), np.random.default_rng(4)
        )
        single, log_prob = network.distribution.sample(row[None], np.random.default_rng(4))
        # MultiDiscrete draws by choice, then by row: only the first choice agrees
        if isinstance(space, Discrete):
            np.testing.assert_array_equal(single[0], actions[0])
            np.testing.assert_allclose(log_prob[0], log_probs[0], rtol=1e-5)
        else:
            assert single[0, 0] == actions[0, 0]


def test_a_narrow_beta_begins_with_its_deviation() -> None:
    network = build(Box(0, 1, (1,)), distribution="beta", initial_std=0.02, policy_gain=0.01)
    actions, _ = network.distribution.sample(
        np.repeat(network.act_forward(draw_observations(1))[0], 40_000, 0), np.random.default_rng(3)
    )
    np.testing.assert_allclose(
        actions.std(), 0.01, rtol=0.03
    )  # actions are shares of the range, which is 2 half ranges


@pytest.mark.parametrize(
    ("low", "high", "action", "expected"),
    [
        ([0, -10], [4, 10], [0.5, -0.5], [3, -5]),
        ([-2, -2], [2, 2], [5, -5], [2, -2]),
        # Where one bound is missing actions begin beyond the other: at the bound half of them would
        # be clipped.
        ([5, -np.inf], [np.inf, -5], [2, -2], [8, -8]),
        ([5, -np.inf], [np.inf, -5], [-9, 9], [5, -5]),
    ],
)
def test_an_action_is_a_share_of_the_range_and_is_clipped_for_the_environment(
    low: list[float], high: list[float], action: list[float], expected: list[float]
) -> None:
    distribution = make_distribution(Box(np.array(low, np.float32), np.array(high, np.float32)))
    np.testing.assert_allclose(distribution.to_env(np.array([action], np.float32)), [expected])


def test_the_critic_may_have_layers_of_its_own_size() -> None:
    network: Any = build(hidden_sizes=(80,), critic_hidden_sizes=(50, 20), activation="elu")
    assert [type(layer) for layer in network.critic_encoder] == [nn.Linear, nn.ELU] * 2
    assert (network.head.linear.in_features, network.value.in_features) == (80, 20)
    assert (
        network.param_slices["critic"].stop - network.param_slices["critic"].start
        == 9 * 50 + 51 * 20 + 21
    )
    same: dict[str, Any] = {"hidden_sizes": (50,), "critic_hidden_sizes": (50,)}
    refused(
        lambda: build(shared=True, **same, critic_activation="relu"), "critic_activation", "relu"
    )
    refused(lambda: build(critic_hidden_sizes=(0,)), "network.critic_hidden_sizes", (0,))
    of_two = network_of(Mlp, {"hidden_sizes": (8,), "critic_hidden_sizes": (6,)})
    memory = Lstm(encoder=of_two).build(OBSERVATIONS, Discrete(2), np.random.default_rng(0))
    assert any("encoder.critic_" in warning for warning in memory.warnings), (
        "cells take the actor's features"
    )


def test_normal_weights_have_mean_0_and_the_deviation_of_the_setting() -> None:
    """In every layer: the gain of the last one is not used. Biases start at 0."""
    std = 0.01
    network: Any = build(init="normal", init_std=std, policy_gain=9.0, hidden_sizes=(200, 100))
    layers = [
        *list(network.actor_encoder)[::2],
        *list(network.critic_encoder)[::2],
        network.head.linear,
        network.value,
    ]
    assert len(layers) == 6
    for layer in layers:
        weight, count = layer.weight.detach(), layer.weight.numel()
        assert abs(weight.mean().item()) < 5 * std / count**0.5
        assert weight.std().item() == pytest.approx(std, rel=5 / (2 * count) ** 0.5)
        assert weight.abs().max().item() > 1.74 * std, (
            "a uniform distribution ends at 1.73 deviations"
        )
        assert not layer.bias.any()


def test_without_a_scheme_an_encoder_keeps_what_its_constructor_draws() -> None:
    """The heads are orthogonal all the same, and so are all layers by that scheme."""
    encoder: Any = build(hidden_sizes=(64, 64)).actor_encoder
    torch.testing.assert_close(
        encoder[2].weight @ encoder[2].weight.T, 2 * torch.eye(64), atol=1e-4, rtol=0
    )
    one: Any = build(init=None)
    other: Any = make_network(Mlp, OBSERVATIONS, Discrete(4), rng_seed=9, policy_gain=1.0)
    torch.testing.assert_close(
        one.actor_encoder[0].weight, other.actor_encoder[0].weight, atol=0, rtol=0
    )
    assert (one.head.linear.weight != other.head.linear.weight).any()
    weight = one.head.linear.weight.detach()
    torch.testing.assert_close(weight @ weight.T, torch.eye(4), atol=1e-5, rtol=0)


class Reusing(nn.Module):
    """A module with the encoder of another network, which its constructor builds as `a3c_exp.load`
    does."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.before = nn.Linear(inputs, 2)
        self.encoder: Any = make_network(Mlp, OBSERVATIONS, seed=5).encoders[0]
        self.after = nn.Linear(inputs, 2)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.cat(
            [self.before(observations), self.encoder(observations), self.after(observations)], dim=1
        )


def test_a_constructor_may_build_another_network() -> None:
    built: list[ActorCritic] = []
    building = threading.Thread(
        target=lambda: built.append(make_network(Reusing, OBSERVATIONS)), daemon=True
    )
    building.start()
    building.join(120)
    assert built, "it waits for itself"
    encoder: Any = built[0].encoders[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the other network draws under its own seed
        for layer in (encoder.before, encoder.after):
            torch.testing.assert_close(layer.weight, nn.Linear(8, 2).weight, atol=0, rtol=0)


class Unknown(nn.Module):
    """Weights that a scheme cannot draw: computed by a parametrization or by a hook, and a layer of
    another kind."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.tanh = parametrize.register_parametrization(nn.Linear(inputs, 5), "weight", nn.Tanh())
        self.masked = nn.Linear(inputs, 5)
        prune.l1_unstructured(self.masked, "weight", 0.5)  # type: ignore[no-untyped-call]
        self.bilinear = nn.Bilinear(inputs, inputs, 5)
        self.known = nn.Linear(inputs, 5)
        self.norm = nn.LayerNorm(5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(self.tanh(x) + self.masked(x) + self.bilinear(x, x) + self.known(x))


def test_layers_that_a_scheme_does_not_draw_are_named() -> None:
    network: Any = make_network(Unknown, OBSERVATIONS, init="normal", init_std=5.0)
    names = [warning.partition("weights of ")[2] for warning in network.warnings]
    assert names == ["tanh (ParametrizedLinear)", "masked (Linear)", "bilinear (Bilinear)"]
    assert network.actor_encoder.known.weight.std().item() > 2
    assert not make_network(Unknown, OBSERVATIONS).warnings, (
        "without a scheme all keep what is drawn"
    )


@pytest.mark.parametrize(
    ("settings", "space", "idle"),
    [
        ({"init_std": 0.2, "init": "normal"}, Discrete(2), None),
        ({"init_std": 0.2}, Discrete(2), "init_std"),
        ({"policy_gain": 1.0, "init": "normalized_columns"}, Discrete(2), None),
        ({"policy_gain": 1.0, "init": "glorot"}, Discrete(2), "policy_gain"),
        ({"initial_std": 0.5, "state_dependent_std": True}, Box(-1, 1, (2,)), None),
        ({"initial_std": 0.5}, Discrete(2), "initial_std"),
        ({"state_dependent_std": True}, Discrete(2), "state_dependent_std"),
        ({"softplus_std": True, "squash_mean": True, "clip_actions": True}, Box(-1, 1, (2,)), None),
        ({"softplus_std": True, "distribution": "squashed_gaussian"}, Box(-1, 1, (2,)), None),
        ({"softplus_std": True, "distribution": "beta"}, Box(-1, 1, (2,)), "softplus_std"),
        (
            {"squash_mean": True, "distribution": "squashed_gaussian"},
            Box(-1, 1, (2,)),
            "squash_mean",
        ),
    ],
)
def test_a_setting_without_an_effect_is_warned_of(
    settings: dict[str, Any], space: Any, idle: str | None
) -> None:
    warnings = make_network(Mlp, OBSERVATIONS, space, **settings).warnings
    assert len(warnings) == (idle is not None)
    assert idle is None or idle in warnings[0]


@pytest.mark.parametrize("action_values", [False, True])
def test_last_layers_may_have_no_biases(action_values: bool) -> None:
    described = network_of(Mlp, {"hidden_sizes": (5,), "head_bias": False})
    network: Any = described.build(
        OBSERVATIONS, Discrete(2), np.random.default_rng(0), action_values=action_values
    )
    last = [network.online[1]] if action_values else [network.head.linear, network.value]
    assert all(layer.bias is None for layer in last)
    assert network.encoders[0][0].bias is not None


@pytest.mark.parametrize("settings", [{"state_dependent_std": True}, {"distribution": "beta"}])
def test_a_first_deviation_that_is_an_output_needs_biases(settings: dict[str, Any]) -> None:
    refused(
        lambda: build(Box(-1, 1, (2,)), head_bias=False, **settings), "network.head_bias", False
    )


def test_the_log_has_warnings_of_the_network(tmp_path: Path) -> None:
    run = train(tmp_path / "run", network__init_std=0.3)
    assert "init_std" in (run.folder / "train.log").read_text()
