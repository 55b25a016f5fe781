"""One thread for each worker, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe

from a3c_exp.backends.messages import GRACE_SECONDS, Inbox, WorkerExit, send_events
from a3c_exp.backends.processes.resources import allow_files
from a3c_exp.backends.supervision import PipeSource, PipeSupervisor, RestartSettings, run_worker
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Backend, Experiment, RunContext
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import YieldPoint


@dataclass(frozen=True, kw_only=True)
class Threads(RestartSettings, Backend):
    """Workers share memory and the interpreter: only one of them runs Python at any moment.

    Only what numpy and torch compute outside the interpreter's lock runs in parallel: operations on the arrays of many
    environments, large networks. Environments written in Python gain nothing here; use processes.

    A thread cannot be ended from outside. One that hangs in its environment ends the run; it is left behind, and ends
    with the program.
    """

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError if so many workers may not have a pipe each."""
        allow_files(experiment.worker_count, each=2)

    def store(self, spec: StoreSpec) -> SharedStore:
        return SharedStore(spec)

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        workers = range(context.experiment.worker_count)
        threads = (ThreadSource(store, worker, partial(run_worker, context, worker, store)) for worker in workers)
        supervisor = PipeSupervisor(threads, self, store)
        try:
            yield from supervisor.run()
        finally:
            store.stop()
            join_all(supervisor.sources)


class ThreadSource(PipeSource):
    """A thread. run: called in it with the number of its predecessors; a network on a GPU belongs to the thread that
    uses it."""

    def __init__(
        self, store: SharedStore, worker: int, run: Callable[[int], Iterator[Event | YieldPoint]], name: str = ""
    ) -> None:
        super().__init__(store, worker, name)
        self._run = run
        self.start(0)

    def start(self, attempt: int) -> None:
        reader, writer = Pipe(duplex=False)
        self.inbox = Inbox(reader)
        arguments = self.name, writer, partial(self._run, attempt)
        self.thread = threading.Thread(target=send_events, args=arguments, name=self.name, daemon=True)
        self.thread.start()

    def kill(self) -> bool:
        return False

    def exit(self) -> WorkerExit:
        return WorkerExit(f"{self.name} ended unexpectedly")


def join_all(sources: Sequence[PipeSource]) -> bool:
    """Wait GRACE_SECONDS, for all together, until those that are threads have ended; return whether they have."""
    threads = [source for source in sources if isinstance(source, ThreadSource)]
    deadline = time.monotonic() + GRACE_SECONDS
    for source in threads:
        source.inbox.close()
        source.thread.join(max(0.0, deadline - time.monotonic()))
    return not any(source.thread.is_alive() for source in threads)
