"""Messages from workers to the run, through pipes: their events, batched, and how each worker ended."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from typing import Protocol

from a3c_exp.core.events import Event
from a3c_exp.core.worker import YieldPoint
from a3c_exp.errors import RunError

# A worker's events are merged over this time before they are passed on: it makes thousands of updates a second.
MERGE_SECONDS = 0.1
# Sleep between two looks at a synchronous round that waits for other workers: the first, and the longest. The sleep
# doubles each time, since many workers that poll would take the processor from those they wait for.
WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1e-4, 2e-3
# From asking workers to end to killing them, or leaving them behind. A run that fails is over within two seconds.
GRACE_SECONDS = 1.0

# Ways in which a worker may fail: not only errors, also an environment that calls sys.exit.
FAILURES = (Exception, SystemExit)


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """A worker's last message. failure: error text for the user; None if the worker did not fail."""

    failure: str | None = None


def failure_text(who: str, error: BaseException) -> str:
    """Error text for the user: a RunError's message alone, any other exception with its traceback."""
    if isinstance(error, RunError):
        return str(error)
    return f"{who} failed:\n{''.join(traceback.format_exception(error)).rstrip()}"


def batch_events(outputs: Iterator[Event | YieldPoint]) -> Iterator[Event]:
    """Run a worker, sleep where it waits for others, and merge its events over MERGE_SECONDS.

    The first event is passed on at once, so that a run soon shows that it works. The last one is passed on even if the
    worker fails.
    """
    pending: Event | None = None
    due, wait = 0.0, WAIT_SECONDS
    try:
        for output in outputs:
            if output is YieldPoint.WAITING:
                time.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
                continue
            wait = WAIT_SECONDS
            if isinstance(output, YieldPoint):
                continue
            pending = output if pending is None else pending.merge(output)
            now = time.monotonic()
            if now >= due:
                yield pending
                pending, due = None, now + MERGE_SECONDS
    except FAILURES:
        if pending is not None:
            yield pending
        raise
    if pending is not None:
        yield pending


class Job(Protocol):
    """A worker, or one of its kind, for a process or a thread to run."""

    def run(self) -> Iterator[Event | YieldPoint]: ...

    def close(self) -> None: ...


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


class ReceiverClosedError(Exception):
    """The other end of a pipe has been closed: the run is over."""


def send_events(who: str, writer: connection.Connection, make_job: Callable[[], Job]) -> None:
    """Make a job here, and run it to its end: send its events, and at last a WorkerExit."""
    last = WorkerExit()
    try:
        for event in _events(make_job):
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


def _events(make_job: Callable[[], Job]) -> Iterator[Event]:
    job = make_job()
    try:
        yield from batch_events(job.run())
    finally:
        job.close()
