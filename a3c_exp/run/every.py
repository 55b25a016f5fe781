"""When periodic tasks are due."""

from __future__ import annotations

import math


class Every:
    """Due once a multiple of `interval` has been passed since the last task. None: never due.

    start: where counting begins; a multiple there has been dealt with.
    """

    def __init__(self, interval: int | None, start: int = 0) -> None:
        self._interval = interval
        self.done(start)

    def due(self, value: float) -> bool:
        """Whether the task is to be run now."""
        return value >= self._next

    def done(self, value: int) -> None:
        """Note that the task has been run at this value."""
        self._next = math.inf if self._interval is None else (value // self._interval + 1) * self._interval


class Spreading:
    """Due at once, then every `seconds`, and less often later: after a longer run by `share` of the time that it took.

    With half a second and a thousandth that is about two thousand times in a run of any length.
    """

    def __init__(self, seconds: float, share: float) -> None:
        self._seconds, self._share, self._next = seconds, share, 0.0

    def due(self, now: float) -> bool:
        """Whether the task is to be run now."""
        return now >= self._next

    def done(self, now: float) -> None:
        """Note that the task has been run now."""
        self._next = now + self._seconds + self._share * now
