"""Who runs the workers: the same arithmetic on every backend, and nothing left of them afterwards."""

from __future__ import annotations

import functools
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import BACKENDS, CORNERS, CORRIDOR, SCRIPTED, SMALL_CNN, TARGET, config, drain, processes, same, wait_until

from a3c_exp.core import seeding
from a3c_exp.backends import MERGE_SECONDS, batch_events
from a3c_exp.config.builder import load_experiment
from a3c_exp.errors import ConfigError, RunError
from a3c_exp.core.events import Event
from a3c_exp.core.seeding import Role
from a3c_exp.core.worker import YieldPoint, RunContext
from a3c_exp.core.experiment import build_network, layout

CONCURRENT = ("threads", "processes")

PPO = {"_target_": "a3c_exp.algorithms.PPO", "minibatch_size": 8, "epochs": 3}
GAE = "a3c_exp.returns.GAE"

# One worker each, on different ways through the code. 16 steps an update unless they say otherwise.
SETTINGS: dict[str, dict[str, Any]] = {
    "the defaults": {},
    "one environment": {"env": CORRIDOR, "envs_per_worker": 1, "rollout_length": 5},
    "whole episodes": {"env": CORRIDOR, "envs_per_worker": 1, "rollout_length": "episode", "total_steps": 400},
    "continuous actions, normalised": {
        "env": TARGET, "env__kwargs": {"length": 7},
        "env__normalize_observations": True, "env__normalize_rewards": True,
    },
    "rmsprop, locked": {"optimizer": "a3c_exp.optimizers.RMSProp", "optimizer__learning_rate": 1e-2, "lock": True},
    "synchronous": {"update": "sync"},
    "moments of its own": {"optimizer_state": "per_worker"},
    "accumulated": {"accumulate_rollouts": 3, "total_steps": 200},
    "schedules": {"schedule": {"_target_": "a3c_exp.schedules.Linear", "start": 1.0, "end": 0.0}},
    "episodes of three steps": {"env__kwargs": {"length": 3}, "returns__n": 1},
    "and another critic": {
        "env__kwargs": {"length": 3}, "returns__n": 1, "critic_returns": {"_target_": "a3c_exp.returns.Discounted"},
    },
    "proximal policy optimisation": {"algorithm": PPO, "algorithm__target_kl": 0.05, "returns": GAE},
    "proximal, in rounds of whole rollouts": {
        "algorithm": PPO, "algorithm__minibatch_size": None, "update": "sync", "env": CORRIDOR,
    },
    "v-trace": {"returns": {"_target_": "a3c_exp.returns.VTrace", "rho_clip": 0.5, "c_clip": 0.5}},
    "now and then a blind action": {
        "epsilon": {"_target_": "a3c_exp.schedules.Linear", "start": 0.5, "end": 0.1, "until": 0.5},
    },
    "a memory": {"env__kwargs": {"length": 3}, "network": {"_target_": "a3c_exp.networks.Lstm", "cells": 8}},
    "a native vector environment": {"env": SCRIPTED, "env__vectorized": True, "env__reward_scale": 0.01},
    "pictures": {"env": CORNERS, "network": SMALL_CNN},
}  # fmt: skip


@functools.cache
def serial(name: str) -> dict[str, Any]:
    """The state of the shared parameters after a run on the serial backend."""
    _, state, error = drain(config(**SETTINGS[name]))
    assert error is None
    return state


def totals(events: list[Event]) -> tuple[int, int, int, list[float]]:
    """Updates, steps, stalenesses measured, and the returns of all episodes of one run."""
    returns = [value for event in events for value in event.episodes.returns.tolist()]
    measured = sum(sum(event.staleness.values()) for event in events)
    return sum(e.updates for e in events), sum(e.steps for e in events), measured, returns


class TestOneWorkerIsTheSameEverywhere:
    @pytest.mark.parametrize("backend", CONCURRENT)
    @pytest.mark.parametrize("name", SETTINGS)
    def test_parameters_moments_and_counters_bit_for_bit(self, backend: str, name: str) -> None:
        _, state, error = drain(config(backend=backend, **SETTINGS[name]))
        assert error is None
        assert state["version"] >= 3, "too short a run to show anything"
        for key, expected in serial(name).items():
            assert same(state[key], expected), key

    @pytest.mark.parametrize("backend", CONCURRENT)
    def test_and_so_is_what_it_reports(self, backend: str) -> None:
        expected = totals(drain(config(env=CORRIDOR, total_steps=1600))[0])
        assert len(expected[3]) > 10
        assert totals(drain(config(env=CORRIDOR, backend=backend, total_steps=1600))[0]) == expected

    def test_the_settings_make_a_difference(self) -> None:
        """Or else some of these runs would be the default in disguise."""
        alike = {"the defaults", "synchronous", "moments of its own"}  # for one worker these are the same
        ends = {name: serial(name)["parameters"].tobytes() for name in SETTINGS}
        assert len({ends[name] for name in alike}) == 1
        assert len(set(ends.values())) == len(SETTINGS) - len(alike) + 1


