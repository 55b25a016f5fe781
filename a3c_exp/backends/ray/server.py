"""The parameter server: a store inside an actor, its messages, and how a vector is split among several servers.

Nothing here knows of Ray. All calls of an actor run in one thread, and one gives way to another only where it waits. So
a push is applied whole, and no lock is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from a3c_exp.backends.messages import MERGE_SECONDS
from a3c_exp.common.arrays import Floats
from a3c_exp.core.counters import Multipliers
from a3c_exp.core.events import Event
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import Push, SharedStore, Snapshot

SEQUENCE_STRIDE = 1 << 32
"""Between the sequence numbers of a worker's messages and those of its replacement."""


@dataclass(slots=True)
class Message:
    """A worker's push to one server, or its word that it has finished with a rollout.

    incarnation: of the server whose parameters the gradient is based on.
    push: with the server's shard of the gradient; None if the rollout is finished. Its synchronous round is the same
        for all servers. Events are reported by the first server, so the others get no more than the steps.
    sequence: number of the message among those of its worker. The replacement of a dead worker starts far above, see
        SEQUENCE_STRIDE.
    first_unacknowledged: the lowest sequence number to which the worker has no reply yet.
    """

    worker: int
    incarnation: int
    push: Push | None
    sequence: int
    first_unacknowledged: int


class Reply(NamedTuple):
    """A server's answer to every call of a worker: its parameters, and the state of the run."""

    incarnation: int
    snapshot: Snapshot
    parameters: Floats
    stopped: bool


class ServerStatus(NamedTuple):
    """A server's report to the driver, ten times a second.

    incarnation: 0 if the server has started and has no state yet.
    events: one for each worker that has pushed since the last report. steps: of the run.
    training_seconds: since the first worker started. members: workers that have joined and not left.
    beats: the last heartbeats, by worker and number of its predecessors.
    """

    incarnation: int
    events: list[Event]
    steps: int
    training_seconds: float
    members: set[int]
    beats: dict[tuple[int, int], int]


