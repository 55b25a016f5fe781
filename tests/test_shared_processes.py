"""Workers that take turns in fewer processes than there are workers: `backend.processes`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_runs import nobody_works, running, totals, worker_processes
from refusals import refused
from runs import LINUX, config, drain, wait_until

from a3c_exp.config.builder import load_experiment
from a3c_exp.core import cpu, seeding
from a3c_exp.core.events import Event
from a3c_exp.core.seeding import Role

pytestmark = LINUX
ENDLESS: dict[str, Any] = {"total_steps": 10**9, "backend__max_restarts": 3}


def shared(workers: int, processes: int | str, **settings: Any) -> dict[str, Any]:
    return config(backend="processes", workers=workers, backend__processes=processes, **settings)


def staleness_mean(events: list[Event]) -> float:
    return float(np.mean([value for event in events for value in event.staleness.elements()]))


@pytest.mark.parametrize("processes", [2, "auto"])
def test_every_update_step_and_episode_is_counted_once(
    processes: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cpu.RUNS_AT_ONCE, str(cpu.usable_cores()))  # one core is left to a run
    names = set[str]()

    def enough(events: list[Event]) -> bool:
        names.update(child.name for child in worker_processes())
        return False

    events, state, error = drain(shared(5, processes, total_steps=16_000), enough)
    assert error is None
    updates, steps, measured, returns = totals(events)
    assert updates == measured == state["version"] == steps / 16
    assert steps == state["steps"] == len(returns) >= 16_000, "an episode of this bandit is a step"
    expected = {"auto": {"worker process 0-4"}, 2: {"worker process 0-1", "worker process 2-4"}}
    assert names == expected[processes]
    if processes == "auto":
        assert {event.worker for event in events} == set(range(5))
        assert staleness_mean(events) == pytest.approx(4, abs=0.5), "turns are at random"


def test_rounds_wait_for_workers_of_other_processes() -> None:
    events, state, error = drain(shared(5, 2, update="sync", total_steps=16 * 5 * 20))
    assert error is None
    updates, steps, measured, _ = totals(events)
    assert staleness_mean(events) == 0 and measured == steps / 16
    assert updates == state["version"]
    assert updates - 1 <= steps / (16 * 5) <= updates


@pytest.mark.parametrize(
    "settings", [{}, {"lock": True}, {"update": "sync"}], ids=["lock-free", "lock", "rounds"]
)
def test_a_process_that_is_killed_is_replaced_with_all_of_its_workers(
    settings: dict[str, Any],
) -> None:
    victims = {2, 3}
    with running(shared(4, 2, **ENDLESS, **settings)) as (events, store):
        seen = set[int]()
        for event in filter(None, events):
            seen.add(event.worker)
            if seen == set(range(4)):
                break

        victim = next(child for child in worker_processes() if child.name == "worker process 2-3")
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        restart = next(event for event in events if event is not None and event.counts["restarts"])
        assert restart.warnings == (
            "worker process 2-3 was killed by SIGKILL: another one takes its place",
        )
        for event in filter(None, events):
            victims.discard(event.worker)
            if not victims:
                break
        store.stop()
    wait_until(nobody_works)


def test_a_process_of_which_one_worker_hangs_is_killed_and_replaced(tmp_path: Path) -> None:
    victim = seeding.environment_seeds(0, Role.ENVIRONMENT, 1, 1)[0]
    fault = {"fault": "hang", "victim": victim, "note": str(tmp_path / "note")}
    whole = shared(
        2,
        1,
        env="faulty:Faulty-v0",
        env__kwargs=fault,
        plugins=["faulty"],
        envs_per_worker=1,
        backend__stall_seconds=1.0,
        **ENDLESS,
    )
    with running(whole) as (events, store):
        restart = next(event for event in events if event is not None and event.counts["restarts"])
        assert "worker process 0-1 hung: its environment had not stepped" in restart.warnings[0]
        store.stop()
    wait_until(nobody_works)


@pytest.mark.parametrize("rule", ["worker_episodes", "worker_return"])
def test_workers_that_leave_one_by_one_are_refused(rule: str) -> None:
    whole = shared(4, 2, **{f"stop__{rule}": 5})
    assert rule in refused(lambda: load_experiment(whole), "backend.processes", 2)
    load_experiment(shared(4, 4, **{f"stop__{rule}": 5}))