class TestSerialIsDeterministic:
    @pytest.mark.parametrize("update", ["async", "sync"])
    def test_the_same_seed_gives_the_same_run_twice(self, update: str) -> None:
        runs = [drain(config(workers=3, update=update, total_steps=800)) for _ in range(2)]
        assert same(runs[0][1], runs[1][1])
        assert [totals([event]) for event in runs[0][0]] == [totals([event]) for event in runs[1][0]]

    def test_another_seed_gives_another_run(self) -> None:
        one, other = (drain(config(workers=3, seed=seed))[1] for seed in (0, 1))
        assert not same(one["parameters"], other["parameters"])

    def test_workers_overtake_one_another(self) -> None:
        """Asynchrony itself is replayed: while one worker makes a gradient, each of the others pushes about one."""
        events, _, _ = drain(config(workers=4, total_steps=16 * 200))
        staleness = [value for event in events for value in event.staleness.elements()]
        assert np.mean(staleness) == pytest.approx(3, abs=0.5)
        assert max(staleness) > 4

    def test_a_synchronous_round_is_never_stale(self) -> None:
        events, state, _ = drain(config(workers=4, update="sync", total_steps=16 * 40))
        assert {value for event in events for value in event.staleness} == {0}
        assert state["version"] == 10, "a step for every round of four gradients"


