"""Learning itself, on environments so small that it takes seconds.

They are chosen so that it fails where the mathematics is wrong: a gradient of the wrong sign, a
bootstrap that is missing or that follows a terminal state, a last reward that is lost.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from runs import BACKENDS, BANDIT, CORNERS, CORRIDOR, SMALL_CNN, TARGET, latest, train

from a3c_exp.common.arrays import Array
from a3c_exp.evaluate import load_run
from a3c_exp.run.session import Run

ADAM = {"_target_": "a3c_exp.optimizers.Adam", "learning_rate": 3e-2}
SIZES = {"workers": 2, "envs_per_worker": 16, "rollout_length": 8}
LEARNING: dict[str, Any] = {**SIZES, "optimizer": ADAM, "eval__every": 10**9, "eval__episodes": 20}


def learned(folder: Path, env: str, backend: str = "serial", **settings: Any) -> Run:
    return train(folder, env, backend, **LEARNING | settings)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bandit_learns_which_lever_pays(backend: str, tmp_path: Path) -> None:
    """The policy gradient alone. At random: 0.25."""
    done = learned(tmp_path, BANDIT, backend, total_steps=6000)
    assert done.summary["mean_return_100"] > 0.9
    assert done.summary["best_eval_return"] == 1


@pytest.mark.parametrize("distribution", ["gaussian", "squashed_gaussian", "beta"])
def test_a_target_is_hit_by_a_continuous_action(distribution: str, tmp_path: Path) -> None:
    """A policy that always answers 0 returns -1/3."""
    done = learned(tmp_path, TARGET, total_steps=16_000, network__distribution=distribution)
    assert done.summary["mean_return_100"] > -0.12
    assert done.summary["best_eval_return"] > -0.05


def test_the_place_of_a_light_in_an_image_is_learned(tmp_path: Path) -> None:
    """At random: 0.25. The square may stand at several places of its corner, in noise."""
    settings: dict[str, Any] = {
        "network": SMALL_CNN,
        "optimizer__learning_rate": 5e-3,
        "total_steps": 5000,
    }
    done = learned(tmp_path, CORNERS, env__kwargs={"length": 4}, **settings)
    assert done.summary["best_eval_return"] > 3.5
    assert done.summary["mean_return_100"] > 3.0


def values(folder: Path, observations: Any) -> Array:
    """The values that the critic of a run gives observations [B, ...]."""
    network = load_run(folder, "latest", ["scripted"]).policy.network
    _, found, _ = network(torch.tensor(observations, dtype=torch.float32))
    array: Array = found.detach().numpy()
    return array


class TestWhatTheCriticLearns:
    def test_the_worth_of_each_place_in_the_corridor(self, tmp_path: Path) -> None:
        """Under the best policy: 1 one step before the end, and 0.9 of what follows, less the cost,
        before that."""
        falls = LINEAR | {"start": 1.0}
        learned(
            tmp_path,
            CORRIDOR,
            returns__n=1,
            total_steps=30_000,
            network__shared=False,
            schedule=falls,
        )
        expected = [1.0]
        for _ in range(4):
            expected.append(-0.01 + 0.9 * expected[-1])
        np.testing.assert_allclose(values(tmp_path, np.eye(6)[:5]), expected[::-1], atol=0.08)

    @pytest.mark.parametrize(
        ("cut", "expected"),
        [
            # A time limit is no terminal state: 1 a step for ever is worth 1 / (1 - 0.9), at any
            # time of the episode.
            ("truncated", 10.0),
            # A terminal state after five steps: the mean of 1 + 0.9 + ... over the one to five
            # steps that are left.
            ("terminated", np.mean([(1 - 0.9**left) / 0.1 for left in range(1, 6)])),
        ],
    )
    @pytest.mark.parametrize(("envs", "length"), [(1, 5), (8, 4)])
    def test_a_time_limit_is_no_terminal_state(
        self, envs: int, length: int, cut: str, expected: float, register: Any, tmp_path: Path
    ) -> None:
        name = register("Treadmill-v0", partial(Treadmill, cut))
        settings: dict[str, Any] = {
            "envs_per_worker": envs,
            "rollout_length": length,
            "network__hidden_sizes": [],
        }
        train(
            tmp_path,
            name,
            optimizer__learning_rate=0.1,
            total_steps=300 * envs * length,
            **settings,
        )
        assert values(tmp_path, [[1.0]])[0] == pytest.approx(expected, abs=0.6)


class Treadmill(gymnasium.Env[Array, np.int64]):
    """Pays 1 a step and always looks the same. After five steps an episode ends in the given
    way."""

    def __init__(self, cut: str) -> None:
        self.observation_space = Box(0, 1, (1,), np.float32)
        self.action_space = Discrete(2)
        self.cut = cut
        self.moment = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.moment = 0
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.moment += 1
        over = self.moment == 5
        return (
            np.ones(1, np.float32),
            1.0,
            over and self.cut == "terminated",
            over and self.cut == "truncated",
            {},
        )


PPO = {"_target_": "a3c_exp.algorithms.PPO", "minibatch_size": 32}
LINEAR = {"_target_": "a3c_exp.schedules.Linear", "end": 0.0}
DISCOUNTED = {"_target_": "a3c_exp.returns.Discounted"}
EXPLORING: dict[str, Any] = {"epsilon": LINEAR | {"start": 0.5, "until": 0.5}}
ALONE: dict[str, Any] = {"envs_per_worker": 1, "total_steps": 3500}

SETTINGS: dict[str, dict[str, Any]] = {
    "synchronous updates": {"update": "sync"},
    "whole episodes": ALONE | {"rollout_length": "episode", "returns": DISCOUNTED},
    "missing terms as zero": {"returns": {"_target_": "a3c_exp.returns.NStepZero", "n": 4}},
    "another critic": {"critic_returns": DISCOUNTED},
    "action values": EXPLORING
    | {"algorithm": {"_target_": "a3c_exp.algorithms.NStepQ", "target_every": 64}},
    "normalized": {"env__normalize_observations": True, "env__normalize_rewards": True},
    "summed losses": {"algorithm__reduction": "sum", "optimizer__max_grad_norm": 0.5},
    "one environment a worker": ALONE | {"rollout_length": 5},
    "proximal, in rounds": {
        "algorithm": PPO | {"target_kl": 0.05},
        "update": "sync",
        "total_steps": 4000,
    },
    "v-trace": {"returns": {"_target_": "a3c_exp.returns.VTrace"}, "workers": 4},
    "uniformly random actions at first": EXPLORING,
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_learns_the_corridor(name: str, tmp_path: Path) -> None:
    """At random an episode returns less than 0.8, and a policy that turns back anywhere never ends
    it."""
    done = learned(tmp_path, CORRIDOR, **{"total_steps": 8_000} | SETTINGS[name])
    assert done.summary["best_eval_return"] == pytest.approx(0.96)
    assert done.summary["mean_return_100"] > 0.9
    assert np.isfinite(latest(tmp_path)["store"]["parameters"]).all()
