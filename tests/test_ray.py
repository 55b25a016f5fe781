"""Workers and parameter servers as actors of a Ray cluster on loopback, of several nodes where nodes are to die."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_runs import rounds_without_the_slow, standing_still
from runs import SCRIPTED, TARGET, config, drain, latest, make_store, processes, same, train_config, wait_until

import a3c_exp
from a3c_exp.backends.ray import cluster as cluster_module
from a3c_exp.backends.ray.cluster import find_fault, restrict_to_loopback
from a3c_exp.backends.ray.driver import CachedStore
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import RunContext
from a3c_exp.errors import ConfigError
from a3c_exp.run.metrics import read_points
from a3c_exp.run.statistics import RunStatistics

restrict_to_loopback()
ray = pytest.importorskip("ray", reason="clusters: pip install 'a3c-exp[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402 - Ray reads the environment when it is imported

RAY = "a3c_exp.backends.ray.Ray"
# In the environment of the cluster below: others may run beside it.
CLUSTER = "A3C_EXP_TEST_CLUSTER"
MARK = f"{CLUSTER}={os.getpid()}."
PPO = {"_target_": "a3c_exp.algorithms.PPO", "minibatch_size": 8, "epochs": 3}
SECONDS = 120.0  # after which something is taken to hang


def ports() -> dict[str, int]:
    """Free ports for a node's helpers.

    Ray waits for helpers that choose their ports themselves, but not long enough on a busy machine.
    """
    names = "metrics_agent_port", "runtime_env_agent_port", "dashboard_agent_listen_port"
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        return {name: each.getsockname()[1] for name, each in zip(names, sockets, strict=True)}


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
    """A small run's configuration. backend: settings of the backend. A worker that fails is not replaced by default."""
    whole = config(*arguments, **settings)
    return whole | {"backend": {"_target_": RAY, "max_restarts": 0} | (backend or {})}


def actors(name: str, mark: str = MARK) -> list[int]:
    """The processes of living actors of a class, which Ray names by it. mark: in the environment of their cluster."""
    found = []
    for pid in processes(mark):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(f"ray::{name}".encode()):
                found.append(pid)
    return found


class EndlessRun:
    """A context with a run of the backend alone that goes on until the context exits."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        experiment = load_experiment(on_ray(*arguments, **{"total_steps": 10**9} | settings))
        store = make_store(experiment)
        assert isinstance(store, CachedStore)
        self.store = store
        self.events = experiment.backend.run(RunContext(experiment=experiment), store)

    def __enter__(self) -> EndlessRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.events.close()

    def run_until(self, condition: Callable[[], Any]) -> None:
        """Take events until the condition is true, at least one."""
        deadline = time.monotonic() + SECONDS
        next(self.events)
        while not condition():
            assert time.monotonic() < deadline, f"not true within {SECONDS:.0f} s"
            next(self.events)

    def wait_for_events(self, workers: set[int], count: int = 1) -> None:
        """Wait for so many more events of each of these workers."""
        counts: Counter[int] = Counter()
        deadline = time.monotonic() + SECONDS
        while any(counts[worker] < count for worker in workers):
            assert time.monotonic() < deadline, f"events of workers: {counts}, of {workers} expected"
            event = next(self.events)
            counts.update([] if event is None else [event.worker])

    def servers_answer(self) -> bool:
        """Whether all servers are alive, with or without a state."""
        assert self.store.driver is not None
        try:
            return bool(ray.get([server.state.remote() for server in self.store.driver._servers], timeout=10))
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            return False


def test_one_worker_that_waits_does_bit_for_bit_what_one_does_on_any_backend(cluster: Any) -> None:
    """More settings, without Ray, are in test_ray_protocol."""
    normalized = {"env__normalize_observations": True, "env__normalize_rewards": True}
    minibatches = {"algorithm": PPO, "returns": "a3c_exp.returns.GAE", "optimizer_state": "per_worker"}
    settings: dict[str, Any] = {"env": TARGET, **normalized, **minibatches}
    _, expected, _ = drain(config(**settings))
    _, state, error = drain(on_ray(backend={"in_flight": 0, "shards": 2}, **settings))
    assert error is None
    assert state["version"] >= 3
    for key, value in expected.items():
        assert same(state[key], value), key


class TestSeveralWorkers:
    def test_every_update_step_and_episode_is_counted_once(self, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ray keeps no record of the calls: by default it would have one of each of the latest 100,000."""
        records: dict[str, bool] = {}
        options = ray.actor.ActorClass.options

        def noted(actor: Any, **settings: Any) -> Any:
            records[actor.__ray_metadata__.class_name] = settings.get("enable_task_events", True)
            return options(actor, **settings)

        monkeypatch.setattr(ray.actor.ActorClass, "options", noted)
        events, state, error = drain(on_ray(backend={"in_flight": 3, "shards": 2}, workers=2, total_steps=3200))
        assert error is None
        assert {event.worker for event in events} <= {0, 1}
        steps = sum(event.steps for event in events)
        updates = sum(event.updates for event in events)
        assert updates == sum(sum(event.staleness.values()) for event in events) == state["version"] == steps / 16
        assert steps == state["steps"] == sum(len(event.episodes) for event in events) >= 3200
        assert np.isfinite(state["parameters"]).all()
        metrics = {name for event in events for name in event.metrics if name.startswith("ray/")}
        assert metrics == {"ray/wait_share", "ray/workers_alive"}
        assert records == {"ParameterServer": False, "WorkerActor": False}

    def test_a_quorum_does_not_wait_for_a_slow_worker(self, cluster: Any, tmp_path: Path) -> None:
        backend = {"_target_": RAY, "max_restarts": 0}
        events, state = rounds_without_the_slow(tmp_path, standing_still(tmp_path) | {"backend": backend})
        assert any(event.counts.get("late_gradients", 0) for event in events if event.worker == 2)
        assert {value for event in events for value in event.staleness} == {0}
        assert state["version"] >= 40


