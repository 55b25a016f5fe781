"""Conversion between an environment's spaces and a policy's: float32 observations, actions of one
axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from numpy.typing import DTypeLike

from a3c_exp.common.arrays import Array
from a3c_exp.envs.parts import PartsBox

Encode = Callable[[Sequence[Any] | Array], Array]
Decode = Callable[[Array], Any]


def encoder(space: Space[Any]) -> tuple[Box, Encode]:
    """Return the space that a policy sees for `space`, and the function that converts K
    observations to it.

    The function takes K observations (a sequence of them, or one array [K, ...]) and returns a new
    array [K, ...]:
    - Box: float32; a Box of uint8 with two axes or more is an image, and stays uint8. A scalar is a
      vector of 1.
    - Discrete(n): one-hot, [K, n]. MultiDiscrete: the one-hots of its entries side by side.
    MultiBinary: a flat vector.
    - Dict, Tuple: the vector of a `PartsBox`. The function takes the parts as they are converted,
      [K, ...] each.
    It raises ValueError for a number outside a discrete space. Raises TypeError for other spaces.
    """
    if isinstance(space, Box):
        dtype: Any = np.uint8 if space.dtype == np.uint8 and len(space.shape) >= 2 else np.float32
        with np.errstate(over="ignore"):  # a bound beyond float32 is no bound
            low, high = np.atleast_1d(space.low.astype(dtype), space.high.astype(dtype))
        return Box(low, high, dtype=dtype), _rows_of(dtype, low.shape)
    if isinstance(space, (Discrete, MultiDiscrete)):
        sizes = space.n if isinstance(space, Discrete) else space.nvec
        counts = [int(size) for size in np.ravel(sizes)]
        return Box(0.0, 1.0, (sum(counts),), np.float32), _one_hot(counts, np.ravel(space.start))
    if isinstance(space, MultiBinary):
        size = int(np.prod(space.shape))
        return Box(0.0, 1.0, (size,), np.float32), _rows_of(np.float32, (size,))
    if isinstance(space, (Dict, Tuple)):
        return PartsBox.of(space, encoder), PartsBox.join

    needed = (
        "arrays, discrete values, or a Dict or Tuple of these are needed; "
        "FilterObservation leaves parts out"
    )
    raise TypeError(f"its observations are a {type(space).__name__} space: {needed}")


def decoder(space: Space[Any]) -> tuple[Space[Any], Decode]:
    """Return the space in which a policy acts for `space`, and the function that converts its K
    actions back.

    The policy's space counts from 0 and has one axis at most; the function takes actions [K, ...]
    of it and returns a new array [K, ...] of `space`, in its dtype, so that an environment cannot
    write into the policy's array. A Tuple of Discrete spaces is a MultiDiscrete; of it the function
    returns K tuples.
    Raises TypeError for other spaces.
    """
    if isinstance(space, Discrete):
        return Discrete(int(space.n)), _rows_of(space.dtype, (), int(space.start))
    if isinstance(space, MultiDiscrete):
        decode = _rows_of(space.dtype, space.shape, space.start)
        return MultiDiscrete(space.nvec.reshape(-1)), decode
    if isinstance(space, MultiBinary):
        return MultiBinary(int(np.prod(space.shape))), _rows_of(space.dtype, space.shape)
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        low = space.low.reshape(-1)
        high = space.high.reshape(-1)
        return Box(low, high, dtype=space.dtype.type), _within(space)
    if isinstance(space, Tuple) and set(map(type, space)) == {Discrete}:
        start = np.array([choice.start for choice in space])
        cast = _rows_of(np.int64, (len(space),), start)
        sizes = [int(choice.n) for choice in space]
        return MultiDiscrete(sizes), lambda actions: [tuple(row) for row in cast(actions)]

    needed = (
        "Discrete, MultiDiscrete, MultiBinary, a Tuple of Discrete or a Box of floats is needed, "
        "of one agent"
    )
    raise TypeError(f"its actions are {space}; {needed}: env.wrappers may convert them")


def _one_hot(counts: Sequence[int], start: Array) -> Encode:
    columns = np.concatenate([[0], np.cumsum(counts)[:-1]])
    start = start.astype(np.int64)  # it may be unsigned
    width = sum(counts)

    def encode(observations: Sequence[Any] | Array) -> Array:
        entries = np.asarray(observations, np.int64).reshape(-1, len(counts)) - start
        if (entries < 0).any() or (entries >= counts).any():
            raise ValueError("a number outside a discrete space")
        encoded = np.zeros((len(entries), width), np.float32)
        encoded[np.arange(len(entries))[:, None], entries + columns] = 1.0
        return encoded

    return encode


def _within(space: Box) -> Decode:
    cast = _rows_of(space.dtype, space.shape)
    if space.dtype != np.float64:
        return cast
    # A policy keeps to the bounds in float32, where 0.1 is slightly more than 0.1.
    return lambda actions: np.clip(cast(actions), space.low, space.high)


def _rows_of(dtype: DTypeLike, shape: tuple[int, ...], start: int | Array = 0) -> Encode:
    """Return the function that makes an array of rows of this type and shape, from `start` on."""
    shift = bool(np.any(start))

    def convert(rows: Sequence[Any] | Array) -> Array:
        converted = np.array(rows, dtype).reshape(-1, *shape)
        return converted + start if shift else converted

    return convert
