"""What runs in Ray's processes: a worker beside its environments. (The other actor is `ParameterServer`, as it is.)"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from a3c_exp.backends import FAILURES
from a3c_exp.backends.ray.client import Link, RemoteParameters
from a3c_exp.backends.ray.epochs import LocalEpochs
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.events import Event
from a3c_exp.core.store import StoreSpec

if TYPE_CHECKING:
    from a3c_exp.backends.ray import Ray
    from a3c_exp.core.worker import RunContext


class WorkerActor:
    """Runs one worker to its end."""

    def run(self, context: RunContext, index: int, layout: StoreSpec, servers: Sequence[Any], first: int) -> str | None:
        """What ended it before its time, for the user; None if nothing did.

        servers: handles of the parameter servers, each of its stretch. first: see `RemoteParameters`.
        """
        try:
            with one_thread():
                self._work(context, index, layout, servers, first)
        except FAILURES as error:
            return failure_text(f"worker {index}", error)
        return None

    def _work(self, context: RunContext, index: int, layout: StoreSpec, servers: Sequence[Any], first: int) -> None:
        from a3c_exp.common.plugins import import_plugins
        from a3c_exp.core.worker import Worker

        import_plugins(context.experiment.plugins)  # they may register environments
        store = _store(context, index, layout, servers, first)
        worker = Worker(context, index, store)
        try:
            for step in worker.run():
                if isinstance(step, Event):
                    store.tell(step)
        finally:
            worker.close()


def _store(
    context: RunContext, index: int, layout: StoreSpec, servers: Sequence[Any], first: int
) -> RemoteParameters | LocalEpochs:
    backend: Ray = context.experiment.backend  # type: ignore[assignment]
    remote = RemoteParameters(layout, index, link(servers, backend), first)
    return LocalEpochs(layout, remote) if backend.local_epochs else remote


def link(servers: Sequence[Any], backend: Ray) -> Link:
    """The way from an actor to the servers of these handles."""
    from a3c_exp.backends.ray.cluster import lost_errors

    def call(server: int, method: str, *arguments: Any) -> Future[Any]:
        future: Future[Any] = getattr(servers[server], method).remote(*arguments).future()
        return future

    return Link(
        call=call, lost=lost_errors(), servers=len(servers), wire_dtype=backend.wire_dtype, in_flight=backend.in_flight
    )
