"""The values that `env.normalize_observations` background and auto stand for. The background of
images is measured by random play."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from a3c_exp.core.cpu import one_thread
from a3c_exp.core.experiment import Experiment
from a3c_exp.core.normalization import are_images, has_byte_vectors, require_images
from a3c_exp.envs.batch import EnvBatch, Normalization, opened
from a3c_exp.envs.parts import PartsBox
from a3c_exp.errors import ConfigError, RunError
from a3c_exp.networks.cnn import ImageEncoder

DEVIATION = 1 / 4
"""Of the number of levels, so 64 of the 256 of a byte: the numbers that a network begins with are
of the order of 1."""
STEPS = 250
"""Of the random play: thousands of pixels each, most of which are those of the background."""


def measure(experiment: Experiment) -> Normalization:
    """What `env.normalize_observations` auto or background stands for.

    The most frequent byte of the images of a short random play, and a quarter of the levels that
    they can have. `auto` is true for vectors of bytes, and false for what else is no image of
    bytes, or with a network that takes images as they are. The play has a fixed seed: two processes
    find the same number. Raises ConfigError for an environment that cannot be made or played.
    """
    setting = experiment.env.normalize_observations
    with opened(experiment.env, experiment.plugins) as env:
        space = env.observation_space
        if setting == "auto" and not (are_images(space) and _scales_pixels(experiment, env)):
            return has_byte_vectors(space) and not isinstance(space, PartsBox)
        require_images(space, "env.normalize_observations", setting)
        try:
            counts = count_bytes(env, STEPS)
        except RunError as error:
            problem = f"cannot be measured (false: it is not): {str(error).partition(chr(10))[0]}"
            raise ConfigError("env.normalize_observations", setting, problem) from error
    return float(counts.argmax()), len(counts) * DEVIATION


def count_bytes(env: EnvBatch, steps: int) -> NDArray[np.int64]:
    """How often each byte is in the images of so many random steps: of those that their space
    allows.

    Raises RunError if the environment fails.
    """
    counts = np.zeros(256, np.int64)
    env.action_space.seed(0)
    env.reset()
    for _ in range(steps):
        actions = np.stack([env.action_space.sample()])
        counts += np.bincount(env.step(actions).obs.ravel(), minlength=256)
    return counts[: int(env.observation_space.high.max()) + 1]


def _scales_pixels(experiment: Experiment, env: EnvBatch) -> bool:
    """Return whether the network of an experiment scales pixels. One of the user's own is built to
    find out."""
    if issubclass(experiment.network.module_class, ImageEncoder):
        return True
    unscaled = replace(
        experiment, env=replace(cast(Any, experiment.env), normalize_observations=False)
    )
    with one_thread():
        return unscaled.build_network(env, None).scales_pixels
