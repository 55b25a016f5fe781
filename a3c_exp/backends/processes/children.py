"""Worker processes: start them from the fork server, receive their events, end them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Protocol

from a3c_exp.backends import forkserver
from a3c_exp.backends.messages import GRACE_SECONDS, MERGE_SECONDS, WorkerExit, batch_events, failure_text
from a3c_exp.common.plugins import import_plugins
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import YieldPoint
from a3c_exp.errors import RunError

# -- in the process of the run ----------------------------------------------------------------------------------------


class EventSource(Protocol):
    """A process, or a thread of this one, that sends events through a pipe, and a WorkerExit as its last message.

    reader: the receiving end of the pipe. sentinel: becomes ready when the source has ended; None for a thread.
    """

    @property
    def reader(self) -> connection.Connection: ...

    @property
    def sentinel(self) -> int | None: ...

    def on_exit(self) -> None:
        """Called once the source has ended."""

    def exit_reason(self) -> str:
        """Error text for a source that ended without a last message."""


class Job(Protocol):
    """What a child process runs: a worker, or one of its kind."""

    def run(self) -> Iterator[Event | YieldPoint]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Child:
    """A worker process. worker: the index of its rows in the store."""

    worker: int
    process: BaseProcess
    reader: connection.Connection
    store: SharedStore

    @property
    def sentinel(self) -> int:
        return self.process.sentinel

    def on_exit(self) -> None:
        self.store.leave(self.worker)

    def exit_reason(self) -> str:
        self.process.join(GRACE_SECONDS)
        return f"worker {self.worker} {_exit_text(self.process.exitcode)}"


def start(children: list[Child], context: RunContext, store: SharedStore, jobs: Iterable[Callable[[], Job]]) -> None:
    """Start a process for each job.

    jobs: called in the new process, to make the job there. Each child is appended to `children` as soon as it runs, so
    that `end` finds it even if a later one cannot be started.
    """
    plugins = context.experiment.plugins
    with forkserver.without_main():
        for worker, make_job in enumerate(jobs):
            reader, writer = forkserver.context().Pipe(duplex=False)
            arguments = make_job, worker, plugins, writer
            process = forkserver.context().Process(target=_main, args=arguments, name=f"worker {worker}", daemon=True)
            process.start()
            writer.close()  # the child has the only copy left, so the pipe ends with the child
            children.append(Child(worker, process, reader, store))


def drain(sources: Sequence[EventSource]) -> Generator[Event | None, None, None]:
    """Yield the events of all sources until all have ended; None when MERGE_SECONDS have brought nothing.

    Raises RunError for a source that failed or was killed.
    """
    running = list(sources)
    while running:
        # The pipe alone does not tell that a worker is gone: a program that the worker started may hold it open.
        handles = [handle for source in running for handle in (source.reader, source.sentinel) if handle is not None]
        ready = connection.wait(handles, MERGE_SECONDS)
        if not ready:
            yield None
        for source in [source for source in running if source.reader in ready or source.sentinel in ready]:
            message = _receive(source)
            if not isinstance(message, WorkerExit):
                yield message
                continue
            running.remove(source)
            source.on_exit()
            if message.failure is not None:
                raise RunError(message.failure)


def _receive(source: EventSource) -> Event | WorkerExit:
    """The next message. A source that ended without a last message has failed."""
    try:
        if source.reader.poll():
            message: Event | WorkerExit = source.reader.recv()
            return message
    except (EOFError, OSError):  # an OSError if it was killed while it was sending
        pass
    return WorkerExit(source.exit_reason())


def _exit_text(exitcode: int | None) -> str:
    if exitcode is None:
        return "closed its connection"
    if exitcode >= 0:
        return f"ended unexpectedly, with exit code {exitcode}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"was killed by signal {-exitcode}"


def end(children: Sequence[Child]) -> None:
    """Wait GRACE_SECONDS, for all together, until the children have ended; then kill those that have not."""
    for child in children:
        child.reader.close()  # a child that sends, now or later, learns that the run is over
    deadline = time.monotonic() + GRACE_SECONDS
    for child in children:
        child.process.join(max(0.0, deadline - time.monotonic()))
        if child.process.is_alive():
            child.process.kill()
    for child in children:
        child.process.join()
        child.process.close()


# -- in the child, or in a thread that sends as a child does ----------------------------------------------------------


class ReceiverClosedError(Exception):
    """The other end of a pipe has been closed: the run is over."""


def send_events(who: str, writer: connection.Connection, events: Iterator[Event]) -> None:
    """Run an iterator of events to its end: send each of them, and at last a WorkerExit."""
    last = WorkerExit()
    try:
        for event in events:
            _send(writer, event)
    except ReceiverClosedError:
        return
    except BaseException as error:  # whatever ended this worker is the run's to report
        last = WorkerExit(failure_text(who, error))
    with suppress(ReceiverClosedError):
        _send(writer, last)


def _send(writer: connection.Connection, message: Event | WorkerExit) -> None:
    try:
        writer.send(message)
    except BrokenPipeError:
        raise ReceiverClosedError from None


def _main(make_job: Callable[[], Job], worker: int, plugins: Sequence[str], writer: connection.Connection) -> None:
    """The child's main function."""
    for number in forkserver.SIGNALS:
        # Neither SIG_IGN nor blocked: programs that an environment starts would inherit either.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, forkserver.SIGNALS)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    with one_thread():
        send_events(f"worker {worker}", writer, _events_of_job(make_job, plugins))


def _events_of_job(make_job: Callable[[], Job], plugins: Sequence[str]) -> Iterator[Event]:
    import_plugins(plugins)  # they may register environments
    job = make_job()
    try:
        yield from batch_events(job.run())
    finally:
        job.close()


def _exit_with_parent() -> None:
    """End this process when the one that started it has ended, however that ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