class ParameterServer:
    """Holds the parameters with the optimizer's state, or a shard of them, and the counters of the run.

    A server starts without a state, also when it is restarted after its death. All calls wait until the driver has
    given it one, with which a new incarnation begins. A gradient that is based on parameters of an earlier incarnation
    is not applied, but its steps and episodes count. Nor does it take part in a synchronous round: a restarted server
    cannot know who had submitted to the round.

    Each message is taken at most once, and the messages of a worker in order, however often they are sent.
    """

    def __init__(self, spec: StoreSpec) -> None:
        self._spec = spec
        self._store = SharedStore(spec)
        self._incarnation = 0
        self._changed = asyncio.Event()
        # By worker, the sequence numbers of the last message taken and of the last one answered. In synchronous rounds
        # the answer comes later.
        self._taken: dict[int, int] = {}
        self._answered: dict[int, int] = {}
        self._members: set[int] = set()
        self._events: dict[int, Event] = {}
        self._beats: dict[tuple[int, int], int] = {}

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that other calls bring about. The end of the run ends every wait."""
        while not (condition() or self._store.stopped):
            await self._changed.wait()

    def _notify(self) -> None:
        """Let all waiting calls check their conditions again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _has_state(self) -> bool:
        return self._incarnation > 0

    # -- the worker's calls -------------------------------------------------------------------------------------------

    async def join(self, worker: int) -> tuple[Reply, NDArray[np.uint64], int]:
        """Let a worker join the run.

        Returns the parameters, its saved generator state (zeros if there is none), and the episodes that it or its
        predecessors have finished.
        """
        await self._until(self._has_state)
        self._add_member(worker)
        counters = self._store.counters
        counters.start_clock()
        return self._reply(), counters.rng_state(worker).copy(), counters.episodes_of(worker)

    def _add_member(self, worker: int) -> None:
        """Let a worker take part in rounds, also one that had been given up."""
        if worker not in self._members:
            self._store.join(worker)
            self._members.add(worker)
            self._notify()

    async def pull(self) -> Reply:
        """The current parameters."""
        await self._until(self._has_state)
        return self._reply()

    async def push(self, message: Message) -> Reply:
        """Take a message, and answer with the parameters after it. In a synchronous round the answer waits for all."""
        worker, sequence = message.worker, message.sequence
        await self._until(self._has_state)
        if self._taken.setdefault(worker, 0) < message.first_unacknowledged - 1:
            self._taken[worker] = message.first_unacknowledged - 1
            self._notify()
        while self._taken[worker] < sequence - 1:  # also after the end of the run: the steps were made
            await self._changed.wait()
        if self._taken[worker] < sequence:
            self._taken[worker] = sequence
            await self._process(message)
            self._answered[worker] = max(sequence, self._answered.get(worker, 0))
            self._notify()
        await self._until(lambda: self._answered.get(worker, 0) >= sequence)
        return self._reply()

    async def _process(self, message: Message) -> None:
        """Apply a gradient and keep its event for the driver, or take a worker that has finished its rollout out of
        rounds. Wait until the round, or the others' rollouts, are over."""
        worker, push, store = message.worker, message.push, self._store
        is_current = message.incarnation == self._incarnation
        if is_current:
            self._add_member(worker)
        if push is not None:
            if not is_current:  # it enters no round
                push = replace(push, gradient=None, snapshot=push.snapshot._replace(rounds=-1))
            ticket = store.push(worker, push)
            self._notify()
            await self._until(ticket.done)
            if (earlier := self._events.setdefault(worker, push.event)) is not push.event:
                earlier.merge(push.event)
        elif is_current:
            store.finish_rollout(worker)
            self._notify()
            await self._until(lambda: not store.round_in_progress(worker))

    def _reply(self) -> Reply:
        parameters = np.empty(self._spec.size, np.float32)
        snapshot = self._store.pull(0, parameters)
        return Reply(self._incarnation, snapshot, parameters, self._store.stopped)

    async def leave(self, worker: int, dead: int = 0) -> None:
        """Take a worker out of rounds: it has ended or died, or could not be started.

        dead: number of its actors that have died. Their messages are not taken if they still arrive.
        """
        for sequences in (self._taken, self._answered):
            sequences[worker] = max(SEQUENCE_STRIDE * dead, sequences.get(worker, 0))
        self._store.leave(worker)
        self._members.discard(worker)
        self._notify()

    async def beat(self, worker: int, attempt: int, beat: int) -> None:
        """Keep a worker's heartbeat for the driver. attempt: number of its predecessors, whose beats may come late."""
        self._beats[worker, attempt] = beat

    # -- the driver's calls -------------------------------------------------------------------------------------------

    async def begin(self, incarnation: int, state: Mapping[str, Any], members: Iterable[int]) -> None:
        """Begin an incarnation with a state (see `SharedStore.state`). Does nothing if it has already begun.

        members: workers that have joined in an earlier incarnation. Rounds of the first incarnation wait for all
        workers, those of a later one for the members.

        Steps that this server has counted since the state was fetched remain counted: they were made.
        """
        if incarnation == self._incarnation:
            return
        self._store.restore({**state, "steps": max(state["steps"], self._store.steps)})
        self._incarnation = incarnation
        self._members = set(members)
        for worker in range(self._spec.workers):
            if incarnation > 1 and worker not in self._members:
                self._store.leave(worker)
        self._notify()

    async def status(self, multipliers: Multipliers) -> ServerStatus:
        """Wait a moment, so that events are merged, and report what has happened since the last call.

        multipliers: workers get them with their next pull.
        """
        self._store.counters.multipliers = multipliers
        await asyncio.sleep(MERGE_SECONDS)
        events, self._events = list(self._events.values()), {}
        steps, seconds = self._store.steps, self._store.training_seconds
        return ServerStatus(self._incarnation, events, steps, seconds, set(self._members), dict(self._beats))

    async def state(self) -> tuple[int, dict[str, Any]]:
        """The incarnation, and everything that a checkpoint needs of this shard."""
        return self._incarnation, self._store.state()

    async def stop(self) -> None:
        """Ask every worker to end before its next rollout."""
        self._store.stop()
        self._notify()


def shard_slices(size: int, count: int) -> list[slice]:
    """A vector's slices for `count` servers, as equal as possible. No slice is empty, so there may be fewer."""
    ends = [size * index // count for index in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends) if start < stop]


def shard_spec(spec: StoreSpec, shard: slice) -> StoreSpec:
    """The spec of one server's store. A part of the network that crosses the shard's border is cut there."""
    size = shard.stop - shard.start

    def within(index: int) -> int:
        return int(min(max(index - shard.start, 0), size))

    param_slices = {name: slice(within(part.start), within(part.stop)) for name, part in spec.param_slices.items()}
    return replace(spec, size=size, param_slices=param_slices)


def shard_state(state: Mapping[str, Any], shard: slice) -> dict[str, Any]:
    """One server's part of the state of a store (`SharedStore.state`)."""
    return {
        **state,
        "parameters": state["parameters"][shard].copy(),
        "optimizer_state": state["optimizer_state"][..., shard].copy(),
    }


def merge_shards(shards: Sequence[tuple[int, Mapping[str, Any]]], incarnation: int) -> dict[str, Any] | None:
    """The state of the whole store. The counters are those of the first server.

    shards: incarnation and state of every server.
    Returns None if a server is not of this incarnation: after a restart it has no state yet.
    """
    if any(found != incarnation for found, _ in shards):
        return None
    states = [state for _, state in shards]
    return {
        **states[0],
        "parameters": np.concatenate([state["parameters"] for state in states]),
        "optimizer_state": np.concatenate([state["optimizer_state"] for state in states], axis=-1),
    }
