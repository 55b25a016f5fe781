"""Deaths and time limits in rollouts: `time_limit_is_terminal` and `terminal_reward`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from policies import FixedPolicy
from runs import SCRIPTED, config
from scripted import Scripted, vector
from workers import make_workers

from a3c_exp.common.arrays import Array
from a3c_exp.core.acting import ActingPolicy
from a3c_exp.core.normalization import (
    NormalizedObservations,
    Normalizer,
    stats_width,
)
from a3c_exp.core.rewards import shaped_rewards
from a3c_exp.core.rollout import Actor, Rollout
from a3c_exp.core.store import Snapshot
from a3c_exp.envs import EnvBatch, Gym, VectorEnvBatch

GAMMA = 0.5
BONUS = -10.0
START = Snapshot(0, 0, None)
ENDS: dict[str, Any] = {
    "lengths": (3, 4, 2, 5),
    "ends": ("truncated", "terminated", "both", "truncated"),
}
MODES = ["NextStep", "SameStep", "Disabled"]
KINDS = ["python", *MODES]


def value(observations: Array) -> Array:
    """1000 name + 100 episode + step + 1, never 0: every value says which state it is of."""
    result: Array = observations[:, :3] @ np.array([1000, 100, 1], np.float32) + np.float32(1)
    return result


def make_batch(kind: str, count: int, **kwargs: Any) -> EnvBatch:
    """Scripted environments in Python, or as a native vector in an autoreset mode."""
    if kind == "python":
        return Gym(id=SCRIPTED, kwargs=kwargs).make(count, range(count))
    return VectorEnvBatch(vector(count, autoreset_mode=kind, **kwargs), range(count))


def make_actor(
    kind: str = "python", count: int = 2, length: Any = 11, *, ends: Any = ENDS, **settings: Any
) -> Actor:
    policy = ActingPolicy(FixedPolicy(lambda step: step % 2, value), np.random.default_rng(0))
    batch = make_batch(kind, count, **ends)
    shaping = Gym(id=SCRIPTED, **settings)
    return Actor(batch, policy, shaping, rollout_length=length, gamma=GAMMA)


def raw_rewards(rollout: Rollout) -> Array:
    """The environments' own rewards, which observations and actions identify; 0 in rows that are no
    transitions."""
    _, episode, step, _ = np.moveaxis(rollout.observations, -1, 0)
    rewards: Array = (100.0 * episode + step + 1 + rollout.actions / 8) * rollout.valid
    return rewards


@pytest.mark.parametrize("kind", KINDS)
class TestATimeLimitAsADeath:
    def test_is_terminated_with_the_value_0_after_it(self, kind: str) -> None:
        plain = make_actor(kind).collect(START)
        changed = make_actor(kind, time_limit_is_terminal=True).collect(START)
        alone = plain.truncated & ~plain.terminated
        assert alone.any() and (plain.next_values[alone] != 0).all()
        np.testing.assert_array_equal(changed.terminated, plain.terminated | plain.truncated)
        assert not changed.truncated.any()
        np.testing.assert_array_equal(changed.next_values, np.where(alone, 0, plain.next_values))
        for name in ("observations", "actions", "rewards", "values", "valid"):
            np.testing.assert_array_equal(getattr(changed, name), getattr(plain, name))

    def test_leaves_the_rollouts_own_end_as_it_is(self, kind: str) -> None:
        ends = {"lengths": (9,), "ends": ("truncated",)}
        actor = make_actor(kind, length=4, ends=ends, time_limit_is_terminal=True)
        for last in (4, 8):
            rollout = actor.collect(START)
            assert not rollout.terminated.any()
            np.testing.assert_array_equal(rollout.next_values[-1], [last + 1, 1000 + last + 1])

    def test_and_the_terminal_reward_come_before_scale_and_clip(self, kind: str) -> None:
        settings: dict[str, Any] = {"reward_scale": 0.5, "reward_clip": 40.0}
        for on in (False, True):
            actor = make_actor(kind, time_limit_is_terminal=on, terminal_reward=BONUS, **settings)
            for _ in range(3):
                rollout = actor.collect(START)
                assert on or rollout.truncated.any()
                died = rollout.terminated & rollout.valid
                expected = np.clip(0.5 * (raw_rewards(rollout) + BONUS * died), -40, 40)
                np.testing.assert_allclose(rollout.rewards, expected, rtol=1e-6)
                assert died.any() and (rollout.rewards[~rollout.valid] == 0).all()
            assert (rollout.rewards == 40).any(), "clipped"

    def test_leaves_the_reports_of_episodes_as_they_are(self, kind: str) -> None:
        changed: dict[str, Any] = {
            "time_limit_is_terminal": True,
            "terminal_reward": BONUS,
            "reward_scale": 3.0,
        }
        found = []
        for settings in ({}, changed):
            actor = make_actor(kind, **settings)
            episodes = [actor.collect(START).episodes for _ in range(3)]
            found.append(
                [(e.returns.tolist(), e.lengths.tolist(), e.end_steps.tolist()) for e in episodes]
            )
        assert found[0] == found[1] and found[0][0][0]


def test_a_row_that_is_no_transition_has_no_terminal_reward() -> None:
    """Whatever an environment flags it with."""
    settings = Gym(id=SCRIPTED, reward_scale=2.0, terminal_reward=BONUS)
    rewards = np.array([[1, 2, 0]], np.float32)
    flags = np.array([[False, True, True]])
    valid = [[True, True, False]]
    shaped = shaped_rewards(settings, rewards, flags, np.array(valid), 0.0)
    np.testing.assert_array_equal(shaped, [[2, -16, 0]])
    np.testing.assert_array_equal(rewards, [[1, 2, 0]])


def test_the_terminal_reward_is_in_the_deviation_by_which_rewards_are_divided() -> None:
    row = np.zeros(stats_width((4,), False, True))
    start = START._replace(normalizer=Normalizer.from_row(row, NormalizedObservations(), True))
    rollout = make_actor(count=1, ends={"lengths": (2,)}, terminal_reward=BONUS).collect(start)
    first = Scripted.reward(0, 1, 1)
    last = Scripted.reward(0, 2, 0) + BONUS
    sums = np.array([first, last + GAMMA * first])
    assert rollout.stats is not None
    np.testing.assert_allclose(rollout.stats[-3:], [2, sums.mean(), 2 * sums.var()])


def test_a_worker_has_both_settings() -> None:
    settings: dict[str, Any] = {"env__time_limit_is_terminal": True, "env__terminal_reward": BONUS}
    settings |= {
        "env__kwargs": {"lengths": [3], "ends": ["truncated"]},
        "rollout_length": 8,
        "envs_per_worker": 2,
    }
    _, (worker,) = make_workers(config(SCRIPTED, **settings))
    rollout = worker._actor.collect(START)
    assert rollout.terminated.any() and not rollout.truncated.any()
    np.testing.assert_allclose(
        rollout.rewards - raw_rewards(rollout), BONUS * rollout.terminated, atol=1e-4
    )
