"""The parts of GA3C: rollouts side by side, queues and buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from backend_runs import ga3c
from numpy.typing import NDArray
from runs import SCRIPTED, config, make_store

from a3c_exp.backends.ga3c.buffers import WAITING, WORKING, BufferSpec, SharedBuffers
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.experiment import Experiment, build_network
from a3c_exp.core.heartbeat import Heartbeat
from a3c_exp.core.rollout import Actor, Rollout, concat_rollouts
from a3c_exp.core.store import Snapshot
from a3c_exp.core.worker import Learner

MLP: dict[str, Any] = {"_target_": "a3c_exp.networks.Mlp", "hidden_sizes": [8]}
LSTM: dict[str, Any] = {"_target_": "a3c_exp.networks.Lstm", "encoder": MLP, "hidden_size": 4}


class TestConcatRollouts:
    """Rollouts of several agents as one."""

    def experiment(self, **settings: Any) -> Experiment:
        kwargs = {"lengths": (3, 5, 2), "ends": ("terminated", "truncated")}
        return load_experiment(config(SCRIPTED, env__kwargs=kwargs, envs_per_worker=1, **settings))

    def rollouts(self, experiment: Experiment) -> list[Rollout]:
        """Two of each of three agents with one environment: they end with an episode, or after 4 steps."""
        rollouts = []
        for agent in range(3):
            env = experiment.env.make(1, [agent])
            network = experiment.build_network(env, np.random.default_rng(0))
            actor = Actor(env, network, np.random.default_rng(agent), rollout_length=4, gamma=0.9)
            for _ in range(2):
                rollout = actor.collect(Snapshot(version=0, steps=0, normalizer=None))
                rollouts.append(replace(rollout, version=np.full(rollout.rewards.shape, agent)))
        return rollouts

    def test_shorter_ones_are_filled_up_with_rows_that_are_no_transitions(self) -> None:
        rollouts = self.rollouts(self.experiment())
        whole = concat_rollouts(rollouts)
        assert whole.observations.shape == (4, 6, 4)
        lengths = [len(rollout.rewards) for rollout in rollouts]
        np.testing.assert_array_equal(whole.valid, np.arange(4)[:, None] < lengths)
        for index, rollout in enumerate(rollouts):
            np.testing.assert_array_equal(whole.rewards[: lengths[index], index], rollout.rewards[:, 0])
        assert whole.transitions == sum(lengths)
        assert concat_rollouts(rollouts[:1]) is rollouts[0], "a single one is not copied"
        assert len(whole.episodes) == sum(len(rollout.episodes) for rollout in rollouts)

    @pytest.mark.parametrize(("network", "returns"), [(MLP, "VTrace"), (LSTM, "GAE")])
    def test_the_gradient_is_the_mean_of_theirs_by_transitions(self, network: dict[str, Any], returns: str) -> None:
        estimator = {"_target_": f"a3c_exp.returns.{returns}"}
        experiment = self.experiment(returns=estimator, network=network, algorithm__entropy_coefficient=0.0)
        rollouts = self.rollouts(experiment)
        env = experiment.env.make(1, [0])
        built = experiment.build_network(env, np.random.default_rng(1))
        rng = np.random.default_rng(0)
        learner = Learner(experiment, built, 0, make_store(experiment), rng, "learner", Heartbeat())

        def gradient(rollout: Rollout) -> NDArray[np.float64]:
            list(learner.learn([rollout], Snapshot(version=0, steps=0, normalizer=None)))
            return np.asarray(built.gradient, np.float64)

        sums = np.sum([gradient(rollout) * rollout.transitions for rollout in rollouts], axis=0)
        whole = concat_rollouts(rollouts)
        np.testing.assert_allclose(gradient(whole), sums / whole.transitions, rtol=1e-4, atol=1e-4)


class TestSharedBuffers:
    @pytest.fixture
    def buffers(self) -> Iterator[SharedBuffers]:
        """Of two agents with one slot each."""
        experiment = load_experiment(ga3c(workers=2))
        buffers = SharedBuffers(BufferSpec.of(experiment, 1, *build_network(experiment)))
        yield buffers
        buffers.close()

    def test_an_agent_with_an_unread_notification_is_busy(self, buffers: SharedBuffers) -> None:
        """Trainers learn from less than `training_batch` if no agent is busy. An agent whose slot has just been
        released is, however long the system keeps it from its core."""
        channel, status = buffers.channel(0), buffers.request_arrays["status"]
        assert buffers.busy_agents == 2
        assert channel.acquire_slot() == 0
        status[0] = WAITING
        assert buffers.busy_agents == 1
        buffers.release([0])
        assert buffers.busy_agents == 2
        assert channel.acquire_slot() == 0
        assert status[0] == WORKING
