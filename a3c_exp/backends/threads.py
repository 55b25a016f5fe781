"""One thread for each worker, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe

from a3c_exp.backends.messages import GRACE_SECONDS, Inbox, Job, WorkerExit, send_events
from a3c_exp.backends.processes.resources import allow_files
from a3c_exp.backends.supervision import RestartSettings, Supervisor, incarnation
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Backend, Experiment, RunContext
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import Worker


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
        threads: list[ThreadSource] = []

        def start() -> Iterator[ThreadSource]:
            for worker in range(context.experiment.worker_count):
                threads.append(_start_worker(context, store, worker))
                yield threads[-1]

        try:
            yield from Supervisor(start(), self, store).run()
        finally:
            store.stop()
            join_all(threads)


def _start_worker(context: RunContext, store: SharedStore, worker: int) -> ThreadSource:
    return ThreadSource(
        f"worker {worker}",
        worker,
        lambda attempt: Worker(incarnation(context, attempt), worker, store),
        beat=lambda: store.counters.heartbeat_of(worker),
        on_exit=lambda: store.leave(worker),
    )


class ThreadSource:
    """A thread whose events are received as those of a process are: an `EventSource`.

    make_job: called in the thread with the number of its predecessors, since a network on a GPU belongs to the thread
        that uses it. beat: reads its heartbeat. on_exit: called once it has ended.
    inactivity, serves_others: see `EventSource`.
    """

    def __init__(
        self,
        name: str,
        worker: int,
        make_job: Callable[[int], Job],
        *,
        beat: Callable[[], int],
        on_exit: Callable[[], object] = lambda: None,
        inactivity: str = "its environment had not stepped",
        serves_others: bool = False,
    ) -> None:
        self.inactivity = inactivity
        self.serves_others = serves_others
        self.name = name
        self.worker = worker
        self._make_job = make_job
        self._beat = beat
        self._on_exit = on_exit
        self.sentinel = None
        self.thread, self.reader = self._start(0)

    def _start(self, attempt: int) -> tuple[threading.Thread, Inbox]:
        reader, writer = Pipe(duplex=False)
        arguments = self.name, writer, partial(self._make_job, attempt)
        thread = threading.Thread(target=send_events, args=arguments, name=self.name, daemon=True)
        thread.start()
        return thread, Inbox(reader)

    def restart(self, attempt: int) -> None:
        self.reader.close()
        self.thread, self.reader = self._start(attempt)

    @property
    def beat(self) -> int:
        return self._beat()

    def kill(self) -> bool:
        return False

    def on_exit(self, *, replaced: bool) -> None:
        self._on_exit()

    def exit(self) -> WorkerExit:
        return WorkerExit(f"{self.name} ended unexpectedly")


def join_all(threads: Sequence[ThreadSource]) -> bool:
    """Wait GRACE_SECONDS, for all together, until the threads have ended; return whether they have."""
    deadline = time.monotonic() + GRACE_SECONDS
    for source in threads:
        source.reader.close()
        source.thread.join(max(0.0, deadline - time.monotonic()))
    return not any(source.thread.is_alive() for source in threads)
