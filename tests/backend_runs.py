"""Runs of one backend alone: settings that take different ways through the code, and what is left
of their workers."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from typing import Any

from runs import BANDIT, CORNERS, CORRIDOR, SMALL_CNN, TARGET, config, drain, make_store, same

from a3c_exp.config.builder import load_experiment
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.store import SharedStore

Events = Generator[Event | None, None, None]

PPO = {"_target_": "a3c_exp.algorithms.PPO", "minibatch_size": 8, "epochs": 3}
WHOLE_ROLLOUTS = PPO | {"minibatch_size": None}
SARSA = {"_target_": "a3c_exp.algorithms.Sarsa", "target_every": 50}
GAE = "a3c_exp.returns.GAE"
ATTENTION: dict[str, Any] = {
    "network": {"_target_": "thirdparty.Attention"},
    "plugins": ["scripted", "thirdparty"],
}

# One worker each. 16 steps an update.
NORMALIZED = {"env__normalize_observations": True, "env__normalize_rewards": True}
SETTINGS: dict[str, dict[str, Any]] = {
    "continuous actions, normalized": {"env": TARGET, "env__kwargs": {"length": 7}, **NORMALIZED},
    "beta, centered rewards": {
        "env": TARGET,
        "env__kwargs": {"length": 7},
        "env__normalize_rewards": "centered",
        "network__distribution": "beta",
    },
    "rmsprop, locked": {
        "optimizer": "a3c_exp.optimizers.RMSProp",
        "optimizer__learning_rate": 1e-2,
        "lock": True,
    },
    "ppo": {"algorithm": PPO, "algorithm__target_kl": 0.05, "returns": GAE},
    "ppo, whole rollouts": {"algorithm": WHOLE_ROLLOUTS, "returns": GAE},
    "ppo, synchronous": {"algorithm": WHOLE_ROLLOUTS, "update": "sync", "env": CORRIDOR},
    "v-trace": {"returns": {"_target_": "a3c_exp.returns.VTrace", "rho_clip": 0.5, "c_clip": 0.5}},
    "a memory": {
        "returns": {"_target_": "a3c_exp.returns.VTrace"},
        "memory": {"capacity": 500, "ratio": 1.5, "draw": "poisson"},
    },
    "lstm": {
        "env__kwargs": {"length": 3},
        "network": {"_target_": "a3c_exp.networks.Lstm", "hidden_size": 8},
    },
    "sarsa": {
        "env": CORRIDOR,
        "algorithm": SARSA,
        "returns": {"_target_": "a3c_exp.returns.NStep", "n": 1},
        "epsilon": 0.5,
    },
    "dqn": {
        "env": CORRIDOR,
        "algorithm": {"_target_": "a3c_exp.algorithms.DQN", "target_every": 50},
        "returns": {"_target_": "a3c_exp.returns.NStep", "n": 2},
        "memory": {"capacity": 500, "sample": "transitions", "min_size": 40, "ratio": 0.75},
        "epsilon": 0.5,
    },
    "acer": {
        "env__kwargs": {"length": 3},
        "algorithm": {"_target_": "a3c_exp.algorithms.ACER"},
        "returns": {"_target_": "a3c_exp.returns.Retrace"},
        "memory": {"capacity": 500, "draw": "poisson", "ratio": 1.5},
        "network": {"_target_": "a3c_exp.networks.Lstm", "hidden_size": 8},
    },
    "images": {"env": CORNERS, "network": SMALL_CNN},
    "an optimizer of torch, locked": {
        "optimizer": {"_target_": "torch.optim.NAdam", "lr": 1e-2},
        "lock": True,
    },
    "a loss with a module": ATTENTION | {"algorithm": {"_target_": "thirdparty.PredictingA3C"}},
}


def ga3c(env: str = BANDIT, **settings: Any) -> dict[str, Any]:
    """A configuration of GA3C on the CPU."""
    return config(env, "ga3c", **{"backend__device": "cpu"} | settings)


@functools.cache
def serial_state(name: str) -> dict[str, Any]:
    """The final state of the store of a run with these settings on the serial backend."""
    _, state, error = drain(config(**SETTINGS[name]))
    assert error is None
    return state


def assert_as_serial(state: dict[str, Any], name: str, *keys: str) -> None:
    """Assert that a run with these settings has ended as on the serial backend, bit for bit. keys:
    by default all."""
    expected = serial_state(name)
    assert state["version"] >= 3, "too short a run to show anything"
    for key in keys or expected:
        assert same(state[key], expected[key]), key


def totals(events: Sequence[Event]) -> tuple[int, int, int, list[float]]:
    """Updates, steps, measured stalenesses and the returns of all episodes of one run."""
    returns = [value for event in events for value in event.episodes.returns.tolist()]
    measured = sum(sum(event.staleness.values()) for event in events)
    return sum(e.updates for e in events), sum(e.steps for e in events), measured, returns


@contextmanager
def running(whole: dict[str, Any]) -> Iterator[tuple[Events, SharedStore]]:
    """Within: a backend's events, not yet asked for, and its store. The backend is closed at the
    end."""
    experiment = load_experiment(whole)
    store = make_store(experiment)
    events = experiment.backend.run(RunContext(experiment=experiment), store)
    try:
        yield events, store
    finally:
        events.close()


def kill_fork_server() -> None:
    """Kill the server that this process has its workers forked from."""
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    os.kill(pid, signal.SIGKILL)


def worker_processes() -> list[BaseProcess]:
    return [child for child in multiprocessing.active_children() if child.name.startswith("worker")]


def worker_threads() -> list[threading.Thread]:
    """Threads of this process that work for a run: workers, predictors, trainers."""
    kinds = ("worker", "predictor", "trainer")
    return [thread for thread in threading.enumerate() if thread.name.startswith(kinds)]


def nobody_works() -> bool:
    return not worker_processes() and not worker_threads()
