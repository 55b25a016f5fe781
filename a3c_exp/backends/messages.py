"""Messages from workers to the run, through pipes: their events, batched, and how each worker
ended."""

from __future__ import annotations

import os
import pickle
import struct
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection

from a3c_exp.core.events import Event, YieldPoint
from a3c_exp.ending import StopReason
from a3c_exp.envs import EnvError
from a3c_exp.errors import ConfigError, RunError

# A worker's events are merged over this time before they are passed on: it makes thousands of
# updates a second.
MERGE_SECONDS = 0.1
# Sleep between two looks at a synchronous round that waits for other workers: the first, and the
# longest. The sleep doubles each time, since many workers that poll would take the processor from
# those they wait for.
WAIT_SECONDS = 1e-4
LONGEST_WAIT_SECONDS = 2e-3
# From asking workers to end to killing them, or leaving them behind. A run that fails is over
# within two seconds.
GRACE_SECONDS = 1.0
# The length of a message, before its bytes in the pipe.
SIZE = struct.Struct("!Q")


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """The end of a worker.

    failure: error text for the user; None if the worker did not fail.
    is_own: an error of the program, which another worker would make again. Otherwise an environment
        failed, or the worker was killed or vanished.
    final: the failure ends the run, since a replacement would be no better.
    reason: the run's `stop_reason` if the failure ends it.
    """

    failure: str | None = None
    is_own: bool = False
    final: bool = False
    reason: StopReason = StopReason.FAILED


def failed(who: str, error: BaseException) -> WorkerExit:
    """Return the end of a worker by an exception. A RunError is final, unless it is an
    environment's."""
    if isinstance(error, EnvError):
        return WorkerExit(f"{who}: {error}", reason=error.reason)
    if isinstance(error, RunError):
        return WorkerExit(str(error), final=True, reason=error.reason)
    if isinstance(error, ConfigError):  # it names the setting, and says where code of others failed
        return WorkerExit(f"{who}: {error}", is_own=True)

    return WorkerExit(
        f"{who} failed:\n{''.join(traceback.format_exception(error)).rstrip()}", is_own=True
    )


class ReceiverClosedError(BaseException):
    """The run is over, or its program is gone. This is no `Exception`, which the code of an
    environment may catch."""


def send_events(
    who: str, writer: connection.Connection, run: Callable[[], Iterator[Event | YieldPoint]]
) -> None:
    """Run one or several workers here to their end, and sleep where they wait for others. Send
    their events, and at last a WorkerExit.

    Events of a worker are merged over MERGE_SECONDS. The first one is sent at once, so that a run
    soon shows that it works.
    """
    last = WorkerExit()
    pending: dict[int, Event] = {}  # by worker
    due = 0.0
    wait = WAIT_SECONDS
    try:
        for output in run():
            if output is YieldPoint.WAITING:
                time.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
                continue

            wait = WAIT_SECONDS
            if isinstance(output, YieldPoint):
                continue

            event = pending.setdefault(output.worker, output)
            if event is not output:
                event.merge(output)

            now = time.monotonic()
            if now >= due or output.left:  # a close comes next, which may crash
                _send_all(writer, pending)
                due = now + MERGE_SECONDS
    except ReceiverClosedError:
        return
    except BaseException as error:  # whatever ended this worker is the run's to report
        last = failed(who, error)

    with suppress(ReceiverClosedError):
        _send_all(writer, pending)
        send(writer, last)


def _send_all(writer: connection.Connection, events: dict[int, Event]) -> None:
    """Send events, and forget them."""
    for event in events.values():
        send(writer, event)
    events.clear()


def send(writer: connection.Connection, message: Event | WorkerExit) -> None:
    """Send a message to an Inbox. Raises ReceiverClosedError if that is closed."""
    data = pickle.dumps(message)
    unsent = memoryview(SIZE.pack(len(data)) + data)
    try:
        while unsent:
            count = os.write(writer.fileno(), unsent)
            unsent = unsent[count:]
    except BrokenPipeError:
        raise ReceiverClosedError from None


class Inbox:
    """The receiving end of a worker's pipe. Reading never waits: a worker may be stopped in the
    middle of a message.

    at_end: whether nobody can send any more.
    """

    def __init__(self, reader: connection.Connection) -> None:
        os.set_blocking(reader.fileno(), False)
        self._reader = reader
        self._received = bytearray()
        self.at_end = False

    def fileno(self) -> int:
        """Return the pipe's file descriptor, which `multiprocessing.connection.wait` waits for."""
        return self._reader.fileno()

    def take(self) -> list[Event | WorkerExit]:
        """Return the messages that have arrived whole since the last call; there may be none."""
        with suppress(BlockingIOError):
            while data := os.read(self.fileno(), 1 << 20):
                self._received += data
            self.at_end = True

        messages = []
        while len(self._received) >= SIZE.size:
            end = SIZE.size + SIZE.unpack_from(self._received)[0]
            if len(self._received) < end:
                break
            messages.append(pickle.loads(self._received[SIZE.size : end]))
            del self._received[:end]

        return messages

    def close(self) -> None:
        self._reader.close()
