"""Synchronous rounds over parameter servers, and epochs on a worker's own copy, without Ray."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from runs import wait_until
from servers import SIZE, layout, learn, together

from a3c_exp.backends.ray.epochs import LocalEpochs, summing
from a3c_exp.core.events import Event
from a3c_exp.optimizers import SGD, Adam
from a3c_exp.core.store import SharedStore


class TestRounds:
    def test_are_one_step_with_the_average_and_wait_for_all(self, cluster: Any) -> None:
        servers = cluster(layout(2, synchronous=True), shards=2)
        workers = [servers.worker(index, in_flight=3) for index in range(2)]
        for worker in workers:
            worker.start()
        learn(workers[0], 0, -1.0, steps=1)
        learn(workers[1], 1, -4.0, steps=2)
        for index, worker in enumerate(workers):
            mine = np.empty(SIZE, np.float32)
            assert worker.pull(index, mine).version == 1
            assert mine.tolist() == [3.0] * SIZE, "(1 * 1 + 2 * 4) / 3"
        events = servers.events()
        assert sum(event.updates for event in events) == 1
        assert [list(event.staleness.elements()) for event in events] == [[0], [0]]

    def test_go_on_without_one_that_dies_and_with_the_one_that_takes_its_place(self, cluster: Any) -> None:
        servers = cluster(layout(2, synchronous=True))
        workers = [servers.worker(index) for index in range(2)]
        for worker in workers:
            worker.start()
        learn(workers[0], 0, -1.0)
        servers.ask(servers.servers[0].leave(1))
        assert learn(workers[0], 0, -1.0).tolist() == [1.0] * SIZE
        workers[0].pull(0, np.empty(SIZE, np.float32))
        other = servers.worker(1, first=1 << 32)
        other.start()
        learn(workers[0], 0, -1.0)
        assert not workers[0]._sent[0].futures[0].done()
        learn(other, 1, -3.0)
        assert learn(workers[0], 0, 0.0).tolist() == [4.0] * SIZE

    def test_one_that_is_taken_for_gone_and_is_not_takes_part_again(self, cluster: Any) -> None:
        """The driver had not heard of it. Nobody's count of rollouts is spoilt, and rounds are of two."""
        servers = cluster(layout(2, synchronous=True))
        workers = [servers.worker(index) for index in range(2)]
        for worker in workers:
            worker.start()
        servers.ask(servers.servers[0].leave(1))
        learn(workers[1], 1, -1.0)
        wait_until(lambda: servers.ask(servers.servers[0].news()).members == [0, 1])
        learn(workers[0], 0, -1.0)
        together([(workers[0], 0), (workers[1], 1)], rollouts=3)
        mine = np.empty(SIZE, np.float32)
        workers[0].push(0, mine * 0, workers[0].pull(0, mine), 1)
        workers[0].tell(Event(0, steps=1))
        time.sleep(0.1)
        assert not workers[0]._sent[0].futures[0].done(), "it waits for the other"

    def test_what_one_that_died_has_left_behind_does_not_bring_it_back(self, cluster: Any) -> None:
        servers = cluster(layout(2, synchronous=True))
        one, dead = servers.worker(0), servers.worker(1)
        one.start(), dead.start()
        servers.ask(servers.servers[0].leave(1, 1 << 32))
        mine = np.empty(SIZE, np.float32)
        dead.push(1, mine * 0, dead.pull(1, mine), 1)
        dead.tell(Event(1, steps=1))
        assert learn(one, 0, -1.0).tolist() == [0.0] * SIZE
        assert one.pull(0, mine).version == 1, "a round of one"

    def test_are_the_same_on_all_servers_where_one_joins_in_the_middle(self, cluster: Any) -> None:
        """One server hears of it before a round, the other behind that."""
        servers = cluster(layout(2, synchronous=True), shards=2)
        one = servers.worker(0)
        one.start()
        for server in servers.servers:
            servers.ask(server.leave(1))
        learn(one, 0, -1.0)
        one.pull(0, np.empty(SIZE, np.float32))
        servers.ask(servers.servers[0].join(1))
        learn(one, 0, -1.0)
        late = servers.worker(1)
        late.start()
        together([(one, 0), (late, 1)], rollouts=6, minibatches=False)
        for index, worker in enumerate((one, late)):
            worker.pull(index, np.empty(SIZE, np.float32))
            assert len({(reply.rounds, reply.version) for reply in worker._replies}) == 1
        assert servers.fetch()["parameters"].tolist() == [2.0 + 6] * SIZE

    @pytest.mark.parametrize("dies", [0, 1])
    def test_go_on_where_one_of_two_servers_dies_in_the_middle_of_one(self, cluster: Any, dies: int) -> None:
        """One worker waits in the round; the other is still collecting, and its push meets a server that is away."""
        servers = cluster(layout(2, synchronous=True), shards=2)
        workers = [servers.worker(index) for index in range(2)]
        for worker in workers:
            worker.start()
        snapshot = [worker.pull(index, np.empty(SIZE, np.float32)) for index, worker in enumerate(workers)]

        def push(index: int) -> None:
            workers[index].push(index, np.full(SIZE, -1, np.float32), snapshot[index], 1)
            workers[index].tell(Event(index, steps=1))

        push(0)
        servers.down.add(dies)
        servers.kill(dies)
        servers.life += 1
        servers.begin_one(1 - dies)
        push(1)
        waiting = [threading.Thread(target=w.pull, args=(i, np.empty(SIZE, np.float32))) for i, w in enumerate(workers)]
        for thread in waiting:
            thread.start()
        time.sleep(0.2)
        servers.down.clear()
        servers.begin_one(dies)
        for thread in waiting:
            thread.join(20)
            assert not thread.is_alive(), "one server waits for the one worker, the other for the other"
        together([(workers[0], 0), (workers[1], 1)], rollouts=3)
        for index, worker in enumerate(workers):
            worker.pull(index, np.empty(SIZE, np.float32))
            assert len({(reply.life, reply.version) for reply in worker._replies}) == 1
        assert len(set(servers.fetch()["parameters"].tolist())) == 1

    def test_wait_for_those_who_have_more_minibatches(self, cluster: Any) -> None:
        servers = cluster(layout(2, synchronous=True))
        workers = [servers.worker(index) for index in range(2)]
        for worker in workers:
            worker.start()
        learn(workers[0], 0, -1.0)
        learn(workers[1], 1, -1.0)
        workers[0].pull(0, np.empty(SIZE, np.float32))
        workers[0].finish(0)
        assert learn(workers[1], 1, -1.0)[0] == 1
        assert learn(workers[1], 1, -1.0)[0] == 2, "rounds of one"
        assert not workers[0]._sent[0].futures[0].done()
        workers[1].pull(1, np.empty(SIZE, np.float32))
        workers[1].finish(1)
        ends = [np.empty(SIZE, np.float32) for _ in workers]
        for index, worker in enumerate(workers):
            worker.pull(index, ends[index])
        assert ends[0].tolist() == ends[1].tolist() == [3.0] * SIZE


