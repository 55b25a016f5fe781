"""Doom, as ViZDoom runs it (Kempka et al. 2016, arXiv 1605.02097)."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from a3c_exp.errors import ConfigError, require

Screen = NDArray[np.uint8]

_GRAY = np.array([0.21, 0.72, 0.07], np.float32)
"""Weights of red, green and blue in the game's own gray."""

_IS_LINUX = sys.platform == "linux"
_CLONE_FS = 0x200  # of linux/sched.h: the working directory
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_starts = threading.Lock()


class DoomScreen(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Show the screen of a ViZDoom environment alone, in gray, uint8 [height, width].

    The game has no screen once an episode is over. Its last observation is the screen before, so
    that a time limit leaves a state whose value is known. An episode that reaches the limit is
    truncated alone.
    The last `info` of an episode has the scenario's game variables, in small letters ('ammo2').
    Raises ConfigError for an argument of the environment that ViZDoom does not know.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space: Any = env.observation_space
        self.observation_space = Box(0, 255, space["screen"].shape[:2], np.uint8)
        unwrapped: Any = env.unwrapped
        frame_skip = unwrapped.frame_skip
        is_count = type(frame_skip) is int and frame_skip >= 1
        require(is_count, "kwargs.frame_skip", frame_skip, "a whole number >= 1")

        self._game = unwrapped.game
        self._program = self._game.get_vizdoom_path() or sys.modules["vizdoom"].exe_path
        for key, value in unwrapped._ezpickle_kwargs.items():
            # it only warns of what it does not know
            if not type(self._game)().set_config({key: value}):
                problem = "must be a setting of ViZDoom, and one of its values"
                raise ConfigError(f"kwargs.{key}", value, problem)

        frames_per_second = env.metadata["render_fps"] / frame_skip
        self.metadata = {**env.metadata, "render_fps": frames_per_second}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Screen, dict[str, Any]]:
        begin = partial(self.env.reset, seed=seed, options=options)
        observation, info = begin() if self._game.is_running() else self._start(begin)
        self._screen = _gray(observation)
        return self._screen, info

    def _start(self, begin: Callable[[], Any]) -> Any:
        """Start a game that leaves no file and no process, however it or this process ends."""
        with _starts, TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:
            self._game.set_vizdoom_path(_kept(self._program, folder))
            return thread.submit(_start_in, folder, begin).result()

    def step(self, action: Any) -> tuple[Screen, Any, bool, bool, dict[str, Any]]:
        observation, reward, is_over, truncated, info = self.env.step(action)
        if is_over:
            variables = self._game.get_available_game_variables()
            numbers = {key.name.lower(): self._game.get_game_variable(key) for key in variables}
            return self._screen, reward, not truncated, truncated, info | numbers

        self._screen = _gray(observation)
        return self._screen, reward, False, False, info


def _gray(observation: Any) -> Screen:
    screen: Screen = observation["screen"]
    if screen.shape[-1] == 1:
        return screen[..., 0]
    return (screen @ _GRAY).astype(np.uint8)


def _kept(program: str, folder: str) -> str:
    """Return a script that runs a program which the system kills once this process has ended; the
    program itself where there is no setpriv, or no script may run."""
    script = Path(folder, "game")
    script.write_text(f'#!/bin/sh\nexec setpriv --pdeathsig KILL {shlex.quote(program)} "$@"\n')
    script.chmod(0o700)
    runs = shutil.which("setpriv") and os.access(script, os.X_OK)
    return str(script) if runs else program


def _start_in(folder: str, start: Callable[[], Any]) -> Any:
    """Start a game from another working directory, in which it makes a folder.

    On Linux it is that of this thread alone, unless a container forbids it. The shared memory of
    the game needs no name any more once both sides have opened it.
    The game inherits the thread's blocked signals: a Ctrl-C at a terminal, which goes to all of
    its processes, is for the run alone.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    if _IS_LINUX:
        ctypes.CDLL(None).unshare(_CLONE_FS)

    with chdir(folder):
        answer = start()

    if _IS_LINUX:
        for line in Path("/proc/self/maps").read_text().splitlines():
            if "/dev/shm/ViZDoom" in line:
                Path(line.split()[5]).unlink(missing_ok=True)

    return answer
