"""The worker as an actor in one of Ray's processes. (The other kind of actor is `ParameterServer` itself.)"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from a3c_exp.backends.messages import WorkerExit, failed
from a3c_exp.backends.ray.client import RemoteStore, Transport
from a3c_exp.backends.ray.cluster import lost_errors
from a3c_exp.backends.ray.settings import RaySettings
from a3c_exp.backends.ray.wire import SEQUENCE_STRIDE
from a3c_exp.common.trust import import_plugins
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.heartbeat import Heartbeat
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.worker import Worker

BEAT_SECONDS = 5.0
"""Longest time between two heartbeats that a worker sends. Each is a call of the first server, which thousands of
workers share."""
BEATS_BEFORE_STALL = 4
"""The least number of heartbeats within `stall_seconds`."""


class WorkerActor:
    """Runs one worker."""

    def run(
        self, context: RunContext, worker: int, spec: StoreSpec, servers: Sequence[Any], attempt: int
    ) -> WorkerExit:
        """Run a worker to its end, and return how it ended.

        servers: handles of the parameter servers, in the order of their shards. attempt: number of its predecessors.
        """
        settings = context.experiment.backend
        assert isinstance(settings, RaySettings)
        try:
            store = RemoteStore(spec, transport(servers, settings.in_flight), SEQUENCE_STRIDE * attempt)

            def send(beat: int) -> None:
                servers[0].beat.remote(worker, attempt, beat)

            with one_thread(), send_beats(store.heartbeat(worker), settings.stall_seconds, send):
                _run(context, worker, store)
        except BaseException as error:  # whatever ended this worker is the run's to report
            return failed(f"worker {worker}", error)
        return WorkerExit()


@contextmanager
def send_beats(heartbeat: Heartbeat, stall_seconds: float | None, send: Callable[[int], object]) -> Iterator[None]:
    """Send a heartbeat at intervals, from a separate thread, until the context exits.

    stall_seconds: see `RestartSettings`; None sends nothing.
    """
    over = threading.Event()

    def run(interval: float) -> None:
        while True:
            send(heartbeat.value)
            if over.wait(interval):
                return

    if stall_seconds is not None:
        interval = min(BEAT_SECONDS, stall_seconds / BEATS_BEFORE_STALL)
        threading.Thread(target=run, args=(interval,), name="heartbeat", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _run(context: RunContext, index: int, store: RemoteStore) -> None:
    import_plugins(context.experiment.plugins)  # they may register environments
    worker = Worker(context, index, store)
    try:
        for _ in worker.run():  # the servers report its events, and nothing shares its process
            pass
    finally:
        worker.close()


def transport(servers: Sequence[Any], in_flight: int) -> Transport:
    """The transport from an actor to the servers of these handles. in_flight: see `Transport`."""

    def call(server: int, method: str, *arguments: Any) -> Future[Any]:
        future: Future[Any] = getattr(servers[server], method).remote(*arguments).future()
        return future

    return Transport(call=call, lost=lost_errors(), servers=len(servers), in_flight=in_flight)
