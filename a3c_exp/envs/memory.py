"""An environment that only a policy with a memory can solve, and a wrapper that hides part of the
observations.

The import of this module registers the environment with gymnasium
('a3c_exp.envs.memory:Recall-v0').
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

Observation = NDArray[np.float32]


class Recall(gymnasium.Env[Observation, np.int64]):
    """One of several lamps lights up once. Later a question lights up, and the right action names
    the lamp.

    Observation: float32 [symbols + 1], the lamps and the question, 1 where lit. An episode is the
    lamp, `delay` dark steps, and the question. The last action has reward 1 if it names the lamp;
    other actions have no effect.
    The best return is 1 with a memory, and 1 / symbols without.
    """

    def __init__(self, symbols: int = 4, delay: int = 8) -> None:
        self.observation_space = Box(0.0, 1.0, (symbols + 1,), np.float32)
        self.action_space = Discrete(symbols)
        self._symbols = symbols
        self._delay = delay

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._lamp = int(self.np_random.integers(self._symbols))
        self._moment = 0
        return self._lit(self._lamp), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._moment += 1
        question = self._delay + 1
        over = self._moment > question
        reward = float(over and action == self._lamp)
        observation = self._lit(self._symbols if self._moment == question else None)
        return observation, reward, over, False, {}

    def _lit(self, lamp: int | None) -> Observation:
        lamps = np.zeros(self._symbols + 1, np.float32)
        if lamp is not None:
            lamps[lamp] = 1.0
        return lamps


class SelectObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Show only some numbers of an environment's vectors.

    indices: of these numbers, in the order of the new observation.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], indices: Sequence[int]) -> None:
        super().__init__(env)
        space: Any = env.observation_space
        self._indices = list(indices)
        low = space.low[self._indices]
        high = space.high[self._indices]
        self.observation_space = Box(low, high, dtype=space.dtype.type)

    def observation(self, observation: Any) -> Any:
        return observation[self._indices]


gymnasium.register("Recall-v0", entry_point="a3c_exp.envs.memory:Recall")
