"""The parameter server: the shared parameters of one machine, inside an actor. Nothing here knows of Ray.

All calls of an actor run in one thread and give way only where they wait, so a push is applied whole, and nothing needs
a lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from a3c_exp.backends import MERGE_SECONDS
from a3c_exp.backends.ray.wire_dtype import Message, News, Reply, Wire, decode, encode
from a3c_exp.core.events import Event
from a3c_exp.core.normalization import RunningStats
from a3c_exp.core.store import PushResult, SharedStore, Snapshot, StoreSpec


class ParameterServer:
    """Holds the parameters with their moments, or a stretch of them, and the counters of the run.

    It begins empty, and so it begins again when it has died: everybody waits until the driver has given it a state.
    With each state begins another life. A gradient of parameters that were lost with an earlier life is not applied,
    but its steps and episodes count; nor does it take part in a round, since the server that has died cannot know who
    had pushed into that one.

    A message is taken at most once, and those of a worker in their order, whatever has been sent again.
    """

    def __init__(self, layout: StoreSpec, wire_dtype: Wire) -> None:
        self._layout, self._wire = layout, wire_dtype
        self._store = SharedStore(layout)
        self._life = 0
        self._changed = asyncio.Event()
        self._taken: dict[int, int] = {}  # of each worker, the number of its last message that was taken,
        self._answered: dict[int, int] = {}  # and of the last that was answered: later, in synchronous rounds
        self._members: set[int] = set()
        self._events: dict[int, Event] = {}
        self._received = self._sent = 0

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for what other calls bring about; the end of the run ends every wait."""
        while not (condition() or self._store.stopped):
            await self._changed.wait()

    def _change(self) -> None:
        """Let all who wait look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    # -- the worker's calls -----------------------------------------------------------------------------------------

    async def join(self, worker: int) -> tuple[Reply, NDArray[np.uint64]]:
        """A worker is about to begin: the parameters, and the state of its generator (zeros if there is none)."""
        await self._until(self._alive)
        self._be_joined(worker)
        self._store.start()
        return self._reply(), self._store.rng_state(worker).copy()

    def _be_joined(self, worker: int) -> None:
        """Who sends messages takes part, also if it was taken for one that does not come."""
        if worker not in self._members:
            self._store.join(worker)
            self._members.add(worker)
            self._change()

    async def pull(self) -> Reply:
        """The parameters as they are now."""
        await self._until(self._alive)
        return self._reply()

    async def push(self, message: Message) -> Reply:
        """Take a message and answer with the parameters behind it: in synchronous rounds, when all have made theirs."""
        worker, number = message.worker, message.sequence
        await self._until(self._alive)
        if self._taken.setdefault(worker, 0) < message.oldest - 1:
            self._taken[worker] = message.oldest - 1
            self._change()
        while self._taken[worker] < number - 1:  # also when the run has been stopped: what was done counts
            await self._changed.wait()
        if self._taken[worker] < number:
            self._taken[worker] = number
            if message.life == self._life:
                self._be_joined(worker)
            if not message.finished:
                await self._push(message)
            elif message.life == self._life:
                await self._finish(worker)
            self._answered[worker] = max(number, self._answered.get(worker, 0))
            self._change()
        await self._until(lambda: self._answered.get(worker, 0) >= number)
        return self._reply()

    async def _push(self, message: Message) -> None:
        store, worker, event = self._store, message.worker, message.event
        if message.rng_state is not None:
            store.rng_state(worker)[:] = message.rng_state
        snapshot = Snapshot(message.version, message.steps, None)
        observed = None if message.observed is None else RunningStats(message.observed)
        gradient = self._gradient(message)
        result: PushResult | None = PushResult(0, False, 0)
        if self._layout.synchronous and (message.life != self._life or message.number <= store.rounds):
            store.count(worker, message.transitions, observed)
        else:
            number = message.number if self._layout.synchronous else None
            result = store.push(worker, gradient, snapshot, message.transitions, observed, message.weight, number)
        self._change()
        while result is None and not store.stopped:
            await self._changed.wait()
            result = store.poll(worker, snapshot)
            if result is not None and result.applied:
                self._change()
        if event is not None:
            self._tell(event, result)

    def _gradient(self, message: Message) -> NDArray[np.float32] | None:
        """The message's gradient, None for one that is to be passed over."""
        if message.gradient is None:
            return None
        self._received += message.gradient.nbytes
        if message.life != self._life:
            return None
        gradient = np.empty(self._layout.size, np.float32)
        decode(message.gradient, gradient)
        return gradient

    def _tell(self, event: Event, result: PushResult | None) -> None:
        """Keep what a worker did, with what became of its push, for the driver."""
        if result is not None:
            event.updates = result.applied
            if result.accepted:
                event.staleness[result.staleness] += 1
        earlier = self._events.get(event.worker)
        self._events[event.worker] = event if earlier is None else earlier.merge(event)

    async def _finish(self, worker: int) -> None:
        """The worker makes no more gradients of its rollout; wait for those who do."""
        self._store.finish(worker)
        self._change()
        await self._until(lambda: not self._store.round_in_progress(worker))

    def _reply(self) -> Reply:
        parameters = np.empty(self._layout.size, np.float32)
        store = self._store
        snapshot = store.pull(0, parameters)
        sent = encode(parameters, self._wire)
        self._sent += sent.nbytes
        return Reply(
            self._life, snapshot.version, snapshot.steps, snapshot.normalizer, sent, store.stopped, store.rounds
        )  # fmt: skip

    async def leave(self, worker: int, last: int = 0) -> None:
        """The worker has ended or died, or has not come: rounds no longer wait for it.

        last: its messages up to this number are not taken any more, should they still arrive.
        """
        for numbers in (self._taken, self._answered):
            numbers[worker] = max(last, numbers.get(worker, 0))
        self._store.leave(worker)
        self._members.discard(worker)
        self._change()

    # -- the driver's calls -----------------------------------------------------------------------------------------

    def _alive(self) -> bool:
        return self._life > 0

    async def begin(self, life: int, state: Mapping[str, Any], members: Iterable[int]) -> None:
        """Take up a state (see `SharedParameters.state`). members: workers that joined in an earlier life.
        Rounds of the first life wait for all workers, those of a later one for these.

        Steps that a server of an earlier life has counted since the state was told have been made. A life begins once,
        however often it is asked for."""
        if life == self._life:
            return
        self._store.restore({**state, "steps": max(state["steps"], self._store.steps)})
        self._life, self._members = life, set(members)
        for worker in range(self._layout.workers):
            if life > 1 and worker not in self._members:
                self._store.leave(worker)
        self._change()

    async def news(self) -> News:
        """What has happened since the last call, after a moment in which more may happen."""
        await asyncio.sleep(MERGE_SECONDS)
        events, self._events = list(self._events.values()), {}
        received, sent = self._received, self._sent
        self._received = self._sent = 0
        seconds = self._store.training_seconds
        return News(self._life, events, self._store.steps, seconds, sorted(self._members), received, sent)

    async def state(self) -> tuple[int, dict[str, Any]]:
        """All that a checkpoint needs of this stretch, and of which life it is."""
        return self._life, self._store.state()

    async def stop(self) -> None:
        """Ask every worker to end before its next rollout."""
        self._store.stop()
        self._change()
