"""gymnasium's CarRacing, drawn only where a policy looks."""

from __future__ import annotations

from typing import Any

import gymnasium


class SkipDrawing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeat each action of CarRacing, and draw the last of these steps alone.

    The environment draws its observation at every step, which takes almost all of its time. An
    episode that ends between two observations shows the one before.
    frames: steps that an action lasts. The reward is the sum of theirs.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], frames: int) -> None:
        super().__init__(env)
        self.metadata = {**env.metadata, "render_fps": env.metadata["render_fps"] / frames}
        self._frames = frames
        racing: Any = env.unwrapped
        self._racing = racing
        self._draw = racing._render

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total = 0.0
        self._racing._render = lambda mode: self._racing.state
        try:
            for frame in range(1, self._frames + 1):
                if frame == self._frames:
                    self._racing._render = self._draw

                observation, reward, terminated, truncated, info = self.env.step(action)
                total += float(reward)
                if terminated or truncated:
                    break
        finally:
            self._racing._render = self._draw

        return observation, total, terminated, truncated, info
