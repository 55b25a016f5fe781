"""CarRacing whose actions last several frames, of which only the last is drawn.

Drawing is nearly all of the time that gymnasium's CarRacing takes. A wrapper that repeats actions has each frame drawn;
here an action of four frames takes little longer than one frame. The pictures, rewards and ends are the same.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.box2d.car_racing import CarRacing
from numpy.typing import NDArray

FRAMES = 4
"""Frames of an action; an episode has at most 1000, as in CarRacing-v3."""


Answer = tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]
"""What a step returns: the picture, the reward, whether the episode is over or cut off, and remarks."""


class FrameSkippingCarRacing(CarRacing):
    """gymnasium's CarRacing in which an action lasts FRAMES frames, or until the episode ends.

    Arguments are those of CarRacing. The reward is the sum of the frames'.
    """

    _drawn = True

    def step(self, action: Any) -> Answer:
        """Take an action FRAMES times. Without an action, as `reset` calls it, one frame passes."""
        if action is None:
            return self._step_frame(action, drawn=True)
        total = 0.0
        for number in range(1, FRAMES + 1):
            picture, reward, terminated, truncated, info = self._step_frame(action, drawn=number == FRAMES)
            total += reward
            if terminated or truncated:
                break
        if not self._drawn:
            self._drawn = True
            picture = self._render("state_pixels")
        return picture, total, terminated, truncated, info

    def _step_frame(self, action: Any, *, drawn: bool) -> Answer:
        self._drawn = drawn
        answer: Answer = super().step(action)
        return answer

    def _render(self, mode: str) -> Any:
        return super()._render(mode) if self._drawn or mode != "state_pixels" else None


gymnasium.register(
    "FrameSkippingCarRacing-v0",
    entry_point=f"{__name__}:FrameSkippingCarRacing",
    max_episode_steps=1000 // FRAMES,
    reward_threshold=900,
)
