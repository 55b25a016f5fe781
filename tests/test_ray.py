"""Workers and parameter servers as actors of a Ray cluster on loopback, of several nodes where
nodes are to die."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_parts
from backend_runs import PPO, Events, running
from refusals import refused
from runs import SCRIPTED, config, drain, latest, processes, train_config, wait_until

from a3c_exp.backends.ray import cluster as cluster_module
from a3c_exp.backends.ray.cluster import find_fault, restrict_to_loopback
from a3c_exp.backends.ray.driver import CachedStore
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.events import Event

restrict_to_loopback()
ray = pytest.importorskip("ray", reason="clusters: pip install 'a3c-exp[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402 - Ray reads the environment when it is imported

RAY = "a3c_exp.backends.ray.Ray"
# In the environment of the cluster below: others may run beside it.
CLUSTER = "A3C_EXP_TEST_CLUSTER"
NICENESS = "RAY_worker_niceness"
MARK = f"{CLUSTER}={os.getpid()}."
SECONDS = 120.0  # after which something is taken to hang


def ports() -> dict[str, int]:
    """Free ports for a node's helpers.

    Ray waits for helpers that choose their ports themselves, but not long enough on a busy machine.
    """
    names = "metrics_agent_port", "runtime_env_agent_port", "dashboard_agent_listen_port"
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        return {
            name: listener.getsockname()[1] for name, listener in zip(names, sockets, strict=True)
        }


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of one node; tests may add others. One for all tests: it takes seconds to start."""
    os.environ[CLUSTER] = MARK.partition("=")[2]
    os.environ[NICENESS] = "0"  # by default actors wait for all other tests that run now
    ray_cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 3, "include_dashboard": False} | ports()
    )
    ray.init(address=ray_cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield ray_cluster
    finally:
        ray.shutdown()
        ray_cluster.shutdown()
        del os.environ[CLUSTER], os.environ[NICENESS]


def on_ray(
    *arguments: Any, backend: dict[str, Any] | None = None, **settings: Any
) -> dict[str, Any]:
    """A small run's configuration. backend: settings of the backend. A worker that fails is not
    replaced by default."""
    run_config = config(*arguments, **settings)
    return run_config | {"backend": {"_target_": RAY, "max_restarts": 0} | (backend or {})}


def actors(name: str, mark: str = MARK) -> list[int]:
    """The processes of living actors of a class, which Ray names by it. mark: in the environment of
    their cluster."""
    pids = []
    for pid in processes(mark):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(f"ray::{name}".encode()):
                pids.append(pid)
    return pids


@dataclass
class EndlessRun:
    """A run of the backend alone."""

    events: Events
    store: CachedStore

    def until(self, condition: Callable[[Event | None], object]) -> Any:
        """Take events, at least one, until the condition holds for one, and return that."""
        deadline = time.monotonic() + SECONDS
        while not condition(event := next(self.events)):
            assert time.monotonic() < deadline, f"not true within {SECONDS:.0f} s"
        return event

    def wait_for_events(self, workers: set[int], count: int = 1) -> None:
        """Wait for so many more events of each of these workers."""
        counts: Counter[int] = Counter()

        def are_enough(event: Event | None) -> bool:
            counts.update([] if event is None else [event.worker])
            return all(counts[worker] >= count for worker in workers)

        self.until(are_enough)


@contextmanager
def endless(**settings: Any) -> Iterator[EndlessRun]:
    """Within: a run that goes on."""
    with running(on_ray(total_steps=10**9, **settings)) as (events, store):
        assert isinstance(store, CachedStore)
        yield EndlessRun(events, store)


def test_one_worker_that_waits_does_bit_for_bit_what_one_does_on_serial(cluster: Any) -> None:
    """Observations of several parts, and two servers. More settings, without Ray, are in
    test_ray_protocol."""
    one_by_one: dict[str, Any] = {"backend.in_flight": 0, "backend.shards": 2}
    test_parts.check_one_is_as_on_serial("ray", **one_by_one)


@pytest.mark.parametrize("settings", [{"quorum": 2}, {"algorithm": PPO}])
def test_rounds_of_a_quorum_or_of_minibatches_have_one_server(settings: dict[str, Any]) -> None:
    run_config = on_ray(workers=3, update="sync", backend={"shards": 2}, **settings)
    refused(lambda: load_experiment(run_config), "backend.shards", 2)


def test_a_run_goes_on_from_another_backend_and_goes_on_there(cluster: Any, tmp_path: Path) -> None:
    """Every update, step and episode, of two workers there, is counted once."""
    on_two = on_ray(backend={"in_flight": 3}, workers=2)
    versions = []
    for number, whole in enumerate((config(), on_two, config())):
        sizes = {"total_steps": 800 * (number + 1), "checkpoint": {"every": 400}}
        done = train_config(whole | sizes, tmp_path, resume=number > 0)
        assert (done.summary["stop_reason"], done.summary["resumed"]) == ("total_steps", number)
        saved = latest(tmp_path)["store"]
        counted = latest(tmp_path)["statistics"]
        assert saved["steps"] == counted["steps"] == counted["episodes"] >= 800 * (number + 1)
        assert (
            saved["version"] == counted["updates"] == counted["staleness"][1] == saved["steps"] / 16
        )
        assert np.isfinite(saved["parameters"]).all()
        versions.append(saved["version"])
    assert versions == sorted(set(versions))
    header = (tmp_path / "metrics.csv").read_text().partition("\n")[0]
    assert "workers/wait_share" in header.split(",")


def test_a_cluster_answers_before_it_is_joined(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "is_joined", lambda: False)
    assert find_fault(cluster.address) is None


@pytest.mark.slow
def test_a_worker_that_hangs_is_replaced(cluster: Any) -> None:
    """In rounds the other waits meanwhile, which is no stall; and so may the one whose process
    stops."""
    with endless(
        workers=2, update="sync", backend={"max_restarts": 3, "stall_seconds": 2.0}
    ) as run:
        run.wait_for_events({0, 1}, count=2)
        os.kill(min(actors("WorkerActor")), signal.SIGSTOP)
        says_so = re.compile(
            r"worker \d hung: .* for 2 s .*: another one takes its place"
        ).fullmatch
        run.until(lambda event: event and any(map(says_so, event.warnings)))
        run.wait_for_events({0, 1}, count=2)


def test_a_worker_that_raises_at_once_ends_the_run_with_its_traceback(
    cluster: Any, tmp_path: Path
) -> None:
    trigger = tmp_path / "trigger"
    trigger.touch()
    loss = {"_target_": "faulty.FailingA3C", "trigger": str(trigger)}
    run_config = on_ray(
        SCRIPTED, algorithm=loss, plugins=["scripted", "faulty"], backend={"max_restarts": 3}
    )
    _, _, error = drain(run_config)
    assert error is not None
    assert str(error).startswith("worker 0 failed:\nTraceback")
    assert str(error).endswith("RuntimeError: scripted to fail")
    assert error.reason == "failed"
    wait_until(lambda: not actors("WorkerActor") + actors("ParameterServer"), SECONDS)


class TestFaults:
    def test_a_worker_that_is_killed_is_replaced_and_a_server_restarts_from_the_last_checkpoint(
        self, cluster: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Until all have started again, a checkpoint has the state that was fetched before."""
        with endless(backend={"shards": 2, "max_restarts": 3}) as run:
            run.wait_for_events({0})
            os.kill(min(actors("WorkerActor")), signal.SIGKILL)
            says_so = re.compile(r"worker 0 died: \w.*: another one takes its place").fullmatch
            run.until(lambda event: event and any(map(says_so, event.warnings)))
            run.wait_for_events({0})
            saved = run.store.state()
            run.wait_for_events({0})
            run.store.set_multipliers(entropy=0.5)
            victim = min(actors("ParameterServer"))
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: victim not in actors("ParameterServer"), SECONDS)
            state = run.store.state()
            assert saved["parameters"].any()
            assert np.array_equal(state["parameters"], saved["parameters"])
            assert state["version"] == saved["version"]
            assert f"its state is taken as of update {saved['version']}" in caplog.text
            restart = run.until(lambda event: event and "restarts" in event.counts)
            assert restart.warnings[0].startswith("a parameter server died: ")
            run.wait_for_events({0})
            run.until(lambda _: run.store.state()["version"] > saved["version"])
            assert run.store.steps > saved["steps"], "steps that were made are not made again"
            fetched = run.store.driver and run.store.driver.fetch(SECONDS)
            assert fetched and fetched["multipliers"].tolist() == [1, 0.5]

    @pytest.mark.slow
    def test_workers_of_a_node_that_dies_are_replaced_where_there_is_room(
        self, cluster: Any
    ) -> None:
        """The head has room for one worker of two CPUs, and so has each other node."""
        node = cluster.add_node(num_cpus=2, **ports())
        with endless(workers=2, backend={"cpus_per_worker": 2, "max_restarts": 3}) as run:
            run.wait_for_events({0, 1})
            cluster.remove_node(node, allow_graceful=False)
            run.until(lambda _: len(actors("WorkerActor")) == 1)
            steps = run.store.steps
            run.until(lambda _: run.store.steps > steps + 200)
            node = cluster.add_node(num_cpus=2, **ports())
            run.wait_for_events({0, 1})
        cluster.remove_node(node)
