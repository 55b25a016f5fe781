"""The parameter server: a store inside an actor. Nothing here knows of Ray.

All calls of an actor run in one thread, and one gives way to another only where it waits. So a push is applied whole,
and no lock is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from a3c_exp.backends.messages import MERGE_SECONDS
from a3c_exp.backends.ray.wire import Message, Reply, ServerStatus
from a3c_exp.core.events import Event
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import SharedStore


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
        self._beats: dict[int, tuple[int, int]] = {}

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
            earlier = self._events.get(worker)
            self._events[worker] = push.event if earlier is None else earlier.merge(push.event)
        elif is_current:
            store.finish_rollout(worker)
            self._notify()
            await self._until(lambda: not store.round_in_progress(worker))

    def _reply(self) -> Reply:
        store, parameters = self._store, np.empty(self._spec.size, np.float32)
        version, steps, normalizer, rounds = store.pull(0, parameters)
        return Reply(self._incarnation, version, steps, normalizer, parameters, store.stopped, rounds)

    async def leave(self, worker: int, last: int = 0) -> None:
        """Take a worker out of rounds: it has ended or died, or could not be started.

        last: its messages up to this sequence number are not taken if they still arrive.
        """
        for sequences in (self._taken, self._answered):
            sequences[worker] = max(last, sequences.get(worker, 0))
        self._store.leave(worker)
        self._members.discard(worker)
        self._notify()

    async def beat(self, worker: int, attempt: int, beat: int) -> None:
        """Keep a worker's heartbeat for the driver. attempt: number of its predecessors, whose beats may come late."""
        if attempt >= self._beats.get(worker, (0, 0))[0]:
            self._beats[worker] = attempt, beat

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

    async def status(self) -> ServerStatus:
        """Wait a moment, so that events are merged, and report what has happened since the last call."""
        await asyncio.sleep(MERGE_SECONDS)
        store, events = self._store, list(self._events.values())
        self._events = {}
        seconds, members = store.training_seconds, sorted(self._members)
        return ServerStatus(self._incarnation, events, store.steps, seconds, members, dict(self._beats))

    async def state(self) -> tuple[int, dict[str, Any]]:
        """The incarnation, and everything that a checkpoint needs of this shard."""
        return self._incarnation, self._store.state()

    async def stop(self) -> None:
        """Ask every worker to end before its next rollout."""
        self._store.stop()
        self._notify()
