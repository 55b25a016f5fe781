"""Supervision of workers: those that die, hang or fail are replaced, and the run goes on.

`Restarts` decides, on every backend. `Supervisor` carries it out. `PipeSupervisor` has processes
and threads, which send their events through pipes; the driver of Ray has actors.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from multiprocessing import Pipe, connection
from typing import Generic, NamedTuple, TypeVar

from a3c_exp.backends.messages import GRACE_SECONDS, MERGE_SECONDS, Inbox, WorkerExit
from a3c_exp.common.ranges import Checked, Positive, Whole
from a3c_exp.common.trust import import_plugins
from a3c_exp.core.events import Event, YieldPoint
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.heartbeat import Heartbeat, StallWatch, inactivity
from a3c_exp.core.store import SharedStore, Store
from a3c_exp.core.worker import Worker
from a3c_exp.ending import StopReason
from a3c_exp.errors import RunError, one_line

RESUMED_STRIDE = 1 << 16
"""Added to the number of resumptions for a replacement, so that it draws random numbers that no
other worker draws."""

ROLLOUTS_BETWEEN = 100
"""Rollouts of a worker between two failures that count as progress while no episode has ended."""


@dataclass(frozen=True, kw_only=True)
class MaxRestarts(Checked):
    """The setting of every backend that replaces workers.

    max_restarts: replacements of one worker without an ended episode of its own between them; while
        no worker has ended one, without ROLLOUTS_BETWEEN rollouts. An error of one of K
        environments, with an update since the last failure, counts as 1 / K of a replacement, since
        the others' episodes are lost with it. 0: the first failure of a worker ends the run.
    """

    max_restarts: Whole = 3


@dataclass(frozen=True, kw_only=True)
class RestartSettings(MaxRestarts):
    """Settings of every backend whose workers run beside each other.

    stall_seconds: a worker that has not stepped for so long hangs; None: nobody looks. Its start
        and the first reset of its environments count too; waiting for others does not.
    """

    stall_seconds: Positive | None = 300.0


class Verdict(NamedTuple):
    """The decision about a worker that has failed.

    event: reports the failure.
    is_replaced: another worker takes its place; otherwise the run is over, so none is needed.
    """

    event: Event
    is_replaced: bool


class Restarts:
    """Decides whether a worker that has ended too early is replaced, and counts.

    Workers are named by any key.

    settings: have the number of replacements.
    store: says whether the run is over.
    environments: number of one worker's environments.
    """

    def __init__(self, settings: MaxRestarts, store: SharedStore, environments: int = 1) -> None:
        self._maximum = settings.max_restarts
        self._store = store
        self._environments = environments
        self._attempts = Counter[Hashable]()
        self._failures: dict[Hashable, Fraction] = {}  # since the last progress
        self._rollouts = Counter[Hashable]()  # since the last failure
        self._contributed = set[Hashable]()
        self._episodes_end = False
        self._left = set[Hashable]()

    def on_event(self, key: Hashable, event: Event) -> None:
        """Note an event of a worker."""
        if event.contributions:
            self._contributed.add(key)
            self._rollouts[key] += event.contributions
        if len(event.episodes):
            self._episodes_end = True
            self._failures[key] = Fraction(0)
        elif not self._episodes_end and self._rollouts[key] >= ROLLOUTS_BETWEEN:
            self._failures[key] = Fraction(0)
        if event.left:
            self._left.add(key)

    def next_attempt(self, key: Hashable) -> int:
        """Count a worker that begins; return how many had its place before it."""
        self._attempts[key] += 1
        self._left.discard(key)
        return self._attempts[key] - 1

    def is_over(self, key: Hashable) -> bool:
        """Return whether the run, or this worker's part of it, is over: a failure at its end costs
        nothing."""
        return self._store.is_over or key in self._left

    def on_failure(
        self, key: Hashable, worker: int, end: WorkerExit, *, serves_others: bool = False
    ) -> Verdict:
        """Decide about a worker that has failed.

        serves_others: see `Source`. Raises RunError if the run has to end.
        """
        assert end.failure is not None
        if self.is_over(key) and not serves_others and not end.final:
            return Verdict(Event(worker, warnings=(f"at its end: {end.failure}",)), False)

        is_hopeless = end.final or serves_others or (end.is_own and key not in self._contributed)
        if self._maximum == 0 or is_hopeless:
            raise RunError(end.failure, end.reason)

        is_one_of_many = end.reason is StopReason.ENV_ERRORS and self._rollouts[key] > 0
        weight = Fraction(1, self._environments if is_one_of_many else 1)
        failures = self._failures.get(key, Fraction(0)) + weight
        self._failures[key] = failures
        self._rollouts[key] = 0
        if failures > self._maximum:
            raise RunError(
                f"{end.failure}\nbackend.max_restarts={self._maximum} allows no more replacements "
                "without an ended episode in between.",
                StopReason.MAX_RESTARTS,
            )

        separator = "\n" if "\n" in end.failure else ": "
        warning = f"{end.failure}{separator}another one takes its place"

        event = Event(worker, warnings=(warning,), replaced=True)
        event.counts["restarts"] += 1
        if end.reason is StopReason.ENV_ERRORS:
            event.counts["env_errors"] += 1
        return Verdict(event, True)


def incarnation(context: RunContext, attempt: int) -> RunContext:
    """Return the context of a worker that has had so many predecessors. Its environments draw other
    numbers than those of its predecessors."""
    resumed = context.resumed + RESUMED_STRIDE * attempt
    return replace(context, resumed=resumed, replaces=attempt > 0)


Outputs = Generator[Event | YieldPoint, None, None]
"""What a worker yields."""


def run_worker(
    context: RunContext,
    index: int,
    store: Store,
    attempt: int,
    heartbeat: Heartbeat | None = None,
) -> Outputs:
    """Build a worker that has had so many predecessors, run it to its end, and close it. Pauses
    once it is built.

    heartbeat: see `Worker`.
    """
    # in a process of its own: they may register environments
    import_plugins(context.experiment.plugins)
    worker = Worker(incarnation(context, attempt), index, store, heartbeat)
    try:
        yield YieldPoint.BUILT
        yield from worker.run()
    finally:
        worker.close()


@dataclass(kw_only=True, eq=False)
class Source(ABC):
    """A worker: a process, a thread of this one, or an actor of Ray. It sends events, and a
    WorkerExit at last.

    store: has its heartbeat, and is told when it has left.
    worker: index of its rows in the store.
    name: for messages; "" for that of a worker.
    serves_others: others need it until they have ended, so its failure ends the run.
    """

    store: SharedStore
    worker: int
    name: str = ""
    serves_others: bool = False

    def __post_init__(self) -> None:
        self.name = self.name or f"worker {self.worker}"

    @property
    def beat(self) -> int | None:
        """The last heartbeat, see `Heartbeat`; None for a worker that need not beat yet."""
        return int(self.store.counters.heartbeats[self.worker])

    @abstractmethod
    def start(self, attempt: int) -> None:
        """Start it, after so many predecessors, all of which have ended."""

    def kill(self) -> bool:
        """Kill it, and return whether that is possible."""
        return False

    def on_exit(self, *, replaced: bool) -> None:
        """Called once it has ended. replaced: `start` follows."""
        self.store.leave(self.worker)


WorkerRun = Callable[..., Iterator[Event | YieldPoint]]
"""The whole life of a worker."""


@dataclass(kw_only=True, eq=False)
class PipeSource(Source):
    """A worker that sends through a pipe.

    run: what it calls, given the number of its predecessors.
    inbox: receiving end of the pipe.
    sentinel: becomes ready when the worker has ended; None if the pipe alone says so.
    """

    run: WorkerRun
    inbox: Inbox = field(init=False)
    sentinel: int | None = field(default=None, init=False)

    def start(self, attempt: int) -> None:
        reader, writer = Pipe(duplex=False)
        self.inbox = Inbox(reader)
        try:
            self.begin(partial(self.run, attempt), writer)
        except (RuntimeError, OSError) as error:  # no thread or no process is to be had
            raise RunError(f"{self.name} could not be started: {one_line(error)}") from error

    @abstractmethod
    def begin(self, run: WorkerRun, writer: connection.Connection) -> None:
        """Start it. It calls `run`, and sends what that yields.

        Raises RuntimeError if no thread, and OSError if no process is to be had.
        """

    def exit(self) -> WorkerExit:
        """Return the end of a worker that sent no last message."""
        return WorkerExit(f"{self.name} ended unexpectedly")

    @abstractmethod
    def join(self, deadline: float) -> bool:
        """Wait until this moment at most; return whether it has ended."""


def end_all(sources: Sequence[PipeSource]) -> bool:
    """Wait GRACE_SECONDS, for all together, until workers whose events nobody takes any more have
    ended; return whether they have."""
    deadline = time.monotonic() + GRACE_SECONDS
    for source in sources:
        source.inbox.close()  # whoever sends, now or later, learns that the run is over
    ended = [source.join(deadline) for source in sources]
    return all(ended)


AnySource = TypeVar("AnySource", bound=Source)
Received = Iterator[tuple[int, Event | WorkerExit] | None]
"""Messages of workers, each with the worker's key; None: there was nothing to receive."""


