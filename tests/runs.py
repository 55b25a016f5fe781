"""Small runs for tests: configurations as plain data, the runs themselves, and what a run
writes."""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from a3c_exp.config.builder import load_experiment, load_final
from a3c_exp.config.saved import read_config
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Built, Experiment, RunContext, build_network, store_spec
from a3c_exp.core.store import SharedStore
from a3c_exp.errors import RunError
from a3c_exp.run import checkpoint
from a3c_exp.run.files import RunOutput
from a3c_exp.run.recorders.episode_table import EpisodeTable
from a3c_exp.run.session import Run, session

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
BACKENDS = ("serial", "threads", "processes")
TARGETS = {
    name: f"a3c_exp.backends.{name}.{name.capitalize()}"
    for name in (*BACKENDS, "ga3c", "simulated")
}

SCRIPTED = "scripted:Scripted-v0"
BANDIT = "scripted:Bandit-v0"
CORRIDOR = "scripted:Corridor-v0"
TARGET = "scripted:Target-v0"
CORNERS = "scripted:Corners-v0"
# Overrides for a very short run from the command line: one worker, few steps, no evaluation.
QUICK = [
    "backend=serial",
    "workers=1",
    "envs_per_worker=1",
    "rollout_length=8",
    "total_steps=64",
    "eval.every=null",
]
SMALL_CNN = {
    "_target_": "a3c_exp.networks.Cnn",
    "layers": [[8, 3, 2]],
    "features_dim": 32,
    "init": "orthogonal",
}


def config(env: str = BANDIT, backend: str = "serial", **settings: Any) -> dict[str, Any]:
    """A whole configuration. Dots are written as two underscores:
    `config(returns__n=2, env__kwargs={"n": 3})`.

    Small and quick by itself: one worker with 4 bandits, 160 steps, 10 updates, no evaluation. A
    worker that fails is not replaced, so that no failure passes unnoticed.
    """
    no_restarts = {} if backend == "serial" else {"max_restarts": 0}
    components = {
        "env": {"_target_": "a3c_exp.envs.Gym", "id": env},
        "network": {"_target_": "a3c_exp.networks.Mlp", "hidden_sizes": [16], "init": "orthogonal"},
        "returns": {"_target_": "a3c_exp.returns.NStep", "n": 5},
        "algorithm": {"_target_": "a3c_exp.algorithms.A3C"},
        "optimizer": {"_target_": "a3c_exp.optimizers.Adam", "learning_rate": 1e-2},
        "schedule": {"_target_": "a3c_exp.schedules.Constant", "value": 1.0},
        "backend": {"_target_": TARGETS[backend], **no_restarts},
    }
    sizes = {"workers": 1, "envs_per_worker": 4, "rollout_length": 4, "total_steps": 160}
    updates = {
        "gamma": 0.9,
        "update": "async",
        "lock": False,
        "optimizer_state": "shared",
        "critic_returns": None,
    }
    stop = {"max_episodes": None, "max_seconds": None, "mean_return": None}
    around = {
        "eval": {"every": None, "episodes": 4},
        "checkpoint": {"every": None},
        "stop": stop,
        "init_from": None,
    }
    whole: dict[str, Any] = components | sizes | updates | around
    whole |= {"seed": 0, "reward_threshold": None, "plugins": ["scripted"]}
    for name, value in settings.items():
        is_class = name in ("optimizer", "returns") and isinstance(value, str)
        put(whole, name, {"_target_": value} if is_class else copy.deepcopy(value))
    return whole


def put(tree: dict[str, Any], place: str, value: Any) -> None:
    """Set a value in nested mappings. Dots of its place may be written as two underscores."""
    *path, last = place.replace("__", ".").split(".")
    for key in path:
        tree = tree.setdefault(key, {})
    tree[last] = value


def train(folder: Path, env: str = BANDIT, backend: str = "serial", **settings: Any) -> Run:
    """Run `config(...)` in a folder."""
    return train_config(config(env, backend, **settings), folder)


def train_config(whole: dict[str, Any], folder: Path, resume: bool = False) -> Run:
    """Run a whole configuration in a folder, or resume its run there."""
    whole, experiment = load_final(whole)
    network, env = build_network(experiment)
    built = Built(network, env.observation_space)
    earlier = read_config(folder, whole["plugins"]) if resume else None
    with session(experiment, built, whole, folder, earlier) as opened:
        return opened.run()


def latest(folder: Path) -> dict[str, Any]:
    """The content of a run's latest checkpoint."""
    return checkpoint.load_file(folder / "checkpoints" / "latest.ckpt")


def summary(folder: Path) -> dict[str, Any]:
    """A run's summary."""
    read: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return read


def content(folder: Path) -> dict[str, bytes]:
    """The content of all files in a folder, by their names."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def episode_table(folder: Path, episodes: int = 0, most: int = 10) -> EpisodeTable:
    """The callback that writes episodes.csv, without a run. episodes: those that its checkpoint
    knows of."""
    experiment = SimpleNamespace(record_episodes=most, env=SimpleNamespace(info_keys=None))
    statistics = SimpleNamespace(episodes=episodes)
    output = RunOutput(folder)
    run: Any = SimpleNamespace(
        folder=folder, output=output, experiment=experiment, statistics=statistics
    )
    return EpisodeTable(run)


def told(seconds: float) -> Any:
    """A run, as a callback sees it after so many seconds of training."""
    return SimpleNamespace(seconds=seconds)


def make_store(experiment: Experiment) -> SharedStore:
    """The store of an experiment's backend, with the parameters that the seed draws."""
    network, env = build_network(experiment)
    store = experiment.backend.store(store_spec(experiment, network, env.observation_space))
    store.initialize(network.vector)
    return store


def drain(
    whole: dict[str, Any], enough: Callable[[list[Event]], bool] = lambda events: False
) -> tuple[list[Event], dict[str, Any], RunError | None]:
    """Run the backend alone, to its end or until there are enough events.

    Returns the events, the final state of the store, and the error that the backend failed with.
    """
    experiment = load_experiment(whole)
    store = make_store(experiment)
    events: list[Event] = []
    error = None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for event in experiment.backend.run(RunContext(experiment=experiment), store):
            events.extend([event] if event else [])
            if enough(events):
                store.stop()
    except RunError as failed:
        error = failed
    finally:
        torch.set_num_threads(threads)
    return events, store.state(), error


def same(one: Any, other: Any) -> bool:
    """Return whether two states are equal, in type and bit for bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return bool(
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    return bool(one == other or (one != one and other != other))


def command(folder: Path, env: str, backend: str, *overrides: str) -> list[str]:
    """The command line of a run like those above."""
    small = (
        "envs_per_worker=4 rollout_length=4 eval.every=null checkpoint.every=null "
        "stop.mean_return=null"
    )
    groups = [
        f"hydra.run.dir={folder}",
        "env=gym",
        f"env.id={env}",
        "plugins=[scripted]",
        f"backend={backend}",
    ]
    return [
        sys.executable,
        "-m",
        "a3c_exp",
        *groups,
        *small.split(),
        "network.hidden_sizes=[16]",
        *overrides,
    ]


def wait_until(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """The condition's value once it is true. Fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not true within {seconds:.0f} s"
        time.sleep(0.02)
    return value


def processes(mark: str) -> list[int]:
    """Living processes that were started with `mark` in their environment, zombies left out."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if mark.encode() in environment and state != "Z":
            found.append(int(entry.name))
    return found


def kill_all(mark: str) -> None:
    """End the processes that were started with `mark` in their environment. One may end by itself
    meanwhile."""
    for pid in processes(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
