"""Parameter servers in a thread of their own, without Ray, and calls to them that can be lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from a3c_exp.backends.ray.client import Link, RemoteParameters
from a3c_exp.backends.ray.server import ParameterServer
from a3c_exp.backends.ray.wire_dtype import cut, joined, piece, stretches
from a3c_exp.core.events import Event
from a3c_exp.core.normalization import RunningStats
from a3c_exp.optimizers import SGD
from a3c_exp.core.store import StoreSpec, SharedStore
from a3c_exp.schedules import Constant

SIZE = 7


class LostError(Exception):
    """The server died, or could not be reached."""


def layout(workers: int = 2, **settings: Any) -> StoreSpec:
    param_slices = {"actor": slice(0, 4), "critic": slice(4, SIZE)}
    plain: dict[str, Any] = {"optimizer": SGD(learning_rate=1.0), "schedule": Constant(value=1.0), "total_steps": 1000}
    return StoreSpec(size=SIZE, param_slices=param_slices, workers=workers, **plain | settings)


class Cluster:
    """Servers whose calls all run in one thread, as those of an actor do.

    lose_answers: so many of the next calls are taken, but the caller hears that they were lost.
    down: servers that have died and not started again: all calls are lost.
    """

    def __init__(self, whole: StoreSpec, shards: int = 1, wire_dtype: Any = "float32") -> None:
        self.layout, self.wire_dtype = whole, wire_dtype
        self.stretches = stretches(whole.size, shards)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.servers: list[ParameterServer] = []
        self.life = self.lose_answers = 0
        self.calls: list[str] = []
        self.down: set[int] = set()
        self.under_way: dict[int, list[Future[Any]]] = {}
        first = SharedStore(whole)
        first.initialise(np.zeros(whole.size, np.float32))
        self.known = first.state()
        for index in range(shards):
            self.servers.append(self.new(index))
        self.begin()

    def new(self, server: int) -> ParameterServer:
        return ParameterServer(piece(self.layout, self.stretches[server]), self.wire_dtype)

    def begin(self) -> None:
        """What the driver does once a server is there, or there again."""
        self.life += 1
        for server in range(len(self.servers)):
            self.begin_one(server)

    def begin_one(self, server: int, members: Iterable[int] | None = None) -> None:
        own = cut(self.known, self.stretches[server])
        everybody = range(self.layout.workers)
        self.ask(self.servers[server].begin(self.life, own, everybody if members is None else members))

    def fetch(self) -> dict[str, Any]:
        self.known = joined([self.ask(server.state()) for server in self.servers], self.life) or self.known
        return self.known

    def kill(self, server: int) -> None:
        """Whatever it had under way is lost; another starts in its place."""
        self.servers[server] = self.new(server)
        for call in self.under_way.pop(server, []):
            call.cancel()

    def ask(self, call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(10)

    def call(self, server: int, method: str, *arguments: Any) -> Future[Any]:
        self.calls.append(method)
        told: Future[Any] = Future()
        if server in self.down:
            told.set_exception(LostError())
            return told
        made = asyncio.run_coroutine_threadsafe(getattr(self.servers[server], method)(*arguments), self.loop)
        if self.lose_answers:
            self.lose_answers -= 1
            made.result(10)
            told.set_exception(LostError())
            return told

        def tell(made: Future[Any]) -> None:
            if made.cancelled():
                told.set_exception(LostError())
            else:
                told.set_result(made.result())

        self.under_way.setdefault(server, []).append(made)
        made.add_done_callback(tell)
        return told

    def worker(self, index: int = 0, in_flight: int = 0, first: int = 0) -> RemoteParameters:
        link = Link(
            call=self.call, lost=(LostError,), servers=len(self.servers), wire_dtype=self.wire_dtype, in_flight=in_flight
        )  # fmt: skip
        return RemoteParameters(self.layout, index, link, first)

    def events(self) -> list[Event]:
        news: list[Event] = self.ask(self.servers[0].news()).events
        return news

    def close(self) -> None:
        for server in self.servers:
            self.ask(server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


def learn(worker: Any, index: int, gradient: Any, steps: int = 1, observed: RunningStats | None = None) -> Any:
    """Pull, push a gradient, and tell of it; the parameters that were pulled."""
    mine = np.empty(SIZE, np.float32)
    snapshot = worker.pull(index, mine)
    vector = None if gradient is None else np.full(SIZE, gradient, np.float32)
    worker.push(index, vector, snapshot, steps, observed)
    worker.tell(Event(index, steps=steps))
    return mine


def together(workers: Sequence[tuple[Any, int]], rollouts: int, minibatches: bool = True) -> None:
    """Let each worker learn from so many rollouts at the same time: with two pushes each and a word at the end, as
    those who learn in minibatches do, or just so many pushes."""

    def work(worker: Any, index: int) -> None:
        for _ in range(rollouts):
            learn(worker, index, -1.0)
            if minibatches:
                learn(worker, index, -1.0)
                worker.finish(index)
        worker.pull(index, np.empty(SIZE, np.float32))

    threads = [threading.Thread(target=work, args=one) for one in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "somebody waits in vain"
