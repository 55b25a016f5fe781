"""Signs of life: a number that a worker changes with each piece of its work, for whoever watches it.

A worker that waits for others beats as well, several times a second. So one that does not change its number hangs, or
its process has been stopped, whatever it was doing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import NDArray

PAUSE_SECONDS = 0.1
"""The longest time that a worker waits for others without a beat."""
LONGEST_TICK = 1.0
"""Most seconds that count between two looks at the heartbeats: the whole program may have been stopped in between."""
LOOK_SECONDS = 0.5

STARTING, MAKING, STEPPING, LEARNING, CLOSING = range(5)
INACTIVITY = (
    "it had not started",
    "it had not made or reset its next environment",
    "its environment had not stepped",
    "it had not finished its next gradient and push",
    "it had not closed its environments",
)
"""What it means that a heart stands still, by what the worker was doing."""
_ACTIVITY = 1 << 56  # the bits above the number of beats


def inactivity(beat: int) -> str:
    """What it means that a heart stands still at this beat."""
    return INACTIVITY[beat // _ACTIVITY]


class Heartbeat:
    """A worker's sign of life, in a cell of memory that others read.

    cell: int64 [1]; None for memory of this process. It holds the number of beats so far, and what the worker does.
    """

    def __init__(self, cell: NDArray[np.int64] | None = None) -> None:
        self._cell = (np.zeros(1, np.int64) if cell is None else cell).data  # written in half the time of an array
        self._cell[0] = self._beats = 0

    def beat(self) -> None:
        """Say that the worker is alive."""
        self._beats += 1
        self._cell[0] = self._beats

    def begin(self, activity: int) -> None:
        """Beat, and say what the worker does from now on: one of MAKING to CLOSING."""
        self._beats = activity * _ACTIVITY + self._beats % _ACTIVITY
        self.beat()

    @property
    def value(self) -> int:
        """The cell's number."""
        return int(self._cell[0])


class StallWatch:
    """Finds workers whose heartbeats have stopped.

    seconds: a worker that has not beaten for so long hangs; None: nobody looks.
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last: dict[Hashable, tuple[int, float]] = {}  # by worker: its last beat, and idle seconds since
        self._looked_at = clock()

    def due(self) -> float | None:
        """Seconds since the last look, if it is time for another; then `is_stalled` is asked about every worker."""
        now = self._clock()
        elapsed = now - self._looked_at
        if self._seconds is None or elapsed < min(LOOK_SECONDS, self._seconds / 2):
            return None
        self._looked_at = now
        return min(elapsed, LONGEST_TICK)

    def is_stalled(self, key: Hashable, beat: int, elapsed: float) -> bool:
        """Return whether a worker has not stepped for too long, given its heartbeat and the seconds since the last
        look."""
        last, idle = self._last.get(key, (beat, 0.0))
        idle = 0.0 if beat != last else idle + elapsed
        self._last[key] = beat, idle
        return self._seconds is not None and idle >= self._seconds

    def idle(self, key: Hashable) -> float:
        """Seconds that a worker had not stepped at the last look."""
        return self._last[key][1]

    def forget(self, key: Hashable) -> None:
        """Forget a worker that has ended: another begins in its place."""
        self._last.pop(key, None)

    def describe(self, name: str, inactivity: str = INACTIVITY[STEPPING]) -> str:
        """Error text about a worker that is stalled. inactivity: what a heartbeat that stands still means."""
        return f"{name} hung: {inactivity} for {self._seconds:g} s (backend.stall_seconds)"
