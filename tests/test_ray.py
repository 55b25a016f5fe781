"""Workers and parameter servers as actors of a Ray cluster: on loopback, of several nodes where nodes are to die."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from runs import TARGET, config, drain, latest, processes, same, wait_until

import a3c_exp
from a3c_exp.core import seeding
from a3c_exp.backends.ray.cluster import on_loopback
from a3c_exp.config.builder import load_experiment
from a3c_exp.run.trainer import run
from a3c_exp.core.seeding import Role
from a3c_exp.core.worker import RunContext
from a3c_exp.core.experiment import build_network, layout

on_loopback()
ray = pytest.importorskip("ray", reason="clusters: pip install 'a3c-exp[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402 - Ray reads the environment when it is imported

RAY = "a3c_exp.backends.ray.Ray"
# In the environment of the cluster below: others may run beside it.
CLUSTER = "A3C_EXP_TEST_CLUSTER"
MARK = f"{CLUSTER}={os.getpid()}."
PPO = {"_target_": "a3c_exp.algorithms.PPO", "minibatch_size": 8, "epochs": 3}


def ports() -> dict[str, int]:
    """Of a node's helpers. For those that they draw themselves it waits, but not long enough on a busy machine."""
    names = "metrics_agent_port", "runtime_env_agent_port", "dashboard_agent_listen_port"
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        return {name: one.getsockname()[1] for name, one in zip(names, sockets, strict=True)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of one node; tests may add others. One for all tests: it takes seconds to start."""
    os.environ[CLUSTER] = MARK.partition("=")[2]
    whole = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "include_dashboard": False} | ports())
    ray.init(address=whole.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield whole
    finally:
        ray.shutdown()
        whole.shutdown()
        del os.environ[CLUSTER]


def on_ray(*arguments: Any, backend: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    """A small run's configuration."""
    whole = config(*arguments, **settings)
    return whole | {"backend": {"_target_": RAY} | (backend or {})}


def actors(name: str, mark: str = MARK) -> list[int]:
    """The processes of living actors of a class: Ray names them so. mark: in the environment of their cluster."""
    found = []
    for pid in processes(mark):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(f"ray::{name}".encode()):
                found.append(pid)
    return found


class running:  # noqa: N801 - reads as a statement
    """The events of a run that goes on for ever, and its parameters; ended whatever happens."""

    def __init__(self, **settings: Any) -> None:
        experiment = load_experiment(on_ray(**{"total_steps": 10**9} | settings))
        network, env = build_network(experiment)
        self.store = experiment.backend.store(layout(experiment, network, env.observation_space.shape))
        self.store.initialise(network.vector)
        self.events = experiment.backend.run(RunContext(experiment=experiment), self.store)

    def __enter__(self) -> running:
        return self

    def __exit__(self, *_: object) -> None:
        self.events.close()

    def heard_from(self, workers: set[int], seconds: float = 120.0) -> None:
        """Wait until each of these workers has done something more."""
        waiting, deadline = set(workers), time.monotonic() + seconds
        while waiting:
            assert time.monotonic() < deadline, f"nothing came of {waiting}"
            event = next(self.events)
            waiting -= set() if event is None else {event.worker}


def answers(one: running) -> bool:
    """Whether the first server of a run is there, with or without a state."""
    try:
        return bool(ray.get(one.store.crew._servers[0].news.remote(), timeout=10))
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
        return False


class TestOneWorkerThatWaitsIsTheSameAsOnAnyBackend:
    SETTINGS: ClassVar[dict[str, dict[str, Any]]] = {
        "the defaults": {},
        "normalised": {"env": TARGET, "env__normalize_observations": True, "env__normalize_rewards": True},
        "synchronous": {"update": "sync"},
        "v-trace, which pulls twice": {"returns": "a3c_exp.returns.VTrace"},
        "minibatches": {"algorithm": PPO, "returns": "a3c_exp.returns.GAE", "optimizer_state": "per_worker"},
    }

    @pytest.mark.parametrize("name", SETTINGS)
    def test_bit_for_bit(self, cluster: Any, name: str) -> None:
        settings = self.SETTINGS[name]
        _, expected, _ = drain(config(**settings))
        shards = 2 if name == "the defaults" else 1
        _, state, error = drain(on_ray(backend={"in_flight": 0, "shards": shards}, **settings))
        assert error is None
        assert state["version"] >= 3
        for key, value in expected.items():
            assert same(state[key], value), key


class TestSeveralWorkers:
    @pytest.mark.parametrize("backend", [{}, {"in_flight": 3, "shards": 2, "wire": "bfloat16", "placement": "pack"}])
    def test_every_update_step_and_episode_is_counted_once(self, cluster: Any, backend: dict[str, Any]) -> None:
        events, state, error = drain(on_ray(backend=backend, workers=2, total_steps=3200))
        assert error is None
        assert {event.worker for event in events} <= {0, 1}
        steps = sum(event.steps for event in events)
        updates = sum(event.updates for event in events)
        assert updates == sum(sum(event.staleness.values()) for event in events) == state["version"] == steps / 16
        assert steps == state["steps"] == sum(len(event.episodes) for event in events) >= 3200
        assert np.isfinite(state["parameters"]).all()
        measured = {name for event in events for name in event.metrics if name.startswith("ray/")}
        told = {f"ray/{n}" for n in ("push_ms", "pull_ms", "wait_share", "bytes_per_second", "workers_alive")}
        assert measured == told

    def test_rounds_are_of_one_gradient_from_each(self, cluster: Any) -> None:
        events, state, error = drain(on_ray(workers=2, update="sync", total_steps=16 * 2 * 20))
        assert error is None
        assert {value for event in events for value in event.staleness} == {0}
        assert sum(event.updates for event in events) == state["version"]
        # Who begins first makes rounds alone until the other has begun; from then on each has a gradient of both.
        pushes = Counter(event.worker for event in events for _ in range(sum(event.staleness.values())))
        assert sum(pushes.values()) == state["steps"] / 16
        assert max(pushes.values()) <= state["version"] <= max(pushes.values()) + 1

    def test_epochs_on_a_copy_are_one_push_a_rollout(self, cluster: Any) -> None:
        settings = {"algorithm": PPO, "returns": "a3c_exp.returns.GAE", "workers": 2, "total_steps": 640}
        events, state, error = drain(on_ray(backend={"local_epochs": True}, **settings))
        assert error is None
        assert state["version"] == state["steps"] / 16 == sum(event.updates for event in events)

    def test_how_many_pushes_a_server_takes_is_measured(self, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(Path(__file__).parents[1])  # bench is not installed: it belongs to the checkout
        from bench.capacity import measured_pushes

        assert measured_pushes(100, 0.5, shards=2) > 10

    def test_an_error_in_a_worker_is_told_with_its_traceback(self, cluster: Any) -> None:
        victim = seeding.environment_seeds(0, Role.ENVIRONMENT, 1, 4)[2]
        settings = {"env__kwargs": {"fault": "raise", "victim": victim}, "plugins": ["faulty"], "workers": 2}
        _, _, error = drain(on_ray("faulty:Faulty-v0", total_steps=10**9, **settings))
        assert str(error).startswith("worker 1 failed:\nTraceback")
        assert str(error).endswith("RuntimeError: scripted to fail")
        wait_until(lambda: not actors("WorkerActor") + actors("ParameterServer"))

    def test_one_that_always_dies_ends_the_run(self, cluster: Any) -> None:
        settings = {"env__kwargs": {"fault": "kill", "at": 1}, "plugins": ["faulty"]}
        _, _, error = drain(on_ray("faulty:Faulty-v0", total_steps=10**9, **settings))
        assert "worker 0 died 3 times before its first update" in str(error)


class TestARunOnRay:
    def test_saves_evaluates_and_goes_on_elsewhere(self, cluster: Any, tmp_path: Path) -> None:
        settings = {
            "workers": 2,
            "eval__every": 400,
            "checkpoint__every": 400,
            "optimizer": "a3c_exp.optimizers.RMSProp",
        }
        settings |= {"optimizer__learning_rate": 1e-2}
        done = run(on_ray(total_steps=1600, **settings), tmp_path)
        assert done.summary["stop_reason"] == "total_steps"
        assert done.summary["best_eval_return"] is not None
        saved = latest(tmp_path)
        assert saved["store"]["steps"] == done.summary["steps"] >= 1600
        again = run(config(total_steps=3200, **settings), tmp_path, resume=True)
        assert again.summary["steps"] >= 3200
        assert latest(tmp_path)["store"]["version"] > saved["store"]["version"]
        last = run(on_ray(total_steps=4800, **settings), tmp_path, resume=True)
        assert last.summary["resumed"] == 2
        assert last.summary["steps"] >= 4800


class TestFaults:
    def test_a_worker_that_is_killed_is_replaced(self, cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
        with running(workers=2) as one:
            one.heard_from({0, 1})
            before = set(actors("WorkerActor"))
            os.kill(min(before), signal.SIGKILL)
            wait_until(lambda: [next(one.events), len(set(actors("WorkerActor")) - before)][1])
            one.heard_from({0, 1})
            steps = one.store.steps
            one.heard_from({0, 1})
            assert one.store.steps > steps
        assert "has died, another takes its place" in caplog.text

    def test_so_is_one_in_synchronous_rounds(self, cluster: Any) -> None:
        with running(workers=2, update="sync") as one:
            one.heard_from({0, 1})
            os.kill(min(actors("WorkerActor")), signal.SIGKILL)
            for _ in range(3):
                one.heard_from({0, 1})

    def test_a_server_that_is_killed_starts_again_from_the_last_checkpoint(
        self, cluster: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        with running(workers=2, backend={"shards": 2}) as one:
            one.heard_from({0, 1})
            saved = one.store.state()
            one.heard_from({0, 1})
            os.kill(min(actors("ParameterServer")), signal.SIGKILL)
            wait_until(lambda: [next(one.events), "a parameter server has died" in caplog.text][1], 120)
            wait_until(lambda: [next(one.events), one.store.state()["version"] > saved["version"]][1], 120)
            assert one.store.steps > saved["steps"], "steps that were made are not made again"

    def test_one_that_is_there_again_and_has_nothing_yet_is_not_saved(
        self, cluster: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Who saves just then saves what was fetched before."""
        with running() as one:
            one.heard_from({0})
            saved = one.store.state()
            (server,) = actors("ParameterServer")
            os.kill(server, signal.SIGKILL)
            wait_until(lambda: set(actors("ParameterServer")) - {server}, 120)
            deadline = time.monotonic() + 120
            while not answers(one):
                assert time.monotonic() < deadline, "the server does not come back"
            state = one.store.state()
            assert saved["parameters"].any()
            assert np.array_equal(state["parameters"], saved["parameters"])
            assert state["version"] == saved["version"]
            assert f"what it has is taken as of update {saved['version']}" in caplog.text

    def test_a_node_that_dies_takes_its_workers_with_it_and_they_come_back_where_there_is_room(
        self, cluster: Any
    ) -> None:
        """The head has room for one worker of two CPUs, each other node too."""
        node = cluster.add_node(num_cpus=2, **ports())
        with running(workers=2, backend={"cpus_per_worker": 2}) as one:
            one.heard_from({0, 1}, 120)
            cluster.remove_node(node, allow_graceful=False)
            wait_until(lambda: [next(one.events), len(actors("WorkerActor")) == 1][1], 120)
            heard: Counter[int] = Counter()  # of the one that has died, what was under way may still be told of, once
            deadline = time.monotonic() + 120
            while max(heard.values(), default=0) < 5:
                assert time.monotonic() < deadline, "nobody goes on"
                event = next(one.events)
                heard.update([] if event is None else [event.worker])
            node = cluster.add_node(num_cpus=2, **ports())
            one.heard_from({0, 1}, 120)
        cluster.remove_node(node)

    @pytest.mark.slow
    @pytest.mark.parametrize("what", ["worker", "server", "node"])
    def test_a_run_that_is_hit_half_way_reaches_its_goal(self, what: str, cluster: Any, tmp_path: Path) -> None:
        """CartPole to a mean of 475 over 100 episodes, which takes about 110,000 steps. It goes on behind that, so that
        the death is noticed however fast the machine is."""
        node = cluster.add_node(num_cpus=1, **ports()) if what == "node" else None

        def half_way() -> bool:
            rows = (tmp_path / "metrics.csv").read_text().splitlines() if (tmp_path / "metrics.csv").exists() else []
            return len(rows) > 1 and int(rows[-1].split(",")[0]) > 50_000

        def hit() -> None:
            wait_until(half_way, 90)
            if node is not None:
                cluster.remove_node(node, allow_graceful=False)
            else:
                os.kill(min(actors({"worker": "WorkerActor", "server": "ParameterServer"}[what])), signal.SIGKILL)

        hitter = threading.Thread(target=hit)
        hitter.start()
        settings = ["env=cartpole", "backend=ray", "workers=2", "checkpoint.every=10000", "stop.mean_return=null"]
        done = run(a3c_exp.compose(settings), tmp_path)
        hitter.join()
        assert done.summary["stop_reason"] == "total_steps"
        assert done.summary["solved_at_steps"] > 50_000
        assert "has died" in (tmp_path / "train.log").read_text()
