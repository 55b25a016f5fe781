"""Collecting rollouts: the order of rows, ends of episodes, bootstraps, and the reports of finished
episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from policies import FixedPolicy
from runs import SCRIPTED
from scripted import Changed, Scripted

from a3c_exp.common.arrays import Array
from a3c_exp.core.acting import ActingPolicy
from a3c_exp.core.normalization import (
    NormalizedObservations,
    Normalizer,
    measure_stats,
    stats_width,
)
from a3c_exp.core.rollout import Actor, Rollout
from a3c_exp.core.store import Snapshot
from a3c_exp.envs import Gym, Step
from a3c_exp.envs.batch import RewardNormalization
from a3c_exp.schedules import Linear


def value(observations: Array) -> Array:
    """1000 name + 100 episode + step, read off the state: every value in a rollout says which state
    it is of."""
    result: Array = observations[:, :3] @ np.array([1000, 100, 1], np.float32)
    return result


def policy() -> ActingPolicy:
    """A policy whose actions are 1 and 0 in turn."""
    return ActingPolicy(FixedPolicy(lambda step: step % 2, value), np.random.default_rng(0))


def make_actor(
    count: int = 1, length: Any = 4, *, vectorized: bool = False, **kwargs: Any
) -> Actor:
    """An actor in scripted environments. kwargs: of the component where it has such a setting, else
    of Scripted."""
    rewards: dict[str, Any] = {
        name: kwargs.pop(name) for name in ("reward_scale", "reward_clip") if name in kwargs
    }
    game = Gym(id=SCRIPTED, vectorized=vectorized, kwargs=kwargs, **rewards)
    env = game.make(count, list(range(count)))
    return Actor(env, policy(), game, rollout_length=length, gamma=0.5)


def collect(actor: Actor, steps: int = 0, normalizer: Normalizer | None = None) -> Rollout:
    return actor.collect(Snapshot(0, steps, normalizer))


def test_rows_are_transitions_in_order() -> None:
    rollout = collect(make_actor(length=4, lengths=(10,)))
    np.testing.assert_array_equal(rollout.observations[:, 0, 2], [0, 1, 2, 3])
    np.testing.assert_array_equal(rollout.actions[:, 0], [1, 0, 1, 0])
    np.testing.assert_array_equal(
        rollout.rewards[:, 0], [Scripted.reward(0, t + 1, a) for t, a in enumerate([1, 0, 1, 0])]
    )
    assert rollout.transitions == 4


def test_with_one_environment_a_rollout_ends_with_the_episode() -> None:
    actor = make_actor(length=5, lengths=(3, 7))
    first = collect(actor)
    second = collect(actor)
    assert len(first.rewards) == 3 and first.terminated[-1, 0]
    assert len(second.rewards) == 5 and not second.terminated.any()
    assert len(collect(make_actor(length="episode", lengths=(700,))).rewards) == 700, (
        "however long it is"
    )


def test_with_several_environments_rollouts_run_through_episode_ends() -> None:
    rollout = collect(make_actor(count=2, length=5, lengths=(3, 4)))
    np.testing.assert_array_equal(rollout.terminated.T, [[0, 0, 1, 0, 0], [0, 0, 0, 1, 0]])
    np.testing.assert_array_equal(
        rollout.observations[:, 0, 1:3], [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]
    )


@pytest.mark.parametrize(
    ("length", "settings", "expected"),
    [
        (5, {"lengths": (3,)}, [1, 2, 0]),
        # Not 0 (a time limit is no terminal state), nor the value of the next episode's first
        # state.
        (5, {"lengths": (3,), "ends": ("truncated",)}, [1, 2, 3]),
        (5, {"lengths": (3,), "ends": ("both",)}, [1, 2, 0]),
        (2, {"lengths": (9,)}, [1, 2]),
    ],
    ids=["terminal", "time limit", "both", "last row"],
)
def test_the_next_value_is_that_of_the_state_that_follows(
    length: int, settings: dict[str, Any], expected: list[float]
) -> None:
    np.testing.assert_array_equal(
        collect(make_actor(length=length, **settings)).next_values[:, 0], expected
    )


def test_bootstraps_of_several_environments_do_not_mix() -> None:
    """Environments 0 and 1 are cut by a time limit at different steps, twice in one rollout."""
    rollout = collect(make_actor(count=2, length=8, lengths=(2, 3), ends=("truncated",)))
    ended = rollout.truncated
    name, episode, step = np.moveaxis(rollout.observations[..., :3], -1, 0)
    np.testing.assert_array_equal(rollout.next_values, 1000 * name + 100 * episode + step + 1)
    assert ended.sum() >= 6


def test_an_episodes_return_is_the_sum_of_its_rewards_across_rollouts() -> None:
    actor = make_actor(3, 4, vectorized=True, lengths=(5, 2, 9), reward_scale=0.1, reward_clip=1.0)
    lengths: list[int] = []
    returns: list[float] = []
    transitions = 0
    for _ in range(30):
        rollout = collect(actor, steps=transitions)
        lengths += rollout.episodes.lengths.tolist()
        returns += rollout.episodes.returns.tolist()
        transitions += rollout.transitions
        assert (np.diff(rollout.episodes.end_steps) >= 0).all()
    assert set(lengths) == {2, 5, 9} and rollout.episodes.envs_with_finished_episode == 3
    assert abs(sum(lengths) - transitions) < 3 * 9
    # A reward is 100 episode + step + action / 8, and actions are 0 or 1: without the actions' part
    # it is exact.
    for length, total in zip(lengths, returns, strict=True):
        episode = round((total - length * (length + 1) / 2) / (100 * length))
        rest = total - length * (length + 1) / 2 - 100 * length * episode
        assert 0 <= rest <= length / 8


def make_normalizer(rewards: RewardNormalization = False, row: Array | None = None) -> Normalizer:
    row = np.zeros(stats_width((4,), True, rewards)) if row is None else row
    return Normalizer.from_row(row, NormalizedObservations(True, (4,)), rewards)


def test_a_rollout_is_normalized_with_one_set_of_statistics_bootstraps_included() -> None:
    rng = np.random.default_rng(0)
    scaling = make_normalizer(row=measure_stats(rng.normal(3, 2, (100, 4)), None))
    rollout = collect(
        make_actor(length=4, lengths=(2,), count=2, ends=("truncated",)), normalizer=scaling
    )
    plain = collect(make_actor(length=4, lengths=(2,), count=2, ends=("truncated",)))
    np.testing.assert_allclose(
        rollout.observations, scaling.observations(plain.observations), rtol=1e-6
    )
    assert rollout.stats is not None
    np.testing.assert_allclose(
        rollout.stats, measure_stats(plain.observations.reshape(-1, 4), None)
    )
    # the final observation of environment 0's first episode
    last = np.array([[[0, 0, 2, 0]]], np.float32)
    expected = value(scaling.observations(last)[0])
    np.testing.assert_allclose(rollout.next_values[1, 0], expected, rtol=1e-5)


def test_where_rewards_alone_are_normalized_observations_are_not_measured() -> None:
    """Those of images would be thousands of numbers a rollout, which nothing uses."""
    scaling = Normalizer.from_row(
        np.zeros(stats_width((4,), False, True)), NormalizedObservations(), True
    )
    rollout = collect(make_actor(length=4, lengths=(9,), count=2), normalizer=scaling)
    assert rollout.stats is not None
    assert (len(rollout.stats), rollout.stats[-3]) == (4, 8)


def test_rewards_are_divided_by_the_deviation_of_the_discounted_return() -> None:
    actor = make_actor(length=3, lengths=(9,))
    first = collect(actor, normalizer=make_normalizer(rewards=True))
    assert first.stats is not None
    r = np.array([Scripted.reward(0, t + 1, int(a)) for t, a in enumerate(first.actions[:, 0])])
    running = np.array([r[0], r[1] + 0.5 * r[0], r[2] + 0.5 * (r[1] + 0.5 * r[0])])
    np.testing.assert_allclose(first.stats[-3:], [3, running.mean(), 3 * running.var()])
    # by its own: there were none before
    np.testing.assert_allclose(first.rewards[:, 0], r / running.std(), rtol=1e-5)
    second = collect(actor, normalizer=make_normalizer(rewards=True, row=first.stats))
    raw = np.array([Scripted.reward(0, t + 4, a) for t, a in enumerate([0, 1, 0])])
    np.testing.assert_allclose(second.rewards[:, 0], raw / running.std(), rtol=1e-5)


def test_centered_rewards_have_their_own_mean_and_deviation() -> None:
    """Those of the transitions before; of the first rollout its own."""
    actor = make_actor(length=3, lengths=(9,))
    first = collect(actor, normalizer=make_normalizer(rewards="centered"))
    assert first.stats is not None
    r = np.array([Scripted.reward(0, t + 1, int(a)) for t, a in enumerate(first.actions[:, 0])])
    np.testing.assert_allclose(first.stats[-3:], [3, r.mean(), 3 * r.var()])
    np.testing.assert_allclose(first.rewards[:, 0], (r - r.mean()) / r.std(), rtol=1e-5)
    second = collect(actor, normalizer=make_normalizer(rewards="centered", row=first.stats))
    raw = np.array([Scripted.reward(0, t + 4, a) for t, a in enumerate([0, 1, 0])])
    np.testing.assert_allclose(second.rewards[:, 0], (raw - r.mean()) / r.std(), rtol=1e-5)


def test_a_lost_life_ends_the_learned_episode_and_not_the_reported_one() -> None:
    """Every second episode of the scripted ones is only a life of a longer one."""
    ended = np.zeros(2, np.int64)

    def lose_a_life(step: Step) -> Step:
        life_lost = step.episode_over & (ended % 2 == 0)
        np.add(ended, step.episode_over, out=ended)
        return step._replace(life_lost=life_lost)

    game = Gym(id=SCRIPTED, kwargs={"lengths": (3,)})
    lives: Any = Changed(game.make(2, [0, 0]), lose_a_life)
    rollout = collect(Actor(lives, policy(), game, rollout_length=14, gamma=0.5))
    for env in range(2):
        assert np.flatnonzero(rollout.terminated[:6, env]).tolist() == [2, 5]
        assert not rollout.next_values[rollout.terminated[:, env], env].any()
    assert set(rollout.episodes.lengths.tolist()) == {6}
    assert rollout.episodes.returns[0] == rollout.rewards[:6, 0].sum()


def test_the_clip_of_rewards_follows_its_schedule() -> None:
    actor = make_actor(
        length=1, lengths=(9,), reward_scale=100.0, reward_clip=Linear(start=8.0, end=4.0)
    )
    rewards = [
        actor.collect(Snapshot(0, 0, None), progress).rewards.item() for progress in (0.0, 0.5, 1.0)
    ]
    assert rewards == [8, 6, 4]
