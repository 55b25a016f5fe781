"""Worker processes: started from the fork server, listened to, and ended."""

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
from a3c_exp.backends.messages import FAILURES, GRACE_SECONDS, MERGE_SECONDS, WorkerExit, batch_events, failure_text
from a3c_exp.common.plugins import import_plugins
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import YieldPoint
from a3c_exp.errors import RunError

Failures = tuple[type[BaseException], ...]


class EventSource(Protocol):
    """Someone whose messages `drain` takes: a process, or a thread of this one.

    reader: where they come from, events and at last an Ended. sentinel: what else tells that it is gone; None: nothing.
    """

    @property
    def reader(self) -> connection.Connection: ...

    @property
    def sentinel(self) -> int | None: ...

    def ended(self) -> None:
        """Called when it is known to have ended."""

    def exit_reason(self) -> str:
        """What became of one that is gone without a last message."""


class Job(Protocol):
    """What a process runs, as a worker is run."""

    def run(self) -> Iterator[Event | YieldPoint]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Child:
    """A process that works for the run."""

    worker: int
    process: BaseProcess
    reader: connection.Connection
    store: SharedStore

    @property
    def sentinel(self) -> int:
        return self.process.sentinel

    def ended(self) -> None:
        self.store.leave(self.worker)

    def exit_reason(self) -> str:
        self.process.join(GRACE_SECONDS)
        return f"worker {self.worker} {_exit_reason(self.process.exitcode)}"


def start(children: list[Child], context: RunContext, store: SharedStore, jobs: Iterable[Callable[[], Job]]) -> None:
    """Start a process for each job, which is made there; add it to `children` at once, so that it can be ended."""
    plugins = context.experiment.plugins
    with forkserver.without_main():
        for worker, make in enumerate(jobs):
            reader, writer = forkserver.context().Pipe(duplex=False)
            arguments = make, worker, plugins, writer
            process = forkserver.context().Process(target=_work, args=arguments, name=f"worker {worker}", daemon=True)
            process.start()
            writer.close()  # the child's copy is the only one: its end is the pipe's end
            children.append(Child(worker, process, reader, store))


def drain(members: Sequence[EventSource]) -> Generator[Event | None, None, None]:
    """What the members send until all have ended. Raises RunError for one that failed or was killed."""
    running = list(members)
    while running:
        # The pipe alone would not do: what a worker has started itself may hold it open after the worker is gone.
        ends = [end for member in running for end in (member.reader, member.sentinel) if end is not None]
        ready = connection.wait(ends, MERGE_SECONDS)
        if not ready:
            yield None
        for member in [member for member in running if member.reader in ready or member.sentinel in ready]:
            message = _receive(member)
            if not isinstance(message, WorkerExit):
                yield message
                continue
            running.remove(member)
            member.ended()
            if message.failure is not None:
                raise RunError(message.failure)


def _receive(member: EventSource) -> Event | WorkerExit:
    """The next message. One that is gone without a last message did not end by itself."""
    try:
        if member.reader.poll():
            message: Event | WorkerExit = member.reader.recv()
            return message
    except (EOFError, OSError):  # an OSError where it was killed in the middle of a message
        pass
    return WorkerExit(member.exit_reason())


def _exit_reason(exitcode: int | None) -> str:
    if exitcode is None:
        return "closed its connection"
    if exitcode >= 0:
        return f"ended without a word, with exit code {exitcode}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"was killed by signal {-exitcode}"


def end(children: list[Child]) -> None:
    """Give the workers a moment to end by themselves, then end them."""
    for child in children:
        child.reader.close()  # a worker that sends, or is about to, finds out at once
    deadline = time.monotonic() + GRACE_SECONDS
    for child in children:
        child.process.join(max(0.0, deadline - time.monotonic()))
        if child.process.is_alive():
            child.process.kill()
    for child in children:
        child.process.join()
        child.process.close()


class UnheardError(Exception):
    """The parent has closed its end: the run is over."""


def send(writer: connection.Connection, message: Event | WorkerExit) -> None:
    try:
        writer.send(message)
    except BrokenPipeError:
        raise UnheardError from None


def report(who: str, writer: connection.Connection, job: Iterator[Event], failures: Failures = FAILURES) -> None:
    """Send what a job does, and at last how it ended."""
    last = WorkerExit()
    try:
        for event in job:
            send(writer, event)
    except UnheardError:
        return
    except failures as error:
        last = WorkerExit(failure_text(who, error))
    with suppress(UnheardError):
        send(writer, last)


def _work(make: Callable[[], Job], index: int, plugins: Sequence[str], writer: connection.Connection) -> None:
    """The child's main function."""
    for number in forkserver.SIGNALS:
        # Not SIG_IGN, and not blocked: programs that an environment starts would inherit that.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, forkserver.SIGNALS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with one_thread():
        report(f"worker {index}", writer, _events(make, plugins))


def _events(make: Callable[[], Job], plugins: Sequence[str]) -> Iterator[Event]:
    import_plugins(plugins)  # they may register environments
    job = make()
    try:
        yield from batch_events(job.run())
    finally:
        job.close()


def _end_with_parent() -> None:
    """A worker without the process that started it has nobody to work for."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