def test_a_quorum_has_one_server() -> None:
    with pytest.raises(ConfigError) as refused:
        load_experiment(on_ray(workers=3, update="sync", quorum=2, backend={"shards": 2}))
    assert (refused.value.key, refused.value.value) == ("backend.shards", 2)


def test_a_run_goes_on_from_another_backend_saves_evaluates_and_goes_on_there(cluster: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"workers": 2, "eval__every": 400, "checkpoint__every": 400}
    settings |= {"optimizer": "a3c_exp.optimizers.RMSProp", "optimizer__learning_rate": 1e-2}
    train_config(config(total_steps=800, **settings), tmp_path)
    before = latest(tmp_path)["store"]
    on_servers = train_config(on_ray(total_steps=2400, **settings), tmp_path, resume=True)
    assert on_servers.summary["stop_reason"] == "total_steps"
    assert on_servers.summary["best_eval_return"] is not None
    saved = latest(tmp_path)["store"]
    assert saved["steps"] == on_servers.summary["steps"] >= 2400
    assert saved["version"] > before["version"]
    after = train_config(config(total_steps=3200, **settings), tmp_path, resume=True)
    assert (after.summary["stop_reason"], after.summary["resumed"]) == ("total_steps", 2)
    assert latest(tmp_path)["store"]["version"] > saved["version"]


def test_a_cluster_answers_before_it_is_joined(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "is_joined", lambda: False)
    assert find_fault(cluster.address) is None


def restart_of(run: EndlessRun) -> Event:
    """The next event that reports a restart."""
    deadline = time.monotonic() + SECONDS
    for event in run.events:
        if event is not None and event.counts.get("restarts", 0):
            return event
        assert time.monotonic() < deadline, "no worker was replaced"
    pytest.fail("the run has ended")


