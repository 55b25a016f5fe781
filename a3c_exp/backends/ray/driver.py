"""The driver's side: it starts servers and workers, collects their events, and replaces those that die."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from a3c_exp.backends.messages import GRACE_SECONDS, MERGE_SECONDS, WorkerExit
from a3c_exp.backends.ray.actors import WorkerActor
from a3c_exp.backends.ray.client import RETRY_SECONDS
from a3c_exp.backends.ray.cluster import death_text, lost_errors
from a3c_exp.backends.ray.server import ParameterServer
from a3c_exp.backends.ray.settings import RaySettings
from a3c_exp.backends.ray.wire import SEQUENCE_STRIDE, ServerStatus, merge_shards, shard_slices, shard_spec, shard_state
from a3c_exp.backends.supervision import Restarts, incarnation
from a3c_exp.core.events import Event, Metric
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.heartbeat import StallWatch
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import SharedStore
from a3c_exp.errors import RunError

log = logging.getLogger("a3c_exp")

FETCH_SECONDS = 30.0
"""Longest wait for the servers' state, before the last one that was fetched is used instead. The state comes after all
pushes that the servers have received before."""
FINAL_FETCH_SECONDS = 120.0
"""The same at the end of a run, when no more pushes come."""
PLACEMENT_SECONDS = 30.0
"""After so long, rounds stop waiting for a worker that the cluster has no room for, and the user is warned."""
START_SECONDS = 600.0
"""Longest wait for the servers. A cluster that grows on demand needs minutes."""


class CachedStore(SharedStore):
    """The driver's copy of parameters that live on servers during the run.

    It holds the state that was last fetched for a checkpoint or an evaluation; before and after the run it is the only
    copy. Servers that are restarted begin with it.
    """

    def __init__(self, spec: StoreSpec) -> None:
        super().__init__(spec)
        self.driver: Driver | None = None

    def state(self, seconds: float = FETCH_SECONDS) -> dict[str, Any]:
        """Fetch the servers' state. If they do not answer within so many seconds, return the cached state."""
        if self.driver is not None:
            state = self.driver.fetch(seconds)
            if state is not None:
                self.restore(state)
            else:
                log.warning("a parameter server does not answer: its state is taken as of update %d", self.version)
        return self.cached_state()

    def cached_state(self) -> dict[str, Any]:
        """The state that was last fetched, but with the run's current steps: they were made."""
        return super().state()

    def stop(self) -> None:
        super().stop()
        if self.driver is not None:
            self.driver.stop()


@dataclass(slots=True)
class _RunningWorker:
    """The actor of a worker.

    run: the pending call of `WorkerActor.run`. attempt: number of actors that this worker had before.
    joined: a status has named it as a member of the run. skipped: rounds no longer wait for it, because it has not
        joined. beat: its last heartbeat, see `send_beats`; None before the first.
    """

    index: int
    actor: Any
    run: Any
    attempt: int
    started_at: float = field(default_factory=time.monotonic)
    joined: bool = False
    skipped: bool = False
    beat: int | None = None


