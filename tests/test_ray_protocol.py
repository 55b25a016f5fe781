"""The protocol between workers and parameter servers, without Ray: calls that are lost, servers that die."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from runs import TARGET, config, drain, make_store, same, wait_until
from servers import SECONDS, SIZE, Cluster, LostError, MakeCluster, generator, learn, pull, push_of, spec, vector

from a3c_exp.backends.ray.server import Message, Reply, shard_slices, shard_spec
from a3c_exp.backends.ray.worker import RemoteStore
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.counters import Multipliers
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.store import Snapshot
from a3c_exp.core.worker import Worker

PPO = {"_target_": "a3c_exp.algorithms.PPO", "minibatch_size": 8, "epochs": 3}


def started(cluster: MakeCluster, shards: int = 1, in_flight: int = 0) -> tuple[Cluster, RemoteStore]:
    """Servers, and the store of their only worker, which has joined."""
    servers = cluster(spec(1), shards=shards)
    return servers, servers.started(in_flight=in_flight)


def lose(remote: RemoteStore, message: int, shard: int) -> None:
    """Let a message have no reply of a server: it is lost."""
    lost: Future[Any] = Future()
    lost.set_exception(LostError())
    remote._pending[message].futures[shard] = lost


def test_a_vector_and_the_parts_of_its_network_are_split() -> None:
    shards = shard_slices(SIZE, 3)
    assert [list(range(SIZE))[shard] for shard in shards] == [[0, 1], [2, 3], [4, 5, 6]]
    assert [shard_spec(spec(), shard).param_slices for shard in shards] == [
        {"actor": slice(0, 2), "critic": slice(2, 2)},
        {"actor": slice(0, 2), "critic": slice(2, 2)},
        {"actor": slice(0, 0), "critic": slice(0, 3)},
    ]
    assert len(shard_slices(2, 5)) == 2, "no server is without a number"


SETTINGS: dict[str, dict[str, Any]] = {
    "normalized": {"env": TARGET, "env__normalize_observations": True, "env__normalize_rewards": True},
    "v-trace, which pulls twice": {"returns": "a3c_exp.returns.VTrace"},
    "an optimizer of torch": {"optimizer": {"_target_": "torch.optim.NAdam", "lr": 1e-2}},
    "minibatches in rounds": {"algorithm": PPO, "returns": "a3c_exp.returns.GAE", "update": "sync"},
}


class TestOneWorker:
    @pytest.mark.parametrize("name", SETTINGS)
    def test_that_waits_is_a_worker_of_the_serial_backend_bit_for_bit(self, name: str, cluster: MakeCluster) -> None:
        whole = config(**SETTINGS[name])
        experiment = load_experiment(whole)
        local = make_store(experiment)
        servers = cluster(local.spec, shards=2, initial=local)
        worker = Worker(RunContext(experiment=experiment), 0, servers.remote(in_flight=0))
        with one_thread():
            list(worker.run())
        worker.close()
        _, expected, _ = drain(whole)
        state = servers.fetch()
        assert state["version"] >= 3
        for key, value in expected.items():
            assert same(state[key], value), key

    def test_multiplies_every_shard_by_what_it_has_pulled(self, cluster: MakeCluster) -> None:
        servers = cluster(spec(1), shards=2)
        for server in servers.servers:
            servers.ask(server.status(Multipliers(0.5, 2.0)))
        remote = servers.started()
        snapshot = remote.pull(0, vector())
        remote.push(0, push_of(0, vector(1), snapshot, steps=5))
        parameters = vector()
        remote.pull(0, parameters)
        assert snapshot.multipliers == (0.5, 2.0)
        np.testing.assert_array_equal(parameters, vector(-0.5))
        np.testing.assert_array_equal(servers.fetch()["multipliers"], [0.5, 2.0])

    def test_does_not_wait_for_replies_that_arrive_while_it_collects(self, cluster: MakeCluster) -> None:
        """With one push in flight, a rollout begins with the parameters of the one before; after a quick reply, with
        those of its own push. The server reports the events."""
        servers, remote = started(cluster, in_flight=1)
        first_parameters = []
        for _ in range(4):
            parameters = vector()
            ticket = remote.push(0, push_of(0, vector(-1), remote.pull(0, parameters), steps=5))
            assert (ticket.done(), ticket.event) == (True, None)
            first_parameters.append(parameters[0])
            servers.fetch()  # now the push has arrived
        remote.leave(0)
        assert first_parameters in ([0, 1, 2, 3], [0, 0, 1, 2])
        assert servers.calls == ["join", *["push"] * 4, "leave"], "parameters come with the replies"
        (event,) = servers.events()
        assert (event.updates, event.steps, sum(event.staleness.values())) == (4, 20, 4)
        assert 0 <= event.metrics["ray/wait_share"].mean <= 1

    def test_has_no_more_pushes_in_flight_than_allowed(self, cluster: MakeCluster) -> None:
        servers = cluster(spec(2, synchronous=True))  # no round is ever complete
        remote = servers.started()
        remote._max_pending = 2
        for _ in range(2):
            learn(remote, 0, -1.0)
        blocked = threading.Thread(target=lambda: [learn(remote, 0, -1.0), pull(remote, 0)])
        blocked.start()
        wait_until(lambda: servers.calls.count("push") == 3, SECONDS)
        blocked.join(0.2)
        assert blocked.is_alive()
        assert servers.calls.count("push") == 3
        servers.ask(servers.servers[0].stop())
        blocked.join(SECONDS)
        assert not blocked.is_alive()

    def test_its_replacement_continues_its_generator(self, cluster: MakeCluster) -> None:
        servers, first = started(cluster)
        rng, other = generator(5), generator(9)
        first.push(0, push_of(0, vector(), first.pull(0, vector()), rng=rng))
        pull(first, 0)
        servers.remote(attempt=1).start(0, other)
        assert other.normal() == rng.normal()


class TestAPushIsAppliedOnce:
    def test_although_its_reply_is_lost_and_it_is_sent_again(self, cluster: MakeCluster) -> None:
        servers, remote = started(cluster, shards=2)
        snapshot = remote.pull(0, vector())
        servers.lose_answers = 2
        remote.push(0, push_of(0, vector(-1), snapshot, steps=5))
        assert learn(remote, 0, -1.0, steps=5)[0] == 1
        remote.leave(0)
        state = servers.fetch()
        assert state["parameters"].tolist() == [2.0] * SIZE
        assert (state["version"], state["steps"]) == (2, 10)
        (event,) = servers.events()
        assert (event.updates, event.steps) == (2, 10), "and reported once"

    def test_and_in_order_although_one_message_overtakes_another(self, cluster: MakeCluster) -> None:
        servers = cluster(spec(1))

        def send(sequence: int) -> Future[Reply]:
            push = push_of(0, vector(-1), Snapshot(0, 0, None), steps=sequence)
            message = Message(0, 1, push, sequence, first_unacknowledged=1)
            return servers.call(0, "push", message)

        second = send(2)
        assert servers.fetch()["version"] == 0
        assert not second.done()
        assert send(1).result(SECONDS).snapshot.version in (1, 2)
        assert second.result(SECONDS).snapshot.version == 2
        assert send(2).result(SECONDS).snapshot.version == 2, "sent again"

    def test_and_that_of_a_replacement_is_not_taken_for_one_of_the_dead_worker(self, cluster: MakeCluster) -> None:
        servers = cluster(spec(1))
        for attempt in range(2):
            remote = servers.started(attempt=attempt)
            learn(remote, 0, -1.0)
            pull(remote, 0)
        assert servers.fetch()["version"] == 2


class TestAServerThatDies:
    def test_restarts_with_the_last_state_and_workers_go_on(self, cluster: MakeCluster) -> None:
        servers, remote = started(cluster, shards=2, in_flight=2)
        learn(remote, 0, -1.0)
        pull(remote, 0)
        wait_until(lambda: servers.fetch()["version"] == 1, SECONDS)
        learn(remote, 0, -1.0)
        servers.kill(0)
        servers.begin()
        assert servers.fetch()["parameters"].tolist() == [1.0] * SIZE, "both shards of the same moment"
        for _ in range(6):
            learn(remote, 0, -1.0)
        remote.leave(0)
        parameters = servers.fetch()["parameters"]
        assert len(set(parameters.tolist())) == 1
        assert 1 + 6 - 3 <= parameters[0] <= 1 + 6, "gradients based on lost parameters are not applied"

    def test_counts_the_steps_of_a_gradient_that_it_does_not_apply(self, cluster: MakeCluster) -> None:
        servers, remote = started(cluster)
        snapshot = remote.pull(0, vector())
        servers.kill(0)
        servers.begin()
        remote.push(0, push_of(0, vector(-1), snapshot, steps=16))
        remote.leave(0)
        state = servers.fetch()
        assert (state["version"], state["steps"], state["parameters"].any()) == (0, 16, False)
        (event,) = servers.events()
        assert (event.updates, event.steps, event.staleness) == (0, 16, {})

    def test_does_not_wait_for_what_it_has_answered_before_its_death(self, cluster: MakeCluster) -> None:
        """The second of two messages is lost with it."""
        servers, remote = started(cluster, in_flight=2)
        snapshot = remote.pull(0, vector())
        for _ in range(2):
            remote.push(0, push_of(0, vector(-1), snapshot))
        wait_until(remote._pending[0].done, SECONDS)
        lose(remote, message=1, shard=0)
        servers.kill(0)
        servers.begin()
        leaving = threading.Thread(target=remote.leave, args=(0,), daemon=True)
        leaving.start()
        leaving.join(10)
        assert not leaving.is_alive()

    def test_never_lets_a_worker_act_with_parameters_of_two_incarnations(self, cluster: MakeCluster) -> None:
        """One server has replied before the other died: the worker asks again until both have begun the next one."""
        servers, remote = started(cluster, shards=2)
        learn(remote, 0, -1.0)
        pull(remote, 0)
        servers.fetch()
        for _ in range(2):
            learn(remote, 0, -1.0)
        wait_until(remote._pending[0].done, SECONDS)
        lose(remote, message=0, shard=1)
        servers.kill(1)
        servers.begin()
        assert pull(remote, 0).tolist() == [1.0] * SIZE
        assert learn(remote, 0, -1.0).tolist() == [1.0] * SIZE
        remote.leave(0)
        assert servers.fetch()["parameters"].tolist() == [2.0] * SIZE

    def test_begins_an_incarnation_once_although_it_is_asked_twice(self, cluster: MakeCluster) -> None:
        servers, remote = started(cluster)
        learn(remote, 0, -1.0)
        remote.leave(0)
        servers.begin_one(0)
        assert servers.fetch()["version"] == 1


class TestHeartbeats:
    def test_go_on_while_a_worker_waits_for_a_round(self, cluster: MakeCluster) -> None:
        servers = cluster(spec(2, synchronous=True))
        remote, other = servers.started(0), servers.started(1)
        learn(remote, 0, -1.0)
        waiting = threading.Thread(target=pull, args=(remote, 0))
        waiting.start()
        before = remote.heartbeat(0).value
        wait_until(lambda: remote.heartbeat(0).value > before + 2, SECONDS)
        learn(other, 1, -1.0)
        waiting.join(SECONDS)
        assert not waiting.is_alive()
