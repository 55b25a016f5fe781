"""What no cluster does on demand: the driver with a stand-in for Ray."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from stores import make_store

from a3c_exp.backends.messages import WorkerExit
from a3c_exp.backends.ray import driver as driver_module
from a3c_exp.backends.ray.cluster import death_text
from a3c_exp.backends.ray.driver import Driver, _RunningWorker
from a3c_exp.backends.ray.settings import RaySettings
from a3c_exp.backends.ray.wire import ServerStatus
from a3c_exp.backends.supervision import Restarts, RestartSettings
from a3c_exp.core.events import Event
from a3c_exp.core.heartbeat import StallWatch
from a3c_exp.errors import RunError


class Case:
    """A driver of two servers, whose workers may be idle for a second.

    statuses: what the first server answers, in turn; then an empty status. killed: the actors that the driver has
    killed. events: those of the last status. clock: seconds of the driver and of its watch.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, workers: int = 0) -> None:
        self.statuses: list[ServerStatus] = []
        self.killed: list[Any] = []
        self.events: list[Event] = []
        self.clock = 1000.0
        monkeypatch.setattr(
            driver_module, "time", SimpleNamespace(monotonic=lambda: self.clock, sleep=lambda seconds: None)
        )
        self.servers = [mock.MagicMock(), mock.MagicMock()]
        self.store = mock.MagicMock()
        self.store.stopped = False
        self.store.steps = 0
        self.servers[0].status.remote.side_effect = (f"status {number}" for number in range(1000))
        self.driver = driver = object.__new__(Driver)
        driver._ray = SimpleNamespace(
            wait=lambda calls, timeout: (calls, []),
            get=self.get,
            kill=self.killed.append,
            cluster_resources=lambda: {"CPU": 1},
        )
        driver._lost = (LookupError,)
        driver._unreachable = (LookupError, TimeoutError)
        driver._servers = self.servers
        driver._store = self.store
        driver._settings = RaySettings()
        driver._spec = make_store().spec
        driver._workers = {
            f"run {index}": _RunningWorker(index, f"actor {index}", f"run {index}", index, self.clock)
            for index in range(workers)
        }
        driver._restarts = Restarts(RestartSettings(), make_store())
        driver._watch = StallWatch(1.0, lambda: self.clock)
        driver._members = []
        driver._has_ended = False
        driver._status_calls = {}
        driver._incarnation = 1
        driver._begun = True
        self.started = driver._start_worker = mock.MagicMock()  # type: ignore[method-assign]
        driver._request_status(0)

    def get(self, call: str) -> object:
        if call.startswith("run"):
            return WorkerExit()
        return self.statuses.pop(0) if self.statuses else status_of()

    def tell(self, status: ServerStatus) -> list[Event | None]:
        """Let the first server answer this."""
        self.statuses.append(status)
        ((call, _),) = self.driver._status_calls.items()
        return list(self.driver._on_status(call))


def status_of(
    *events: Event, beats: dict[int, tuple[int, int]] | None = None, members: tuple[int, ...] = ()
) -> ServerStatus:
    """A status of the first server."""
    return ServerStatus(1, list(events), 0, 0.0, list(members), beats or {})


def test_servers_that_never_start_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)

    def wait(calls: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        case.clock += 100
        return [], calls

    case.driver._ray.wait = wait
    with pytest.raises(RunError, match="no parameter server could be started"):
        list(case.driver._call_until_answered(0, "status"))


@pytest.mark.parametrize("begun", [False, True])
def test_the_state_of_servers_that_never_had_one_is_not_fetched_at_the_end(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(monkeypatch)
    case.driver._begun = begun
    case.driver.close()
    assert case.store.state.called == begun


def test_a_cluster_that_is_gone_at_the_end_leaves_the_cached_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer saves it. From then on nothing may call the cluster."""
    case = Case(monkeypatch, workers=1)
    case.driver._ray.wait = mock.MagicMock(side_effect=ConnectionError("the head is gone"))
    with pytest.raises(ConnectionError):
        case.driver.close()
    assert case.store.driver is None


class TestPlacement:
    """Worker 0 runs, and the cluster has no room for worker 1."""

    @pytest.fixture
    def crowded(self, monkeypatch: pytest.MonkeyPatch) -> Case:
        case = Case(monkeypatch, workers=2)
        case.tell(status_of(members=(0,)))
        case.clock += driver_module.PLACEMENT_SECONDS + 1
        case.driver._check_placement()
        return case

    def test_rounds_do_not_wait_for_one_that_has_no_room(self, crowded: Case) -> None:
        crowded.driver._check_placement()
        for server in crowded.servers:
            server.leave.remote.assert_called_once_with(1)

    def test_one_that_never_joined_is_ended_with_the_run(self, crowded: Case) -> None:
        """Even if the last steps are reported after the others have ended."""
        list(crowded.driver._on_worker_exit("run 0"))
        crowded.driver._check_placement()
        assert list(crowded.driver._workers) == ["run 1"], "the run may go on with it"
        crowded.store.steps = crowded.driver._spec.total_steps
        crowded.driver._check_placement()
        assert not crowded.driver._workers
        assert crowded.killed[-1] == "actor 1"


class TestAFailure:
    """Of worker 1, which has raised."""

    @pytest.fixture
    def case(self, monkeypatch: pytest.MonkeyPatch) -> Case:
        return Case(monkeypatch, workers=2)

    def fail(self, case: Case) -> list[Event | None]:
        worker = case.driver._workers.pop("run 1")
        return list(case.driver._on_failure(worker, WorkerExit("it failed", is_own=True)))

    def test_is_judged_once_all_that_the_worker_had_sent_is_known(self, case: Case) -> None:
        """The status that was on its way may have been made before its last push. It had learned something, so it is
        replaced although it raised."""
        case.statuses = [status_of(), status_of(Event(1, contributions=1))]
        *_, restart = self.fail(case)
        assert restart is not None
        assert (restart.worker, restart.counts.get("restarts", 0)) == (1, 1)
        case.started.assert_called_once_with(1)


class TestHeartbeats:
    """Of two workers. The second is a replacement."""

    @pytest.fixture
    def tell(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Case]:
        """Tells the driver the heartbeats, half a second after the last ones."""
        case = Case(monkeypatch, workers=2)
        case.driver._restarts = mock.MagicMock(on_failure=lambda key, worker, end: Event(0, warnings=(end.failure,)))

        def tell_beats(beats: dict[int, tuple[int, int]]) -> Case:
            case.clock += 0.5
            case.events = [event for event in case.tell(status_of(beats=beats)) if event]
            return case

        return tell_beats

    def test_are_not_expected_of_a_worker_that_has_no_room_yet(self, tell: Callable[..., Case]) -> None:
        """The last beat of its predecessor is no beat of its own."""
        for beat in range(100):
            assert not tell({0: (0, beat), 1: (0, 7)}).killed

    def test_that_a_restarted_server_has_forgotten_are_those_before(self, tell: Callable[..., Case]) -> None:
        tell({1: (1, 7)})
        killed: list[Any] = []
        for _ in range(5):
            killed = tell({}).killed
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
        ("The actor died because its node has died.\n\tpid: 1", "The actor died because its node has died"),
        ("", "no cause is known"),
    ],
)
def test_the_cause_of_a_death_is_one_line(text: str, cause: str) -> None:
    assert death_text(RuntimeError(text)) == cause
