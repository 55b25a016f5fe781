"""The background of pictures, measured by random play: `env.normalize_observations=background`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from a3c_exp.core.normalization import are_pictures, require_pictures
from a3c_exp.envs.batch import Environment
from a3c_exp.envs.errors import close_within
from a3c_exp.errors import ConfigError, RunError

DEVIATION = 1 / 4
"""Of the number of levels, so 64 of the 256 of a byte: the numbers that a network begins with are of the order of 1."""
STEPS = 250
"""Of the random play: thousands of pixels each, most of which are those of the background."""


def has_pictures_of_bytes(env: Environment) -> bool:
    """Return whether observations are pictures of bytes. Raises ConfigError if the environment cannot be made."""
    batch = env.make(1, [0])
    close_within(batch)
    return are_pictures(batch.observation_space)


def measure_background(env: Environment) -> tuple[float, float]:
    """The most frequent byte of the pictures of a short random play, and a quarter of the levels that they can have.

    The play has a fixed seed: two processes find the same number.
    Raises ConfigError, whose key is relative to the environment, if there are no pictures of bytes, or it cannot play.
    """
    try:
        counts = count_bytes(env, STEPS)
    except RunError as error:
        problem = f"cannot be measured (false: it is not): {str(error).partition(chr(10))[0]}"
        raise ConfigError("normalize_observations", env.normalize_observations, problem) from error
    return float(counts.argmax()), len(counts) * DEVIATION


def count_bytes(env: Environment, steps: int) -> NDArray[np.int64]:
    """How often each byte is in the pictures of so many random steps: of those that their space allows.

    Raises ConfigError as `measure_background` does, and RunError if the environment fails.
    """
    batch, counts = env.make(1, [0]), np.zeros(256, np.int64)
    try:
        require_pictures(batch.observation_space, "normalize_observations", env.normalize_observations)
        levels = int(batch.observation_space.high.max()) + 1
        batch.action_space.seed(0)
        batch.reset()
        for _ in range(steps):
            actions = np.stack([batch.action_space.sample()])
            counts += np.bincount(batch.step(actions).obs.ravel(), minlength=256)
    finally:
        close_within(batch)
    return counts[:levels]
