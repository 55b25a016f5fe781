"""Arrays that lie one after the other in a block of memory, so that one block is all that processes have to share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shapes = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]


def block_size(shapes: Shapes) -> int:
    """Bytes of a block that holds arrays of these shapes and types."""
    return sum(_aligned(int(np.prod(shape)) * dtype.itemsize) for shape, dtype in shapes.values())


def arrays_in(block: Any, shapes: Shapes) -> dict[str, NDArray[Any]]:
    """The arrays that lie in a writable buffer one after the other, as views."""
    buffer, arrays, start = memoryview(block).cast("B"), {}, 0
    for name, (shape, dtype) in shapes.items():
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(buffer, dtype, count, start).reshape(shape) if count else np.empty(shape, dtype)
        start += _aligned(count * dtype.itemsize)
    return arrays


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 64) * 64
