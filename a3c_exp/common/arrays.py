"""Array types, and arrays laid out one after another in one block of memory that processes can
share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

Vector = Any
"""float32 [P] or [M, P]: an array on the host or, with GA3C on a GPU, a torch tensor there."""

ArraySpecs = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Shape and type of arrays, by name, in the order in which they lie in a block."""

CACHE_LINE = 64


def block_size(specs: ArraySpecs) -> int:
    """Size in bytes of a block that holds arrays of these shapes and types."""
    return sum(_aligned(int(np.prod(shape)) * dtype.itemsize) for shape, dtype in specs.values())


def arrays_in(block: Any, specs: ArraySpecs) -> dict[str, Array]:
    """Views of the arrays that lie one after another in a writable buffer, by name."""
    buffer = memoryview(block).cast("B")
    arrays = {}
    start = 0
    for name, (shape, dtype) in specs.items():
        count = int(np.prod(shape))
        arrays[name] = (
            np.frombuffer(buffer, dtype, count, start).reshape(shape)
            if count
            else np.empty(shape, dtype)
        )
        start += _aligned(count * dtype.itemsize)

    return arrays


def _aligned(nbytes: int) -> int:
    return -(-nbytes // CACHE_LINE) * CACHE_LINE
