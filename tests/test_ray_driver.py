"""What no cluster does on demand: the driver with a stand-in for Ray."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from stores import make_store

from a3c_exp.backends.messages import WorkerExit
from a3c_exp.backends.ray import driver as driver_module
from a3c_exp.backends.ray.cluster import death_text
from a3c_exp.backends.ray.driver import CachedStore, Driver, _RunningWorker
from a3c_exp.backends.ray.settings import RaySettings
from a3c_exp.backends.ray.wire import SEQUENCE_STRIDE, ServerStatus
from a3c_exp.backends.supervision import Restarts, RestartSettings, StallWatch
from a3c_exp.core.events import Event
from a3c_exp.errors import RunError


def driver_of(**ray: Any) -> tuple[Driver, mock.MagicMock, list[mock.MagicMock]]:
    """A driver of two servers and no workers whose calls are never answered, its store and its servers.

    ray: functions of the stand-in.
    """
    servers, store = [mock.MagicMock(), mock.MagicMock()], mock.MagicMock(spec=CachedStore)
    driver = object.__new__(Driver)
    driver._ray = SimpleNamespace(**{"wait": lambda calls, timeout: ([], calls)} | ray)
    driver._unreachable, driver._servers, driver._store = (TimeoutError,), servers, store
    driver._workers, driver._begun, driver._members = {}, True, []
    driver._occupied_at, driver._has_ended, store.stopped, store.steps = time.monotonic(), False, False, 0
    driver._settings, driver._spec = RaySettings(), make_store().spec
    driver._restarts, driver._watch = Restarts(RestartSettings(), make_store()), StallWatch(None)
    driver._failed, driver._reported_failures = deque(), 0
    driver._status_calls, driver._incarnation, driver._bytes, driver._reported_at = {}, 1, 0, 0.0
    return driver, store, servers


def test_servers_that_never_start_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "START_SECONDS", 0.0)
    driver, _, _ = driver_of()
    with pytest.raises(RunError, match="no parameter server could be started: it does not answer"):
        list(driver._call_until_answered(0, "status"))


@pytest.mark.parametrize("begun", [False, True])
def test_the_state_of_servers_that_never_had_one_is_not_fetched_at_the_end(begun: bool) -> None:
    driver, store, _ = driver_of(kill=lambda actor: None)
    driver._begun = begun
    driver.close()
    assert store.state.called == begun


def test_a_cluster_that_is_gone_at_the_end_leaves_the_cached_state() -> None:
    """The trainer saves it: from then on nothing may call the cluster."""
    driver, store, _ = driver_of(wait=mock.MagicMock(side_effect=ConnectionError("the head is gone")))
    driver._workers = {"run": _RunningWorker(0, "actor", "run", 1)}
    with pytest.raises(ConnectionError):
        driver.close()
    assert store.driver is None


def test_rounds_do_not_wait_for_a_worker_that_was_killed() -> None:
    """It may have joined after the last status, and would never push."""
    killed: list[Any] = []
    driver, _, servers = driver_of(kill=killed.append)
    worker = driver._workers["run"] = _RunningWorker(2, "actor", "run", 1)
    driver._kill_worker(worker)
    assert (killed, driver._workers) == (["actor"], {})
    for server in servers:
        server.leave.remote.assert_called_once_with(2, 2 * SEQUENCE_STRIDE)


def status_of(events: list[Event] | None = None, beats: dict[int, tuple[int, int]] | None = None) -> ServerStatus:
    """A status of the first server."""
    return ServerStatus(1, events or [], 0, 0.0, [0, 1], 0, 0, beats or {})


class TestPlacement:
    """Worker 0 runs, and the cluster has no room for worker 1. Both have waited for longer than one may."""

    @pytest.fixture
    def wait(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
        """Let the driver's clock go on by more than a run waits without a worker."""
        now = [1000.0]
        monkeypatch.setattr(driver_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
        return lambda: now.append(now.pop() + driver_module.START_SECONDS + 1)

    @pytest.fixture
    def crowded(self, wait: Callable[[], None]) -> Driver:
        driver, _, _ = driver_of(
            get=lambda call: WorkerExit(), kill=lambda actor: None, cluster_resources=lambda: {"CPU": 1}
        )
        for index in (0, 1):
            driver._workers[f"run {index}"] = _RunningWorker(index, f"actor {index}", f"run {index}", 0, 1000.0)
        self.tell_members(driver, [0])
        wait()
        driver._check_placement()
        return driver

    def tell_members(self, driver: Driver, members: list[int]) -> None:
        list(driver._report(ServerStatus(1, [], 0, 0.0, members, 0, 0, {})))

    def test_a_member_that_leaves_before_its_result_is_known_is_no_failure(
        self, crowded: Driver, wait: Callable[[], None]
    ) -> None:
        """It is closing its environments."""
        del crowded._workers["run 1"]
        self.tell_members(crowded, [])
        crowded._check_placement()
        wait()
        crowded._check_placement()

    def test_the_death_of_the_last_member_leaves_time_to_replace_it(
        self, crowded: Driver, wait: Callable[[], None]
    ) -> None:
        crowded._on_failure(crowded._workers.pop("run 0"), WorkerExit("it died"))
        crowded._check_placement()
        wait()
        with pytest.raises(RunError, match="no room for any worker"):
            crowded._check_placement()

    def test_one_that_never_joined_is_ended_with_the_run(self, crowded: Driver) -> None:
        """Even if the last steps are reported after the others have ended."""
        crowded._on_worker_exit("run 0")
        crowded._check_placement()
        assert list(crowded._workers) == ["run 1"], "the run may go on with it"
        crowded._store.steps = crowded._spec.total_steps  # type: ignore[misc]
        self.tell_members(crowded, [])
        crowded._check_placement()
        assert not crowded._workers

    def test_it_is_ended_too_if_the_last_member_dies_at_the_end(self, crowded: Driver) -> None:
        crowded._store.steps = crowded._spec.total_steps  # type: ignore[misc]
        crowded._restarts = mock.MagicMock(on_failure=lambda *_: Event(0))  # no replacement: the run is over
        crowded._on_failure(crowded._workers.pop("run 0"), WorkerExit("it died"))
        crowded._reported_failures = 1
        list(crowded._replace_failed())
        crowded._check_placement()
        assert not crowded._workers


class TestAFailure:
    def failed(self, **end: Any) -> tuple[Driver, dict[Any, Any], mock.MagicMock]:
        """A driver that has just heard of a failure, what its calls return, and what starts workers."""
        results: dict[Any, Any] = {}
        driver, _, servers = driver_of(get=results.__getitem__)
        servers[0].status.remote.side_effect = (f"status {number}" for number in range(10))
        driver._request_status(0)
        start = driver._start_worker = mock.MagicMock()  # type: ignore[method-assign]
        driver._on_failure(_RunningWorker(1, "actor", "run", 0), WorkerExit("it failed", **end))
        return driver, results, start

    def test_is_judged_once_the_status_that_was_requested_after_it_has_come(self) -> None:
        """The worker's last events are in that status: it had learned something, so it is replaced although it
        raised."""
        driver, results, start = self.failed(raised=True)
        results["status 0"] = status_of()
        assert list(driver._on_status("status 0")) == [None]
        assert not start.called
        results["status 1"] = status_of([Event(1, contributions=1)])
        _, restart = driver._on_status("status 1")
        assert restart is not None
        assert (restart.worker, restart.restarts) == (1, 1)
        start.assert_called_once_with(1)
        assert not driver._failed

    def test_by_an_error_before_any_update_ends_the_run(self) -> None:
        driver, results, _ = self.failed(raised=True)
        results |= {"status 0": status_of(), "status 1": status_of([Event(0, contributions=1)])}
        list(driver._on_status("status 0"))
        with pytest.raises(RunError, match="it failed"):
            list(driver._on_status("status 1"))

    def test_takes_the_worker_out_of_rounds_at_once(self) -> None:
        driver, _, _ = self.failed()
        for server in driver._servers:
            server.leave.remote.assert_called_once_with(1, SEQUENCE_STRIDE)


class TestHeartbeats:
    @pytest.fixture
    def watched(self) -> tuple[Driver, list[Any]]:
        """A driver of two workers, the second a replacement, and the actors that it has killed. Workers may be idle for
        one second. Each look at the clock is half a second after the last."""
        killed: list[Any] = []
        driver, _, _ = driver_of(kill=killed.append)
        driver._watch = StallWatch(1.0, (0.5 * count for count in range(1000)).__next__)
        for index in range(2):
            driver._workers[f"run {index}"] = _RunningWorker(index, f"actor {index}", f"run {index}", index)
        return driver, killed

    def test_that_stop_are_those_of_a_worker_that_hangs(self, watched: tuple[Driver, list[Any]]) -> None:
        driver, killed = watched
        for beat in range(5):
            driver._check_heartbeats(status_of(beats={0: (0, beat), 1: (1, 7)}))
        assert killed == ["actor 1"]
        ((worker, end),) = driver._failed
        assert worker.index == 1
        assert end.failure == (
            "worker 1 hung: its environment had not stepped for 1 s (backend.stall_seconds), and was killed"
        )

    def test_are_not_expected_of_a_worker_that_has_no_room_yet(self, watched: tuple[Driver, list[Any]]) -> None:
        """The last beat of its predecessor is no beat of its own."""
        driver, killed = watched
        for beat in range(100):
            driver._check_heartbeats(status_of(beats={0: (0, beat), 1: (0, 7)}))
        assert killed == []

    def test_that_a_restarted_server_has_forgotten_are_those_before(self, watched: tuple[Driver, list[Any]]) -> None:
        driver, killed = watched
        driver._check_heartbeats(status_of(beats={1: (1, 7)}))
        for _ in range(5):
            driver._check_heartbeats(status_of())
        assert killed == ["actor 1"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "The actor died unexpectedly before finishing this task.\n\tclass_name: A\n\tpid: 26498\n"
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
            "Worker unexpectedly exits. If the process was killed by the kernel OOM killer, consider much.",
            "Worker unexpectedly exits",
        ),
        ("The actor died because its node has died.\n\tpid: 1\n\tthe node is gone", "The actor died because its node "
         "has died"),
        ("killed", "killed"),
        ("", "no cause is known"),
    ],
)  # fmt: skip
def test_the_cause_of_a_death_is_one_line(text: str, cause: str) -> None:
    assert death_text(RuntimeError(text)) == cause
