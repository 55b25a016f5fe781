"""Environments in batches: a step means the same in every kind of batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import scripted
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from scripted import Echo

from a3c_exp.common.arrays import Array
from a3c_exp.envs import EnvBatch, Gym, Step, SyncEnvBatch, VectorEnvBatch
from a3c_exp.envs.spaces import decoder
from a3c_exp.envs.vector_batch import autoreset_mode

SCRIPT: dict[str, Any] = {
    "lengths": [3, 1, 4],
    "ends": ["terminated", "truncated", "both"],
    "actions": 5,
}
SEEDS = [4, 11, 6]


Transition = tuple[Any, ...]
"""One step of one environment in plain numbers: the observation, the action, the reward, the next
observation, ends."""


def policy(obs: Array) -> Array:
    """Actions that differ from state to state, and depend on the observation alone."""
    return np.asarray((obs[:, 1] * 3 + obs[:, 2] * 2) % 5, np.int64)


def true_transitions(seed: int, count: int) -> list[Transition]:
    """The transitions of a single environment, stepped by hand."""
    env = scripted.Scripted(**SCRIPT)
    obs, _ = env.reset(seed=seed)
    transitions: list[Transition] = []
    while len(transitions) < count:
        action = int(policy(obs[None])[0])
        following, reward, terminated, truncated, _ = env.step(action)
        transitions.append(
            (obs.tolist(), action, reward, following.tolist(), terminated, truncated)
        )
        obs = env.reset()[0] if terminated or truncated else following
    return transitions


def collected_transitions(
    batch: EnvBatch, steps: int, policy: Callable[[Array], Array] = policy
) -> list[list[Transition]]:
    """The transitions of a batch, by environment, read off by the documented meaning of a Step."""
    transitions: list[list[Transition]] = [[] for _ in range(batch.count)]
    obs = batch.reset()
    for _ in range(steps):
        actions = policy(obs)
        step = batch.step(actions)
        ended = step.terminated | step.truncated
        following = np.where(ended.reshape(-1, *[1] * (obs.ndim - 1)), step.final_obs, step.obs)
        for k in np.flatnonzero(step.valid):
            ends = bool(step.terminated[k]), bool(step.truncated[k])
            transitions[k].append(
                (
                    obs[k].tolist(),
                    int(actions[k]),
                    float(step.reward[k]),
                    following[k].tolist(),
                    *ends,
                )
            )
        obs = step.obs
    return transitions


def scripted_batch(kind: str, **kwargs: Any) -> EnvBatch:
    """The scripted environments in each kind of batch."""
    if kind == "sync":
        return Gym(id="scripted:Scripted-v0", kwargs=SCRIPT | kwargs).make(len(SEEDS), SEEDS)
    mode, _, dense = kind.partition(" ")
    how = {"autoreset_mode": mode, "dense": bool(dense)}
    return Gym(id="scripted:Scripted-v0", vectorized=True, kwargs=SCRIPT | how | kwargs).make(
        len(SEEDS), SEEDS
    )


KINDS = ["sync", "NextStep", "SameStep", "SameStep dense", "Disabled"]


@pytest.mark.parametrize("kind", KINDS)
class TestEveryBatchMeansTheSame:
    def test_its_transitions_are_those_of_each_environment_alone(self, kind: str) -> None:
        for seed, transitions in zip(
            SEEDS, collected_transitions(scripted_batch(kind), 40), strict=True
        ):
            assert len(transitions) >= 25
            assert transitions == true_transitions(seed, len(transitions))

    def test_arrays_have_the_documented_shapes_and_types_and_are_not_written_to_again(
        self, kind: str
    ) -> None:
        batch = scripted_batch(kind)
        obs = batch.reset()
        copies: list[tuple[Array, Array]] = []
        for _ in range(12):
            step = batch.step(policy(obs))
            obs = step.obs
            arrays = arrays_of(step)
            assert step.life_lost is None
            assert [array.shape for array in arrays] == [(3, 4), (3,), (3,), (3,), (3, 4), (3,)]
            assert [array.dtype for array in arrays] == [
                np.float32,
                np.float32,
                bool,
                bool,
                np.float32,
                bool,
            ]
            copies += [(array, array.copy()) for array in arrays]
        for array, before in copies:
            np.testing.assert_array_equal(array, before)

    def test_a_second_reset_starts_new_episodes_without_the_seeds(self, kind: str) -> None:
        batch = scripted_batch(kind)
        before = batch.step(policy(batch.reset()))
        second = batch.reset()
        assert second[:, 0].tolist() == SEEDS
        assert (second[:, 1] == before.obs[:, 1] + 1).all()
        assert not second[:, 2].any()
        assert batch.step(policy(second)).valid.all()

    def test_closing_twice_is_harmless(self, kind: str) -> None:
        batch = scripted_batch(kind)
        batch.close()
        batch.close()


def arrays_of(step: Step) -> list[Array]:
    return [step.obs, step.reward, step.terminated, step.truncated, step.final_obs, step.valid]


class TestSyncEnvBatch:
    @pytest.mark.parametrize("limit", [1, 3])
    def test_the_time_limit_means_what_gymnasiums_wrapper_means(self, limit: int) -> None:
        class Seen(gymnasium.Wrapper[Any, Any, Any, Any]):
            """An outermost wrapper that changes nothing, so that gymnasium's own TimeLimit is
            stepped."""

        def wrapped() -> gymnasium.Env[Any, Any]:
            return Seen(
                gymnasium.make(
                    "Scripted-v0", max_episode_steps=limit, disable_env_checker=True, **SCRIPT
                )
            )

        environment = Gym(id="scripted:Scripted-v0", kwargs=SCRIPT, max_episode_steps=limit)
        ours = environment.make(3, SEEDS)
        theirs = SyncEnvBatch([wrapped() for _ in SEEDS], SEEDS)
        np.testing.assert_array_equal(ours.reset(), theirs.reset())
        for _ in range(30):
            actions = np.zeros(3, np.int64)
            for one, other in zip(
                arrays_of(ours.step(actions)), arrays_of(theirs.step(actions)), strict=True
            ):
                np.testing.assert_array_equal(one, other)

    def test_a_wrapper_that_counts_steps_itself_is_not_bypassed(self) -> None:
        environment = Gym(id="CartPole-v1", wrappers=("TimeAwareObservation",))
        batch = environment.make(2, [0, 1])
        assert batch.reset()[:, -1].tolist() == [0, 0]
        assert batch.step(np.array([0, 1])).obs[:, -1].tolist() == [1, 1]

    def test_a_quick_space_of_actions_is_gymnasiums(self) -> None:
        """Same members, type by type. gymnasium's own environments ask it at every step."""
        env = gymnasium.make("CartPole-v1")
        theirs = env.action_space
        SyncEnvBatch([env], [0])
        ours = env.action_space
        assert ours is not theirs and ours == theirs and repr(ours) == repr(theirs)
        for action in (
            0,
            1,
            -1,
            2,
            1 << 40,
            True,
            1.0,
            np.int64(1),
            np.uint8(2),
            np.array(0),
            np.array([0]),
            "0",
        ):
            assert (action in ours) is (action in theirs)


