"""The calls between workers and parameter servers, without Ray: pulls and pushes, shards,
synchronous rounds."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
from backend_runs import SETTINGS, assert_as_serial
from runs import config, wait_until
from runs import make_store as store_of
from stores import SIZE, make_spec, make_store, ones, pull, push

from a3c_exp.backends.ray.server import ParameterServer, merge_shards, shard_of, shard_slices
from a3c_exp.backends.ray.worker import RemoteStore
from a3c_exp.common.arrays import Floats
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.counters import Multipliers
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import Worker

SECONDS = 60.0  # after which something is taken to hang

Result = TypeVar("Result")


class Cluster:
    """Servers whose calls all run in one thread, as those of an actor do. calls: names of the
    methods that were called.

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
        return asyncio.run_coroutine_threadsafe(
            getattr(self.servers[server], method)(*sent), self.loop
        )

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
def serving(
    shards: int = 1, initial: SharedStore | None = None, **settings: Any
) -> Iterator[Cluster]:
    """Within: servers of two workers' parameters, which are 0, or of `initial`. settings: see
    `make_spec`."""
    cluster = Cluster(
        make_store(**{"workers": 2} | settings) if initial is None else initial, shards
    )
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


# The tests.


def test_a_vector_and_the_parts_of_its_network_are_split() -> None:
    shards = shard_slices(7, 3)
    assert [list(range(7))[shard] for shard in shards] == [[0, 1], [2, 3], [4, 5, 6]]
    spec = make_spec(size=7, param_slices={"actor": slice(0, 4), "critic": slice(4, 7)})
    state = {"parameters": np.zeros(7), "optimizer_state": np.zeros((1, 1, 7))}
    assert [shard_of(spec, state, shard)[0].param_slices for shard in shards] == [
        {"actor": slice(0, 2), "critic": slice(2, 2)},
        {"actor": slice(0, 2), "critic": slice(2, 2)},
        {"actor": slice(0, 0), "critic": slice(0, 3)},
    ]
    assert len(shard_slices(2, 5)) == 2, "no server is without a number"


NAMES = [
    "continuous actions, normalized",
    "beta, centered rewards",
    "v-trace",
    "an optimizer of torch, locked",
    "ppo, synchronous",
    "sarsa",
]


class TestOneWorker:
    @pytest.mark.parametrize("name", NAMES)
    def test_that_waits_is_a_worker_of_the_serial_backend_bit_for_bit(self, name: str) -> None:
        experiment = load_experiment(config(**SETTINGS[name]))
        shards = 2 if experiment.algorithm.target_every is None else 1
        with serving(shards=shards, initial=store_of(experiment)) as servers:
            worker = Worker(RunContext(experiment=experiment), 0, servers.remote(in_flight=0))
            with one_thread():
                list(worker.run())
            worker.close()
            assert_as_serial(servers.fetch(), name)

    def test_multiplies_every_shard_by_what_it_has_pulled(self) -> None:
        with serving(shards=2) as servers:
            for server in servers.servers:
                servers.ask(server.status(Multipliers(0.5, 2.0)))
            remote = servers.started()
            assert pull(remote).multipliers == (0.5, 2.0)
            learn(remote, 0, 1.0)
            np.testing.assert_array_equal(pulled(remote, 0), ones(-0.5))
            np.testing.assert_array_equal(servers.fetch()["multipliers"], [0.5, 2.0])

    def test_does_not_wait_for_replies_that_arrive_while_it_collects(self) -> None:
        """With one push in flight, a rollout begins with the parameters of the one before; after a
        quick reply, with those of its own push. The server reports the events."""
        first_parameters = []
        with serving() as servers:
            remote = servers.started(in_flight=1)
            for _ in range(4):
                parameters = np.empty(SIZE, np.float32)
                ticket = push(remote, 0, ones(-1), remote.pull(0, parameters), steps=5)
                assert ticket.done()
                first_parameters.append(parameters[0])
                servers.fetch()  # now the push has arrived
            remote.leave(0)
            (event,) = servers.events()
        assert first_parameters in ([0, 1, 2, 3], [0, 0, 1, 2])
        assert servers.calls == ["join", *["push"] * 4, "leave"], "parameters come with the replies"
        assert (event.updates, event.steps, sum(event.staleness.values())) == (4, 20, 4)
        assert 0 <= event.metrics["workers/wait_share"].mean <= 1

    def test_has_no_more_pushes_in_flight_than_allowed_and_beats_while_it_waits(self) -> None:
        with serving(update="sync") as servers:  # no round is ever complete
            remote = servers.started()
            remote._max_pending = 2
            for _ in range(2):
                learn(remote, 0, -1.0)
            blocked = threading.Thread(target=lambda: [learn(remote, 0, -1.0), pull(remote, 0)])
            blocked.start()
            wait_until(lambda: servers.calls.count("push") == 3, SECONDS)
            before = remote.heartbeat(0).value
            wait_until(lambda: remote.heartbeat(0).value > before + 2, SECONDS)
            assert blocked.is_alive()
            assert servers.calls.count("push") == 3
            servers.ask(servers.servers[0].stop())
            blocked.join(SECONDS)
            assert not blocked.is_alive()

    def test_is_followed_by_a_replacement_that_continues_its_generator(self) -> None:
        rng = np.random.default_rng(5)
        other = np.random.default_rng(9)
        with serving() as servers:
            first = servers.started()
            push(first, 0, ones(), rng=rng)
            pull(first, 0)
            servers.remote().start(0, other)
        assert other.normal() == rng.normal()


