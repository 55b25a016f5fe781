"""The worker as an actor in one of Ray's processes. (The other kind of actor is `ParameterServer` itself.)"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from a3c_exp.backends.messages import FAILURES, failure_text
from a3c_exp.backends.ray.client import LocalUpdates, RemoteStore, Transport
from a3c_exp.backends.ray.cluster import lost_errors
from a3c_exp.backends.ray.settings import RaySettings
from a3c_exp.common.plugins import import_plugins
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.worker import Worker


class WorkerActor:
    """Runs one worker."""

    def run(
        self, context: RunContext, worker: int, spec: StoreSpec, servers: Sequence[Any], first_sequence: int
    ) -> str | None:
        """Run a worker to its end. Returns the error text for the user if it failed, None otherwise.

        servers: handles of the parameter servers, in the order of their shards.
        first_sequence: see `RemoteStore`.
        """
        settings = context.experiment.backend
        assert isinstance(settings, RaySettings)
        try:
            remote = RemoteStore(spec, transport(servers, settings), first_sequence)
            store = LocalUpdates(spec, remote) if settings.local_epochs else remote
            with one_thread():
                _run(context, worker, store)
        except FAILURES as error:
            return failure_text(f"worker {worker}", error)
        return None


def _run(context: RunContext, index: int, store: RemoteStore | LocalUpdates) -> None:
    import_plugins(context.experiment.plugins)  # they may register environments
    worker = Worker(context, index, store)
    try:
        for _ in worker.run():  # the servers report its events, and nothing shares its process
            pass
    finally:
        worker.close()


def transport(servers: Sequence[Any], settings: RaySettings) -> Transport:
    """The transport from an actor to the servers of these handles."""

    def call(server: int, method: str, *arguments: Any) -> Future[Any]:
        future: Future[Any] = getattr(servers[server], method).remote(*arguments).future()
        return future

    return Transport(
        call=call, lost=lost_errors(), servers=len(servers), wire_dtype=settings.wire_dtype,
        in_flight=settings.in_flight,
    )  # fmt: skip