class Supervisor(ABC, Generic[AnySource]):
    """Receives the events of workers, and replaces those that die, hang or fail.

    workers: are started one after the other. Those that run are supervised meanwhile: hundreds take
        a minute.
    environments: of one worker.
    sources: all that have been started; each has its index as key.
    """

    def __init__(
        self,
        workers: Iterable[AnySource],
        settings: RestartSettings,
        store: SharedStore,
        environments: int = 1,
    ) -> None:
        self.sources: list[AnySource] = []
        self._waiting = iter(workers)
        self._store = store
        self._restarts = Restarts(settings, store, environments)
        self._watch = StallWatch(settings.stall_seconds)
        self._running: set[int] = set()
        self._hung: dict[int, str] = {}  # killed here, and why

    def run(self) -> Generator[Event | None, None, None]:
        """Yield the events of all workers until all have ended; None when MERGE_SECONDS have
        brought nothing.

        Raises RunError for a failure that has to end the run.
        """
        while (began := self._start_next()) or self._running:
            yield from self._process(self._receive(0 if began else MERGE_SECONDS))

    @abstractmethod
    def _receive(self, seconds: float) -> Received:
        """Yield what has come from workers that run, by their keys; None if that is nothing within
        `seconds`."""

    def _process(self, received: Received) -> Iterator[Event | None]:
        """Process what has come from workers."""
        for item in received:
            if item is None:
                yield None
                continue
            key, message = item
            if isinstance(message, WorkerExit):
                yield from self._end(key, message)
            else:
                self._restarts.on_event(key, message)
                yield message

    def _start_next(self) -> bool:
        """Start the next worker; return whether there was one. A run that is over starts no
        more."""
        source = None if self._store.stopped else next(self._waiting, None)
        if source is not None:
            self._start(len(self.sources), source)
            self.sources.append(source)
        return source is not None

    def _end(self, key: int, message: WorkerExit) -> Iterator[Event | None]:
        """Process the end of a worker."""
        source = self.sources[key]
        self._running.remove(key)
        if key in self._hung:
            message = WorkerExit(failure=self._hung.pop(key))
        if message.failure is None:
            source.on_exit(replaced=False)
            return

        event, is_replaced = self._restarts.on_failure(
            key, source.worker, message, serves_others=source.serves_others
        )
        source.on_exit(replaced=is_replaced)
        if is_replaced:
            self._start(key, source)
        yield event

    def _start(self, key: int, source: AnySource) -> None:
        source.start(self._restarts.next_attempt(key))
        self._watch.forget(key)
        self._running.add(key)

    def _kill_stalled(self) -> Received:
        watched = self._running - self._hung.keys()
        key = self._watch.find(
            lambda: {key: beat for key in watched if (beat := self.sources[key].beat) is not None}
        )
        if key is None:
            return

        source = self.sources[key]
        text = self._watch.describe(source.name, inactivity(source.beat or 0))
        if source.kill():
            self._hung[key] = f"{text}, and was killed"
        elif self._restarts.is_over(key) and not source.serves_others:
            yield key, WorkerExit(f"{text}, and is left behind")
        else:
            raise RunError(
                f"{text}. A thread cannot be ended from outside, so the run ends.",
                StopReason.STALLED,
            )


