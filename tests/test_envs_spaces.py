"""Observations as a policy receives them, and actions as an environment receives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from gymnasium.vector import SyncVectorEnv
from scripted import Echo

from a3c_exp.common.arrays import Array
from a3c_exp.envs import SyncEnvBatch, VectorEnvBatch
from a3c_exp.envs.spaces import decoder

OBSERVATIONS: list[tuple[Space[Any], Any, list[Any]]] = [
    (Box(-1, 1, (2,), np.float64), np.array([0.25, 0.5]), [0.25, 0.5]),
    (Box(-1, 1, (), np.float32), np.float32(0.5), [0.5]),
    (Box(-1, 1, (2, 2), np.float32), np.eye(2), [[1.0, 0.0], [0.0, 1.0]]),
    (Discrete(3, start=-1), np.int64(-1), [1, 0, 0]),
    (MultiDiscrete([2, 3], start=[5, 1]), np.array([5, 2]), [1, 0, 0, 1, 0]),
    (MultiDiscrete([2, 3], dtype=np.uint64), np.array([1, 2], np.uint64), [0, 1, 0, 0, 1]),
    (MultiDiscrete(np.array([[2], [2]])), np.array([[0], [1]]), [1, 0, 0, 1]),
    (MultiBinary([2, 2]), np.array([[1, 0], [0, 1]], np.int8), [1, 0, 0, 1]),
]

ACTIONS: list[tuple[Space[Any], Array, list[Any]]] = [
    (Discrete(3), np.array([2]), [2]),
    (Discrete(3, start=10), np.array([2]), [12]),
    (MultiDiscrete([2, 3], start=[5, 1]), np.array([[1, 2]]), [[6, 3]]),
    (MultiDiscrete(np.array([[2], [3]])), np.array([[1, 2]]), [[[1], [2]]]),
    (MultiBinary([2, 1]), np.array([[1, 0]], np.int8), [[[1], [0]]]),
    (Box(-1, 1, (2,), np.float32), np.array([[0.5, -1]], np.float32), [[0.5, -1]]),
    (Box(-1, 1, (2,), np.float64), np.array([[0.5, -1]], np.float32), [[0.5, -1]]),
    (Box(-1, 1, (), np.float32), np.array([[0.5]], np.float32), [0.5]),
    (Box(-1, 1, (2, 1), np.float32), np.array([[0.5, -1]], np.float32), [[[0.5], [-1]]]),
]


class TestSpaces:
    @pytest.mark.parametrize(("space", "observation", "expected"), OBSERVATIONS, ids=lambda value: str(value)[:40])
    def test_a_policy_receives_an_array_of_float32(
        self, space: Space[Any], observation: Any, expected: list[Any]
    ) -> None:
        def env() -> Echo:
            return Echo(space, Discrete(2), observation)

        for batch in (SyncEnvBatch([env(), env()], [0, 0]), VectorEnvBatch(SyncVectorEnv([env, env]), [0, 0])):
            obs = batch.reset()
            assert obs.tolist() == [expected, expected]
            assert obs.dtype == batch.observation_space.dtype == np.float32
            assert batch.observation_space.contains(obs[0])
            assert batch.step(np.array([0, 1])).obs.tolist() == [expected, expected]

    @pytest.mark.parametrize(("space", "actions", "received"), ACTIONS, ids=lambda value: str(value)[:40])
    def test_an_environment_receives_actions_of_its_own_space(
        self, space: Space[Any], actions: Array, received: list[Any]
    ) -> None:
        policy_space, _ = decoder(space)
        assert policy_space.contains(actions[0])
        env, native = Echo(Discrete(2), space, 0), Echo(Discrete(2), space, 0)
        for batch in (SyncEnvBatch([env], [0]), VectorEnvBatch(SyncVectorEnv([lambda: native]), [0])):
            assert batch.action_space == policy_space
            batch.reset()
            batch.step(actions)
        assert np.array(env.received).tolist() == np.array(native.received).tolist() == received
        [action], sample = env.received, space.sample()
        assert type(action) is type(sample)
        assert (action.dtype, action.shape) == (sample.dtype, sample.shape)

    @pytest.mark.parametrize("shape", [(2,), (2, 1)])
    def test_actions_keep_to_bounds_that_float32_does_not_represent(self, shape: tuple[int, ...]) -> None:
        """0.1 in float32 is more than 0.1, and some environments assert that an action is in their space."""
        space = Box(-0.1, 0.1, shape, np.float64)
        _, decode = decoder(space)
        decoded = decode(np.array([[0.1, -0.1], [0.05, 0.0]], np.float32))
        assert all(space.contains(action) for action in decoded)
        assert decoded[1].ravel() == pytest.approx([0.05, 0.0])

    def test_an_environment_cannot_write_into_the_policys_actions(self) -> None:
        class Rude(Echo):
            def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
                action *= 0
                return super().step(action)

        batch = SyncEnvBatch([Rude(Discrete(2), Box(-1, 1, (2,), np.float32), 0)], [0])
        actions = np.full((1, 2), 0.5, np.float32)
        batch.reset()
        batch.step(actions)
        assert actions.tolist() == [[0.5, 0.5]]
