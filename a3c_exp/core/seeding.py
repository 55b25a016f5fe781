"""The source of every random number: one seed, and the role, worker and environment that draws.

Two streams never share a SeedSequence. One more worker therefore changes nothing for the others,
and a resumed run draws new numbers instead of playing its first episodes again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import numpy as np
import torch


class Role(IntEnum):
    """Purposes of random numbers. The values are part of what a seed means: never reuse or renumber
    them."""

    PARAMETERS = 0
    ACTIONS = 1
    ENVIRONMENT = 2
    SCHEDULER = 3
    EVALUATION = 4
    MINIBATCHES = 5
    EVALUATION_ACTIONS = 6
    MODULES = 7
    GLOBAL = 8


def sequence(
    seed: int, role: Role, worker: int = 0, env: int = 0, resumed: int = 0
) -> np.random.SeedSequence:
    """Return the seed sequence of a role, for one environment of one worker, after `resumed`
    resumptions."""
    return np.random.SeedSequence(seed, spawn_key=(int(role), worker, env, resumed))


def generator(
    seed: int, role: Role, worker: int = 0, env: int = 0, resumed: int = 0
) -> np.random.Generator:
    """Return the generator of a role. No two roles, workers, environments or sessions share
    numbers."""
    return np.random.Generator(np.random.PCG64(sequence(seed, role, worker, env, resumed)))


def integer(seed: int, role: Role, worker: int = 0, env: int = 0, resumed: int = 0) -> int:
    """Return a seed in [0, 2^31), for libraries that take an int."""
    return int(sequence(seed, role, worker, env, resumed).generate_state(1)[0] >> 1)


def environment_seeds(
    seed: int, role: Role, worker: int, count: int, resumed: int = 0
) -> list[int]:
    """Return a seed for the first reset of each of a worker's `count` environments."""
    return [integer(seed, role, worker, env, resumed) for env in range(count)]


def seed_globals(seed: int, worker: int, resumed: int = 0) -> None:
    """Seed the global generators of Python, numpy and torch, from which a user's own environments
    and modules may draw.

    Worker processes are forked from one server: unseeded, all of them would draw the same numbers.
    """
    value = integer(seed, Role.GLOBAL, worker, resumed=resumed)
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002
    torch.default_generator.manual_seed(value)


def global_states() -> tuple[Any, ...]:
    """Return the states of the global generators of Python, numpy and torch."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state().numpy()  # noqa: NPY002


def set_global_states(states: tuple[Any, ...]) -> None:
    """Set the global generators to what `global_states` returned."""
    python_state, numpy_state, torch_state = states
    random.setstate(python_state)
    np.random.set_state(numpy_state)  # noqa: NPY002
    torch.set_rng_state(torch.from_numpy(torch_state))


@contextmanager
def globals_kept() -> Iterator[None]:
    """Give the global generators of Python, numpy and torch the state back that they had before."""
    before = global_states()
    try:
        yield
    finally:
        set_global_states(before)
