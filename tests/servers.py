"""Parameter servers in a thread, without Ray, whose calls can be lost; and workers' calls of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

import numpy as np

from a3c_exp.backends.ray.server import ParameterServer, merge_shards, shard_slices, shard_spec, shard_state
from a3c_exp.backends.ray.worker import RemoteStore
from a3c_exp.common.arrays import Floats
from a3c_exp.core.counters import Multipliers
from a3c_exp.core.events import Event
from a3c_exp.core.normalization import RunningStats
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import Push, SharedStore, Snapshot
from a3c_exp.optimizers import SGD
from a3c_exp.schedules import Constant

SIZE = 7
SECONDS = 60.0  # after which something is taken to hang

Result = TypeVar("Result")


class LostError(Exception):
    """The server died, or could not be reached."""


def spec(workers: int = 2, **settings: Any) -> StoreSpec:
    param_slices = {"actor": slice(0, 4), "critic": slice(4, SIZE)}
    plain: dict[str, Any] = {"optimizer": SGD(learning_rate=1.0), "schedule": Constant(value=1.0), "total_steps": 1000}
    return StoreSpec(size=SIZE, param_slices=param_slices, workers=workers, **plain | settings)


class Cluster:
    """Servers whose calls all run in one thread, as those of an actor do. They begin with the state of `initial`, or 0.

    calls: names of the methods that were called. lose_answers: number of calls whose answers will be lost, though the
    server takes the message. down: servers that have died and are not restarted yet; all calls are lost.
    refused: number of calls of servers that were down. fetched: the state that was last fetched.
    """

    def __init__(self, whole: StoreSpec, shards: int = 1, initial: SharedStore | None = None) -> None:
        self.spec = whole
        self.shards = shard_slices(whole.size, shards)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.incarnation = self.lose_answers = self.refused = 0
        self.calls: list[str] = []
        self.down: set[int] = set()
        self.pending: dict[int, list[Future[Any]]] = {}
        if initial is None:
            initial = SharedStore(whole)
            initial.initialize(np.zeros(whole.size, np.float32))
        self.fetched = initial.state()
        self.servers = [self.new_server(index) for index in range(shards)]
        self.begin()

    def new_server(self, server: int) -> ParameterServer:
        return ParameterServer(shard_spec(self.spec, self.shards[server]))

    def begin(self) -> None:
        """Begin an incarnation of all servers, as the driver does when one has started or restarted."""
        self.incarnation += 1
        for server in range(len(self.servers)):
            self.begin_one(server)

    def begin_one(self, server: int) -> None:
        own = shard_state(self.fetched, self.shards[server])
        self.ask(self.servers[server].begin(self.incarnation, own, range(self.spec.workers)))

    def fetch(self) -> dict[str, Any]:
        """The state of all servers, after all messages that were sent before."""
        states = [self.ask(server.state()) for server in self.servers]
        self.fetched = merge_shards(states, self.incarnation) or self.fetched
        return self.fetched

    def kill(self, server: int) -> None:
        """Lose what a server has and all pending calls of it, and restart it without a state."""
        self.servers[server] = self.new_server(server)
        for call in self.pending.pop(server, []):
            call.cancel()

    def ask(self, call: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(SECONDS)

    def call(self, server: int, method: str, *arguments: Any) -> Future[Any]:
        self.calls.append(method)
        answer: Future[Any] = Future()
        if server in self.down:
            self.refused += 1
            answer.set_exception(LostError())
            return answer
        call = asyncio.run_coroutine_threadsafe(getattr(self.servers[server], method)(*arguments), self.loop)
        if self.lose_answers:
            self.lose_answers -= 1
            call.result(SECONDS)
            answer.set_exception(LostError())
            return answer

        def pass_on(call: Future[Any]) -> None:
            if call.cancelled():
                answer.set_exception(LostError())
            else:
                answer.set_result(call.result())

        self.pending.setdefault(server, []).append(call)
        call.add_done_callback(pass_on)
        return answer

    def remote(self, in_flight: int = 0, attempt: int = 0) -> RemoteStore:
        """The store of a worker."""
        return RemoteStore(self.spec, self.call, (LostError,), len(self.servers), in_flight, attempt)

    def started(self, worker: int = 0, in_flight: int = 0, attempt: int = 0) -> RemoteStore:
        """The store of a worker that has joined the run."""
        remote = self.remote(in_flight, attempt)
        remote.start(worker, generator())
        return remote

    def events(self) -> list[Event]:
        """The events that the first server has for the driver."""
        return self.ask(self.servers[0].status(Multipliers())).events

    def close(self) -> None:
        for server in self.servers:
            self.ask(server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


MakeCluster: TypeAlias = Callable[..., Cluster]
"""The fixture `cluster`."""


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def vector(value: float = 0.0) -> Floats:
    return np.full(SIZE, value, np.float32)


def push_of(
    worker: int,
    gradient: Floats | None,
    snapshot: Snapshot,
    steps: int = 1,
    stats: RunningStats | None = None,
    rng: np.random.Generator | None = None,
) -> Push:
    """A push of so many steps, weighted by them."""
    event = Event(worker, steps=steps)
    rng = generator() if rng is None else rng
    return Push(gradient=gradient, snapshot=snapshot, event=event, weight=steps, stats=stats, rng=rng)


def pull(store: RemoteStore, worker: int) -> Floats:
    """The parameters that a worker pulls."""
    parameters = vector()
    store.pull(worker, parameters)
    return parameters


def learn(store: RemoteStore, worker: int, gradient: float, steps: int = 1) -> Floats:
    """Pull, and push a gradient of one value. Returns the parameters that were pulled."""
    parameters = vector()
    snapshot = store.pull(worker, parameters)
    store.push(worker, push_of(worker, vector(gradient), snapshot, steps))
    return parameters


def learn_concurrently(workers: Sequence[tuple[RemoteStore, int]], rollouts: int, minibatches: bool = True) -> None:
    """Let each worker learn from so many rollouts, all workers at the same time.

    minibatches: a rollout has two pushes and its end is announced, as a minibatch algorithm does; otherwise one push.
    """

    def work(store: RemoteStore, worker: int) -> None:
        for _ in range(rollouts):
            learn(store, worker, -1.0)
            if minibatches:
                learn(store, worker, -1.0)
                store.finish_rollout(worker)
        pull(store, worker)

    join_all([threading.Thread(target=work, args=each) for each in workers])


def join_all(threads: Sequence[threading.Thread]) -> None:
    """Start threads, unless they run, and wait until all have ended."""
    for thread in threads:
        if thread.ident is None:
            thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive(), "a worker waits for ever"
