"""Parameter servers in a thread, without Ray, and workers' calls of them."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from stores import SIZE, make_store, ones, push

from a3c_exp.backends.ray.server import ParameterServer, merge_shards, shard_of, shard_slices
from a3c_exp.backends.ray.worker import RemoteStore
from a3c_exp.common.arrays import Floats
from a3c_exp.core.counters import Multipliers
from a3c_exp.core.events import Event
from a3c_exp.core.store import SharedStore

SECONDS = 60.0  # after which something is taken to hang

Result = TypeVar("Result")


class Cluster:
    """Servers whose calls all run in one thread, as those of an actor do. calls: names of the methods that were called.

    initial: they begin with its state.
    """

    def __init__(self, initial: SharedStore, shards: int = 1) -> None:
        self.spec = initial.spec
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.calls: list[str] = []
        self.servers = [
            ParameterServer(*shard_of(self.spec, initial.state(), shard))
            for shard in shard_slices(self.spec.size, shards)
        ]

    def ask(self, call: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(SECONDS)

    def call(self, server: int, method: str, *arguments: Any) -> Future[Any]:
        """Send a call, as a copy, to a server."""
        self.calls.append(method)
        sent = pickle.loads(pickle.dumps(arguments))
        return asyncio.run_coroutine_threadsafe(getattr(self.servers[server], method)(*sent), self.loop)

    def fetch(self) -> dict[str, Any]:
        """The state of all servers, after all messages that were sent before."""
        return merge_shards([self.ask(server.state()) for server in self.servers])

    def remote(self, in_flight: int = 0) -> RemoteStore:
        """The store of a worker."""
        return RemoteStore(self.spec, self.call, len(self.servers), in_flight)

    def started(self, worker: int = 0, in_flight: int = 0) -> RemoteStore:
        """The store of a worker that has joined the run."""
        remote = self.remote(in_flight)
        remote.start(worker, np.random.default_rng(0))
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


@contextmanager
def serving(shards: int = 1, initial: SharedStore | None = None, **settings: Any) -> Iterator[Cluster]:
    """Within: servers of two workers' parameters, which are 0, or of `initial`. settings: see `make_spec`."""
    cluster = Cluster(make_store(**{"workers": 2} | settings) if initial is None else initial, shards)
    try:
        yield cluster
    finally:
        cluster.close()


def pulled(store: RemoteStore, worker: int) -> Floats:
    """The parameters that a worker pulls."""
    parameters = np.empty(SIZE, np.float32)
    store.pull(worker, parameters)
    return parameters


def learn(store: RemoteStore, worker: int, gradient: float, steps: int = 1) -> Floats:
    """Pull, and push a gradient of one value. Returns the parameters that were pulled."""
    parameters = np.empty(SIZE, np.float32)
    snapshot = store.pull(worker, parameters)
    push(store, worker, ones(gradient), snapshot, steps=steps)
    return parameters


def at_once(actions: Sequence[Callable[[], object]]) -> None:
    """Do all of this, each in a thread, and wait until all have ended."""
    threads = [threading.Thread(target=action, daemon=True) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive(), "a worker waits for ever"
