"""The driver's side: it starts servers and workers, collects their events, and replaces those that
die."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from a3c_exp.backends.messages import GRACE_SECONDS, MERGE_SECONDS, WorkerExit
from a3c_exp.backends.ray.cluster import dead_process, death_text, lost_errors
from a3c_exp.backends.ray.server import (
    ParameterServer,
    ServerStatus,
    merge_shards,
    shard_of,
    shard_slices,
)
from a3c_exp.backends.ray.worker import WorkerActor
from a3c_exp.backends.supervision import Received, Source, Supervisor
from a3c_exp.common.log import log
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.heartbeat import StallWatch
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import SharedStore
from a3c_exp.ending import StopReason
from a3c_exp.errors import RunError

FETCH_SECONDS = 10.0
"""Longest wait for the servers' state, before the last one that was fetched is used instead. The
state comes after all pushes that the servers have received before: of 72 workers that keep a server
busy, 4 seconds. Nothing else is done meanwhile."""
FINAL_FETCH_SECONDS = 30.0
"""The same at the end of a run, when no more pushes come; not if a server has stopped answering."""
START_SECONDS = 600.0
"""Longest wait for the servers. A cluster that grows on demand needs minutes."""
PLACEMENT_SECONDS = 30.0
"""After so long, rounds stop waiting for a worker that the cluster has no room for, and the user is
warned."""


class CachedStore(SharedStore):
    """The driver's copy of parameters that live on servers during the run.

    It holds the state that was last fetched for a checkpoint or an evaluation; before and after the
    run it is the only copy. Servers that are restarted begin with it.
    """

    def __init__(self, spec: StoreSpec) -> None:
        super().__init__(spec)
        self.driver: Driver | None = None

    def state(self, seconds: float = FETCH_SECONDS) -> dict[str, Any]:
        """Fetch the servers' state. If they do not answer within so many seconds, return the cached
        state."""
        if self.driver is not None:
            state = self.driver.fetch(seconds)
            if state is not None:
                self.restore(state | {"multipliers": self.counters.multipliers})
            else:
                log.warning(
                    "a parameter server does not answer: its state is taken as of update %d",
                    self.version,
                )

        return self.cached_state()

    def cached_state(self) -> dict[str, Any]:
        """The state that was last fetched, but with the run's current steps: they were made."""
        return super().state()

    def stop(self) -> None:
        super().stop()
        if self.driver is not None:
            self.driver.stop()


@dataclass(kw_only=True, eq=False)
class ActorSource(Source):
    """The actor of a worker.

    run: the pending call of `WorkerActor.run`.
    attempt: number of actors before it.
    beat: the last that was heard of; None before the first, when the cluster may have no room for
        it yet.
    patient_until: when rounds stop waiting for one without a beat.
    """

    driver: Driver
    beat: int | None = field(default=None, init=False)

    def start(self, attempt: int) -> None:
        self.actor, self.run = self.driver.start_actor(self.worker, attempt)
        self.attempt = attempt
        self.beat = None
        self.patient_until = time.monotonic() + PLACEMENT_SECONDS

    def kill(self) -> bool:
        import ray

        ray.kill(self.actor)
        return True

    def on_exit(self, *, replaced: bool) -> None:
        """Take the worker out of rounds."""
        self.kill()
        self.driver.leave(self.worker)


