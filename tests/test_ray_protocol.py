"""What workers and parameter servers say to each other, without Ray: servers in a thread, calls that can be lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from runs import wait_until

from a3c_exp import seeding
from a3c_exp.backends.ray.client import Link, RemoteParameters
from a3c_exp.backends.ray.epochs import LocalEpochs, summing
from a3c_exp.backends.ray.server import ParameterServer
from a3c_exp.backends.ray.wire import Message, cut, decode, encode, joined, piece, stretches
from a3c_exp.events import Event
from a3c_exp.normalisation import Moments
from a3c_exp.optimizers import SGD, Adam
from a3c_exp.parameters import Layout, SharedParameters
from a3c_exp.schedules import Constant

SIZE = 7


class LostError(Exception):
    """The server died, or could not be reached."""


def layout(workers: int = 2, **settings: Any) -> Layout:
    parts = {"actor": slice(0, 4), "critic": slice(4, SIZE)}
    plain: dict[str, Any] = {"optimizer": SGD(learning_rate=1.0), "schedule": Constant(value=1.0), "total_steps": 1000}
    return Layout(size=SIZE, parts=parts, workers=workers, **plain | settings)


class Cluster:
    """Servers whose calls all run in one thread, as those of an actor do.

    lose_answers: so many of the next calls are taken, but the caller hears that they were lost.
    down: servers that have died and not started again: all calls are lost.
    """

    def __init__(self, whole: Layout, shards: int = 1, wire: Any = "float32") -> None:
        self.layout, self.wire = whole, wire
        self.stretches = stretches(whole.size, shards)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.servers: list[ParameterServer] = []
        self.life = self.lose_answers = 0
        self.calls: list[str] = []
        self.down: set[int] = set()
        self.under_way: dict[int, list[Future[Any]]] = {}
        first = SharedParameters(whole)
        first.initialise(np.zeros(whole.size, np.float32))
        self.known = first.state()
        for index in range(shards):
            self.servers.append(self.new(index))
        self.begin()

    def new(self, server: int) -> ParameterServer:
        return ParameterServer(piece(self.layout, self.stretches[server]), self.wire)

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
            call=self.call, lost=(LostError,), servers=len(self.servers), wire=self.wire, in_flight=in_flight
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


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Makes clusters."""
    made: list[Cluster] = []

    def make(*arguments: Any, **settings: Any) -> Cluster:
        made.append(Cluster(*arguments, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def learn(worker: Any, index: int, gradient: Any, steps: int = 1, observed: Moments | None = None) -> Any:
    """Pull, push a gradient, and tell of it; the parameters that were pulled."""
    mine = np.empty(SIZE, np.float32)
    pulled = worker.pull(index, mine)
    vector = None if gradient is None else np.full(SIZE, gradient, np.float32)
    worker.push(index, vector, pulled, steps, observed)
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


class TestOneWorker:
    def test_who_waits_for_each_push_does_what_it_would_on_one_machine(self, cluster: Any) -> None:
        settings = {"optimizer": Adam(learning_rate=0.1), "moments_per_worker": True, "observation_shape": (2,)}
        whole = layout(1, **settings, normalize_observations=True)
        servers, alone = cluster(whole, shards=3), SharedParameters(whole)
        alone.initialise(np.zeros(SIZE, np.float32))
        remote, rng = servers.worker(), np.random.default_rng(1)
        remote.restore_random_state(0, np.random.default_rng(0))
        remote.start()
        for _ in range(5):
            gradient = rng.normal(size=SIZE).astype(np.float32)
            observed = Moments.of(rng.normal(size=(3, 2)), None)
            here, there = np.empty(SIZE, np.float32), np.empty(SIZE, np.float32)
            pulled, expected = remote.pull(0, there), alone.pull(0, here)
            assert there.tobytes() == here.tobytes()
            assert (pulled.version, pulled.steps) == (expected.version, expected.steps)
            alone.push(0, gradient, expected, 3, observed)
            remote.push(0, gradient, pulled, 3, observed)
            remote.keep_random_state(0, rng)
            alone.keep_random_state(0, rng)
            remote.tell(Event(0))
        remote.leave(0)
        for name, value in alone.state().items():
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
        first.keep_random_state(0, rng)
        first.tell(Event(0))
        first.pull(0, mine)
        other = np.random.Generator(np.random.PCG64(9))
        second = servers.worker(first=1 << 32)
        second.restore_random_state(0, other)
        second.start()
        assert other.normal() == rng.normal()
        assert servers.fetch()["random_states"].shape == (1, seeding.STATE_WORDS)


class TestAPushIsAppliedAtMostOnce:
    @pytest.mark.parametrize("shards", [1, 2])
    def test_though_its_answer_is_lost_and_it_is_sent_again(self, cluster: Any, shards: int) -> None:
        servers = cluster(layout(1), shards=shards)
        worker = servers.worker()
        worker.start()
        mine = np.empty(SIZE, np.float32)
        pulled = worker.pull(0, mine)
        servers.lose_answers = shards
        worker.push(0, mine - 1, pulled, 5)
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
        pulled = worker.pull(0, mine)
        servers.kill(0)
        servers.begin()
        worker.push(0, mine - 1, pulled, 16)
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
        pulled = [worker.pull(index, np.empty(SIZE, np.float32)) for index, worker in enumerate(workers)]

        def push(index: int) -> None:
            workers[index].push(index, np.full(SIZE, -1, np.float32), pulled[index], 1)
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
        servers, alone = cluster(summing(whole)), SharedParameters(whole)
        alone.initialise(np.zeros(SIZE, np.float32))
        worker = LocalEpochs(whole, servers.worker())
        worker.start()
        for rollout in range(2):
            for minibatch in range(3):
                gradient = 0.1 * (1 + rollout - minibatch)
                expected = np.empty(SIZE, np.float32)
                alone.push(0, np.full(SIZE, gradient, np.float32), alone.pull(0, expected), 4)
                assert learn(worker, 0, gradient, steps=4) == pytest.approx(expected)
            worker.keep_random_state(0, np.random.default_rng(0))
            worker.finish(0)
        worker.leave(0)
        assert servers.calls.count("push") == 2
        state = servers.fetch()
        assert state["parameters"] == pytest.approx(alone.parameters())
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


class TestTheWire:
    @given(arrays(np.float32, 9, elements=st.floats(-(2.0**99), 2.0**99, width=32)))
    def test_float32_is_exact_and_bfloat16_has_eight_bits(self, vector: Any) -> None:
        exact, half = np.empty_like(vector), np.empty_like(vector)
        decode(encode(vector, "float32"), exact)
        sent = encode(vector, "bfloat16")
        decode(sent, half)
        assert exact.tobytes() == vector.tobytes()
        assert sent.nbytes * 2 == vector.nbytes
        assert half == pytest.approx(vector, rel=2**-8, abs=1e-38)

    def test_bfloat16_is_torch_s(self) -> None:
        import torch

        vector = np.random.default_rng(0).normal(size=1000).astype(np.float32)
        half = np.empty_like(vector)
        decode(encode(vector, "bfloat16"), half)
        assert np.array_equal(half, torch.from_numpy(vector).to(torch.bfloat16).float().numpy())

    def test_training_goes_on_in_bfloat16(self, cluster: Any) -> None:
        servers = cluster(layout(1), shards=2, wire="bfloat16")
        worker = servers.worker()
        worker.start()
        learn(worker, 0, -1.0)
        assert learn(worker, 0, -0.5)[0] == 1.0
        worker.leave(0)
        assert servers.fetch()["parameters"].tolist() == [1.5] * SIZE
        assert servers.ask(servers.servers[0].news()).received == 2 * 2 * (SIZE // 2)

    def test_a_vector_falls_into_stretches_and_so_do_its_parts(self) -> None:
        pieces = stretches(SIZE, 3)
        assert [list(range(SIZE))[stretch] for stretch in pieces] == [[0, 1], [2, 3], [4, 5, 6]]
        assert [piece(layout(), stretch).parts for stretch in pieces] == [
            {"actor": slice(0, 2), "critic": slice(2, 2)},
            {"actor": slice(0, 2), "critic": slice(2, 2)},
            {"actor": slice(0, 0), "critic": slice(0, 3)},
        ]
        assert len(stretches(2, 5)) == 2, "no server without a number to hold"
