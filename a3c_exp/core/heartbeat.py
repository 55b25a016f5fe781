"""Signs of life: a number that a worker changes with each environment step, for whoever watches it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WAITING = -1


class Heartbeat:
    """A worker's sign of life, in a cell of memory that others read.

    cell: int64 [1]; None for memory of this process. It holds the beats so far, or WAITING while the worker waits for
        others, which is no stall however long it lasts.
    """

    def __init__(self, cell: NDArray[np.int64] | None = None) -> None:
        self._cell = (np.zeros(1, np.int64) if cell is None else cell).data  # written in half the time of an array
        self._cell[0] = self._beats = 0  # a predecessor may have died while it waited

    def beat(self) -> None:
        """Say that the worker is alive."""
        self._beats += 1
        self._cell[0] = self._beats

    def wait(self) -> None:
        """Say that the worker waits for others, until the next beat."""
        self._cell[0] = WAITING

    @property
    def value(self) -> int:
        """The cell's number."""
        return int(self._cell[0])
