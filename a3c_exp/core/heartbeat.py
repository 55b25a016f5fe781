"""Signs of life: a number that a worker changes with each environment step, for whoever watches it.

A worker that waits for others beats as well, several times a second. So one that does not change its number hangs, or
its process has been stopped, whatever it was doing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PAUSE_SECONDS = 0.1
"""The longest time that a worker waits for others without a beat."""


class Heartbeat:
    """A worker's sign of life, in a cell of memory that others read.

    cell: int64 [1]; None for memory of this process. It holds the number of beats so far.
    """

    def __init__(self, cell: NDArray[np.int64] | None = None) -> None:
        self._cell = (np.zeros(1, np.int64) if cell is None else cell).data  # written in half the time of an array
        self._cell[0] = self._beats = 0

    def beat(self) -> None:
        """Say that the worker is alive."""
        self._beats += 1
        self._cell[0] = self._beats

    @property
    def value(self) -> int:
        """The cell's number."""
        return int(self._cell[0])