def test_a_killed_worker_is_replaced_and_the_run_ends_by_its_own_rule(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_stop_reason(stop: object, statistics: RunStatistics, *_: object) -> str | None:
        return "max_episodes" if statistics.counts["restarts"] == 1 else None

    def kill_worker() -> None:
        live = wait_until(lambda: len(found := actors("WorkerActor")) == 2 and found, SECONDS)
        os.kill(min(live), signal.SIGKILL)

    monkeypatch.setattr("a3c_exp.run.trainer.find_stop_reason", find_stop_reason)
    thread = threading.Thread(target=kill_worker)
    thread.start()
    done = train_config(on_ray(workers=2, backend={"max_restarts": 3}, total_steps=10**9), tmp_path)
    thread.join(SECONDS)
    assert (done.summary["stop_reason"], done.exit_code, done.summary["restarts"]) == ("max_episodes", 0, 1)
    assert latest(tmp_path)["store"]["steps"] == done.summary["steps"] > 0
    (warning,) = [line for line in (tmp_path / "train.log").read_text().splitlines() if "another one takes" in line]
    # The reason is in the words of Ray, which has several for a killed process.
    assert re.search(r"worker [01] died: \w.*: another one takes", warning), warning


def test_a_worker_that_hangs_is_killed_and_replaced(cluster: Any) -> None:
    """In rounds the other waits for it meanwhile, which is no stall; and so may the one whose process stops."""
    with EndlessRun(workers=2, update="sync", backend={"max_restarts": 3, "stall_seconds": 3.0}) as run:
        run.wait_for_events({0, 1}, count=2)
        victim = min(actors("WorkerActor"))
        os.kill(victim, signal.SIGSTOP)
        event = restart_of(run)
        (warning,) = event.warnings
        assert warning.startswith(f"worker {event.worker} hung: its environment had not stepped for 3 s")
        assert "and was killed" in warning
        run.wait_for_events({0, 1}, count=2)
        wait_until(lambda: victim not in actors("WorkerActor"), SECONDS)
        assert run.store.driver is not None
        assert sorted(worker.attempt for worker in run.store.driver._workers.values()) == [0, 1]


def test_a_worker_that_raises_at_once_ends_the_run_with_its_traceback(cluster: Any, tmp_path: Path) -> None:
    trigger = tmp_path / "trigger"
    trigger.touch()
    loss = {"_target_": "faulty.FailingA3C", "trigger": str(trigger)}
    whole = on_ray(SCRIPTED, algorithm=loss, plugins=["scripted", "faulty"], backend={"max_restarts": 3})
    _, _, error = drain(whole)
    assert error is not None
    assert str(error).startswith("worker 0 failed:\nTraceback")
    assert str(error).endswith("RuntimeError: scripted to fail")
    assert error.reason == "failed"
    wait_until(lambda: not actors("WorkerActor") + actors("ParameterServer"), SECONDS)


class TestFaults:
    def test_a_server_that_is_killed_restarts_from_the_last_checkpoint(
        self, cluster: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """While it has no state yet, a checkpoint has the state that was fetched before."""
        with EndlessRun(workers=2, backend={"shards": 2}) as run:
            run.wait_for_events({0, 1})
            saved = run.store.state()
            run.wait_for_events({0, 1})
            servers = set(actors("ParameterServer"))
            os.kill(min(servers), signal.SIGKILL)
            wait_until(lambda: set(actors("ParameterServer")) - servers, SECONDS)
            wait_until(run.servers_answer, SECONDS)
            state = run.store.state()
            assert saved["parameters"].any()
            assert np.array_equal(state["parameters"], saved["parameters"])
            assert state["version"] == saved["version"]
            assert f"its state is taken as of update {saved['version']}" in caplog.text
            run.run_until(lambda: "a parameter server has died" in caplog.text)
            run.run_until(lambda: run.store.state()["version"] > saved["version"])
            assert run.store.steps > saved["steps"], "steps that were made are not made again"

    @pytest.mark.slow
    def test_workers_of_a_node_that_dies_are_replaced_where_there_is_room(self, cluster: Any) -> None:
        """The head has room for one worker of two CPUs, and so has each other node."""
        node = cluster.add_node(num_cpus=2, **ports())
        with EndlessRun(workers=2, backend={"cpus_per_worker": 2, "max_restarts": 3}) as run:
            run.wait_for_events({0, 1})
            cluster.remove_node(node, allow_graceful=False)
            run.run_until(lambda: len(actors("WorkerActor")) == 1)
            # The worker that died may still have one event on its way.
            counts: Counter[int] = Counter()
            deadline = time.monotonic() + SECONDS
            while max(counts.values(), default=0) < 5:
                assert time.monotonic() < deadline, "no worker goes on"
                event = next(run.events)
                counts.update([] if event is None else [event.worker])
            node = cluster.add_node(num_cpus=2, **ports())
            run.wait_for_events({0, 1})
        cluster.remove_node(node)

    @pytest.mark.slow
    @pytest.mark.parametrize("what", ["worker", "server"])
    def test_a_run_that_is_hit_half_way_is_solved(self, what: str, cluster: Any, tmp_path: Path) -> None:
        """CartPole to a mean of 475 over 100 episodes, which takes about 110,000 steps. The run continues after that,
        so that the death is noticed however fast the machine is."""

        def half_way() -> bool:
            points = read_points(tmp_path / "metrics.jsonl")
            return bool(points) and points[-1]["step"] > 50_000

        def hit() -> None:
            wait_until(half_way, SECONDS)
            os.kill(min(actors({"worker": "WorkerActor", "server": "ParameterServer"}[what])), signal.SIGKILL)

        thread = threading.Thread(target=hit)
        thread.start()
        settings = ["env=cartpole", "backend=ray", "workers=2", "checkpoint.every=10000", "stop.mean_return=null"]
        done = a3c_exp.train(settings, tmp_path)
        thread.join()
        assert done.summary["stop_reason"] == "total_steps"
        assert done.summary["solved_at_steps"] > 50_000
        log = (tmp_path / "train.log").read_text()
        assert ("a parameter server has died" if what == "server" else "another one takes its place") in log
