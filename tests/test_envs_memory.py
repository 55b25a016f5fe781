"""Environments that need a memory: their observations and rewards, and that a policy without one
cannot solve them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from refusals import refused
from runs import train

import a3c_exp
from a3c_exp.envs import Gym
from a3c_exp.envs.memory import Recall

RECALL = "a3c_exp.envs.memory:Recall-v0"
SELECT = "a3c_exp.envs.memory:SelectObservation"
LSTM = {"_target_": "a3c_exp.networks.Lstm", "hidden_size": 16}
LEARNING: dict[str, Any] = {
    "workers": 2,
    "envs_per_worker": 16,
    "rollout_length": 10,
    "total_steps": 16_000,
    "optimizer": {"_target_": "a3c_exp.optimizers.Adam", "learning_rate": 1e-2},
    "eval__every": 10**9,
    "eval__episodes": 20,
}


class TestRecall:
    def test_is_a_proper_environment(self) -> None:
        check_env(Recall(), skip_render_check=True)

    @pytest.mark.parametrize("delay", [0, 3])
    @pytest.mark.parametrize("right", [True, False])
    def test_shows_a_lamp_then_nothing_then_the_question_and_rewards_the_answer_alone(
        self, delay: int, right: bool
    ) -> None:
        env = Recall(symbols=3, delay=delay)
        seen, _ = env.reset(seed=0)
        lamp = int(seen.argmax())
        rows = [seen]
        rewards = []
        over = False
        while not over:
            last = len(rows) == delay + 2
            seen, reward, over, truncated, _ = env.step(
                lamp if right or not last else (lamp + 1) % 3
            )
            assert not truncated
            rows.append(seen)
            rewards.append(reward)
        np.testing.assert_array_equal(
            rows[:-1], [np.eye(4)[lamp], *[np.zeros(4)] * delay, np.eye(4)[3]]
        )
        assert rewards == [0.0] * (delay + 1) + [float(right)]


class TestSelectObservation:
    def test_shows_the_selected_numbers(self) -> None:
        whole = Gym(id="CartPole-v1").make(2, [0, 1])
        part = Gym(id="CartPole-v1", wrappers=({SELECT: {"indices": [2, 0]}},)).make(2, [0, 1])
        assert part.observation_space.shape == (2,)
        np.testing.assert_array_equal(
            part.observation_space.high, whole.observation_space.high[[2, 0]]
        )
        np.testing.assert_array_equal(part.reset(), whole.reset()[:, [2, 0]])
        for _ in range(60):  # past the ends of episodes, final observations included
            one = part.step(np.array([1, 0]))
            other = whole.step(np.array([1, 0]))
            np.testing.assert_array_equal(one.obs, other.obs[:, [2, 0]])
            np.testing.assert_array_equal(one.final_obs, other.final_obs[:, [2, 0]])

    def test_refuses_numbers_that_do_not_exist(self) -> None:
        wrapper = {SELECT: {"indices": [4]}}
        refused(
            lambda: Gym(id="CartPole-v1", wrappers=(wrapper,)).make(1, [0]), "wrappers", wrapper
        )


def test_environments_of_this_package_need_no_permission() -> None:
    Gym(id=RECALL).validate([])
    Gym(id="CartPole-v1", wrappers=(SELECT,)).validate([])
    refused(lambda: Gym(id="a3c_exp_of_another:Env-v0").validate([]), "id")


class TestLearning:
    def test_cells_learn_to_recall_and_the_trained_policy_does(self, tmp_path: Path) -> None:
        """At random: 1/3. Evaluations during the run, of many environments, and the loaded policy
        both remember."""
        done = train(
            tmp_path, RECALL, network=LSTM, env__kwargs={"symbols": 3, "delay": 3}, **LEARNING
        )
        assert done.summary["mean_return_100"] > 0.95
        assert done.summary["best_eval_return"] == 1
        policy = a3c_exp.load(tmp_path)
        env = gymnasium.make("Recall-v0", symbols=3, delay=3)
        for seed in range(20):
            policy.reset()
            observation, _ = env.reset(seed=seed)
            reward = 0.0
            over = False
            while not over:
                observation, reward, over, _, _ = env.step(policy.act(observation))  # type: ignore[assignment]
            assert reward == 1

    @pytest.mark.slow
    @pytest.mark.parametrize("env", ["recall", "cartpole_memory"])
    def test_the_options_are_solved_by_cells(self, env: str, tmp_path: Path) -> None:
        done = a3c_exp.train([f"env={env}", "network=lstm", "workers=2"], tmp_path)
        assert done.summary["stop_reason"] == "mean_return"
