"""The algorithms of the sources: their arithmetic against torch and against numbers by hand, and their command."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent))  # study is not installed: it belongs to the checkout

from study.records import read_rows
from study.sources import __main__ as command
from study.sources import a3c, dppo_cartpole, dppo_pendulum, records
from study.sources.dppo_pendulum import Agent, Peculiarities, Shared, Statistics, advantages
from study.sources.tensorflow1 import Adam, Array, Network

RNG = np.random.default_rng(0)


def twin(network: Network, hidden: int, outputs: int, activation: type[nn.Module]) -> nn.Sequential:
    """The same network of one hidden layer in torch."""
    inputs = (network.values.size - outputs - hidden * (outputs + 1)) // hidden
    layers = nn.Sequential(nn.Linear(inputs, hidden), activation(), nn.Linear(hidden, outputs)).double()
    sizes = [inputs * hidden, hidden, hidden * outputs, outputs]
    parts = np.split(network.values, np.cumsum(sizes)[:-1])
    linear: list[Any] = [layers[0], layers[2]]
    for layer, weights, biases in zip(linear, parts[::2], parts[1::2], strict=True):
        layer.weight.data = torch.tensor(weights).double().reshape(layer.in_features, -1).T.contiguous()
        layer.bias.data = torch.tensor(biases).double()
    return layers


def flat_gradient(layers: nn.Sequential) -> Array:
    linear: list[Any] = [layers[0], layers[2]]
    parts = [part.ravel() for layer in linear for part in (layer.weight.grad.T.numpy(), layer.bias.grad.numpy())]
    return np.concatenate(parts)


@pytest.mark.parametrize(
    ("last_value", "targets"), [(None, [10, 17, 24, 11, 4]), (10.0, [10, 17, 24, 51, 24])], ids=["zero", "maximum"]
)
def test_n_step_targets_are_those_of_the_authors_example(last_value: float | None, targets: list[float]) -> None:
    """Its "2 steps" are 2 rewards and then V, which the function of the notebooks calls 3."""
    values = np.arange(5, dtype=np.float32)
    assert a3c.n_step_targets([0, 1, 2, 3, 4], values, 3, 2.0, last_value).tolist() == targets


def test_adam_shares_the_powers_of_its_betas_between_networks_but_no_statistics() -> None:
    first, second = (Network((1, 1), RNG) for _ in range(2))
    before, adam = second.values.copy(), Adam(0.1, 0.9, 0.999)
    gradient = np.array([1e-3, -2.0], np.float32)
    adam.apply((first, gradient))
    adam.apply((second, gradient))
    rate = 0.1 * (1 - 0.999**2) ** 0.5 / (1 - 0.9**2)  # its second step
    step = rate * 0.1 * gradient / ((0.001 * gradient**2) ** 0.5 + 1e-8)  # on statistics of one gradient
    np.testing.assert_allclose(before - second.values, step, rtol=1e-4)


def test_actor_of_a3c_has_the_gradient_of_its_loss() -> None:
    """With 1e-5 inside the logarithms, through which the gradient goes."""
    network = Network((4, 8, 2), RNG, ceiling=6)
    network.values *= 20  # beyond 6 in places, and probabilities near 0
    layers = twin(network, 8, 2, nn.ReLU6)
    states = RNG.standard_normal((16, 4)).astype(np.float32)
    actions, advantage = RNG.integers(2, size=16), RNG.standard_normal(16).astype(np.float32)
    p: Any = layers(torch.tensor(states).double()).softmax(1)
    entropy = -(p * (p + 1e-5).log()).sum(1)
    log_prob = (p[torch.arange(16), torch.tensor(actions)] + 1e-5).log()
    (-(0.1 * entropy + log_prob * torch.tensor(advantage))).mean().backward()
    activations = network.forward(states)
    gradient = network.gradient(activations, a3c.actor_error(activations[-1], actions, advantage))
    np.testing.assert_allclose(gradient, flat_gradient(layers), rtol=1e-5, atol=2e-5)


def densities(layers: nn.Sequential, states: Array, actions: Array, options: Peculiarities) -> Any:
    mean, z = layers(torch.tensor(states).double()).T
    mean = 2 * (mean.tanh() if options.squashed_mean else mean)
    deviation = nn.functional.softplus(z) if options.softplus else np.log(2) * z.exp()
    policy: Any = torch.distributions.Normal(mean, deviation)
    return policy.log_prob(torch.tensor(actions).double()).exp()


@pytest.mark.parametrize("options", [Peculiarities(), Peculiarities(squashed_mean=False, softplus=False)], ids=str)
def test_dppo_has_the_gradients_of_its_loss_for_both_policies(options: Peculiarities) -> None:
    actor, critic = dppo_pendulum._actor(RNG), dppo_pendulum._critic(RNG)
    agent = Agent(Shared(actor, critic, (Adam(1.0), Adam(1.0))), RNG, 1, options)
    states = RNG.standard_normal((32, 3)).astype(np.float32)
    actions, advantage = (RNG.standard_normal(32).astype(np.float32) for _ in range(2))
    new, old = (twin(network, 50, 2, nn.ReLU) for network in (agent.actor, agent.old))
    ratio = densities(new, states, actions, options) / densities(old, states, actions, options)
    assert ((ratio - 1).abs() > 0.2).any()
    assert ((ratio - 1).abs() < 0.2).any()
    weight = torch.tensor(advantage)
    loss: Any = -torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight).mean()
    loss.backward()
    (_, of_new), (_, of_old) = agent.actor_gradients(states, actions, advantage)
    np.testing.assert_allclose(of_new, flat_gradient(new), rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(of_old, flat_gradient(old), rtol=1e-5, atol=2e-5)


def test_dppo_normalizes_by_the_mean_and_deviation_of_all_rewards_so_far() -> None:
    statistics, rewards = Statistics(), RNG.standard_normal(40) * 3 - 5
    statistics.update(rewards[:32])
    statistics.update(rewards[32:])
    assert statistics.mean == pytest.approx(rewards.mean(), rel=1e-4)
    assert statistics.deviation == pytest.approx(rewards.std(), rel=1e-3)


def test_dppo_bootstraps_after_each_batch() -> None:
    """GAE, its sum of differences written out."""
    found = advantages(np.array([1.0, 2.0]), np.array([0.5, 0.25], np.float32), 4.0)
    differences = [1 + 0.9 * 0.25 - 0.5, 2 + 0.9 * 4 - 0.25]
    np.testing.assert_allclose(found, [differences[0] + 0.9 * 0.95 * differences[1], differences[1]], rtol=1e-6)


def test_dppo_on_cartpole_weighs_the_policy_gradient_by_the_clipped_ratio() -> None:
    server = dppo_cartpole.Server(RNG)
    server.policy = Network((4, 8, 2), RNG)
    layers = twin(server.policy, 8, 2, nn.ReLU)
    states, actions = RNG.standard_normal((3, 4)).astype(np.float32), [0, 1, 1]
    ratios, advantage = np.array([5.0, 1.0, 0.01], np.float32), np.array([1.0, -2.0, 3.0], np.float32)
    loss = nn.functional.cross_entropy(layers(torch.tensor(states).double()), torch.tensor(actions), reduction="none")
    weighted: Any = loss * torch.tensor([1.9, 1.0, 0.1]) * torch.tensor(advantage)
    weighted.mean().backward()
    with mock.patch.object(server._actor_adam, "apply") as apply:
        server.train(states, actions, np.zeros(3, np.float32), advantage, ratios)
    ((_, gradient),) = apply.call_args.args
    np.testing.assert_allclose(gradient, flat_gradient(layers), atol=1e-6)


def test_missing_terms_as_zero_and_maximum_terms_are_the_same_where_every_episode_ends_with_value_0() -> None:
    zero, maximum = (a3c.run(f"threads_n_step_{form}", seed=3, episodes=30) for form in ("zero", "max"))
    assert zero == maximum
    assert a3c.run("threads_n_step_zero", seed=4, episodes=30) != zero


def test_command_runs_each_source_once_for_a_seed_and_its_table_shows_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    monkeypatch.setattr(records, "SOURCES", {name: replace(one, seeds=1) for name, one in records.SOURCES.items()})
    full = records.train
    monkeypatch.setattr(records, "train", lambda name, seed: full(name, seed, episodes=2))
    for name in records.SOURCES:
        assert command.main([name]) == 0
        (line,) = read_rows(tmp_path / f"{name}.csv", records.Line)
        assert len(line.returns.split()) == line.episodes >= 2
        assert f"{name}, seed 0: last hundred {line.last_100:.1f}" in capsys.readouterr().out
        assert command.main([name]) == 0
        assert capsys.readouterr().out == ""
    section = records.section(tmp_path)
    assert all(f"| `{name}` |" in section for name in records.SOURCES)
