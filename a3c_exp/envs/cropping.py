"""Atari games whose pictures are cut before they are scaled, which their vector environment cannot do."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from a3c_exp.errors import ConfigError

Crop = tuple[int, int, int, int]
"""Top, bottom, left and right: the part picture[top:bottom, left:right] of the console's picture."""


def screen_size(game: str) -> tuple[int, int]:
    """Height and width of the console's picture: 210 x 160 for most games, a few have more rows."""
    ale_py = importlib.import_module("ale_py")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner
    console = ale_py.ALEInterface()
    console.loadROM(ale_py.roms.get_rom_path(game))
    height, width = console.getScreenDims()
    return height, width


class CroppedGames(VectorWrapper):
    """The Atari vector environment `env`, whose pictures are whole screens in grey, cut to `crop` and scaled.

    They are scaled as the vector environment does it, by the mean over the area of each new point. Ended games restart
    in the same step.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], crop: Crop, height: int, width: int) -> None:
        """height, width: of the scaled pictures. Raises ConfigError if the package that scales is not installed."""
        super().__init__(env)
        try:
            self._cv2: Any = importlib.import_module("cv2")
        except ImportError as error:
            problem = "needs a package that is not installed: pip install 'a3c-exp[pictures]'"
            raise ConfigError("crop", list(crop), problem) from error
        frames, *_ = env.single_observation_space.shape or ()
        self.single_observation_space = Box(0, 255, (frames, height, width), np.uint8)
        self._size = (height, width)
        top, bottom, left, right = crop
        self._place = slice(top, bottom), slice(left, right)
        self._pictures: NDArray[np.uint8] = np.zeros((0,), np.uint8)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        screens, info = self.env.reset(seed=seed, options=options)
        self._pictures = self._scaled(screens)
        return self._pictures, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        screens, rewards, terminated, truncated, info = self.env.step(actions)
        # In a game that goes on, only the newest frame is new.
        pictures = np.concatenate([self._pictures[:, 1:], self._scaled(screens[:, -1:])], axis=1)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            final = pictures.copy()
            final[ended, -1:] = self._scaled(info["final_obs"][ended, -1:])
            pictures[ended] = self._scaled(screens[ended])
            info = info | {"final_obs": final}
        self._pictures = pictures
        return pictures, rewards, terminated, truncated, info

    def _scaled(self, screens: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """[K, frames, rows, columns] -> [K, frames, height, width]."""
        height, width = self._size
        pictures = np.empty((*screens.shape[:2], height, width), np.uint8)
        for index in np.ndindex(screens.shape[:2]):
            part = screens[index][self._place]
            pictures[index] = self._cv2.resize(part, (width, height), interpolation=self._cv2.INTER_AREA)
        return pictures
