"""What a run has done so far, from the events of its workers."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a3c_exp.events import Episodes, Event, Metric
from a3c_exp.metrics import Tally


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def episodes(returns: list[float], ends: list[int] | None = None) -> Episodes:
    count = len(returns)
    ends = list(range(count)) if ends is None else ends
    return Episodes(np.array(returns, np.float64), np.full(count, 7, np.int64), np.array(ends, np.int64))


def event(worker: int = 0, returns: list[float] | None = None, ends: list[int] | None = None, **fields: Any) -> Event:
    return Event(worker, episodes=episodes(returns or [], ends), **fields)


# -- Tally: totals ---------------------------------------------------------------------------------


def test_totals_are_sums_over_all_events_of_all_workers() -> None:
    tally = Tally()
    tally.add(event(0, [1.0, 2.0], updates=3, rejected=1, steps=60))
    tally.add(event(1, [3.0], updates=2, steps=40))
    assert (tally.updates, tally.rejected, tally.steps, tally.episodes) == (5, 1, 100, 3)


def test_staleness_is_told_of_the_window_and_of_the_run() -> None:
    tally = Tally()
    assert (tally.staleness_mean, tally.staleness_max) == (None, None)
    tally.add(event(updates=3, staleness=Counter({0: 2, 9: 1})))
    first = tally.window()
    assert (first["async/staleness_mean"], first["async/staleness_max"]) == (3, 9)
    tally.add(event(updates=1, staleness=Counter({1: 1})))
    second = tally.window()
    assert (second["async/staleness_mean"], second["async/staleness_max"]) == (1, 1)
    assert (tally.staleness_mean, tally.staleness_max) == (2.5, 9)


# -- Tally: the window -----------------------------------------------------------------------------


def test_a_windows_metrics_are_means_over_its_updates_however_these_were_merged() -> None:
    one, three = Event(0), Event(0)
    one.add({"entropy": 1.0})
    for value in (2.0, 3.0, 6.0):
        three.add({"entropy": value})
    tally = Tally()
    tally.add(one)
    tally.add(three)
    assert tally.window()["train/entropy"] == 3.0


def test_a_window_forgets_the_one_before() -> None:
    tally = Tally()
    tally.add(event(metrics={"entropy": Metric.of(1.0)}, updates=1))
    tally.window()
    tally.add(event(metrics={"entropy": Metric.of(5.0)}, updates=1))
    assert tally.window()["train/entropy"] == 5.0
    empty = tally.window()
    assert "train/entropy" not in empty
    assert "async/staleness_mean" not in empty
    assert "rollout/ep_rew_mean" not in empty
    assert empty["train/n_updates"] == 2


def test_a_quantity_without_a_value_does_not_spoil_the_mean_of_the_others() -> None:
    tally = Tally()
    for value in (0.5, math.nan, 0.7):
        tally.add(event(metrics={"explained_variance": Metric.of(value)}))
    assert tally.window()["train/explained_variance"] == pytest.approx(0.6)


def test_a_metric_with_a_place_of_its_own_keeps_it() -> None:
    tally = Tally()
    tally.add(event(metrics={"ga3c/lag": Metric.of(2.0), "entropy": Metric.of(1.0)}))
    assert {"ga3c/lag", "train/entropy"} <= tally.window().keys()


def test_speed_is_that_of_the_window_and_seconds_those_of_the_run() -> None:
    clock = Clock()
    tally = Tally(clock=clock)
    tally.add(event(steps=1000))
    clock.now += 10
    assert tally.window()["time/steps_per_second"] == 100
    tally.add(event(steps=1000))
    clock.now += 2
    assert tally.window()["time/steps_per_second"] == 500
    assert tally.seconds == 12


def test_speed_does_not_count_the_time_in_which_workers_start() -> None:
    clock = Clock()
    tally = Tally(clock=clock)
    clock.now += 10
    tally.begin(seconds_ago=2)
    tally.add(event(steps=100))
    assert tally.window()["time/steps_per_second"] == 50


def test_a_window_carries_the_fields_names() -> None:
    clock = Clock()
    tally = Tally(clock=clock)
    measured = ("policy_loss", "value_loss", "entropy", "grad_norm", "learning_rate", "explained_variance")
    metrics = {name: Metric.of(1.0) for name in measured}
    tally.add(event(0, [10.0], updates=1, steps=20, metrics=metrics, staleness=Counter([2])))
    clock.now += 1
    assert tally.window() == {
        "rollout/ep_rew_mean": 10,
        "rollout/ep_len_mean": 7,
        "rollout/episodes": 1,
        **{f"train/{name}": 1 for name in measured},
        "train/n_updates": 1,
        "train/rejected_updates": 0,
        "async/staleness_mean": 2,
        "async/staleness_max": 2,
        "time/steps_per_second": 20,
    }


# -- Tally: the last 100 episodes ------------------------------------------------------------------


def test_the_mean_return_is_over_the_last_100_episodes() -> None:
    tally = Tally()
    means = [(tally.mean_return, tally.mean_return_100)]
    for returns in ([1000.0] * 50, [0.0] * 60 + [10.0] * 40):
        tally.add(event(0, returns, ends=[tally.episodes] * len(returns)))
        means.append((tally.mean_return, tally.mean_return_100))
    assert means == [(None, None), (1000, None), (4, 4)]


def test_an_event_may_bring_more_than_100_episodes() -> None:
    tally = Tally()
    tally.add(event(0, [float(i) for i in range(38_000)]))
    assert tally.episodes == 38_000
    assert tally.mean_return_100 == np.mean(range(37_900, 38_000))


def test_the_last_100_are_those_that_ended_last_not_those_of_the_worker_heard_last() -> None:
    tally = Tally()
    tally.add(event(0, [1.0] * 100, ends=list(range(0, 200, 2))))
    tally.add(event(1, [3.0] * 100, ends=list(range(1, 200, 2))))
    assert tally.mean_return_100 == 2  # 50 of each


def test_a_worker_that_goes_on_while_its_update_is_under_way_may_date_episodes_back() -> None:
    """As on GA3C and on a cluster, where the run's steps do not count that update yet."""
    tally = Tally()
    tally.add(event(0, [1.0] * 60, ends=[*range(10, 60), *range(30, 40)]))
    tally.add(event(1, [3.0] * 60, ends=list(range(45, 105))))
    assert tally.mean_return_100 == pytest.approx((60 * 3 + 40 * 1) / 100)
    assert tally._ends == sorted(tally._ends)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.floats(-1e3, 1e3)), min_size=1, max_size=150),
    st.lists(st.integers(1, 40), min_size=150, max_size=150),
)
def test_the_last_100_do_not_depend_on_how_episodes_were_packed_into_events(
    ended: list[tuple[int, float]], sizes: list[int]
) -> None:
    """ended: worker and return of each episode, by end step. Events of one worker arrive in order, packs vary."""
    queues: dict[int, list[tuple[int, float]]] = {}
    for end, (worker, value) in enumerate(ended):
        queues.setdefault(worker, []).append((end, value))
    tally = Tally()
    for size in sizes:
        for worker, queue in queues.items():
            pack, queues[worker] = queue[:size], queue[size:]
            if pack:
                tally.add(event(worker, [value for _, value in pack], [end for end, _ in pack]))
    assert tally.episodes == len(ended)
    assert tally.mean_return == pytest.approx(np.mean([value for _, value in ended[-100:]]))