@pytest.mark.parametrize("backend", BACKENDS)
class TestSeveralWorkers:
    def test_every_update_step_and_episode_is_counted_once(self, backend: str) -> None:
        events, state, error = drain(config(backend=backend, workers=3, total_steps=3200))
        updates, steps, measured, returns = totals(events)
        assert error is None
        assert {event.worker for event in events} <= {0, 1, 2}, "who begins late finds nothing left to do"
        assert updates == measured == state["version"] == steps / 16
        assert steps == state["steps"] == len(returns) >= 3200, "an episode of this bandit is one step"
        assert steps < 3200 + 3 * 16, "no worker starts a rollout once the run has its steps"

    def test_adam_keeps_its_measure_where_most_gradients_are_zero(self, backend: str) -> None:
        """Of 500 inputs one is on: workers who write over one another's moments must not divide by what is missing."""
        state = drain(
            config(
                backend=backend, workers=2, total_steps=6000, env=SCRIPTED, env__id="Taxi-v4", env__kwargs={},
                envs_per_worker=1, rollout_length=5, network__sizes=[64, 64],
                optimizer={"_target_": "a3c_exp.optimizers.Adam", "learning_rate": 1e-3},
            )
        )[1]  # fmt: skip
        assert state["version"] >= 1200
        assert np.abs(state["parameters"]).max() < 5, "with torn moments: several hundred"

    def test_locked_updates_are_counted_too(self, backend: str) -> None:
        events, state, _ = drain(config(backend=backend, workers=3, total_steps=1600, lock=True))
        updates, steps, measured, _ = totals(events)
        assert updates == measured == state["version"] == steps / 16

    def test_moments_of_its_own_are_kept_for_each(self, backend: str) -> None:
        whole = config(backend=backend, workers=2, total_steps=10**9, optimizer_state="worker")
        _, state, _ = drain(whole, enough=lambda events: {event.worker for event in events if event.updates} == {0, 1})
        assert state["optimizer_state"].shape[0] == 2
        assert state["optimizer_state"].any(axis=(1, 2)).all()
        assert not same(state["optimizer_state"][0], state["optimizer_state"][1])

    def test_synchronous_updates_wait_for_everybody(self, backend: str) -> None:
        events, state, error = drain(config(backend=backend, workers=3, update="sync", total_steps=16 * 3 * 20))
        updates, steps, measured, _ = totals(events)
        assert error is None
        assert {value for event in events for value in event.staleness} == {0}
        assert updates == state["version"]
        # Every step is one round of three gradients; the last may lack those who saw that the run was over.
        assert updates - 1 <= steps / (16 * 3) <= updates
        assert measured == steps / 16

    def test_all_of_them_learn_from_the_same_statistics(self, backend: str) -> None:
        settings = {"env__normalize_observations": True, "env__kwargs": {"length": 7}}
        _, state, _ = drain(config(env=TARGET, backend=backend, workers=3, total_steps=1600, **settings))
        assert state["statistics"][0] == state["steps"]

    def test_who_stops_the_store_stops_them(self, backend: str) -> None:
        with running(config(backend=backend, workers=2, total_steps=10**9)) as (events, store):
            next(events)
            store.stop()
            ended = time.monotonic()
            assert len(list(events)) < 1000
            assert time.monotonic() - ended < 30

    def test_who_closes_the_iterator_ends_them(self, backend: str) -> None:
        with running(config(backend=backend, workers=2, total_steps=10**9)) as (events, store):
            next(events)
            events.close()
            after = store.steps
            assert not workers_alive()
            time.sleep(0.1)
            assert store.steps == after

    def test_a_worker_that_fails_is_named_with_its_traceback(self, backend: str) -> None:
        victim = seeding.environment_seeds(0, Role.ENVIRONMENT, 1, 4)[2]
        settings = {"env__kwargs": {"fault": "raise", "victim": victim}, "plugins": ["faulty"]}
        _, _, error = drain(config("faulty:Faulty-v0", backend, workers=2, total_steps=10**9, **settings))
        assert error is not None
        assert str(error).startswith("worker 1 failed:\nTraceback")
        assert str(error).endswith("RuntimeError: scripted to fail")
        assert not workers_alive()

    def test_an_environment_that_exits_is_a_failure_too(self, backend: str) -> None:
        settings = {"env__kwargs": {"fault": "exit"}, "plugins": ["faulty"]}
        _, _, error = drain(config("faulty:Faulty-v0", backend, total_steps=10**9, **settings))
        assert error is not None
        assert str(error).endswith("SystemExit: 0")

    def test_diverged_training_ends_with_the_reason_alone(self, backend: str) -> None:
        settings = {"env__kwargs": {"fails_at": 9, "failure": "nan"}, "workers": 2, "total_steps": 10**9}
        events, state, error = drain(config(SCRIPTED, backend, **settings))
        assert error is not None
        assert "the last 20 gradients of worker" in str(error)
        assert "not finite" in str(error)
        assert "Traceback" not in str(error)
        assert sum(event.rejected for event in events) >= 20, "what was refused last is reported, too"
        assert np.isfinite(state["parameters"]).all()


def workers_alive() -> list[Any]:
    """What is left of any worker: threads and processes by name."""
    everybody = [*threading.enumerate(), *multiprocessing.active_children()]
    return [one for one in everybody if one.name.startswith("worker")]


class running:  # noqa: N801 - reads as a statement
    """A backend's iterator and the shared parameters, closed whatever happens."""

    def __init__(self, whole: dict[str, Any]) -> None:
        experiment = load_experiment(whole)
        network, env = build_network(experiment)
        self.store = experiment.backend.store(layout(experiment, network, env.observation_space.shape))
        self.store.initialise(network.vector)
        self.events = experiment.backend.run(RunContext(experiment=experiment), self.store)

    def __enter__(self) -> tuple[Any, Any]:
        return self.events, self.store

    def __exit__(self, *_: object) -> None:
        self.events.close()