class TestEpochsOnACopy:
    def test_are_pushed_as_one_change(self, cluster: Any) -> None:
        whole = layout(1, optimizer=Adam(learning_rate=0.1))
        servers, exclusive_folder = cluster(summing(whole)), SharedStore(whole)
        exclusive_folder.initialise(np.zeros(SIZE, np.float32))
        worker = LocalEpochs(whole, servers.worker())
        worker.start()
        for rollout in range(2):
            for minibatch in range(3):
                gradient = 0.1 * (1 + rollout - minibatch)
                expected = np.empty(SIZE, np.float32)
                exclusive_folder.push(0, np.full(SIZE, gradient, np.float32), exclusive_folder.pull(0, expected), 4)
                assert learn(worker, 0, gradient, steps=4) == pytest.approx(expected)
            worker.save_rng_state(0, np.random.default_rng(0))
            worker.finish(0)
        worker.leave(0)
        assert servers.calls.count("push") == 2
        state = servers.fetch()
        assert state["parameters"] == pytest.approx(exclusive_folder.parameters())
        assert (state["version"], state["steps"]) == (2, 24)
        (told,) = servers.events()
        assert (told.updates, told.steps) == (2, 24)

    def test_are_stale_as_a_whole(self, cluster: Any) -> None:
        """One worker's rollout is overtaken by four of another's: a quarter of its change is left, not of each step."""
        whole = layout(2, optimizer=SGD(learning_rate=1.0, staleness_power=1.0))
        servers = cluster(summing(whole))
        slow, fast = (LocalEpochs(whole, servers.worker(index)) for index in range(2))
        for index, worker in enumerate((slow, fast)):
            worker.start()
            learn(worker, index, 1.0)
        for _ in range(3):
            learn(slow, 0, 1.0)
        for _ in range(4):
            fast.finish(1)
            learn(fast, 1, 0.0)
        assert servers.fetch()["parameters"].tolist() == [-1.0] * SIZE
        slow.finish(0)
        slow.leave(0)
        assert servers.fetch()["parameters"].tolist() == [-2.0] * SIZE
