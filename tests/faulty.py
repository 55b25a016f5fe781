"""Environments that go wrong, registered with gymnasium by importing this module
('faulty:Faulty-v0')."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv
from scripted import Answer, Bandit, Scripted
from torch import Tensor

from a3c_exp.algorithms import A3C, Batch, Metrics, PolicyOutputs
from a3c_exp.callbacks import Callback, RunView
from a3c_exp.common.arrays import Vector
from a3c_exp.core.events import Event
from a3c_exp.optimizers import SGD

_forking = threading.Lock()
Fault = Literal["raise", "kill", "vanish", "hang", "leave a child", "print", "half a message"]


class Faulty(Bandit):
    """A bandit that goes wrong at its `at`-th step: the one whose seed is the `victim`, or each if
    there is no victim.

    fault: raise, an error; kill, SIGKILL; vanish, the process ends with exit code 0; hang, a step
    that
        never returns; leave a child, start a program that inherits every open file, then SIGKILL;
        print, write megabytes to standard output; half a message, the process is stopped while it
        sends the next one.
    note: a file. One that hangs appends a byte now and then. The child's process id is written
        there.
    """

    def __init__(
        self,
        fault: Fault,
        victim: int | None = None,
        at: int = 20,
        note: str = os.devnull,
    ) -> None:
        super().__init__()
        self.fault = fault
        self.victim = victim
        self.at = at
        self.note = Path(note)
        self.taken = 0
        self.name: int | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.name = self.name if seed is None else seed
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Answer:
        self.taken += 1
        if (self.victim is None or self.name == self.victim) and self.taken == self.at:
            self._go_wrong()
        return super().step(action)

    def _go_wrong(self) -> None:
        match self.fault:
            case "raise":
                raise RuntimeError("scripted to fail")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "vanish":
                os._exit(0)
            case "hang":
                self._hang()
            case "leave a child":
                child = subprocess.Popen(["sleep", "600"], close_fds=False)
                self.note.write_text(str(child.pid))
                os.kill(os.getpid(), signal.SIGKILL)
            case "print":
                print("x" * 4_000_000, flush=True)
            case "half a message":
                os.write = _write_half

    def _hang(self) -> None:
        while True:
            with self.note.open("a") as note:
                note.write(".")
            time.sleep(0.02)


_write = os.write


def _write_half(pipe: int, data: Any) -> int:
    """In place of `os.write`, for the rest of this process."""
    written = _write(pipe, data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGSTOP)
    return written


@dataclass(kw_only=True)
class AtTheLimit(Callback):
    """Once a worker has learned, no thread or process is to be had until the run has ended, and the
    fork server dies."""

    def on_start(self, run: RunView) -> None:
        self.before = resource.getrlimit(resource.RLIMIT_NPROC)

    def on_end(self, run: RunView, summary: Mapping[str, Any]) -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, self.before)

    def on_event(self, run: RunView, event: Event) -> None:
        if event.contributions:
            resource.setrlimit(resource.RLIMIT_NPROC, (1, self.before[1]))
            server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
            os.kill(server, signal.SIGKILL)


class Simulator(Bandit):
    """A bandit with a program and a process of its own, which its `close` ends. It belongs to the
    thread that made it.

    folder: each copy notes the ids of its own process and of these two there; a second file says
        that it was closed.
    seconds: that it takes to be made.
    """

    def __init__(self, folder: str, seconds: float = 0.0) -> None:
        super().__init__()
        time.sleep(seconds)
        self.owner = threading.get_ident()
        self.program = subprocess.Popen(["sleep", "600"])
        self.process = multiprocessing.get_context("fork").Process(
            target=time.sleep, args=(600,), daemon=True
        )
        with _forking:  # filelock, which torch imports, refuses two at a time
            self.process.start()
        self.note = Path(folder) / f"{os.getpid()}-{id(self)}-{time.monotonic_ns()}.pids"
        self.note.write_text(f"{os.getpid()} {self.program.pid} {self.process.pid}")

    def step(self, action: Any) -> Answer:
        assert threading.get_ident() == self.owner
        return super().step(action)

    def close(self) -> None:
        assert threading.get_ident() == self.owner
        for child in (self.program, self.process):
            child.kill()
        self.program.wait()
        self.process.join()
        self.note.with_suffix(".closed").touch()


@dataclass(frozen=True, kw_only=True)
class StoppingSGD(SGD):
    """Descent whose `at`-th step stops the process of the worker that makes it, which holds the
    store's lock then."""

    at: int = 20

    def direction(self, state: Vector, gradient: Vector, scratch: Vector, t: int) -> Vector:
        if t == self.at and multiprocessing.current_process().name.startswith("worker"):
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().direction(state, gradient, scratch, t)


