"""The loop that collects: order, ends of episodes, bootstraps, and what it reports of finished episodes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scripted import Scripted

from a3c_exp.envs import EnvBatch, Gym, Step
from a3c_exp.core.normalization import RunningStats, Normalizer
from a3c_exp.core.rollout import Acted, Collector, RewardTransform, Rollout

ID = "scripted:Scripted-v0"


class Teller:
    """An actor whose actions alternate; its value of a state is 1000 name + 100 episode + step, read off the state.

    So every value in a rollout says which state it is the value of.
    """

    def __init__(self) -> None:
        self.calls = 0

    def act(self, observations: np.ndarray, state: Any) -> Acted:
        self.calls += 1
        actions = np.full(len(observations), self.calls % 2)
        return Acted(actions, np.full(len(observations), -0.5, np.float32), self.values(observations, state), None)

    def values(self, observations: np.ndarray, state: Any) -> np.ndarray:
        return (observations[:, :3] @ np.array([1000, 100, 1], np.float32)).astype(np.float32)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        return actions


def collector(
    count: int = 1, length: Any = 4, shaping: RewardTransform | None = None, gamma: float = 0.5, **kwargs: Any
) -> Collector:
    env = Gym(id=ID, kwargs=kwargs).make(count, list(range(count)))
    return Collector(env, length, shaping or RewardTransform(), gamma)


def collect(c: Collector, steps: int = 0, normalizer: Normalizer | None = None) -> Rollout:
    return c.collect(Teller(), 0, steps, normalizer)


def test_rows_are_transitions_in_order() -> None:
    rollout = collect(collector(length=4, lengths=(10,)))
    np.testing.assert_array_equal(rollout.observations[:, 0, 2], [0, 1, 2, 3])
    np.testing.assert_array_equal(rollout.actions[:, 0], [1, 0, 1, 0])
    np.testing.assert_array_equal(
        rollout.rewards[:, 0], [Scripted.reward(0, t + 1, a) for t, a in enumerate([1, 0, 1, 0])]
    )
    assert rollout.transitions == 4


def test_the_next_rollout_goes_on_where_the_last_one_stopped() -> None:
    c = collector(length=4, lengths=(10,))
    collect(c)
    np.testing.assert_array_equal(collect(c).observations[:, 0, 2], [4, 5, 6, 7])


def test_with_one_environment_a_rollout_ends_with_the_episode() -> None:
    c = collector(length=5, lengths=(3, 7))
    first, second = collect(c), collect(c)
    assert len(first.rewards) == 3 and first.terminated[-1, 0]
    assert len(second.rewards) == 5 and not second.terminated.any()


def test_with_several_environments_rollouts_run_through_episode_ends() -> None:
    rollout = collect(collector(count=2, length=5, lengths=(3, 4)))
    np.testing.assert_array_equal(rollout.terminated.T, [[0, 0, 1, 0, 0], [0, 0, 0, 1, 0]])
    np.testing.assert_array_equal(rollout.observations[:, 0, 1:3], [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]])


def test_a_whole_episode_however_long() -> None:
    """Longer than the space that is first laid out for it."""
    rollout = collect(collector(length="episode", lengths=(700,)))
    assert len(rollout.rewards) == 700
    np.testing.assert_array_equal(rollout.observations[:, 0, 2], np.arange(700))


def test_behind_a_terminal_step_there_is_nothing() -> None:
    rollout = collect(collector(length=5, lengths=(3,)))
    np.testing.assert_array_equal(rollout.next_values[:, 0], [1, 2, 0])


def test_behind_a_truncated_step_stands_the_value_of_the_last_observation() -> None:
    """Not 0 (a time limit is no death) and not the value of the next episode's first state."""
    rollout = collect(collector(length=5, lengths=(3,), ends=("truncated",)))
    np.testing.assert_array_equal(rollout.next_values[:, 0], [1, 2, 3])


def test_an_episode_that_ends_both_ways_has_terminated() -> None:
    rollout = collect(collector(length=5, lengths=(3,), ends=("both",)))
    np.testing.assert_array_equal(rollout.next_values[:, 0], [1, 2, 0])


def test_where_the_rollout_is_cut_stands_the_value_of_the_state_that_comes_next() -> None:
    rollout = collect(collector(length=2, lengths=(9,)))
    np.testing.assert_array_equal(rollout.next_values[:, 0], [1, 2])


def test_bootstraps_of_several_environments_do_not_mix() -> None:
    """Environments 0 and 1 are cut by a time limit at different steps, twice in one rollout."""
    rollout = collect(collector(count=2, length=8, lengths=(2, 3), ends=("truncated",)))
    ended = rollout.truncated
    name, episode, step = np.moveaxis(rollout.observations[..., :3], -1, 0)
    np.testing.assert_array_equal(rollout.next_values, 1000 * name + 100 * episode + step + 1)
    assert ended.sum() >= 6