class Driver:
    """Starts the actors of one run, and ends them."""

    def __init__(self, settings: RaySettings, context: RunContext, store: CachedStore) -> None:
        import ray

        self._ray = ray
        self._lost = lost_errors()
        self._unreachable: tuple[type[BaseException], ...] = (*self._lost, TimeoutError)
        self._settings = settings
        self._context = context
        self._store = store
        self._spec = store.spec
        self._shards = shard_slices(self._spec.size, settings.shards)
        self._servers = [self._start_server(shard_spec(self._spec, shard)) for shard in self._shards]
        self._incarnation = 0
        self._begun = False
        # Pending calls: of a server's status, by the call, the server's index; and of a worker's run.
        self._status_calls: dict[Any, int] = {}
        self._workers: dict[Any, _RunningWorker] = {}
        self._members: list[int] = []
        self._has_ended = False  # a worker has, and is not replaced
        self._restarts = Restarts(settings, store)
        self._watch = StallWatch(settings.stall_seconds)
        store.driver = self

    def _start_server(self, spec: StoreSpec) -> Any:
        """Start a server: a single one on the driver's node if there is room, several spread over the nodes."""
        ray, strategy = self._ray, self._ray.util.scheduling_strategies
        here = strategy.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        calls = 4 * spec.workers * (self._settings.in_flight + 1)
        actor = ray.remote(ParameterServer).options(
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=max(1000, calls),  # each call that waits in a round is one
            enable_task_events=False,  # Ray would keep a record of each of the latest 100,000 calls
            scheduling_strategy=here if self._settings.shards == 1 else "SPREAD",
        )
        return actor.remote(spec)

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> Generator[Event | None, None, None]:
        """Start the workers and yield their events, until all have ended."""
        yield from self._begin_incarnation()
        for index in range(self._spec.workers):
            self._start_worker(index)
        for server in range(len(self._servers)):
            self._request_status(server)
        while self._workers:
            # It returns the first call in this order that is ready. Workers come first: some status is always ready.
            ready, _ = self._ray.wait([*self._workers, *self._status_calls], timeout=MERGE_SECONDS)
            if not ready:
                yield None
            for call in ready:
                if call in self._workers:
                    yield from self._on_worker_exit(call)
                else:
                    yield from self._on_status(call)
            self._check_placement()
        yield from self._catch_up()

    def _begin_incarnation(self) -> Iterator[None]:
        """Give all servers the cached state."""
        self._incarnation += 1
        state = self._store.cached_state()
        for server, shard in enumerate(self._shards):
            own_state = self._ray.put(shard_state(state, shard))
            yield from self._call_until_answered(server, "begin", self._incarnation, own_state, self._members)
        self._begun = True
        if self._store.stopped:
            self.stop()

    def _call_until_answered(self, server: int, method: str, *arguments: Any) -> Generator[None, None, Any]:
        """Call a server that may be starting or restarting, until it answers."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return (yield from self._result(getattr(self._servers[server], method).remote(*arguments), deadline))
            except self._unreachable as error:
                if time.monotonic() > deadline:
                    raise RunError(f"no parameter server could be started: {error}") from error
                time.sleep(RETRY_SECONDS)
                yield None

    def _result(self, call: Any, deadline: float = math.inf) -> Generator[None, None, Any]:
        """Wait for the result of a call. Raises TimeoutError."""
        while not self._ray.wait([call], timeout=MERGE_SECONDS)[0]:
            if time.monotonic() > deadline:
                raise TimeoutError("it does not answer")
            yield None
        return self._ray.get(call)

    def _request_status(self, server: int) -> None:
        self._status_calls[self._servers[server].status.remote()] = server

    def _on_status(self, call: Any) -> Iterator[Event | None]:
        """Process a server's status, and replace workers that hang."""
        server = self._status_calls[call]
        yield from self._process_status(call)
        if server == 0:
            yield from self._replace_stalled()

    def _process_status(self, call: Any) -> Iterator[Event | None]:
        """Report what a status says, and request the next one.

        A server that has died is restarted by Ray, and reports that it has no state.
        """
        server = self._status_calls.pop(call)
        try:
            status: ServerStatus = yield from self._result(call)
        except self._lost:
            status = yield from self._call_until_answered(server, "status")
        if status.incarnation == 0:
            log.warning("a parameter server has died: it starts again from the last state that was fetched")
            yield from self._begin_incarnation()
        elif server == 0:
            yield from self._report(status)
        self._request_status(server)

    def _catch_up(self) -> Iterator[Event | None]:
        """Report all that workers have sent until now: the status that is on its way may have been made before."""
        for _ in range(2):
            (call,) = [call for call, server in self._status_calls.items() if server == 0]
            yield from self._process_status(call)

    def _report(self, status: ServerStatus) -> Iterator[Event | None]:
        """The events of the first server's status. Takes over the steps, the clock, members and heartbeats."""
        self._store.counters.raise_steps_to(status.steps)
        if status.training_seconds:
            self._store.counters.start_clock(seconds_ago=status.training_seconds)
        self._members = status.members
        for worker in self._workers.values():
            worker.joined |= worker.index in status.members
            attempt, beat = status.beats.get(worker.index, (None, 0))
            if attempt == worker.attempt:
                worker.beat = beat
        if not status.events:
            yield None
            return
        status.events[0].metrics["ray/workers_alive"] = Metric(len(status.members))
        for event in status.events:
            self._restarts.on_event(event.worker, event)
            yield event

    # -- workers ------------------------------------------------------------------------------------------------------

    def _start_worker(self, index: int) -> None:
        attempt = self._restarts.attempt(index)
        cpus = self._settings.cpus_per_worker
        actor = self._ray.remote(WorkerActor).options(
            num_cpus=cpus, enable_task_events=False, scheduling_strategy="SPREAD"
        )
        handle = actor.remote()
        context = incarnation(self._context, attempt)
        run = handle.run.remote(context, index, self._spec, self._servers, attempt)
        self._workers[run] = _RunningWorker(index, handle, run, attempt)

    def _on_worker_exit(self, call: Any) -> Iterator[Event | None]:
        """Process the end of a worker: by itself, by an error, or by the death of its process."""
        worker = self._workers.pop(call)
        try:
            end: WorkerExit = self._ray.get(call)
        except self._lost as error:
            end = WorkerExit(f"worker {worker.index} died: {death_text(error)}")
        except self._ray.exceptions.RayError as error:
            raise RunError(f"worker {worker.index} could not be run:\n{error}") from error
        finally:
            self._ray.kill(worker.actor)
        if end.failure is not None:
            yield from self._on_failure(worker, end)
        else:
            self._has_ended = True

    def _on_failure(self, worker: _RunningWorker, end: WorkerExit) -> Iterator[Event | None]:
        """Take a worker that has failed out of the run, and replace it. Raises RunError if the run has to end.

        That depends on what the worker had done, so its last events come first.
        """
        self._members = [index for index in self._members if index != worker.index]
        self._leave(worker)
        self._watch.forget(worker.index)
        yield from self._catch_up()
        event = self._restarts.on_failure(worker.index, worker.index, end)
        if "restarts" in event.counts:
            self._start_worker(worker.index)
        else:
            self._has_ended = True
        yield event

    def _replace_stalled(self) -> Iterator[Event | None]:
        """Kill and replace workers that hang. The time to find room for a worker and to import its code does not
        count."""
        elapsed = self._watch.due()
        if elapsed is None:
            return
        beating = [(worker, worker.beat) for worker in self._workers.values() if worker.beat is not None]
        stalled = [worker for worker, beat in beating if self._watch.is_stalled(worker.index, beat, elapsed)]
        for worker in stalled:
            self._kill_worker(worker)
            text = self._watch.describe(f"worker {worker.index}")
            yield from self._on_failure(worker, WorkerExit(f"{text}, and was killed"))

    def _kill_worker(self, worker: _RunningWorker) -> None:
        self._ray.kill(worker.actor)
        del self._workers[worker.run]
        self._leave(worker)  # it may just have joined, and rounds would wait for it

    def _leave(self, worker: _RunningWorker) -> None:
        """Take a worker out of rounds. Messages of it that still arrive are ignored."""
        for server in self._servers:
            server.leave.remote(worker.index, SEQUENCE_STRIDE * (worker.attempt + 1))

    def _check_placement(self) -> None:
        """Let rounds go on without workers that the cluster has no room for yet, and the run end without them."""
        waiting = [worker for worker in self._workers.values() if not worker.joined]
        if self._has_ended and (self._store.stopped or self._store.steps >= self._spec.total_steps):
            for worker in waiting:
                self._kill_worker(worker)
            return
        for worker in waiting:
            if worker.skipped or time.monotonic() - worker.started_at < PLACEMENT_SECONDS:
                continue
            worker.skipped = True
            for server in self._servers:
                server.leave.remote(worker.index)
            available = self._ray.cluster_resources().get("CPU", 0)
            needed = self._settings.cpus_per_worker * self._spec.workers
            log.warning("worker %d has not started: %g CPUs are needed, %g available", worker.index, needed, available)

    # -- what the store asks for --------------------------------------------------------------------------------------

    def fetch(self, seconds: float) -> dict[str, Any] | None:
        """The state of all servers; None if one does not answer, or was restarted and has no state yet."""
        try:
            states = self._ray.get([server.state.remote() for server in self._servers], timeout=seconds)
        except (*self._lost, self._ray.exceptions.GetTimeoutError):
            return None
        return merge_shards(states, self._incarnation)

    def stop(self) -> None:
        """Ask every worker to end before its next rollout."""
        for server in self._servers:
            server.stop.remote()

    def close(self) -> None:
        """End all actors. The store keeps their last state, or if it cannot be fetched the cached one."""
        try:
            self._store.stop()
            if self._workers:
                self._ray.wait(list(self._workers), num_returns=len(self._workers), timeout=GRACE_SECONDS)
            if self._begun:
                self._store.state(FINAL_FETCH_SECONDS)
        finally:
            self._store.driver = None
        for actor in [*(worker.actor for worker in self._workers.values()), *self._servers]:
            self._ray.kill(actor)
