"""What no cluster does on demand: the driver with a stand-in for Ray."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from stores import make_spec

from a3c_exp.backends.messages import WorkerExit
from a3c_exp.backends.ray import Ray
from a3c_exp.backends.ray import driver as driver_module
from a3c_exp.backends.ray.cluster import death_text
from a3c_exp.backends.ray.driver import PLACEMENT_SECONDS, CachedStore, Driver
from a3c_exp.backends.ray.server import ServerStatus
from a3c_exp.core.events import Event
from a3c_exp.core.heartbeat import StallWatch
from a3c_exp.errors import RunError


class Case:
    """A driver of two servers and two workers, which may be idle for a second.

    answers: by pending call; a status without one is empty. killed: the actors that the driver has
    killed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = 1000.0
        self.statuses: list[ServerStatus] = []
        self.killed: list[Any] = []
        self.ready = True
        self.lost = False
        numbers = itertools.count()
        self.ray = mock.MagicMock()
        self.ray.wait, self.ray.get, self.ray.kill = self.wait, self.get, self.killed.append
        self.ray.cluster_resources.return_value = {"CPU": 1}
        actors = self.ray.remote.return_value.options.return_value
        actors.remote.side_effect = lambda *_: mock.MagicMock(
            **{
                "status.remote.side_effect": lambda *_: next(numbers),
                "run.remote.side_effect": lambda *_: next(numbers),
            }
        )
        time = SimpleNamespace(monotonic=lambda: self.clock, sleep=lambda seconds: None)
        monkeypatch.setattr(driver_module, "time", time)
        monkeypatch.setattr(driver_module, "lost_errors", lambda: (LookupError,))
        monkeypatch.setitem(sys.modules, "ray", self.ray)
        self.store = CachedStore(make_spec(workers=2))
        context: Any = mock.MagicMock()
        self.driver = Driver(Ray(shards=2, max_restarts=1), context, self.store)
        self.driver._start_servers()
        self.driver._watch = StallWatch(1.0, lambda: self.clock)
        while self.driver._start_next():
            pass
        self.workers = self.driver.sources
        self.first_actors = [worker.actor for worker in self.workers]

    def wait(self, calls: list[Any], timeout: float, **_: Any) -> tuple[list[Any], list[Any]]:
        self.clock += 0.1 if self.ready else 100
        return [call for call in calls if self.ready and call in self.driver._status_calls], []

    def get(self, call: Any, timeout: float = 0.0) -> object:
        if self.lost:
            raise LookupError("it died")
        return self.statuses.pop(0) if self.statuses else status_of()

    def tell(self, status: ServerStatus) -> list[Event | None]:
        """Let the first server answer this, half a second after the last answer."""
        self.clock += 0.5
        self.statuses.append(status)
        call = next(call for call, server in self.driver._status_calls.items() if server == 0)
        return list(self.driver._process(self.driver._take_status(call)))


def status_of(
    *events: Event, beats: dict[tuple[int, int], int] | None = None, episodes: int = 0
) -> ServerStatus:
    """A status of the first server. episodes: that worker 1 has finished."""
    return ServerStatus(list(events), 0, np.array([0, episodes, 0]), 0.0, beats or {})


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(monkeypatch)


def test_a_server_that_dies_has_all_start_again_unless_nothing_was_learned_in_between(
    case: Case,
) -> None:
    """Workers draw other numbers than before. The servers have the state that was last fetched."""
    run = case.driver.run()
    next(run)
    attempts = [worker.attempt for worker in case.workers]
    before = [*case.driver._servers, *(worker.actor for worker in case.workers)]
    case.lost = True
    restart = next(run)
    assert restart is not None and restart.counts == {"restarts": 1}
    assert {id(actor) for actor in before} <= {id(actor) for actor in case.killed}
    case.lost = False
    next(run)
    assert [worker.attempt for worker in case.workers] == [attempt + 1 for attempt in attempts]
    assert not {id(server) for server in case.driver._servers} & {id(actor) for actor in before}
    case.lost = True
    with pytest.raises(RunError, match=r"parameter server died.*\n.*max_restarts"):
        list(run)


