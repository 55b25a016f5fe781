"""Doom, as ViZDoom runs it (Kempka et al. 2016, arXiv 1605.02097)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from a3c_exp.errors import ConfigError

Screen = NDArray[np.uint8]

_GRAY = np.array([0.21, 0.72, 0.07], np.float32)
"""Weights of red, green and blue in the game's own gray."""

_MAPPED_FILES = Path("/proc/self/maps")
_SHARED_MEMORY = "/dev/shm/ViZDoom"

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
        self._game = unwrapped.game
        for key, value in unwrapped._ezpickle_kwargs.items():
            # it only warns of what it does not know
            if not type(self._game)().set_config({key: value}):
                problem = "must be a setting of ViZDoom, and one of its values"
                raise ConfigError(f"kwargs.{key}", value, problem)

        frames_per_second = env.metadata["render_fps"] / unwrapped.frame_skip
        self.metadata = {**env.metadata, "render_fps": frames_per_second}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Screen, dict[str, Any]]:
        if self._game.is_running():
            observation, info = self.env.reset(seed=seed, options=options)
        else:
            with _without_traces():
                observation, info = self.env.reset(seed=seed, options=options)

        self._screen = _gray(observation)
        return self._screen, info

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


@contextmanager
def _without_traces() -> Iterator[None]:
    """Within: a game that starts leaves no file, however it or this process ends.

    It makes a folder in the working directory, which is one at a time in a process. Its shared
    memory needs no name any more once both sides have opened it.
    """
    with _starts, TemporaryDirectory() as folder, chdir(folder):
        yield
        if _MAPPED_FILES.exists():  # on Linux
            for line in _MAPPED_FILES.read_text().splitlines():
                if _SHARED_MEMORY in line:
                    Path(line.split()[5]).unlink(missing_ok=True)
