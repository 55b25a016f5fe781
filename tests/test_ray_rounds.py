"""Synchronous rounds over parameter servers, without Ray."""

from __future__ import annotations

import threading

from runs import wait_until
from servers import (
    SECONDS,
    SIZE,
    Cluster,
    MakeCluster,
    join_all,
    learn,
    learn_concurrently,
    pull,
    push_of,
    spec,
    vector,
)

from a3c_exp.backends.ray.worker import RemoteStore


def two_workers(servers: Cluster, in_flight: int = 0) -> list[RemoteStore]:
    return [servers.started(worker, in_flight) for worker in range(2)]


def waits(remote: RemoteStore, servers: Cluster) -> bool:
    """Whether the servers have taken the worker's oldest message and have not replied."""
    servers.fetch()  # comes after the messages that were sent before
    return not remote._pending[0].done()


class TestRounds:
    def test_are_one_step_with_the_average_and_wait_for_all(self, cluster: MakeCluster) -> None:
        servers = cluster(spec(2, synchronous=True), shards=2)
        workers = two_workers(servers, in_flight=3)
        learn(workers[0], 0, -1.0, steps=1)
        learn(workers[1], 1, -4.0, steps=2)
        for index, worker in enumerate(workers):
            parameters = vector()
            assert worker.pull(index, parameters).version == 1
            assert parameters.tolist() == [3.0] * SIZE, "(1 * 1 + 2 * 4) / 3"
        events = servers.events()
        assert sum(event.updates for event in events) == 1
        assert [list(event.staleness.elements()) for event in events] == [[0], [0]]

    def test_go_on_without_a_worker_that_dies_and_with_its_replacement(self, cluster: MakeCluster) -> None:
        servers = cluster(spec(2, synchronous=True))
        survivor, _ = two_workers(servers)
        learn(survivor, 0, -1.0)
        servers.ask(servers.servers[0].leave(1))
        assert learn(survivor, 0, -1.0).tolist() == [1.0] * SIZE
        pull(survivor, 0)
        replacement = servers.started(1, attempt=1)
        learn(survivor, 0, -1.0)
        assert waits(survivor, servers)
        learn(replacement, 1, -3.0)
        assert learn(survivor, 0, 0.0).tolist() == [4.0] * SIZE

    def test_ignore_messages_of_a_dead_worker_that_arrive_later(self, cluster: MakeCluster) -> None:
        servers = cluster(spec(2, synchronous=True))
        survivor, dead = two_workers(servers)
        servers.ask(servers.servers[0].leave(1, 1))
        learn(dead, 1, 0.0)
        assert learn(survivor, 0, -1.0).tolist() == [0.0] * SIZE
        assert survivor.pull(0, vector()).version == 1, "a round of one"

    def test_are_the_same_on_all_servers_when_a_worker_joins_between_them(self, cluster: MakeCluster) -> None:
        """One server hears of the worker before a round, the other after it."""
        servers = cluster(spec(2, synchronous=True), shards=2)
        early = servers.started(0)
        for server in servers.servers:
            servers.ask(server.leave(1))
        learn(early, 0, -1.0)
        pull(early, 0)
        servers.ask(servers.servers[0].join(1))
        learn(early, 0, -1.0)
        late = servers.started(1)
        learn_concurrently([(early, 0), (late, 1)], rollouts=6, minibatches=False)
        for index, worker in enumerate((early, late)):
            pull(worker, index)
            assert len({(reply.snapshot.rounds, reply.snapshot.version) for reply in worker._replies}) == 1
        assert servers.fetch()["parameters"].tolist() == [2.0 + 6] * SIZE

    def test_go_on_when_one_of_two_servers_dies_during_a_round(self, cluster: MakeCluster) -> None:
        """One worker waits in the round; the other is still collecting, and its push meets a server that is down."""
        dies = 0
        servers = cluster(spec(2, synchronous=True), shards=2)
        workers = two_workers(servers)
        snapshots = [worker.pull(index, vector()) for index, worker in enumerate(workers)]

        def push(index: int) -> None:
            workers[index].push(index, push_of(index, vector(-1), snapshots[index]))

        push(0)
        servers.down.add(dies)
        servers.kill(dies)
        servers.incarnation += 1
        servers.begin_one(1 - dies)
        push(1)
        threads = [threading.Thread(target=pull, args=(worker, index)) for index, worker in enumerate(workers)]
        for thread in threads:
            thread.start()
        wait_until(lambda: servers.refused >= 5, SECONDS)  # of two workers, each several times
        servers.down.clear()
        servers.begin_one(dies)
        join_all(threads)  # neither server waits for a worker that waits for the other server
        learn_concurrently([(workers[0], 0), (workers[1], 1)], rollouts=3)
        for worker in workers:
            assert len({(reply.incarnation, reply.snapshot.version) for reply in worker._replies}) == 1
        assert len(set(servers.fetch()["parameters"].tolist())) == 1