def test_new_servers_know_of_episodes_that_no_checkpoint_has(case: Case) -> None:
    """`stop.worker_episodes` counts them."""
    case.tell(status_of(episodes=15))
    assert case.store.cached_state()["worker_episodes"].tolist() == [0, 15, 0]


def test_new_servers_do_not_wait_in_rounds_for_a_worker_that_has_left(case: Case) -> None:
    run = case.driver.run()
    next(run)
    case.tell(status_of(Event(1, left="worker_episodes")))
    list(case.driver._end(1, WorkerExit()))
    case.lost = True
    restart = next(run)
    assert restart is not None and restart.counts == {"restarts": 1}
    case.lost = False
    next(run)
    for server in case.driver._servers:
        server.leave.remote.assert_called_once_with(1)


def test_a_server_that_never_starts_ends_the_run(case: Case) -> None:
    case.ready = False
    with pytest.raises(RunError, match="no parameter server could be started"):
        list(case.driver.run())


def test_a_server_that_stops_answering_ends_the_run(case: Case) -> None:
    """It, its node or the whole cluster is stopped or gone. Its state is not waited for."""
    case.driver._server_watch = StallWatch(1.0, lambda: case.clock)
    case.tell(status_of())
    case.ready = False
    with pytest.raises(RunError, match=r"parameter server 0 .*stall_seconds") as caught:
        for _ in range(10):
            list(case.driver._receive(0.1))
    assert caught.value.reason == "stalled"
    case.driver.close()
    assert not any(server.state.remote.called for server in case.driver._servers)


def test_a_cluster_that_is_gone_at_the_end_leaves_the_cached_state(case: Case) -> None:
    """The trainer saves it. From then on nothing may call the cluster."""
    case.ray.wait = mock.MagicMock(side_effect=ConnectionError("the head is gone"))
    with pytest.raises(ConnectionError):
        case.driver.close()
    assert case.store.driver is None


def test_a_worker_that_has_no_room_is_not_waited_for_and_ends_with_the_run(case: Case) -> None:
    """Worker 0 runs. Rounds go on without worker 1, and so does the end, even if the last steps are
    reported late."""
    case.tell(status_of(beats={(0, 0): 1}))
    case.clock += PLACEMENT_SECONDS + 1
    for _ in range(2):
        case.driver._check_placement()
    for server in case.driver._servers:
        server.leave.remote.assert_called_once_with(1)
    list(case.driver._end(0, WorkerExit()))
    case.driver._check_placement()
    assert case.driver._running == {1}, "the run may go on with it"
    case.store.counters.raise_steps_to(case.store.spec.total_steps)
    case.driver._check_placement()
    assert not case.driver._running
    assert case.killed[-1] is case.first_actors[1]


def test_a_failure_is_judged_once_all_that_the_worker_had_sent_is_known(case: Case) -> None:
    """The status that was on its way may have been made before its last push. It had learned
    something, so it is replaced although it raised."""
    # the second of the other server
    case.statuses = [status_of(), status_of(), status_of(Event(1, contributions=1))]
    *_, restart = case.driver._end(1, WorkerExit("it failed", is_own=True))
    assert restart is not None
    assert (restart.worker, restart.counts) == (1, {"restarts": 1})
    assert case.workers[1].attempt == 1 and case.workers[1].actor is not case.first_actors[1]
    for server in case.driver._servers:
        server.leave.remote.assert_called_once_with(1)


class TestHeartbeats:
    def test_are_not_expected_of_a_worker_that_has_no_room_yet(self, case: Case) -> None:
        """The last beat of its predecessor is no beat of its own."""
        case.workers[1].start(1)
        for beat in range(20):
            case.tell(status_of(beats={(0, 0): beat, (1, 0): 7}))
        assert not case.killed

    def test_that_stop_have_the_actor_killed(self, case: Case) -> None:
        for _ in range(5):
            case.tell(status_of(beats={(1, 0): 7}))
        assert case.killed == [case.first_actors[1]]


def test_the_cause_of_a_death_is_one_line() -> None:
    text = (
        "The actor died.\n\tpid: 26498\nWorker exit detail: It exits. "
        "If the process was killed by the kernel, consider"
    )
    assert death_text(RuntimeError(text)) == "It exits"
    assert death_text(RuntimeError()) == "no cause is known"
