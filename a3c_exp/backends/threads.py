"""One thread for each worker, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe, connection

from a3c_exp.backends.messages import GRACE_SECONDS, Job, drain, send_events
from a3c_exp.backends.processes.resources import allow_files
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Backend, Experiment, RunContext
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import Worker


@dataclass(frozen=True, kw_only=True)
class Threads(Backend):
    """Workers share memory and the interpreter: only one of them runs Python at any moment.

    Only what numpy and torch compute outside the interpreter's lock runs in parallel: operations on the arrays of many
    environments, large networks. Environments written in Python gain nothing here; use processes.

    A thread cannot be ended from outside. One that hangs in its environment is left behind, and ends with the program.
    """

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError if so many workers may not have a pipe each."""
        allow_files(experiment.worker_count, each=2)

    def store(self, spec: StoreSpec) -> SharedStore:
        return SharedStore(spec)

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        threads: list[ThreadSource] = []
        try:
            for index in range(context.experiment.worker_count):
                threads.append(ThreadSource.start(f"worker {index}", partial(Worker, context, index, store)))
            yield from drain(threads)
        finally:
            store.stop()
            join_all(threads)


@dataclass(frozen=True, slots=True)
class ThreadSource:
    """A thread whose events are received as those of a process are: an `EventSource`."""

    thread: threading.Thread
    reader: connection.Connection
    sentinel: None = None

    @classmethod
    def start(cls, name: str, make_job: Callable[[], Job]) -> ThreadSource:
        """Start a thread. The job is made there, since a network on a GPU belongs to the thread that uses it."""
        reader, writer = Pipe(duplex=False)
        thread = threading.Thread(target=send_events, args=(name, writer, make_job), name=name, daemon=True)
        thread.start()
        return cls(thread, reader)

    def on_exit(self) -> None: ...

    def exit_reason(self) -> str:
        return f"{self.thread.name} ended unexpectedly"


def join_all(threads: Sequence[ThreadSource]) -> bool:
    """Wait GRACE_SECONDS, for all together, until the threads have ended; return whether they have."""
    deadline = time.monotonic() + GRACE_SECONDS
    for source in threads:
        source.reader.close()
        source.thread.join(max(0.0, deadline - time.monotonic()))
    return not any(source.thread.is_alive() for source in threads)
