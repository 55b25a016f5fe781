"""Supervision of workers: those that die, hang or fail are replaced, and the run goes on.

`Restarts` decides, on every backend. `Supervisor` receives the events of processes and threads, and replaces them; on
Ray the driver does that.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Generator, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import connection
from typing import Protocol

from a3c_exp.backends.messages import MERGE_SECONDS, Inbox, WorkerExit
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.heartbeat import StallWatch
from a3c_exp.core.store import SharedStore
from a3c_exp.errors import RunError, require

RESUMED_STRIDE = 1 << 16
"""Added to the number of resumptions for a replacement, so that it draws random numbers that no other worker draws."""


@dataclass(frozen=True, kw_only=True)
class MaxRestarts:
    """The setting of every backend that replaces workers.

    max_restarts: replacements of one worker without an update of its own between them. 0: the first failure of a worker
        ends the run.
    """

    max_restarts: int = 3

    def __post_init__(self) -> None:
        require(self.max_restarts >= 0, "max_restarts", self.max_restarts, "a whole number >= 0")


@dataclass(frozen=True, kw_only=True)
class RestartSettings(MaxRestarts):
    """Settings of every backend whose workers run beside each other.

    stall_seconds: a worker that has not stepped for so long hangs; None: nobody looks. Its start and the first reset of
        its environments count too; waiting for others does not.
    """

    stall_seconds: float | None = 300.0

    def __post_init__(self) -> None:
        super().__post_init__()
        stall = self.stall_seconds
        require(stall is None or stall > 0, "stall_seconds", stall, "a number of seconds > 0, or null")


@dataclass(slots=True)
class _History:
    """A worker's place in the run.

    attempts: workers that had it before the current one. in_a_row: those of them that have failed since the last
    contribution (see `Event`). contributed: whether any of them has contributed.
    """

    attempts: int = 0
    in_a_row: int = 0
    contributed: bool = False


class Restarts:
    """Decides whether a worker that has ended too early is replaced, and counts. Workers are named by any key."""

    def __init__(self, settings: MaxRestarts, store: SharedStore) -> None:
        self._maximum = settings.max_restarts
        self._store = store
        self._histories: defaultdict[Hashable, _History] = defaultdict(_History)

    def on_event(self, key: Hashable, event: Event) -> None:
        """Note an event of a worker."""
        if event.contributions:
            history = self._histories[key]
            history.contributed = True
            history.in_a_row = 0

    def attempt(self, key: Hashable) -> int:
        """Number of workers that had this place before the current one."""
        return self._histories[key].attempts

    def on_failure(self, key: Hashable, worker: int, end: WorkerExit, *, serves_others: bool = False) -> Event:
        """Process the failure of a worker: the event that reports it.

        The worker is to be replaced if the event counts a restart. Otherwise the run is over, so it is not needed.
        serves_others: see `EventSource`. Raises RunError if the run has to end.
        """
        assert end.failure is not None
        is_over = self._store.stopped or self._store.steps >= self._store.spec.total_steps
        if is_over and not serves_others and not end.final:
            return Event(worker, warnings=(f"at the end of the run: {end.failure}",))
        history = self._histories[key]
        is_hopeless = end.final or serves_others or (end.is_own and not history.contributed)
        if self._maximum == 0 or is_hopeless:
            raise RunError(end.failure, end.reason)
        history.in_a_row += 1
        if history.in_a_row > self._maximum:
            times = "once" if self._maximum == 1 else f"{self._maximum} times"
            text = f"It had been replaced {times} without an update in between (backend.max_restarts)."
            raise RunError(f"{end.failure}\n{text}", "max_restarts")
        history.attempts += 1
        separator = "\n" if "\n" in end.failure else ": "
        event = Event(worker, warnings=(f"{end.failure}{separator}another one takes its place",))
        event.count("restarts")
        if end.reason == "env_errors":
            event.count("env_errors")
        return event


def incarnation(context: RunContext, attempt: int) -> RunContext:
    """The context of a worker that has had so many predecessors: its environments draw numbers of their own."""
    return replace(context, resumed=context.resumed + RESUMED_STRIDE * attempt)


class EventSource(Protocol):
    """A process, or a thread of this one, that sends events through a pipe, and a WorkerExit as its last message.

    name: for messages. worker: the index of its rows in the store. reader: the receiving end of the pipe.
    sentinel: becomes ready when the source has ended; None for a thread. beat: its heartbeat, see `Heartbeat`.
    inactivity: what a heartbeat that stands still means, for messages: "its environment had not stepped".
    serves_others: others need it until they have ended, so its failure ends the run.
    """

    name: str
    worker: int
    reader: Inbox
    inactivity: str
    serves_others: bool

    @property
    def sentinel(self) -> int | None: ...

    @property
    def beat(self) -> int: ...

    def kill(self) -> bool:
        """Kill it, and return whether that is possible."""

    def on_exit(self, *, replaced: bool) -> None:
        """Called once it has ended. replaced: `restart` follows."""

    def exit(self) -> WorkerExit:
        """The end of one that sent no last message."""

    def restart(self, attempt: int) -> None:
        """Start another in the place of one that has ended. attempt: number of its predecessors."""


class Supervisor:
    """Receives the events of workers, and replaces those that die, hang or fail. A worker's key is its index.

    starting: starts another worker with each item. Those that run are supervised meanwhile: hundreds take a minute.
    """

    def __init__(self, starting: Iterable[EventSource], settings: RestartSettings, store: SharedStore) -> None:
        self._starting = iter(starting)
        self._store = store
        self._sources: list[EventSource] = []
        self._restarts = Restarts(settings, store)
        self._watch = StallWatch(settings.stall_seconds)
        self._running: set[int] = set()
        self._hung: dict[int, str] = {}  # killed here, and why

    def run(self) -> Generator[Event | None, None, None]:
        """Yield the events of all workers until all have ended; None when MERGE_SECONDS have brought nothing.

        Raises RunError for a failure that has to end the run.
        """
        while (began := self._start_some()) or self._running:
            running = {key: self._sources[key] for key in sorted(self._running)}
            # The pipe alone does not tell that a worker is gone: a program that the worker started may hold it open.
            handles = [source.reader.fileno() for source in running.values()]
            handles += [source.sentinel for source in running.values() if source.sentinel is not None]
            ready = connection.wait(handles, 0 if began else MERGE_SECONDS)
            if not ready:
                yield None
            for key, source in running.items():
                has_ended = source.sentinel in ready
                if source.reader.fileno() in ready or has_ended:
                    yield from self._take(key, source, has_ended)
            self._kill_stalled()

    def _start_some(self) -> bool:
        """Start workers for up to MERGE_SECONDS; return whether any was started. A run that is over starts no more."""
        count, until = len(self._sources), time.monotonic() + MERGE_SECONDS
        while not self._store.stopped and time.monotonic() < until:
            source = next(self._starting, None)
            if source is None:
                break
            self._running.add(len(self._sources))
            self._sources.append(source)
        return len(self._sources) > count

    def _take(self, key: int, source: EventSource, has_ended: bool) -> Iterator[Event]:
        """Process the messages of a worker. One that ended without a last message has failed."""
        messages = source.reader.take()
        for message in messages:
            if isinstance(message, WorkerExit):
                yield from self._end(key, source, message)
                return
            self._restarts.on_event(key, message)
            yield message
        if has_ended or (not messages and source.reader.at_end):
            yield from self._end(key, source, source.exit())

    def _end(self, key: int, source: EventSource, message: WorkerExit) -> Iterator[Event]:
        """Process the end of a worker."""
        self._running.remove(key)
        if key in self._hung:
            message = WorkerExit(failure=self._hung.pop(key))
        if message.failure is None:
            source.on_exit(replaced=False)
            return
        event = self._restarts.on_failure(key, source.worker, message, serves_others=source.serves_others)
        source.on_exit(replaced="restarts" in event.counts)
        if "restarts" in event.counts:
            source.restart(self._restarts.attempt(key))
            self._watch.forget(key)
            self._running.add(key)
        yield event

    def _kill_stalled(self) -> None:
        elapsed = self._watch.due()
        if elapsed is None:
            return
        watched = [(key, self._sources[key]) for key in self._running - self._hung.keys()]
        stalled = [key for key, source in watched if self._watch.is_stalled(key, source.beat, elapsed)]
        if not stalled:
            return
        # One at a time: others may only wait for a lock that it holds.
        key = max(stalled, key=self._watch.idle)
        source = self._sources[key]
        text = self._watch.describe(source.name, source.inactivity)
        if not source.kill():
            raise RunError(f"{text}. A thread cannot be ended from outside, so the run ends.", "stalled")
        self._hung[key] = f"{text}, and was killed"
