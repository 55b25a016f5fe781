"""Rewards as training sees them, and the discounted sums by whose deviation they may be divided."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from a3c_exp.common.arrays import Bools, Floats
from a3c_exp.envs import Environment
from a3c_exp.schedules import value


def shaped_rewards(
    settings: Environment, rewards: Floats, terminated: Bools, valid: Bools, progress: float
) -> Floats:
    """Return the rewards [T, B] of the environments as training sees them; the array itself if
    nothing changes them.

    They are clip(scale * r), with r + terminal for r in a step that ends an episode by death.
    """
    if settings.terminal_reward is not None:
        rewards = np.where(
            terminated & valid, rewards + np.float32(settings.terminal_reward), rewards
        )
    if settings.reward_scale != 1:
        rewards = np.float32(settings.reward_scale) * rewards
    if settings.reward_clip is not None:
        clip = value(settings.reward_clip, progress)
        rewards = rewards.clip(-clip, clip)
    return rewards


def discounted_sums(
    sums: NDArray[np.float64], rewards: Floats, ended: Bools, gamma: float
) -> NDArray[np.float64]:
    """Compute the running discounted sum of each environment's rewards after each row, float64
    [T, B].

    sums: float64 [B], the sums so far. They go on from one rollout to the next.
    ended: bool [T, B], rows after which a sum starts again.
    """
    out = np.empty(rewards.shape)
    for t in range(len(rewards)):
        out[t] = sums[:] = gamma * sums + rewards[t]
        sums[ended[t]] = 0.0
    return out
