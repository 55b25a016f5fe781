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
    """The rewards [T, B] of the environments as training sees them; the array itself if nothing
    changes them.

    They are clip(scale * r), with r + terminal for r in a step that ends an episode by death.
    """
    if settings.terminal_reward is not None:
        rewards = np.where(
            terminated & valid, rewards + np.float32(settings.terminal_reward), rewards
        )
    scaled: Floats = (
        rewards if settings.reward_scale == 1 else np.float32(settings.reward_scale) * rewards
    )
    if settings.reward_clip is None:
        return scaled
    clip = value(settings.reward_clip, progress)
    return scaled.clip(-clip, clip)


def discounted_sums(
    sums: NDArray[np.float64], rewards: Floats, ended: Bools, gamma: float
) -> NDArray[np.float64]:
    """The running discounted sum of each environment's rewards after each row, float64 [T, B].

    sums: [B], those so far, which go on from one rollout to the next. ended: rows after which one
    starts again.
    """
    out = np.empty(rewards.shape)
    for t in range(len(rewards)):
        out[t] = sums[:] = gamma * sums + rewards[t]
        sums[ended[t]] = 0.0
    return out