class TestProcesses:
    """What only they can meet."""

    def failure(self, fault: str, **kwargs: Any) -> str:
        settings = {"env__kwargs": {"fault": fault, **kwargs}, "plugins": ["faulty"], "total_steps": 10**9}
        _, _, error = drain(config("faulty:Faulty-v0", "processes", workers=2, **settings))
        assert error is not None
        assert not workers_alive()
        return str(error)

    def test_a_killed_worker_is_named_with_its_signal(self) -> None:
        victim = seeding.environment_seeds(0, Role.ENVIRONMENT, 1, 4)[0]
        assert self.failure("kill", victim=victim) == "worker 1 was killed by SIGKILL"

    def test_one_that_ends_without_a_word_has_not_finished(self) -> None:
        assert "ended without a word, with exit code 0" in self.failure("vanish")

    def test_a_program_that_a_dead_worker_left_behind_hides_nothing(self) -> None:
        """It holds the dead worker's pipe open."""
        begun = time.monotonic()
        assert "was killed by SIGKILL" in self.failure("leave a child")
        assert time.monotonic() - begun < 25, "the program sleeps for thirty seconds"

    def test_environments_that_a_plugin_registers_are_there(self) -> None:
        _, state, error = drain(config("Unnamed-v0", "processes", plugins=["faulty"]))
        assert error is None
        assert state["steps"] == 160

    def test_a_worker_has_no_more_threads_than_it_needs(self) -> None:
        """As many BLAS threads as there are cores in each would make more workers slower."""
        with running(config(backend="processes", workers=2, total_steps=10**9)) as (events, _):
            seen: set[int] = set()
            while len(seen) < 2:
                event = next(events)
                seen |= set() if event is None else {event.worker}
            for child in multiprocessing.active_children():
                threads = len(list(Path(f"/proc/{child.pid}/task").iterdir())) if sys.platform == "linux" else 2
                assert threads == 2, "the worker, and the one that watches for its parent"

    def test_workers_whose_messages_nobody_reads_end_all_the_same(self) -> None:
        """Blocked in the middle of a message, since the pipe is full."""
        with running(config(backend="processes", workers=2, total_steps=10**9)) as (events, _):
            wait_until(lambda: next(events) is not None)
            time.sleep(2)
            closed = time.monotonic()
            events.close()
            assert time.monotonic() - closed < 10
            assert not workers_alive()

    def test_a_script_without_a_main_guard_runs_once(self, tmp_path: Path) -> None:
        """Children of multiprocessing import the program that started them, unless they are kept from it."""
        script = tmp_path / "script.py"
        script.write_text(
            "import sys, a3c_exp\n"
            "print('imported', flush=True)\n"
            "run = a3c_exp.train(['env=gym', 'env.id=scripted:Bandit-v0', 'plugins=[scripted]', 'workers=2',\n"
            "    'total_steps=1000', 'eval.every=null'])\n"
            "print(run.summary['stop_reason'])\n"
        )
        mark = f"A3C_EXP_TEST={tmp_path}"
        environment = os.environ | dict([mark.split("=", 1)])
        done = subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.stdout.splitlines() == ["imported", "total_steps"], done.stderr
        assert len(list((tmp_path / "outputs").iterdir())) == 1
        wait_until(lambda: not processes(mark), 5)


class TestMerging:
    """Thousands of updates a second become ten messages."""

    def steps(self, count: int, then: BaseException | None = None) -> Iterator[Event | YieldPoint]:
        for index in range(count):
            yield YieldPoint.BEFORE_PUSH
            yield Event(0, updates=1, steps=index)
        if then is not None:
            raise then

    def test_the_first_event_is_passed_on_at_once_and_the_rest_together(self) -> None:
        assert [(event.updates, event.steps) for event in batch_events(self.steps(5))] == [(1, 0), (4, 10)]

    def test_nothing_waits_longer_than_that(self) -> None:
        def slow() -> Iterator[Event]:
            for _ in range(4):
                yield Event(0, updates=1)
                time.sleep(MERGE_SECONDS)

        assert [event.updates for event in batch_events(slow())] == [1, 1, 1, 1]

    def test_a_worker_that_fails_has_said_all_it_did(self) -> None:
        events = batch_events(self.steps(5, RunError("diverged")))
        assert [next(events).updates, next(events).updates] == [1, 4]
        with pytest.raises(RunError, match="diverged"):
            next(events)


@pytest.mark.parametrize("backend", ["processes", "ga3c"])
def test_a_temporary_folder_whose_path_leaves_no_room_for_a_socket_is_refused(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 80)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(ConfigError, match=r"^TMPDIR = .* at most 71 characters"):
        load_experiment(config(backend=backend))
    load_experiment(config(backend="threads"))
    longest = "/tmp/" + "x" * 66
    monkeypatch.setattr(tempfile, "tempdir", longest)
    load_experiment(config(backend=backend))


@pytest.mark.parametrize(("backend", "each"), [("processes", 3), ("ga3c", 6)])
def test_there_is_room_for_the_files_of_all_workers(backend: str, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of this process's own is raised, one of the system's is told, before anything is started."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    try:
        load_experiment(config(backend=backend, workers=60))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (64 + 60 * each, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (200, 200))
    most = (200 - 64) // each
    load_experiment(config(backend=backend, workers=most))
    with pytest.raises(ConfigError, match=rf"^workers = {most + 1}: must be at most {most}: no more than 200 files"):
        load_experiment(config(backend=backend, workers=most + 1))