class TestVectorEnvBatch:
    def test_the_time_limit_of_a_native_form_may_be_changed(self) -> None:
        batch = Gym(id="CartPole-v1", vectorized=True, max_episode_steps=5).make(4, range(4))
        batch.reset()
        steps = [batch.step(np.zeros(4, np.int64)) for _ in range(5)]
        assert [step.truncated.tolist() for step in steps] == [[False] * 4] * 4 + [[True] * 4]

    def test_its_seed_determines_its_episodes(self) -> None:
        def first(seeds: list[int]) -> Array:
            return Gym(id="CartPole-v1", vectorized=True).make(4, seeds).reset()

        np.testing.assert_array_equal(first([1, 2, 3, 4]), first([1, 2, 3, 4]))
        assert (first([1, 2, 3, 4]) != first([5, 6, 7, 8])).all()

    @pytest.mark.parametrize("mode", AutoresetMode)
    def test_a_mode_may_be_gymnasiums_text_in_any_case(self, mode: AutoresetMode) -> None:
        env = SyncVectorEnv([scripted.Scripted])
        for text in (mode.value, mode.value.lower(), mode.name, mode):
            env.metadata = {"autoreset_mode": text}
            assert autoreset_mode(env) is mode

    @pytest.mark.parametrize("metadata", [{}, {"autoreset_mode": "sometimes"}])
    def test_a_mode_that_is_not_declared_is_refused(self, metadata: dict[str, Any]) -> None:
        env = SyncVectorEnv([scripted.Scripted])
        env.metadata = metadata
        with pytest.raises(TypeError, match="does not say how it restarts"):
            VectorEnvBatch(env, [0])

    def test_a_tuple_of_choices_is_a_multidiscrete_action(self) -> None:
        """An environment gets a tuple, counted as its spaces are, alone and in a vector."""
        actions = Tuple([Discrete(2), Discrete(3, start=5)])

        def make() -> Echo:
            return Echo(Box(-1, 1, (2,)), actions, np.zeros(2, np.float32))

        vector = SyncVectorEnv([make, make], autoreset_mode=AutoresetMode.SAME_STEP)
        for batch in SyncEnvBatch([make(), make()], [0, 1]), VectorEnvBatch(vector, [0, 1]):
            assert batch.action_space == MultiDiscrete([2, 3])
            batch.reset()
            batch.step(np.array([[0, 2], [1, 0]]))
            envs = vector.envs if isinstance(batch, VectorEnvBatch) else batch._envs
            received: list[Any] = [env.received for env in envs]  # type: ignore[attr-defined]
            assert received == [[(0, 7)], [(1, 5)]]