@pytest.mark.parametrize("vectorized", [False, True])
def test_an_episodes_return_is_the_sum_of_its_rewards_across_rollouts(vectorized: bool) -> None:
    env = Gym(id=ID, vectorized=vectorized, kwargs={"lengths": (5, 2, 9)}).make(3, [0, 1, 2])
    c = Collector(env, 4, RewardTransform(scale=0.1, clip=1.0), 0.5)
    lengths: list[int] = []
    returns: list[float] = []
    collected = transitions = 0
    for _ in range(30):
        rollout = collect(c, steps=collected)
        collected += rollout.transitions
        lengths += rollout.episodes.lengths.tolist()
        returns += rollout.episodes.returns.tolist()
        transitions += rollout.transitions
        assert (np.diff(rollout.episodes.end_steps) >= 0).all()
    assert set(lengths) == {2, 5, 9}
    assert abs(sum(lengths) - transitions) < 3 * 9
    # 100 episode + step + action / 8, the action being 0 or 1 by turns: the return without the actions' part is exact.
    for length, total in zip(lengths, returns, strict=True):
        episode = round((total - length * (length + 1) / 2) / (100 * length))
        rest = total - length * (length + 1) / 2 - 100 * length * episode
        assert 0 <= rest <= length / 8


def test_a_reward_that_is_no_number_spoils_the_return_of_its_own_episode_alone() -> None:
    """Here the next episodes of the same rollout, and of those behind it, have returns."""
    c = collector(count=2, length=7, lengths=(3,), fails_at=2, failure="nan")
    envs = [env.unwrapped for env in c._env._envs]  # type: ignore[attr-defined]
    c._env.step = healed_after(3, envs, c._env.step)  # type: ignore[method-assign]
    returns = np.concatenate([collect(c).episodes.returns for _ in range(4)])
    assert np.isnan(returns[:2]).all()
    assert np.isfinite(returns[2:]).all() and len(returns) > 8