class PipeSupervisor(Supervisor[PipeSource]):
    """Supervises processes and threads."""

    def run(
        self, end: Callable[[Sequence[PipeSource]], object] = end_all
    ) -> Generator[Event | None, None, None]:
        """See `Supervisor.run`. end: is called at last, with all that have been started, whatever
        has happened."""
        try:
            yield from super().run()
        finally:
            self._store.stop()
            end(self.sources)

    def _start_next(self) -> bool:
        if self._store.stopped:
            for source in self._waiting:  # nobody is to wait for those that will not start
                source.on_exit(replaced=False)
        return super()._start_next()

    def _receive(self, seconds: float) -> Received:
        running = {key: self.sources[key] for key in sorted(self._running)}
        # The pipe alone does not tell that a worker is gone: a program that the worker started may
        # hold it open.
        handles = [source.inbox.fileno() for source in running.values()]
        handles += [source.sentinel for source in running.values() if source.sentinel is not None]

        ready = connection.wait(handles, seconds)
        if not ready:
            yield None
        for key, source in running.items():
            has_ended = source.sentinel in ready
            if source.inbox.fileno() in ready or has_ended:
                messages = source.inbox.take()
                if not messages and source.inbox.at_end:
                    has_ended = True
                if has_ended and not (messages and isinstance(messages[-1], WorkerExit)):
                    messages.append(source.exit())
                yield from ((key, message) for message in messages)
        yield from self._kill_stalled()
