"""What workers and parameter servers say to each other, without Ray: calls that can be lost, servers that can die."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from runs import wait_until
from servers import SIZE, LostError, layout, learn

from a3c_exp.core import seeding
from a3c_exp.backends.ray.wire_dtype import Message
from a3c_exp.core.events import Event
from a3c_exp.core.normalization import RunningStats
from a3c_exp.optimizers import Adam
from a3c_exp.core.store import SharedStore


class TestOneWorker:
    def test_who_waits_for_each_push_does_what_it_would_on_one_machine(self, cluster: Any) -> None:
        settings = {"optimizer": Adam(learning_rate=0.1), "moments_per_worker": True, "observation_shape": (2,)}
        whole = layout(1, **settings, normalize_observations=True)
        servers, exclusive_folder = cluster(whole, shards=3), SharedStore(whole)
        exclusive_folder.initialise(np.zeros(SIZE, np.float32))
        remote, rng = servers.worker(), np.random.default_rng(1)
        remote.load_rng_state(0, np.random.default_rng(0))
        remote.start()
        for _ in range(5):
            gradient = rng.normal(size=SIZE).astype(np.float32)
            observed = RunningStats.of(rng.normal(size=(3, 2)), None)
            here, there = np.empty(SIZE, np.float32), np.empty(SIZE, np.float32)
            snapshot, expected = remote.pull(0, there), exclusive_folder.pull(0, here)
            assert there.tobytes() == here.tobytes()
            assert (snapshot.version, snapshot.steps) == (expected.version, expected.steps)
            exclusive_folder.push(0, gradient, expected, 3, observed)
            remote.push(0, gradient, snapshot, 3, observed)
            remote.save_rng_state(0, rng)
            exclusive_folder.save_rng_state(0, rng)
            remote.tell(Event(0))
        remote.leave(0)
        for name, value in exclusive_folder.state().items():
            assert np.array_equal(servers.fetch()[name], value), name

    def test_what_arrives_while_it_collects_costs_no_waiting(self, cluster: Any) -> None:
        """One push may be under way: the second rollout begins with the parameters of the first, or, where the answer
        was quick, with those of its push."""
        servers = cluster(layout(1))
        worker = servers.worker(in_flight=1)
        worker.start()
        seen = []
        for _ in range(4):
            seen.append(learn(worker, 0, -1.0)[0])
            servers.fetch()  # by now the push has arrived
        worker.leave(0)
        assert seen == [0, 1, 2, 3] or seen == [0, 0, 1, 2]
        assert servers.calls == ["join", *["push"] * 4, "leave"], "parameters come with the answers"
        assert servers.fetch()["parameters"][0] == 4

    def test_no_more_are_under_way_than_it_may(self, cluster: Any) -> None:
        servers = cluster(layout(2, synchronous=True))  # rounds that nobody completes
        worker = servers.worker(in_flight=2)
        worker._limit = 2
        worker.start()
        for _ in range(2):
            learn(worker, 0, -1.0)
        blocked = threading.Thread(target=lambda: [learn(worker, 0, -1.0), worker.pull(0, np.empty(SIZE, np.float32))])
        blocked.start()
        blocked.join(0.3)
        assert blocked.is_alive()
        assert servers.calls.count("push") == 3
        servers.ask(servers.servers[0].stop())
        blocked.join(5)
        assert not blocked.is_alive()

    def test_its_generator_goes_on_where_that_of_the_worker_before_it_stood(self, cluster: Any) -> None:
        servers = cluster(layout(1))
        first, rng = servers.worker(), np.random.default_rng(5)
        rng.normal(size=3)
        first.start()
        mine = np.empty(SIZE, np.float32)
        first.push(0, mine * 0, first.pull(0, mine), 1)
        first.save_rng_state(0, rng)
        first.tell(Event(0))
        first.pull(0, mine)
        other = np.random.Generator(np.random.PCG64(9))
        second = servers.worker(first=1 << 32)
        second.load_rng_state(0, other)
        second.start()
        assert other.normal() == rng.normal()
        assert servers.fetch()["rng_states"].shape == (1, seeding.STATE_WORDS)


class TestAPushIsAppliedAtMostOnce:
    @pytest.mark.parametrize("shards", [1, 2])
    def test_though_its_answer_is_lost_and_it_is_sent_again(self, cluster: Any, shards: int) -> None:
        servers = cluster(layout(1), shards=shards)
        worker = servers.worker()
        worker.start()
        mine = np.empty(SIZE, np.float32)
        snapshot = worker.pull(0, mine)
        servers.lose_answers = shards
        worker.push(0, mine - 1, snapshot, 5)
        worker.tell(Event(0, steps=5))
        assert learn(worker, 0, -1.0, steps=5)[0] == 1
        worker.leave(0)
        state = servers.fetch()
        assert state["parameters"].tolist() == [2.0] * SIZE
        assert (state["version"], state["steps"]) == (2, 10)
        (told,) = servers.events()
        assert (told.updates, told.steps) == (2, 10), "nor is it told twice"

    def test_messages_that_overtake_one_another_are_taken_in_order(self, cluster: Any) -> None:
        servers = cluster(layout(1))
        one = np.ones(SIZE, np.float32)

        def message(number: int, oldest: int) -> Message:
            event = Event(0, steps=number)
            return Message(0, number, oldest, 1, 0, 0, gradient=-one, transitions=number, event=event)

        late = servers.call(0, "push", message(2, 1))
        with pytest.raises(TimeoutError):
            late.result(0.1)
        assert servers.call(0, "push", message(1, 1)).result(5).version in (1, 2)
        assert late.result(5).version == 2
        assert servers.call(0, "push", message(2, 1)).result(5).version == 2, "sent again"

    def test_one_that_takes_a_dead_worker_s_place_is_not_taken_for_it(self, cluster: Any) -> None:
        servers = cluster(layout(1))
        for attempt in range(2):
            worker = servers.worker(first=attempt << 32)
            worker.start()
            learn(worker, 0, -1.0)
            worker.pull(0, np.empty(SIZE, np.float32))
        assert servers.fetch()["version"] == 2


class TestAServerThatDies:
    @pytest.mark.parametrize("in_flight", [0, 2])
    def test_starts_again_from_the_last_state_and_workers_go_on(self, cluster: Any, in_flight: int) -> None:
        servers = cluster(layout(1), shards=2)
        worker = servers.worker(in_flight=in_flight)
        worker.start()
        learn(worker, 0, -1.0)
        worker.pull(0, np.empty(SIZE, np.float32))
        while servers.fetch()["version"] < 1:
            pass
        learn(worker, 0, -1.0)
        servers.kill(0)
        servers.begin()
        before = servers.fetch()["parameters"].tolist()
        assert before == [1.0] * SIZE, "both shards are what they were at the same moment"
        for _ in range(6):
            learn(worker, 0, -1.0)
        worker.leave(0)
        applied = servers.fetch()["parameters"]
        assert len(set(applied.tolist())) == 1
        assert 1 + 6 - in_flight - 1 <= applied[0] <= 1 + 6, "gradients of what was lost are not applied"

    def test_steps_of_a_gradient_that_is_not_applied_count(self, cluster: Any) -> None:
        servers = cluster(layout(1))
        worker = servers.worker()
        worker.start()
        mine = np.empty(SIZE, np.float32)
        snapshot = worker.pull(0, mine)
        servers.kill(0)
        servers.begin()
        worker.push(0, mine - 1, snapshot, 16)
        worker.tell(Event(0, steps=16))
        worker.leave(0)
        state = servers.fetch()
        assert (state["version"], state["steps"], state["parameters"].any()) == (0, 16, False)
        (told,) = servers.events()
        assert (told.updates, told.steps, told.staleness) == (0, 16, {})

    def test_nobody_acts_with_parameters_of_two_lives(self, cluster: Any) -> None:
        """One server has answered before the other died: the worker asks again until both have begun the next life."""
        servers = cluster(layout(1), shards=2)
        worker, mine = servers.worker(), np.empty(SIZE, np.float32)
        worker.start()
        learn(worker, 0, -1.0)
        worker.pull(0, mine)
        servers.fetch()
        for _ in range(2):
            learn(worker, 0, -1.0)
        wait_until(lambda: all(future.done() for future in worker._sent[0].futures))
        lost: Future[Any] = Future()
        lost.set_exception(LostError())
        worker._sent[0].futures[1] = lost
        servers.kill(1)
        servers.begin()
        worker.pull(0, mine)
        assert mine.tolist() == [1.0] * SIZE
        assert learn(worker, 0, -1.0).tolist() == [1.0] * SIZE
        worker.leave(0)
        assert servers.fetch()["parameters"].tolist() == [2.0] * SIZE

    def test_a_life_begins_once_though_it_is_asked_for_twice(self, cluster: Any) -> None:
        servers = cluster(layout(1))
        worker = servers.worker()
        worker.start()
        learn(worker, 0, -1.0)
        worker.leave(0)
        servers.begin_one(0)
        assert servers.fetch()["version"] == 1

    def test_steps_that_a_living_one_has_counted_have_been_made(self, cluster: Any) -> None:
        """The driver knows of those that it has been told of."""
        servers = cluster(layout(1), shards=2)
        worker = servers.worker()
        worker.start()
        learn(worker, 0, -1.0, steps=16)
        worker.pull(0, np.empty(SIZE, np.float32))
        servers.kill(1)
        servers.begin()
        worker.leave(0)
        state = servers.fetch()
        assert (state["version"], state["steps"]) == (0, 16)