# Observations as a policy receives them, and actions as an environment receives them.


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
    @pytest.mark.parametrize(
        ("space", "observation", "expected"), OBSERVATIONS, ids=lambda value: str(value)[:40]
    )
    def test_a_policy_receives_an_array_of_float32(
        self, space: Space[Any], observation: Any, expected: list[Any]
    ) -> None:
        def env() -> Echo:
            return Echo(space, Discrete(2), observation)

        for batch in (
            SyncEnvBatch([env(), env()], [0, 0]),
            VectorEnvBatch(SyncVectorEnv([env, env]), [0, 0]),
        ):
            obs = batch.reset()
            assert obs.tolist() == [expected, expected]
            assert obs.dtype == batch.observation_space.dtype == np.float32
            assert batch.observation_space.contains(obs[0])
            assert batch.step(np.array([0, 1])).obs.tolist() == [expected, expected]

    @pytest.mark.parametrize(
        ("space", "actions", "received"), ACTIONS, ids=lambda value: str(value)[:40]
    )
    def test_an_environment_receives_actions_of_its_own_space(
        self, space: Space[Any], actions: Array, received: list[Any]
    ) -> None:
        policy_space, _ = decoder(space)
        assert policy_space.contains(actions[0])
        env = Echo(Discrete(2), space, 0)
        native = Echo(Discrete(2), space, 0)
        for batch in (
            SyncEnvBatch([env], [0]),
            VectorEnvBatch(SyncVectorEnv([lambda: native]), [0]),
        ):
            assert batch.action_space == policy_space
            batch.reset()
            batch.step(actions)
        assert np.array(env.received).tolist() == np.array(native.received).tolist() == received
        [action], sample = env.received, space.sample()
        assert type(action) is type(sample)
        assert (action.dtype, action.shape) == (sample.dtype, sample.shape)

    @pytest.mark.parametrize("shape", [(2,), (2, 1)])
    def test_actions_keep_to_bounds_that_float32_does_not_represent(
        self, shape: tuple[int, ...]
    ) -> None:
        """0.1 in float32 is more than 0.1, and some environments assert that an action is in their
        space."""
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
