"""Workers that are killed, hang or fail in a run: others take their places, and the run goes on."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_runs import kill_fork_server, nobody_works, running, worker_processes
from runs import LINUX, SCRIPTED, config, drain, wait_until

from a3c_exp.backends import forkserver
from a3c_exp.core import seeding
from a3c_exp.core.events import Event
from a3c_exp.core.seeding import Role

pytestmark = LINUX

# The first environment of the second worker, before anything has happened to it.
VICTIM = seeding.environment_seeds(0, Role.ENVIRONMENT, 1, 1)[0]


def faulty(fault: str, backend: str = "processes", **settings: Any) -> dict[str, Any]:
    """A run whose second worker goes wrong at its 20th step. Its replacement does not, unless
    `victim` is None."""
    kwargs = {"fault": fault, "victim": VICTIM} | settings.pop("faults", {})
    defaults: dict[str, Any] = {
        "workers": 2,
        "envs_per_worker": 1,
        "total_steps": 10**9,
        "backend__max_restarts": 3,
    }
    return config(
        "faulty:Faulty-v0", backend, env__kwargs=kwargs, plugins=["faulty"], **defaults | settings
    )


def replaced(events: list[Event]) -> bool:
    """Return whether a worker was replaced, and its replacement has learned something."""
    restart = next(
        (index for index, event in enumerate(events) if event.counts.get("restarts", 0)),
        len(events),
    )
    return any(
        event.worker == events[restart].worker and event.contributions
        for event in events[restart + 1 :]
    )


def ended(whole: dict[str, Any]) -> list[Event]:
    """The events of a run that goes on until a worker has been replaced, and then ends by
    itself."""
    events, state, error = drain(whole, enough=replaced)
    assert error is None
    assert np.isfinite(state["parameters"]).all()
    wait_until(nobody_works)
    return events


class TestAKilledWorker:
    def test_is_replaced_while_a_synchronous_round_waits_for_it(self) -> None:
        events = ended(faulty("kill", update="sync"))
        assert sum(event.counts.get("restarts", 0) for event in events) == 1
        warnings = [warning for event in events for warning in event.warnings]
        assert warnings == ["worker 1 was killed by SIGKILL: another one takes its place"]

    def test_is_replaced_although_a_program_that_it_started_holds_its_pipe(
        self, tmp_path: Path
    ) -> None:
        note = tmp_path / "note"
        events = ended(faulty("leave a child", faults={"note": str(note)}))
        assert sum(event.counts.get("restarts", 0) for event in events) == 1
        with suppress(ProcessLookupError):  # it has ended with the worker's group
            os.kill(int(note.read_text()), signal.SIGKILL)


class TestAWorkerThatHangs:
    def test_because_it_is_stopped_is_killed_and_replaced(self) -> None:
        with running(faulty("raise", faults={"victim": -1}, backend__stall_seconds=1.0)) as (
            events,
            store,
        ):
            next(event for event in events if event is not None and event.worker == 1)
            victim = next(child.pid for child in worker_processes() if child.name == "worker 1")
            assert victim is not None
            os.kill(victim, signal.SIGSTOP)
            restart = next(
                event for event in events if event is not None and "restarts" in event.counts
            )
            assert restart.worker == 1
            assert restart.warnings[0].startswith("worker 1 hung: it")
            assert "and was killed" in restart.warnings[0]
            store.stop()


def test_a_worker_that_raises_after_its_first_update_is_replaced(tmp_path: Path) -> None:
    trigger = tmp_path / "trigger"
    loss = {"_target_": "faulty.FailingA3C", "trigger": str(trigger)}
    triggered = threading.Event()
    contributors = set[int]()
    restarted = set[int]()

    def enough(events: list[Event]) -> bool:
        last = events[-1] if events else Event(0)  # there are many events: each is looked at once
        if last.counts.get("restarts", 0):
            restarted.add(last.worker)
        elif last.contributions:
            contributors.add(last.worker)
        if not triggered.is_set() and contributors == {0, 1}:
            triggered.set()
            trigger.touch()
        return bool(last.contributions) and last.worker in restarted

    settings: dict[str, Any] = {
        "algorithm": loss,
        "plugins": ["scripted", "faulty"],
        "backend__max_restarts": 3,
    }
    events, _, error = drain(
        config(SCRIPTED, "processes", workers=2, total_steps=10**9, **settings), enough
    )
    assert error is None
    (warning,) = [warning for event in events for warning in event.warnings]
    assert warning.endswith("RuntimeError: scripted to fail\nanother one takes its place")


def test_a_fork_server_that_is_killed_is_started_again_and_the_run_goes_on() -> None:
    """Its workers end with it, and each of them is replaced."""
    lost: list[int | None] = []

    restarted: list[int] = []
    learned = set[int]()  # since the last restart

    def enough(events: list[Event]) -> bool:
        last = events[-1] if events else Event(0)  # there are many events: each is looked at once
        if "restarts" in last.counts:
            restarted.append(last.worker)
            learned.clear()
        elif last.contributions:
            learned.add(last.worker)
        if not lost and learned == {0, 1}:
            lost.extend(child.pid for child in worker_processes())
            kill_fork_server()
        return len(restarted) >= 2 and learned == {0, 1}

    events, _, error = drain(
        config(backend="processes", workers=2, total_steps=10**9, backend__max_restarts=3), enough
    )
    assert error is None
    assert sum(event.counts.get("restarts", 0) for event in events) == 2
    assert len(lost) == 2 and not any(_is_worker(pid) for pid in lost)
    wait_until(nobody_works)


def _is_worker(pid: int | None) -> bool:
    try:
        return "forkserver" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def test_a_process_that_the_system_refuses_is_an_error_of_the_system(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The fork server dies of it, and the one that takes its place does too."""
    monkeypatch.setattr(forkserver, "PRELOAD", ["no_forks"])
    forkserver.ensure_running()
    kill_fork_server()
    with pytest.raises(OSError, match="no process can be forked"):
        forkserver.start(os.getpid, "refused")
