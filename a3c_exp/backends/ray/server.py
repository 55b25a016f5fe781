"""The parameter server: a store inside an actor, and how a vector is split among several servers.

Nothing here knows of Ray. All calls of an actor run in one thread, and one gives way to another
only where it waits. So a push is applied whole, and no lock is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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


class Reply(NamedTuple):
    """A server's answer to every call of a worker: its parameters, and the state of the run."""

    snapshot: Snapshot
    parameters: Floats
    stopped: bool


class ServerStatus(NamedTuple):
    """A server's report to the driver, ten times a second.

    events: one for each worker that has pushed since the last report. steps: of the run.
    episodes: int64 [workers + 1], those that each worker has finished.
    training_seconds: since the first worker started.
    beats: the last heartbeats, by worker and number of its predecessors.
    """

    events: list[Event]
    steps: int
    episodes: NDArray[np.int64]
    training_seconds: float
    beats: dict[tuple[int, int], int]


class ParameterServer:
    """Holds the parameters with the optimizer's state, or a shard of them, and the counters of the
    run.

    state: that it begins with, see `SharedStore.state`.
    """

    def __init__(self, spec: StoreSpec, state: Mapping[str, Any]) -> None:
        self._spec = spec
        self._store = SharedStore(spec)
        self._store.restore(state)
        self._changed = asyncio.Event()
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

    # -- the worker's calls

    async def join(
        self, worker: int, rng: np.random.Generator
    ) -> tuple[Reply, np.random.Generator, int]:
        """Let a worker join the run, also one that rounds had given up.

        Returns the parameters, its generator in the saved state if there is one, and the episodes
        that it or its predecessors have finished.
        """
        episodes = self._store.start(worker, rng)
        self._notify()
        return self._reply(), rng, episodes

    async def pull(self) -> Reply:
        """Return the current parameters."""
        return self._reply()

    async def push(self, worker: int, push: Push) -> Reply:
        """Apply a gradient, and keep its event for the driver. In a synchronous round the answer
        waits for all.

        push: with this server's shard of the gradient. Its round is the same for all servers.
            Events are reported by the first server, so the others get no more than the steps.
        """
        ticket = self._store.push(worker, push)
        self._notify()
        await self._until(ticket.done)
        if (earlier := self._events.setdefault(worker, push.event)) is not push.event:
            earlier.merge(push.event)
        return self._reply()

    async def finish_rollout(self, worker: int) -> Reply:
        """Take a worker out of rounds until the others' rollouts are over, and wait for that."""
        ticket = self._store.finish_rollout(worker)
        self._notify()
        await self._until(ticket.done)
        return self._reply()

    def _reply(self) -> Reply:
        parameters = np.empty(self._spec.size, np.float32)
        snapshot = self._store.pull(0, parameters)
        return Reply(snapshot, parameters, self._store.stopped)

    async def leave(self, worker: int) -> None:
        """Take a worker out of rounds: it has ended or died, or could not be started."""
        self._store.leave(worker)
        self._notify()

    async def beat(self, worker: int, attempt: int, beat: int) -> None:
        """Keep a worker's heartbeat for the driver. attempt: number of its predecessors, whose
        beats may come late."""
        self._beats[worker, attempt] = beat

    # -- the driver's calls

    async def status(self, multipliers: Multipliers) -> ServerStatus:
        """Wait a moment, so that events are merged, and report what has happened since the last
        call.

        multipliers: workers get them with their next pull.
        """
        self._store.counters.multipliers = multipliers
        await asyncio.sleep(MERGE_SECONDS)
        events = list(self._events.values())
        self._events = {}
        counters = self._store.counters

        return ServerStatus(
            events=events,
            steps=self._store.steps,
            episodes=counters.episodes.copy(),
            training_seconds=counters.training_seconds,
            beats=dict(self._beats),
        )

    async def state(self) -> dict[str, Any]:
        """Return everything that a checkpoint needs of this shard."""
        return self._store.state()

    async def stop(self) -> None:
        """Ask every worker to end before its next rollout."""
        self._store.stop()
        self._notify()


def shard_slices(size: int, count: int) -> list[slice]:
    """Cut a vector into slices for `count` servers, as equal as possible. No slice is empty, so
    there may be fewer."""
    ends = [size * index // count for index in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends) if start < stop]


def shard_of(
    spec: StoreSpec, state: Mapping[str, Any], shard: slice
) -> tuple[StoreSpec, dict[str, Any]]:
    """Return one server's part of a store: its spec and its state (`SharedStore.state`).

    A part of the network that crosses the shard's border is cut there.
    """
    size = shard.stop - shard.start
    param_slices = {}
    for name, part in spec.param_slices.items():
        ends = np.array([part.start, part.stop]) - shard.start
        param_slices[name] = slice(*ends.clip(0, size).tolist())

    state_of_shard = {
        **state,
        "parameters": state["parameters"][shard],
        "optimizer_state": state["optimizer_state"][..., shard],
    }
    return replace(spec, size=size, param_slices=param_slices), state_of_shard


def merge_shards(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the states of all servers to that of the whole store. The counters are those of the
    first one."""
    return {
        **states[0],
        "parameters": np.concatenate([state["parameters"] for state in states]),
        "optimizer_state": np.concatenate([state["optimizer_state"] for state in states], axis=-1),
    }
