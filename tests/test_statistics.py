"""Totals, recent episodes and means of a run, from the events of its workers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a3c_exp.core.events import Episodes, Event, Metric
from a3c_exp.run.statistics import RunStatistics


def event(
    worker: int = 0,
    returns: list[float] | None = None,
    ends: list[int] | None = None,
    finished: int = 0,
    **fields: Any,
) -> Event:
    """An event with episodes of 7 steps. finished: environments of the worker that have ended an
    episode so far."""
    returns = [] if returns is None else returns
    count = len(returns)
    end_steps = np.array(range(count) if ends is None else ends, np.int64)
    episodes = Episodes(
        np.array(returns, np.float64), np.full(count, 7, np.int64), end_steps, finished
    )
    return Event(worker, episodes=episodes, **fields)


# -- totals ---------------------------------------------------------------------------------


def test_staleness_is_reported_for_the_window_and_for_the_run() -> None:
    statistics = RunStatistics()
    assert statistics.summary()["staleness_mean"] is None
    statistics.add(event(updates=3, staleness=Counter({0: 2, 9: 1})))
    first = statistics.window(0)
    assert (first["workers/staleness_mean"], first["workers/staleness_max"]) == (3, 9)
    statistics.add(event(updates=1, staleness=Counter({1: 1})))
    second = statistics.window(0)
    assert (second["workers/staleness_mean"], second["workers/staleness_max"]) == (1, 1)
    assert (statistics.summary()["staleness_mean"], statistics.summary()["staleness_max"]) == (
        2.5,
        9,
    )


def test_percentiles_of_the_staleness_are_of_updates_and_not_of_events() -> None:
    statistics = RunStatistics()
    assert statistics.summary()["staleness_p50"] is None
    statistics.add(event(updates=94, staleness=Counter({0: 40, 2: 54})))
    statistics.add(event(updates=6, staleness=Counter({9: 1, 50: 5})))
    window = statistics.window(0)
    summary = statistics.summary()
    for place, prefix in ((window, "workers/"), (summary, "")):
        assert (place[f"{prefix}staleness_p50"], place[f"{prefix}staleness_p95"]) == (2, 9)
    statistics.add(event(updates=1, staleness=Counter({7: 1})))
    assert statistics.window(0)["workers/staleness_p50"] == 7
    assert statistics.summary()["staleness_p95"] == 9


# -- the window -----------------------------------------------------------------------------


def test_a_windows_metrics_are_means_over_its_updates_alone_however_these_were_merged() -> None:
    statistics = RunStatistics()
    for metric in (Metric(1.0), Metric(11.0, count=3)):
        statistics.add(event(metrics={"entropy": metric}, updates=1))
    assert statistics.window(0)["train/entropy"] == 3.0
    statistics.add(event(metrics={"entropy": Metric(5.0)}, updates=1))
    assert statistics.window(0)["train/entropy"] == 5.0
    empty = statistics.window(0)
    assert not {"train/entropy", "workers/staleness_mean", "rollout/ep_rew_mean"} & empty.keys()
    assert empty["train/n_updates"] == 3


# -- the last 100 episodes ------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 2), st.floats(-1e3, 1e3)), min_size=1, max_size=150),
    st.lists(st.integers(1, 40), min_size=150, max_size=150),
)
def test_the_last_100_do_not_depend_on_how_episodes_were_packed_into_events(
    ended: list[tuple[int, float]], sizes: list[int]
) -> None:
    """ended: worker and return of each episode, by end step. Events of one worker arrive in order,
    packs vary."""
    queues: dict[int, list[tuple[int, float]]] = {}
    for end, (worker, value) in enumerate(ended):
        queues.setdefault(worker, []).append((end, value))
    statistics = RunStatistics()
    for size in sizes:
        for worker, queue in queues.items():
            pack, queues[worker] = queue[:size], queue[size:]
            if pack:
                statistics.add(
                    event(worker, [value for _, value in pack], [end for end, _ in pack])
                )
    assert statistics.episodes == len(ended)
    assert (np.diff(statistics.state()["recent_end_steps"]) >= 0).all()
    assert statistics.mean_return == pytest.approx(np.mean([value for _, value in ended[-100:]]))


# -- the reward threshold
# -------------------------------------------------------------------------------


def test_a_threshold_is_judged_after_100_episodes_and_one_of_every_environment() -> None:
    statistics = RunStatistics(environments=3)
    statistics.add(event(0, [500.0] * 60, finished=2))
    statistics.add(event(1, [500.0] * 39, finished=1))
    assert not statistics.reached(475) and statistics.summary()["mean_return_100"] is None
    statistics.add(event(1, [500.0], [99], finished=1))
    assert statistics.reached(475) and statistics.summary()["mean_return_100"] == 500
    assert not statistics.reached(500.1)
    statistics = RunStatistics(environments=4)
    statistics.add(event(0, [500.0] * 200, finished=3))
    assert not statistics.reached(475)


def test_an_episode_of_every_environment_counts_though_its_worker_was_replaced() -> None:
    statistics = RunStatistics(environments=3)
    statistics.add(event(0, [500.0] * 100, finished=3))
    statistics.add(event(0, [500.0], [100], finished=1))
    assert statistics.reached(475)


# -- checkpoints ----------------------------------------------------------------------------


def test_restored_statistics_continue_as_if_nothing_had_happened() -> None:
    now = [100.0]
    statistics = RunStatistics(environments=1, clock=lambda: now[0])
    returns = [float(i) for i in range(150)]
    statistics.add(
        event(
            0, returns, updates=7, counts=Counter(rejected=2), steps=900, staleness=Counter({3: 7})
        )
    )
    now[0] += 30
    restored = RunStatistics(environments=1, clock=lambda: now[0])
    restored.restore(statistics.state())
    for one in (statistics, restored):
        one.add(event(0, [9.0], [200], updates=1, steps=10, staleness=Counter([1])))
    now[0] += 5
    assert restored.summary() == statistics.summary()
    assert restored.state().keys() == statistics.state().keys()
    assert restored.summary()["staleness_p50"] == 3
    # of what came after the restoration
    assert restored.window(seconds=5.0)["time/steps_per_second"] == 2


def test_after_a_restoration_every_environment_must_end_an_episode_again() -> None:
    statistics = RunStatistics(environments=2)
    restored = RunStatistics(environments=2)
    statistics.add(event(0, [500.0] * 100, finished=2))
    restored.restore(statistics.state())
    assert not restored.reached(475)
    restored.add(event(0, [500.0], [100], finished=2))
    assert restored.reached(475)


def test_a_fault_alone_is_worth_a_point_of_the_curves() -> None:
    """The last event of a run may report nothing else."""
    statistics = RunStatistics()
    statistics.window(0)
    statistics.add(Event(0, counts=Counter(restarts=1)))
    assert statistics.has_new_data
    assert statistics.window(0)["workers/restarts"] == statistics.summary()["restarts"] == 1
    assert not statistics.has_new_data
