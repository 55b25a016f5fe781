from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

Observation = NDArray[np.float32]


class Thermostat(gymnasium.Env[Observation, np.int64]):
    """Keep a room warm. Observation: degrees off the target; actions: heater off or on; reward:
    minus the distance."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # as gymnasium has it
    observation_space = Box(-np.inf, np.inf, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.off = self.np_random.uniform(-10, 10)
        return np.array([self.off], np.float32), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.off += (1 if action else -1) + self.np_random.normal(scale=0.1)
        return np.array([self.off], np.float32), -abs(self.off), False, False, {}

    def render(self) -> Any:
        return np.full((64, 64, 3), np.clip(128 + 10 * self.off, 0, 255), np.uint8)
