from __future__ import annotations

from dataclasses import dataclass

from a3c_exp.common.arrays import Floats
from a3c_exp.returns import Returns, Trajectory


@dataclass(frozen=True, kw_only=True)
class OneStep(Returns):
    """One-step temporal difference: the target of s_t is r_t + gamma V(s_{t+1})."""

    def __call__(self, trajectory: Trajectory, gamma: float) -> tuple[Floats, Floats]:
        targets = trajectory.rewards + gamma * trajectory.next_values
        return targets - trajectory.values, targets
