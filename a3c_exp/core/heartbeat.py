"""Signs of life: a number that a worker changes with each piece of its work, for whoever watches
it.

A worker that waits for others beats as well, several times a second. So one that does not change
its number hangs, or its process has been stopped, whatever it was doing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

PAUSE_SECONDS = 0.1
"""The longest time that a worker waits for others without a beat."""
LONGEST_TICK = 1.0
"""Most seconds that count between two looks at the heartbeats: the whole program may have been
stopped in between."""
CHECK_SECONDS = 0.5
"""The shortest time between two looks."""

STARTING, MAKING, STEPPING, LEARNING, CLOSING, SERVING = range(6)
INACTIVITY = (
    "it had not started",
    "it had not made or reset its next environment",
    "its environment had not stepped",
    "it had not finished its next gradient and push",
    "it had not closed its environments",
    "it had not finished a batch",
)
"""What it means that a heart stands still, by what the worker was doing."""
_ACTIVITY = 1 << 56  # the bits above the number of beats


def inactivity(beat: int) -> str:
    """What it means that a heart stands still at this beat."""
    return INACTIVITY[beat // _ACTIVITY]


class Heartbeat:
    """A worker's sign of life, in a cell of memory that others read.

    cell: int64 [1]; None for memory of this process. It holds the number of beats so far, and what
    the worker does.
    """

    def __init__(self, cell: NDArray[np.int64] | None = None) -> None:
        # written in half the time of an array
        self._cell = (np.zeros(1, np.int64) if cell is None else cell).data
        self._cell[0] = self._beats = 0

    def beat(self) -> None:
        """Say that the worker is alive."""
        self._beats += 1
        self._cell[0] = self._beats

    def begin(self, activity: int) -> None:
        """Beat, and say what the worker does from now on: one of MAKING to SERVING."""
        self._beats = activity * _ACTIVITY + self._beats % _ACTIVITY
        self.beat()

    @property
    def value(self) -> int:
        """The cell's number."""
        return int(self._cell[0])


class StallWatch:
    """Finds workers whose heartbeats have stopped.

    seconds: a worker that has not beaten for so long hangs; None: nobody looks. Workers are named
    by numbers.
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._idle: dict[int, tuple[int, float]] = {}  # by worker: its last beat, and seconds since
        self._looked_at = clock()

    def find(self, beats: Callable[[], Mapping[int, int]]) -> int | None:
        """Look, if it is time to, and return the worker that hangs; None if there is none.

        beats: the heartbeats of all workers. Of several that hang it is the one that has been idle
        longest: the others may only wait for a lock that it holds.
        """
        now = self._clock()
        elapsed = now - self._looked_at
        if self._seconds is None or elapsed < min(CHECK_SECONDS, self._seconds / 2):
            return None
        self._looked_at = now
        before = self._idle
        self._idle = {}
        for key, beat in beats().items():
            last, idle = before.get(key, (beat, 0.0))
            self._idle[key] = beat, idle + min(elapsed, LONGEST_TICK) if beat == last else 0.0
        hung = [key for key, (_, idle) in self._idle.items() if idle >= self._seconds]
        return max(hung, key=lambda key: self._idle[key][1], default=None)

    def forget(self, key: int) -> None:
        """Forget a worker that has ended: another begins in its place."""
        self._idle.pop(key, None)

    def describe(self, name: str, inactivity: str = INACTIVITY[STEPPING]) -> str:
        """Error text about a worker that is stalled. inactivity: what a heartbeat that stands still
        means."""
        return f"{name} hung: {inactivity} for {self._seconds:g} s (backend.stall_seconds)"
