"""Environments that go wrong, registered with gymnasium by importing this module ('faulty:Exits-v0')."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import gymnasium
from scripted import Bandit

Answer = tuple[Any, float, bool, bool, dict[str, Any]]
Fault = Literal["raise", "kill", "exit", "vanish", "hang", "leave a child"]


class Faulty(Bandit):
    """A bandit that goes wrong at its `at`-th step, if its seed is the `victim`; others `delay` each step.

    raise, kill: an error; SIGKILL. exit: sys.exit. vanish: the process ends with exit code 0.
    hang: for ten seconds. leave a child: start a program that inherits every open file, then be killed.
    stamp: a file that says when.
    """

    def __init__(
        self, fault: Fault, victim: int | None = None, at: int = 20, delay: float = 0.0, stamp: str = ""
    ) -> None:
        super().__init__()
        self.fault, self.victim, self.at, self.delay, self.stamp = fault, victim, at, delay, stamp
        self.taken = 0
        self.name: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.name = self.name if seed is None else seed
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Answer:
        self.taken += 1
        if self.victim is not None and self.name != self.victim:
            time.sleep(self.delay)
        elif self.taken == self.at:
            if self.stamp:
                Path(self.stamp).write_text(str(time.time()))
            self._go_wrong()
        return super().step(action)

    def _go_wrong(self) -> None:
        match self.fault:
            case "raise":
                raise RuntimeError("scripted to fail")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                sys.exit(0)
            case "vanish":
                os._exit(0)
            case "hang":
                time.sleep(10)
            case "leave a child":
                subprocess.Popen(["sleep", "30"], close_fds=False)
                os.kill(os.getpid(), signal.SIGKILL)


class Endless(Bandit):
    """A bandit whose episodes end after each step, or never, if its seed is `from_name` or more."""

    def __init__(self, from_name: int) -> None:
        super().__init__()
        self.from_name = from_name

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None and seed >= self.from_name:
            self.length = 0
        return super().reset(seed=seed, options=options)


class Unnamed(Bandit):
    """Registered by its module alone, without a module in its name."""


gymnasium.register("Faulty-v0", entry_point="faulty:Faulty")
gymnasium.register("Endless-v0", entry_point="faulty:Endless")
gymnasium.register("Unnamed-v0", entry_point="faulty:Unnamed")
