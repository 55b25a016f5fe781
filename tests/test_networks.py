"""Acting and learning use one network: the same numbers, and the gradient that torch finds."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from learning import compare_gradients, evaluated_by_torch
from nets import make_network
from torch import nn

from a3c_exp.common.arrays import Floats
from a3c_exp.errors import ConfigError
from a3c_exp.networks import ActorCritic, Mlp
from a3c_exp.networks.distributions import make_distribution, mixed_with_uniform
from a3c_exp.networks.heads import make_head
from a3c_exp.networks.mlp import ACTIVATIONS

OBSERVATIONS = Box(-1, 1, (8,))
ACTION_SPACES: list[gym.Space[Any]] = [Discrete(4), MultiDiscrete([3, 4]), MultiBinary(3), Box(-2, 2, (3,))]


def build(space: gym.Space[Any] = ACTION_SPACES[0], **settings: Any) -> ActorCritic:
    # A large last layer, so that a wrong one shows: by default the first policy is nearly uniform.
    return make_network(Mlp, OBSERVATIONS, space, **{"policy_gain": 1.0, "init": "orthogonal", **settings})


def draw_observations(count: int = 7) -> Floats:
    return np.random.default_rng(2).standard_normal((count, 8)).astype(np.float32)


@pytest.mark.parametrize("space", ACTION_SPACES, ids=str)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "settings",
    [{}, {"state_dependent_std": True}, {"hidden_sizes": ()}, {"hidden_sizes": (5,)}],
    ids=str,
)
def test_acting_and_learning_agree_and_the_gradient_is_that_of_torch(
    space: gym.Space[Any], shared: bool, settings: dict[str, Any]
) -> None:
    network = build(space, shared=shared, **settings)
    observations = draw_observations(12).reshape(4, 3, 8)
    compare_gradients(network, observations, space)
    parameters, values, _ = network.act_forward(observations[0])
    actions, log_probs = network.distribution.sample(parameters, np.random.default_rng(3))
    again, _ = network.evaluate(observations[:1], actions[None])
    np.testing.assert_allclose(again.values[0], values, atol=1e-6)
    np.testing.assert_allclose(network.values(observations[0]), values, atol=1e-6)
    np.testing.assert_allclose(again.log_probs[0], log_probs, atol=3e-6)


@pytest.mark.parametrize("space", [Discrete(4), MultiDiscrete([2, 2]), MultiBinary(2)], ids=str)
def test_sampling_follows_the_probabilities_it_reports(space: gym.Space[Any]) -> None:
    network = build(space)
    count = 40_000
    parameters, _, _ = network.act_forward(draw_observations(1))
    actions, log_probs = network.distribution.sample(np.repeat(parameters, count, 0), np.random.default_rng(3))
    probabilities = np.exp(log_probs)
    for action in np.unique(actions, axis=0):
        rows = (actions == action).reshape(count, -1).all(1)
        expected = probabilities[rows][0]
        assert abs(rows.mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / count)


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_epsilon_mixes_the_policy_with_a_uniform_one(epsilon: float) -> None:
    """The logits of the mixture, for a policy with the probabilities 1/2, 1/4, 1/4, 0."""
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
        actions, log_probs = network.distribution.sample(np.stack([row, row]), np.random.default_rng(4))
        single, log_prob = network.distribution.sample(row[None], np.random.default_rng(4))
        if isinstance(space, Discrete):  # MultiDiscrete draws by choice, then by row: only the first choice agrees
            np.testing.assert_array_equal(single[0], actions[0])
            np.testing.assert_allclose(log_prob[0], log_probs[0], rtol=1e-5)
        else:
            assert single[0, 0] == actions[0, 0]


def test_gaussian_samples_have_the_mean_and_deviation_of_the_parameters() -> None:
    network = build(Box(-2, 2, (3,)), initial_std=0.5)
    parameters, _, _ = network.act_forward(draw_observations(1))
    actions, _ = network.distribution.sample(np.repeat(parameters, 40_000, 0), np.random.default_rng(3))
    np.testing.assert_allclose(actions.mean(0), parameters[0, :3], atol=0.02)
    np.testing.assert_allclose(actions.std(0), 0.5, atol=0.02)


def test_one_standard_deviation_means_the_same_share_of_every_bounded_range() -> None:
    distribution = make_distribution(Box(np.array([0, -10], np.float32), np.array([4, 10], np.float32)))
    np.testing.assert_allclose(distribution.to_env(np.array([[0, 0], [0.5, -0.5]], np.float32)), [[2, 0], [3, -5]])


def test_actions_beyond_the_range_are_clipped_for_the_environment_only() -> None:
    distribution = make_distribution(Box(-2, 2, (1,)))
    np.testing.assert_allclose(distribution.to_env(np.array([[5.0], [-5.0]], np.float32)), [[2], [-2]])


def test_where_one_bound_is_missing_actions_begin_beyond_the_other() -> None:
    """At the bound half of them would be clipped."""
    low, high = np.array([5, -np.inf], np.float32), np.array([np.inf, -5], np.float32)
    distribution = make_distribution(Box(low, high))
    np.testing.assert_allclose(
        distribution.to_env(np.array([[0, 0], [2, -2], [-9, 9]], np.float32)), [[6, -6], [8, -8], [5, -5]]
    )


@pytest.mark.parametrize("state_dependent", [False, True])
@pytest.mark.parametrize("log_std", [-9.0, 4.0])
def test_a_deviation_beyond_its_range_can_come_back_and_goes_no_further(log_std: float, state_dependent: bool) -> None:
    """An action far out is more likely with a larger deviation, one at the mean with a smaller. A parameter follows the
    sum of all rows, an output of the network its own row."""
    distribution = make_distribution(Box(-1, 1, (1,)))
    head: Any = make_head(5, distribution, state_dependent, 1.0)
    where = head.linear.bias if state_dependent else head.log_std
    with torch.no_grad():
        head.linear.weight.zero_()
        head.linear.bias.zero_()
        where[-1] = log_std

    kernel, features = head.kernel(), np.zeros((2, 5), np.float32)
    acted, by_torch = kernel.act_forward(features), head(torch.from_numpy(features))
    np.testing.assert_array_equal(acted, by_torch.detach().numpy())
    assert acted[:, -1].tolist() == [-5.0 if log_std < 0 else 2.0] * 2

    def step(*actions: float) -> float:
        """The change of the last parameter: by arrays, which agree with torch."""
        count = len(actions)
        features, taken = np.zeros((count, 5), np.float32), np.array(actions, np.float32)[:, None]
        where.grad.zero_()
        parameters, backward = kernel.train_forward(features)
        _, _, grad_parameters = distribution.evaluate(parameters, taken)
        backward(grad_parameters(np.full(count, -1 / count, np.float32), np.zeros(count, np.float32)))
        found = -float(where.grad[-1])

        where.grad.zero_()
        log_probs, _ = evaluated_by_torch(Box(-1, 1, (1,)), head(torch.from_numpy(features)), torch.from_numpy(taken))
        torch.autograd.backward(-log_probs.mean())
        assert found == pytest.approx(-float(where.grad[-1]), rel=1e-4)
        return found

    far, near = (3.0, 0.0) if log_std < 0 else (99.0, 0.0)  # in deviations of the range's end: out of and within it
    back, further = (far, near) if log_std < 0 else (near, far)
    assert step(back) * log_std < 0
    assert step(further) == 0
    if not state_dependent:
        mixed = [near] * 9 + [far]
        assert step(*mixed) * log_std < 0 if log_std < 0 else step(*mixed) == 0, "the far one outweighs the rest"


@pytest.mark.parametrize("space", ACTION_SPACES, ids=str)
def test_the_mode_is_the_most_likely_action(space: gym.Space[Any]) -> None:
    network = build(space)
    observations = draw_observations()
    parameters, _, _ = network.act_forward(observations)
    best, _, _ = network.distribution.evaluate(parameters, network.distribution.mode(parameters))
    for seed in range(20):
        sampled, _ = network.distribution.sample(parameters, np.random.default_rng(seed))
        other, _, _ = network.distribution.evaluate(parameters, sampled)
        assert (other <= best + 1e-6).all()


def test_the_critic_may_have_layers_of_its_own_size() -> None:
    network: Any = build(hidden_sizes=(80,), critic_hidden_sizes=(50, 20))
    assert (network.head.linear.in_features, network.value.in_features) == (80, 20)
    assert network.param_slices["critic"].stop - network.param_slices["critic"].start == 9 * 50 + 51 * 20 + 21
    with pytest.raises(ConfigError, match=r"critic_hidden_sizes = .*: must be null where shared=true"):
        build(shared=True, critic_hidden_sizes=(50,))


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_every_affine_layer_is_followed_by_the_activation_of_the_setting(activation: Any) -> None:
    layers = list(Mlp(3, (5, 4), activation))
    assert [type(layer) for layer in layers] == [nn.Linear, ACTIVATIONS[activation]] * 2
    assert [layer.weight.shape for layer in layers[::2]] == [(5, 3), (4, 5)]


def test_normal_weights_have_mean_0_and_the_deviation_of_the_setting() -> None:
    """In every layer: the gain of the last one is not used. Biases start at 0."""
    std = 0.01
    network: Any = build(init="normal", init_std=std, policy_gain=9.0, hidden_sizes=(200, 100))
    layers = [*list(network.actor_encoder)[::2], *list(network.critic_encoder)[::2], network.head.linear, network.value]
    assert len(layers) == 6
    for layer in layers:
        weight, count = layer.weight.detach(), layer.weight.numel()
        assert abs(weight.mean().item()) < 5 * std / count**0.5
        assert weight.std().item() == pytest.approx(std, rel=5 / (2 * count) ** 0.5)
        assert weight.abs().max().item() > 1.7 * std, "a uniform distribution ends at 1.73 deviations"
        assert not layer.bias.any()
    drawn = torch.cat([layer.weight.detach().ravel() for layer in layers]) / std
    assert (drawn.abs() > 2).float().mean().item() == pytest.approx(0.0455, abs=0.005)


def test_without_a_scheme_an_encoder_keeps_what_its_constructor_draws() -> None:
    """The heads are orthogonal all the same, and so are all layers by that scheme."""
    encoder: Any = build(hidden_sizes=(64, 64)).actor_encoder
    torch.testing.assert_close(encoder[2].weight @ encoder[2].weight.T, 2 * torch.eye(64), atol=1e-4, rtol=0)
    one: Any = build(init=None)
    other: Any = make_network(Mlp, OBSERVATIONS, Discrete(4), rng_seed=9, policy_gain=1.0)
    torch.testing.assert_close(one.actor_encoder[0].weight, other.actor_encoder[0].weight, atol=0, rtol=0)
    assert (one.head.linear.weight != other.head.linear.weight).any()
    weight = one.head.linear.weight.detach()
    torch.testing.assert_close(weight @ weight.T, torch.eye(4), atol=1e-5, rtol=0)


def test_an_action_space_without_a_distribution_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be Discrete"):
        make_network(Mlp, OBSERVATIONS, gym.spaces.Tuple([Discrete(2)]))


@pytest.mark.parametrize(
    "settings", [{"hidden_sizes": (0,)}, {"initial_std": 0.0}, {"policy_gain": -1.0}, {"init_std": 0.0}]
)
def test_values_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        make_network(Mlp, OBSERVATIONS, **settings)