class Driver(Supervisor[ActorSource]):
    """Starts the actors of one run, and ends them. settings: a `Ray`.

    If a server dies, all servers and workers start again, with the state that was last fetched.
    """

    def __init__(self, settings: Any, context: RunContext, store: CachedStore) -> None:
        import ray

        self._ray = ray
        self._lost = lost_errors()
        self._settings = settings
        self._context = context
        self._store: CachedStore = store
        self._spec = store.spec
        self._shards = shard_slices(self._spec.size, settings.shards)

        self._servers: list[Any] = []
        self._server_watch = StallWatch(settings.stall_seconds)
        self._server_hangs = False
        store.driver = self

        actor = ray.remote(WorkerActor)
        cpus = settings.cpus_per_worker
        self._actors = actor.options(
            num_cpus=cpus, enable_task_events=False, scheduling_strategy="SPREAD"
        )
        workers = (
            ActorSource(store=store, worker=worker, driver=self)
            for worker in range(self._spec.workers)
        )
        super().__init__(workers, settings, store, context.experiment.envs_per_worker)

    # -- the run

    def run(self) -> Generator[Event | None, None, None]:
        """Start servers and workers and yield the workers' events, until all have ended."""
        while True:
            self._start_servers()
            for key, source in enumerate(self.sources):
                if key in self._running:
                    self._start(key, source)
                else:
                    self.leave(source.worker)  # new servers know nothing of it

            try:
                yield from super().run()
                yield from self._catch_up()
                return
            except self._lost as error:
                end = WorkerExit(f"a parameter server died: {death_text(error)}")

            verdict = self._restarts.on_failure("server", 0, end)
            self._kill_actors()
            yield verdict.event
            if not verdict.is_replaced:
                return

            self._hung.clear()
            log.warning(
                "all workers start again from update %d, the last that was fetched",
                self._store.version,
            )

    def _receive(self, seconds: float) -> Received:
        runs = {self.sources[key].run: key for key in self._running}
        # It returns the first call in this order that is ready. Workers come first: some status is
        # always ready.
        ready, _ = self._ray.wait([*runs, *self._status_calls], timeout=seconds)
        if not ready:
            yield None

        for call in ready:
            if call in runs:
                yield runs[call], self._exit_of(self.sources[runs[call]])
            else:
                yield from self._take_status(call)

        self._check_placement()
        self._check_servers()

    def _exit_of(self, worker: ActorSource) -> WorkerExit:
        """Return the end of a worker: by itself, by an error, or by the death of its process."""
        try:
            end: WorkerExit = self._ray.get(worker.run)
        except self._lost as error:
            return WorkerExit(f"{worker.name} died: {death_text(error)}")
        except self._ray.exceptions.RayError as error:
            raise RunError(f"{worker.name} could not be run:\n{error}") from error
        return end

    def _end(self, key: int, message: WorkerExit) -> Iterator[Event | None]:
        """Process the end of a worker. What becomes of a failure depends on what the worker had
        done, so its last events come first."""
        if message.failure is not None:
            yield from self._catch_up()
        yield from super()._end(key, message)

    def _check_placement(self) -> None:
        """Let rounds go on without workers that the cluster has no room for yet, and the run end
        without them."""
        waiting = {
            key: self.sources[key] for key in self._running if self.sources[key].beat is None
        }
        if self._store.is_over and len(self._running) < len(self.sources):  # another one has ended
            self._running -= waiting.keys()
            for worker in waiting.values():
                worker.on_exit(replaced=False)
            return

        for worker in waiting.values():
            if time.monotonic() >= worker.patient_until:
                worker.patient_until = math.inf
                self.leave(worker.worker)
                log.warning(
                    "%s has not started, for want of room; stop.mean_return waits for it",
                    worker.name,
                )

    # -- what workers ask for

    def start_actor(self, worker: int, attempt: int) -> tuple[Any, Any]:
        """Start the actor of a worker, and return it with its pending call.

        attempt: see `ActorSource`.
        """
        actor = self._actors.remote()
        arguments = (
            self._context,
            worker,
            self._spec,
            self._servers,
            self._settings.in_flight,
            attempt,
        )
        return actor, actor.run.remote(*arguments)

    def leave(self, worker: int) -> None:
        """Take a worker out of rounds."""
        for server in self._servers:
            server.leave.remote(worker)

    # -- servers

    def _check_servers(self) -> None:
        """Raise RunError if a server has stopped answering: it, its node or the cluster is stopped
        or gone.

        Actors go on without the head of their cluster, but nobody hears of their ends, and none can
        be started.
        """
        if (dead := dead_process()) is not None:
            raise RunError(
                f"{dead} of Ray's cluster has ended, without which no actor is watched or started"
            )

        if not all(self._answers) and time.monotonic() > self._patient_until:
            raise RunError("no parameter server could be started: it does not answer")

        server = self._server_watch.find(
            lambda: {key: count for key, count in enumerate(self._answers) if count}
        )
        if server is not None:
            self._server_hangs = True
            text = self._server_watch.describe(
                f"parameter server {server}", "it, or its cluster, had not answered"
            )
            raise RunError(text, StopReason.STALLED)

    def _start_servers(self) -> None:
        """Start all servers with the cached state."""
        state = self._store.cached_state()
        self._servers[:] = [
            self._start_server(*shard_of(self._spec, state, shard)) for shard in self._shards
        ]
        self._status_calls: dict[Any, int] = {}  # pending, and the server's index
        self._answers = [0] * len(self._servers)  # by server, of calls for its status
        self._patient_until = time.monotonic() + START_SECONDS
        for server in range(len(self._servers)):
            self._request_status(server)
        if self._store.stopped:
            self.stop()

    def _start_server(self, spec: StoreSpec, state: Mapping[str, Any]) -> Any:
        """Start a server: a single one on the driver's node if there is room, several spread over
        the nodes."""
        ray = self._ray
        strategy = self._ray.util.scheduling_strategies
        here = strategy.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=True
        )
        calls = 4 * self._spec.workers * (self._settings.in_flight + 1)
        actor = ray.remote(ParameterServer).options(
            num_cpus=0,
            max_concurrency=max(1000, calls),  # each call that waits in a round is one
            enable_task_events=False,  # Ray would keep a record of each of the latest 100,000 calls
            scheduling_strategy=here if len(self._shards) == 1 else "SPREAD",
        )

        return actor.remote(spec, state)

    def _request_status(self, server: int) -> None:
        call = self._servers[server].status.remote(self._store.counters.multipliers)
        self._status_calls[call] = server

    def _take_status(self, call: Any) -> Received:
        """Take a server's status, and request the next one."""
        while not self._ray.wait([call], timeout=MERGE_SECONDS)[0]:
            yield None
            self._check_servers()

        status: ServerStatus = self._ray.get(call)
        server = self._status_calls.pop(call)
        self._answers[server] += 1
        self._request_status(server)
        if server == 0:
            yield from self._report(status)
            yield from self._kill_stalled()

    def _catch_up(self) -> Iterator[Event | None]:
        """Report all that workers have sent until now, and learn whether all servers live.

        The status that is on its way may have been made before.
        """
        for _ in range(2):
            for call in list(self._status_calls):
                yield from self._process(self._take_status(call))

    def _report(self, status: ServerStatus) -> Received:
        """Yield the events of the first server's status. Takes over the steps, the clock and
        heartbeats."""
        counters = self._store.counters
        counters.raise_steps_to(status.steps)
        # for servers that start again
        np.maximum(counters.episodes, status.episodes, out=counters.episodes)
        if status.training_seconds:
            counters.start_clock(seconds_ago=status.training_seconds)

        for worker in self.sources:
            worker.beat = status.beats.get((worker.worker, worker.attempt), worker.beat)

        for event in status.events:
            self._restarts.on_event("server", replace(event, left=None))
            yield event.worker, event

        if not status.events:
            yield None

    # -- what the store asks for

    def fetch(self, seconds: float) -> dict[str, Any] | None:
        """Return the state of all servers; None if one does not answer."""
        try:
            return merge_shards(
                self._ray.get([server.state.remote() for server in self._servers], timeout=seconds)
            )
        except (*self._lost, self._ray.exceptions.GetTimeoutError):
            return None

    def stop(self) -> None:
        """Ask every worker to end before its next rollout."""
        for server in self._servers:
            server.stop.remote()

    def close(self) -> None:
        """End all actors. The store keeps their last state, or if it cannot be fetched the cached
        one."""
        try:
            self._store.stop()
            runs = [self.sources[key].run for key in self._running]
            if runs:
                self._ray.wait(runs, num_returns=len(runs), timeout=GRACE_SECONDS)
            if self._servers and not self._server_hangs:  # otherwise nobody waits for its state
                self._store.state(FINAL_FETCH_SECONDS)
        finally:
            self._store.driver = None

        self._kill_actors()

    def _kill_actors(self) -> None:
        for actor in [*(worker.actor for worker in self.sources), *self._servers]:
            self._ray.kill(actor)