def two_workers(servers: Cluster, in_flight: int = 0) -> list[RemoteStore]:
    return [servers.started(worker, in_flight) for worker in range(2)]


class TestRounds:
    def test_are_one_step_with_the_average_and_wait_for_all(self) -> None:
        with serving(shards=2, update="sync") as servers:
            workers = two_workers(servers, in_flight=3)
            learn(workers[0], 0, -1.0, steps=1)
            learn(workers[1], 1, -4.0, steps=2)
            for index, worker in enumerate(workers):
                assert pulled(worker, index).tolist() == [3.0] * SIZE, "(1 * 1 + 2 * 4) / 3"
            events = servers.events()
        assert sum(event.updates for event in events) == 1
        assert [list(event.staleness.elements()) for event in events] == [[0], [0]]

    def test_go_on_without_a_worker_that_dies_and_with_its_replacement(self) -> None:
        """A message of the dead one that comes later takes part in no round that waits for it."""
        with serving(update="sync") as servers:
            survivor, dead = two_workers(servers)
            snapshot = pull(dead, 1)
            learn(survivor, 0, -1.0)
            servers.ask(servers.servers[0].leave(1))
            assert learn(survivor, 0, -1.0).tolist() == [1.0] * SIZE
            push(dead, 1, ones(-1), snapshot)
            assert pulled(survivor, 0).tolist() == [2.0] * SIZE
            replacement = servers.started(1)
            learn(survivor, 0, -1.0)
            servers.fetch()  # comes after the messages that were sent before
            assert not survivor._pending[0][0].done()
            learn(replacement, 1, -3.0)
            assert pulled(survivor, 0).tolist() == [4.0] * SIZE

    def test_are_the_same_on_all_servers_when_a_worker_joins_between_them(self) -> None:
        """One server hears of the worker before a round, the other after it."""
        with serving(shards=2, update="sync") as servers:
            early = servers.started(0)
            for server in servers.servers:
                servers.ask(server.leave(1))
            learn(early, 0, -1.0)
            pull(early, 0)
            servers.ask(servers.servers[0].join(1, np.random.default_rng(0)))
            learn(early, 0, -1.0)
            late = servers.started(1)

            def work(worker: RemoteStore, index: int) -> None:
                for _ in range(6):
                    learn(worker, index, -1.0)
                pull(worker, index)

            at_once([partial(work, early, 0), partial(work, late, 1)])
            for worker in (early, late):
                assert (
                    len(
                        {
                            (reply.snapshot.rounds, reply.snapshot.version)
                            for reply in worker._replies
                        }
                    )
                    == 1
                )
            assert servers.fetch()["parameters"].tolist() == [2.0 + 6] * SIZE

    def test_of_minibatches_end_with_the_rollouts_of_all(self) -> None:
        """Two pushes of each rollout; its end is told after them."""
        with serving(update="sync") as servers:

            def work(worker: RemoteStore, index: int) -> None:
                for _ in range(3):
                    for _ in range(2):
                        learn(worker, index, -1.0)
                    worker.finish_rollout(index)
                pull(worker, index)

            workers = two_workers(servers)
            at_once([partial(work, worker, index) for index, worker in enumerate(workers)])
            assert servers.fetch()["parameters"].tolist() == [6.0] * SIZE
