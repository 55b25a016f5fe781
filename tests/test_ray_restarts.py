"""Workers on Ray that are killed, hang or fail: others take their places, and the run goes on."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
from runs import SCRIPTED, latest, train_config, wait_until
from test_ray import SECONDS, EndlessRun, actors, cluster, on_ray  # noqa: F401 - `cluster` is a fixture

from a3c_exp.core.events import Event
from a3c_exp.errors import RunError
from a3c_exp.run.statistics import RunStatistics

pytestmark = pytest.mark.usefixtures("cluster")


def restart_of(run: EndlessRun) -> Event:
    """The next event that reports a restart."""
    deadline = time.monotonic() + SECONDS
    for event in run.events:
        if event is not None and event.counts.get("restarts", 0):
            return event
        assert time.monotonic() < deadline, "no worker was replaced"
    pytest.fail("the run has ended")


def test_a_killed_worker_is_replaced_and_the_run_ends_by_its_own_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_stop_reason(stop: object, statistics: RunStatistics, *_: object) -> str | None:
        return "max_episodes" if statistics.counts["restarts"] == 1 else None

    def kill_worker() -> None:
        live = wait_until(lambda: len(found := actors("WorkerActor")) == 2 and found, SECONDS)
        os.kill(min(live), signal.SIGKILL)

    monkeypatch.setattr("a3c_exp.run.trainer.find_stop_reason", find_stop_reason)
    thread = threading.Thread(target=kill_worker)
    thread.start()
    done = train_config(on_ray(workers=2, backend={"max_restarts": 3}, total_steps=10**9), tmp_path)
    thread.join(SECONDS)
    assert (done.summary["stop_reason"], done.exit_code, done.summary["restarts"]) == ("max_episodes", 0, 1)
    assert latest(tmp_path)["store"]["steps"] == done.summary["steps"] > 0
    (warning,) = [line for line in (tmp_path / "train.log").read_text().splitlines() if "another one takes" in line]
    # The reason is in the words of Ray, which has several for a killed process.
    assert re.search(r"worker [01] died: \w.*: another one takes", warning), warning


def test_a_worker_that_hangs_is_killed_and_replaced() -> None:
    """In rounds the other waits for it meanwhile, which is no stall; and so may the one whose process stops."""
    with EndlessRun(workers=2, update="sync", backend={"max_restarts": 3, "stall_seconds": 3.0}) as run:
        run.wait_for_events({0, 1}, count=2)
        victim = min(actors("WorkerActor"))
        os.kill(victim, signal.SIGSTOP)
        event = restart_of(run)
        (warning,) = event.warnings
        assert warning.startswith(f"worker {event.worker} hung: its environment had not stepped for 3 s")
        assert "and was killed" in warning
        run.wait_for_events({0, 1}, count=2)
        wait_until(lambda: victim not in actors("WorkerActor"), SECONDS)
        assert run.store.driver is not None
        assert sorted(worker.attempt for worker in run.store.driver._workers.values()) == [0, 1]


class TestAWorkerThatRaises:
    def failing(self, trigger: Path) -> EndlessRun:
        loss = {"_target_": "faulty.FailingA3C", "trigger": str(trigger)}
        return EndlessRun(SCRIPTED, algorithm=loss, plugins=["scripted", "faulty"], backend={"max_restarts": 1})

    def test_after_its_first_update_is_replaced(self, tmp_path: Path) -> None:
        trigger = tmp_path / "trigger"
        with self.failing(trigger) as run:
            run.wait_for_events({0})
            trigger.touch()
            (warning,) = restart_of(run).warnings
            assert "RuntimeError: scripted to fail\nanother one takes its place" in warning
            run.wait_for_events({0})

    def test_before_it_ends_the_run_with_its_traceback(self, tmp_path: Path) -> None:
        trigger = tmp_path / "trigger"
        trigger.touch()
        with self.failing(trigger) as run, pytest.raises(RunError) as caught:
            run.run_until(lambda: False)
        assert str(caught.value).startswith("worker 0 failed:\nTraceback")
        assert str(caught.value).endswith("RuntimeError: scripted to fail")
        assert caught.value.reason == "failed"
        wait_until(lambda: not actors("WorkerActor") + actors("ParameterServer"), SECONDS)
