"""Policy networks without parameters, whose actions and values tests know beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from a3c_exp.common.arrays import Array, Floats


class FixedPolicy:
    """A policy network that is its own distribution.

    actions: of all environments at the nth step, the first being 1. values: V(s) of observations
    [B, ...]; None: 0.
    """

    def __init__(
        self, actions: Callable[[int], int], values: Callable[[Array], Array] | None = None
    ) -> None:
        self.distribution: Any = self
        self._actions = actions
        self._values = values
        self._steps = 0

    def initial_state(self, count: int) -> None:
        return None

    def policy_forward(self, observations: Array, state: Array | None) -> tuple[Array, Array, None]:
        return observations, self.values(observations, state), None

    def values(self, observations: Array, state: Array | None) -> Floats:
        if self._values is None:
            return np.zeros(len(observations), np.float32)
        return self._values(observations).astype(np.float32)

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Floats]:
        self._steps += 1
        count = len(parameters)
        return np.full(count, self._actions(self._steps)), np.full(count, -0.5, np.float32)

    def to_env(self, actions: Array) -> Array:
        return actions


class Still:
    """As much of a policy as an evaluation needs: always the same action."""

    info_keys = None

    def actions(self, observations: Array, state: Any, greedy: bool) -> tuple[Array, Any]:
        return np.zeros(len(observations), np.int64), state
