"""Threads of the run's process that serve agents: predictors and trainers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe, connection
from typing import Protocol

from a3c_exp.backends.messages import GRACE_SECONDS, MERGE_SECONDS, batch_events
from a3c_exp.backends.processes.children import send_events
from a3c_exp.core.events import Event
from a3c_exp.core.worker import YieldPoint


class Service(Protocol):
    """What such a thread runs."""

    def run(self) -> Iterator[Event | YieldPoint]: ...


@dataclass(frozen=True, slots=True)
class ServiceThread:
    """A thread whose events are received as those of a process are: an `EventSource`."""

    thread: threading.Thread
    reader: connection.Connection
    sentinel: None = None

    @classmethod
    def start(cls, name: str, make_service: Callable[[], Service]) -> ServiceThread:
        """Start a thread. The service is made there, since a network on a GPU belongs to the thread that uses it."""

        def events() -> Iterator[Event]:
            yield from batch_events(make_service().run())

        reader, writer = Pipe(duplex=False)
        thread = threading.Thread(target=send_events, args=(name, writer, events()), name=name, daemon=True)
        thread.start()
        return cls(thread, reader)

    def on_exit(self) -> None: ...

    def exit_reason(self) -> str:
        return f"{self.thread.name} ended unexpectedly"


def join_all(threads: Sequence[ServiceThread]) -> bool:
    """Wait GRACE_SECONDS, for all together, until the threads have ended; return whether they have."""
    deadline = time.monotonic() + GRACE_SECONDS
    for service in threads:
        service.reader.close()
        service.thread.join(max(0.0, deadline - time.monotonic()))
    return not any(service.thread.is_alive() for service in threads)


class RateMeter:
    """Measures a rate per second, over MERGE_SECONDS or more.

    threads: how many of a kind do the same: one of them measures, and reports the rate of all.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._name, self._threads = name, threads
        self._count, self._began = 0, time.monotonic()

    def add(self, count: int) -> dict[str, float]:
        """Count, and return the rate by its name when it is due; otherwise nothing."""
        self._count += count
        seconds = time.monotonic() - self._began
        if seconds < MERGE_SECONDS:
            return {}
        rate = self._threads * self._count / seconds
        self._count, self._began = 0, self._began + seconds
        return {self._name: rate}