# -- Tally: the goal -------------------------------------------------------------------------------


def test_a_goal_is_not_judged_before_100_episodes_have_ended() -> None:
    tally = Tally(environments=1)
    tally.add(event(0, [500.0] * 99, envs_ended=1))
    assert not tally.reached(475)
    tally.add(event(0, [500.0], [99], envs_ended=1))
    assert tally.reached(475)
    assert not tally.reached(500.1)


def test_a_goal_is_not_judged_before_every_environment_has_ended_an_episode() -> None:
    tally = Tally(environments=4)
    tally.add(event(0, [500.0] * 200, envs_ended=2))
    tally.add(event(1, [500.0] * 200, envs_ended=1))
    assert not tally.reached(475)
    tally.add(event(1, [500.0], [200], envs_ended=2))
    assert tally.reached(475)


# -- Tally: checkpoints ----------------------------------------------------------------------------


def test_a_restored_tally_goes_on_as_if_nothing_had_happened() -> None:
    clock = Clock()
    tally = Tally(environments=1, clock=clock)
    tally.add(event(0, [float(i) for i in range(150)], updates=7, rejected=2, steps=900, staleness=Counter({3: 7})))
    clock.now += 30
    later = Clock()
    restored = Tally(environments=1, clock=later)
    restored.restore(tally.state())
    for one in (tally, restored):
        one.add(event(0, [9.0], [200], updates=1, steps=10, staleness=Counter([1])))
    clock.now += 5
    later.now += 5
    assert restored.summary() == tally.summary()
    assert restored.state().keys() == tally.state().keys()
    assert restored.mean_return == tally.mean_return
    assert restored.window()["time/steps_per_second"] == 2  # of what came after the restoration


def test_after_a_restoration_every_environment_must_end_an_episode_again() -> None:
    tally = Tally(environments=2)
    tally.add(event(0, [500.0] * 100, envs_ended=2))
    assert tally.reached(475)
    restored = Tally(environments=2)
    restored.restore(tally.state())
    assert restored.mean_return_100 == 500
    assert not restored.reached(475)
    restored.add(event(0, [500.0], [100], envs_ended=2))
    assert restored.reached(475)