@dataclass(frozen=True, kw_only=True)
class FailingA3C(A3C):
    """A loss that raises once for each time that the file `trigger` is made, in workers alone: not
    when it is tried.

    A worker is a thread, a process or a program of Ray (default_worker.py).
    """

    trigger: str

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        names = (
            threading.current_thread().name,
            multiprocessing.current_process().name,
            Path(sys.argv[0]).name,
        )
        if any(name.startswith(("worker", "default_worker.py")) for name in names):
            with suppress(FileNotFoundError):
                Path(self.trigger).unlink()
                raise RuntimeError("scripted to fail")
        return super().loss(policy, batch, progress)


class Misbehaving(Scripted):
    """Scripted episodes whose steps go wrong now and then.

    fault: what goes wrong, one of SPOILED; "reset", a reset in place of a step.
    at: numbers of its steps, from 1; for "reset", of resets. every: also each multiple of this
        number.
    victim: the one that goes wrong, by the seed of its first reset; None: each.
    """

    def __init__(
        self,
        fault: str,
        at: Sequence[int] = (),
        every: int = 0,
        victim: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.fault = fault
        self.at = tuple(at)
        self.every = every
        self.victim = victim
        self.resets = 0
        self.first_name: int | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        self.first_name = seed if self.first_name is None else self.first_name
        if self.fault == "reset" and self._due(self.resets):
            raise RuntimeError("scripted to fail")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Answer:
        observation, reward, *rest = super().step(action)
        if self.fault in SPOILED and self._due(self.taken):
            observation, reward = SPOILED[self.fault](observation, reward)
        return (observation, reward, *rest)

    def _due(self, count: int) -> bool:
        mine = self.victim is None or self.victim == self.first_name
        return mine and (count in self.at or bool(self.every and count % self.every == 0))


def misbehaving_vector(num_envs: int, **kwargs: Any) -> SyncVectorEnv:
    """Such environments in one vector, in place of a native one."""
    return SyncVectorEnv([lambda: Misbehaving(**kwargs)] * num_envs)


def _raise(observation: Any, reward: Any) -> Any:
    raise RuntimeError("scripted to fail")


def _exit(observation: Any, reward: Any) -> Any:
    sys.exit(3)


def _with(observation: Any, number: float) -> Any:
    observation = observation.copy()
    observation[2] = number
    return observation


SPOILED: dict[str, Callable[[Any, Any], Any]] = {
    "raise": _raise,
    "exit": _exit,
    "nan observation": lambda observation, reward: (_with(observation, np.nan), reward),
    "shape": lambda observation, reward: (observation[:3], reward),
    "dtype": lambda observation, reward: (observation.astype(str), reward),
    "nan reward": lambda observation, reward: (observation, float("nan")),
    "text as reward": lambda observation, reward: (observation, "1.0"),
}
"""Faults by name: from the answer of a step to another one."""


gymnasium.register("Faulty-v0", entry_point="faulty:Faulty")
gymnasium.register("Simulator-v0", entry_point="faulty:Simulator")
gymnasium.register(
    "Misbehaving-v0",
    entry_point="faulty:Misbehaving",
    vector_entry_point="faulty:misbehaving_vector",
)
