"""Workers that leave a run by themselves: after so many episodes, or once they are good."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import config, drain, train_config

from a3c_exp.core.episodes import LeavingRules
from a3c_exp.core.events import Episodes, Event
from a3c_exp.core.experiment import Stop

ALONE: dict[str, Any] = {"envs_per_worker": 1, "env__kwargs": {"length": 3}, "total_steps": 10**9}


def episodes_by_worker(events: list[Event]) -> Counter[int]:
    counted: Counter[int] = Counter()
    for event in events:
        counted[event.worker] += len(event.episodes)
    return counted


def test_a_worker_leaves_once_its_last_episodes_are_good() -> None:
    """Exactly then: an episode that would spoil the mean comes too late."""
    rules = LeavingRules(Stop(worker_return=2.0, window=2), 0)
    for returns, expected in (([9.0], None), ([-9.0, 1.0], None), ([3.0, -100.0], "worker_return")):
        count = len(returns)
        assert (
            rules.add(Episodes(np.array(returns), np.full(count, 3), np.arange(count), 1))
            == expected
        )


@pytest.mark.parametrize(
    ("backend", "update"),
    [("serial", "async"), ("threads", "sync"), ("processes", "async"), ("ga3c", "async")],
)
def test_each_worker_makes_exactly_its_episodes(backend: str, update: str) -> None:
    """With one environment a rollout ends where an episode does, so none is begun after the last
    one."""
    run_config = config(
        backend=backend, workers=3, update=update, stop__worker_episodes=20, **ALONE
    )
    events, state, error = drain(run_config)
    assert error is None
    assert {worker: count for worker, count in episodes_by_worker(events).items() if count} == {
        0: 20,
        1: 20,
        2: 20,
    }
    assert state["steps"] == 3 * 20 * 3
    assert {event.left for event in events} == {None, "worker_episodes"}


class TestAWholeRun:
    @pytest.mark.parametrize(
        ("rules", "reason", "episodes"),
        [
            ({"workers": 2, "stop__worker_episodes": 20}, "worker_episodes", 40),
            ({"workers": 2, "stop__worker_return": -1e9, "stop__window": 5}, "worker_return", 10),
            ({"stop__mean_return": -1e9, "stop__window": 7}, "mean_return", 7),
        ],
    )
    def test_ends_by_its_rule(
        self, rules: dict[str, Any], reason: str, episodes: int, tmp_path: Path
    ) -> None:
        done = train_config(config(**rules, **ALONE), tmp_path)
        assert (done.summary["stop_reason"], done.summary["episodes"], done.exit_code) == (
            reason,
            episodes,
            0,
        )

    def test_goes_on_with_its_counts_and_has_no_more_after_the_last(self, tmp_path: Path) -> None:
        """A run of 60 steps has made 10 episodes of each worker; resumed, each makes 10 more."""
        run_config = config(workers=2, stop__worker_episodes=20, **ALONE)
        short, *resumed = (
            train_config(run_config | {"total_steps": steps}, tmp_path, resume=steps > 60).summary
            for steps in (60, 10**9, 10**9)
        )
        assert short["stop_reason"] == "total_steps"
        for done in resumed:
            assert (done["stop_reason"], done["episodes"], done["steps"]) == (
                "worker_episodes",
                40,
                120,
            )

    def test_reaches_its_goal_though_a_worker_had_left_in_an_earlier_session(
        self, tmp_path: Path
    ) -> None:
        """It ends no more episodes, so nobody waits for one."""
        run_config = config(workers=1, stop__worker_episodes=20, **ALONE)
        train_config(run_config, tmp_path)
        goal = {"worker_episodes": 20, "mean_return": -1e9, "window": 22}
        done = train_config(
            run_config | {"workers": 2, "stop": goal}, tmp_path, resume=True
        ).summary
        assert (done["stop_reason"], done["episodes"]) == ("mean_return", 22)