def healed_after(count: int, envs: list[Any], step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`step`, behind whose call of that number the environments do not fail any more."""
    calls = itertools.count(1)

    def stepped(actions: Any) -> Any:
        answer = step(actions)
        if next(calls) == count:
            for env in envs:
                env.fails_at = None
        return answer

    return stepped


def test_an_episodes_end_is_dated_by_the_runs_steps() -> None:
    rollout = collect(collector(count=2, length=4, lengths=(3, 9)), steps=1000)
    np.testing.assert_array_equal(rollout.episodes.end_steps, [1000 + 3 * 2])


def test_every_environment_counts_once_as_having_ended() -> None:
    c = collector(count=3, length=3, lengths=(2, 20, 20))
    counts = []
    for _ in range(8):
        collect(c)
        counts.append(c.envs_with_finished_episode)
    assert counts[0] == 1 and counts[-1] == 3


def test_rewards_are_scaled_then_clipped_for_training_only() -> None:
    rollout = collect(collector(length=3, lengths=(3,), shaping=RewardTransform(scale=0.5, clip=1.0)))
    np.testing.assert_allclose(rollout.rewards[:, 0], [0.5625, 1.0, 1.0])
    np.testing.assert_allclose(rollout.episodes.returns, [1.125 + 2 + 3.125])


def normalizer(size: int = 4, rewards: bool = False, row: np.ndarray | None = None) -> Normalizer:
    row = np.zeros(RunningStats.width((size,), True, rewards)) if row is None else row
    return Normalizer.from_row(row, (size,), True, rewards)


def test_a_rollout_is_normalised_with_one_set_of_statistics_bootstraps_included() -> None:
    rng = np.random.default_rng(0)
    seen = rng.normal(3, 2, (100, 4))
    scaling = normalizer(row=RunningStats.of(seen, None).row)
    rollout = collect(collector(length=4, lengths=(2,), count=2, ends=("truncated",)), normalizer=scaling)
    plain = collect(collector(length=4, lengths=(2,), count=2, ends=("truncated",)))
    np.testing.assert_allclose(rollout.observations, scaling.observations(plain.observations), rtol=1e-6)
    last = np.array([[[0, 0, 2, 0]]], np.float32)  # the final observation of environment 0's first episode
    expected = Teller().values(scaling.observations(last)[0], None)
    np.testing.assert_allclose(rollout.next_values[1, 0], expected, rtol=1e-5)


def test_what_was_observed_is_told_of_the_raw_observations() -> None:
    rollout = collect(collector(length=4, lengths=(9,), count=2), normalizer=normalizer())
    plain = collect(collector(length=4, lengths=(9,), count=2))
    assert rollout.observed is not None
    np.testing.assert_allclose(rollout.observed.row, RunningStats.of(plain.observations.reshape(-1, 4), None).row)


def test_where_rewards_alone_are_normalised_no_observation_is_added_up() -> None:
    """Those of pictures would be thousands of numbers a rollout, which nobody looks at."""
    scaling = Normalizer.from_row(np.zeros(RunningStats.width((4,), False, True)), (4,), False, True)
    rollout = collect(collector(length=4, lengths=(9,), count=2), normalizer=scaling)
    assert rollout.observed is not None
    assert (len(rollout.observed.row), rollout.observed.row[-3]) == (4, 8)


def test_of_no_transition_there_is_nothing_to_add() -> None:
    assert not RunningStats.of(np.zeros((0, 2, 3)), np.zeros(0)).row.any()
    assert len(RunningStats.of(np.zeros((0, 2, 3)), np.zeros(0)).row) == RunningStats.width((2, 3), True, True)


def test_statistics_of_all_rows_are_those_of_all_observations() -> None:
    rng = np.random.default_rng(0)
    seen = rng.normal(5, 3, (1000, 2)).astype(np.float32)
    rows = [RunningStats.of(part, None).row for part in np.split(seen, 4)]
    together = RunningStats.together(np.stack(rows))
    np.testing.assert_allclose(together.row, RunningStats.of(seen, None).row, rtol=1e-12)
    np.testing.assert_allclose(
        RunningStats(rows[0]).merge(RunningStats.together(np.stack(rows[1:]))).row, together.row, rtol=1e-12
    )
    scaled = normalizer(2, row=together.row).observations(seen)
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(scaled.std(0), 1, atol=1e-4)


def test_a_row_that_is_not_finite_is_left_out_of_the_statistics_alone() -> None:
    """Where one observation in fifty is, there is still something to normalise by."""
    seen = np.random.default_rng(0).normal(5, 3, (1000, 2)).astype(np.float32)
    spoiled = seen.copy()
    spoiled[::50, 1], spoiled[7] = np.inf, np.nan
    kept = np.isfinite(spoiled).all(1)
    returns = np.where(kept, 1.5, np.nan)
    np.testing.assert_allclose(RunningStats.of(spoiled, returns).row, RunningStats.of(seen[kept], returns[kept]).row)
    assert RunningStats.of(spoiled[:1], None).row[0] == 0


@pytest.mark.parametrize(
    ("mean", "deviation"), [(100.0, 0.01), (0.0, 1e-3), (-3.0, 1e3), (1e6, 5.0), (1000.0, 0.005), (1.7e9, 1e4)]
)
def test_a_number_that_varies_little_is_still_normalised(mean: float, deviation: float) -> None:
    seen = np.random.default_rng(0).normal(mean, deviation, (1000, 1)).astype(np.float32).astype(np.float64)
    scaled = normalizer(1, row=RunningStats.of(seen, None).row).observations(seen)
    assert 0.9 < scaled.std() < 1.1


def test_a_number_that_never_varies_is_centred_and_not_blown_up() -> None:
    seen = np.full((7, 1), np.float32(0.1))  # whose float64 sums are rounded
    optimizer_state = RunningStats.of(seen, None)
    for _ in range(10_000):
        optimizer_state = RunningStats.of(seen, None).merge(optimizer_state)
    shown = normalizer(1, row=optimizer_state.row).observations(seen + np.float32(0.5))
    np.testing.assert_allclose(shown, 0.5, rtol=1e-6)


def test_rewards_are_divided_by_the_deviation_of_the_discounted_return() -> None:
    c = collector(length=3, lengths=(9,), gamma=0.5)
    first = collect(c, normalizer=normalizer(rewards=True))
    assert first.observed is not None
    r = first.rewards[:, 0].astype(float)  # nothing observed yet: unscaled
    running = np.array([r[0], r[1] + 0.5 * r[0], r[2] + 0.5 * (r[1] + 0.5 * r[0])])
    np.testing.assert_allclose(first.observed.row[-3:], [3, running.mean(), 3 * running.var()])
    second = collect(c, normalizer=normalizer(rewards=True, row=first.observed.row))
    raw = np.array([Scripted.reward(0, t + 4, a) for t, a in enumerate([1, 0, 1])])
    np.testing.assert_allclose(second.rewards[:, 0], raw / running.std(), rtol=1e-5)


class Lives:
    """Scripted environments whose every second episode is only a life of a longer one."""

    def __init__(self, env: EnvBatch) -> None:
        self._env, self._lives = env, np.zeros(env.count, np.int64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, actions: np.ndarray) -> Step:
        step = self._env.step(actions)
        goes_on = step.over & (self._lives % 2 == 0)
        self._lives += step.over
        return step._replace(goes_on=goes_on)


@pytest.mark.parametrize(("count", "length"), [(1, 5), (2, 14)])
def test_a_lost_life_ends_what_is_learned_and_the_score_goes_on(count: int, length: int) -> None:
    made = Gym(id=ID, kwargs={"lengths": (3,)}).make(count, [0] * count)
    lives: Any = Lives(made)
    c = Collector(lives, length, RewardTransform(), 0.5)
    rollouts = [collect(c), collect(c)]
    for env in range(count):
        rewards = np.concatenate([rollout.rewards[:, env] for rollout in rollouts])
        terminated = np.concatenate([rollout.terminated[:, env] for rollout in rollouts])
        next_values = np.concatenate([rollout.next_values[:, env] for rollout in rollouts])
        assert np.flatnonzero(terminated[:6]).tolist() == [2, 5]
        assert not next_values[terminated].any()
    episodes = rollouts[0].episodes.merge(rollouts[1].episodes)
    assert set(episodes.lengths.tolist()) == {6}
    assert episodes.returns[0] == rewards[:6].sum()
