"""examples/a3c_in_one_file.py is the method of `experiment=paper`, number by number, and learns."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from workers import make_workers, next_event

from a3c_exp import compose
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.rollout import Rollout

FILE = Path(__file__).parents[1] / "examples" / "a3c_in_one_file.py"
LAYERS = {
    "actor_encoder.": "actor.",
    "head.linear.": "actor.4.",
    "critic_encoder.": "critic.",
    "value.": "critic.4.",
}
"""Beginnings of parameters' names here -> those of the file."""
UPDATES = 30


@pytest.fixture
def example() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("a3c_in_one_file", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    with one_thread():
        yield module
    del sys.modules[spec.name]


def named(network: Any) -> dict[str, Any]:
    """The parameters of a network here, by the names of the file's."""
    parameters = {}
    for name, parameter in network.named_parameters():
        start = next(start for start in LAYERS if name.startswith(start))
        parameters[name.replace(start, LAYERS[start])] = parameter
    return parameters


def state_of(network: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in named(network).items()}


def test_its_settings_are_those_of_the_preset(example: ModuleType) -> None:
    config = compose(["experiment=paper", "workers=4"])
    optimizer = config["optimizer"]
    assert (
        config["rollout_length"],
        config["gamma"],
        config["total_steps"],
        config["workers"],
    ) == (example.T_MAX, example.GAMMA, example.TOTAL_STEPS, example.WORKERS)
    assert (optimizer["learning_rate"], optimizer["max_grad_norm"]) == (
        example.LEARNING_RATE,
        example.MAX_NORM,
    )
    assert config["stop"]["mean_return"] == example.GOAL


def test_its_gradients_and_steps_are_those_of_the_preset(example: ModuleType) -> None:
    config = compose(["experiment=paper", "backend=serial", "workers=1"])
    _, (worker,) = make_workers(config)
    shared = example.ActorCritic()
    squares = [torch.ones_like(parameter) for parameter in shared.parameters()]

    def collect() -> tuple[Any, Rollout]:
        snapshot = worker._learner.pull()
        return snapshot, worker._actor.collect(snapshot)

    snapshot, rollout = collect()
    shared.load_state_dict(state_of(worker._network))
    for _ in range(UPDATES):
        next_event(worker._learner.learn(rollout, snapshot))
        gradients = {
            name: parameter.grad.clone() for name, parameter in named(worker._network).items()
        }
        after, following = collect()

        theirs = example.Rollout(
            observations=torch.from_numpy(rollout.observations[:, 0].copy()),
            actions=torch.from_numpy(rollout.actions[:, 0].copy()),
            rewards=[float(reward) / example.REWARD_SCALE for reward in rollout.rewards[:, 0]],
            last_observation=torch.from_numpy(following.observations[0, 0].copy()),
            terminated=bool(rollout.terminated[-1, 0]),
        )
        gradient = example.gradient(shared, theirs)
        names = [name for name, _ in shared.named_parameters()]
        for name, value in zip(names, gradient, strict=True):
            torch.testing.assert_close(value, gradients[name], rtol=1e-4, atol=1e-5)

        rate = example.LEARNING_RATE * (1 - snapshot.steps / example.TOTAL_STEPS)
        example.step(shared, squares, gradient, rate)
        for name, value in state_of(worker._network).items():
            np.testing.assert_allclose(shared.state_dict()[name], value, rtol=1e-4, atol=1e-6)
        snapshot, rollout = after, following


@pytest.mark.slow
def test_it_learns_cartpole() -> None:
    done = subprocess.run([sys.executable, FILE], capture_output=True, text=True, check=True)
    assert float(done.stdout.split()[-1]) > 400, done.stdout
