from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array
from a3c_exp.envs import EnvBatch, Environment, Step
from a3c_exp.errors import require


@dataclass(frozen=True, kw_only=True)
class Rooms(Environment):
    """`Thermostat` for all rooms of a worker in one array. steps: of an episode."""

    steps: int = 100
    reward_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.steps >= 1, "steps", self.steps, "a whole number >= 1")

    def make(self, count: int, seeds: Sequence[int], render_mode: str | None = None) -> EnvBatch:
        return RoomBatch(count, seeds, self.steps)


class RoomBatch:
    """K rooms. All episodes have the same length, so they end together."""

    observation_space: Box = Box(-np.inf, np.inf, (1,), np.float32)
    action_space: Space[Any] = Discrete(2)

    def __init__(self, count: int, seeds: Sequence[int], steps: int) -> None:
        self.count = count
        self._rng = np.random.default_rng(list(seeds))
        self._steps = steps
        self._step = 0

    def reset(self) -> Array:
        self._step = 0
        self._off = self._rng.uniform(-10, 10, self.count)
        return self.encode(self._off)

    def step(self, actions: Array) -> Step:
        self._off = (
            self._off + np.where(actions == 1, 1, -1) + self._rng.normal(scale=0.1, size=self.count)
        )
        self._step += 1
        rewards = -np.abs(self._off).astype(np.float32)
        final_obs = self.encode(self._off)
        time_limit = self._step == self._steps
        return Step(
            obs=self.reset() if time_limit else final_obs,
            reward=rewards,
            terminated=np.zeros(self.count, np.bool_),
            truncated=np.full(self.count, time_limit),
            final_obs=final_obs,
            valid=np.ones(self.count, np.bool_),
        )

    def encode(self, observations: Sequence[Any] | Array) -> Array:
        return np.array(observations, np.float32).reshape(-1, 1)

    def decode(self, actions: Array) -> Array:
        return actions

    def render(self) -> NDArray[np.uint8] | None:
        return None

    def close(self) -> None:
        """Nothing to release."""
