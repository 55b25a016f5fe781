"""How many agents, predictors and trainers? Measured as it goes, after Babaeizadeh et al. 2017 (arXiv 1611.06256)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

log = logging.getLogger("a3c_exp")

# Between two looks at the throughput: rollouts that were under way at the last change are through by then.
TUNE_SECONDS = 10.0


@dataclass(slots=True)
class Count:
    """How many there are of one kind, from 1 to `most`. set: makes it so."""

    name: str
    now: int
    most: int
    set: Callable[[int], None]

    def move(self, by: int) -> None:
        self.now += by
        self.set(self.now)


class Tuner:
    """Moves one of the counts up or down, by one and at random, and takes it back unless more is learned from a second.
    What is in force again is measured again before the next move: throughput changes with the policy and the machine.

    steps: what has been learned from so far. clock: seconds.
    """

    def __init__(
        self, counts: list[Count], rng: np.random.Generator, steps: Callable[[], int], clock: Callable[[], float]
    ) -> None:
        self._counts, self._rng, self._steps, self._clock = counts, rng, steps, clock
        self._moved: tuple[Count, int] | None = None
        self._rate = 0.0  # of what is in force
        self._began: tuple[float, int] | None = None

    def look(self) -> dict[str, float]:
        """Called often. What there is to report, each time that it has looked at the throughput; else nothing."""
        now, steps = self._clock(), self._steps()
        if self._began is None:
            if steps:  # from here on everybody is at work
                self._began = now, steps
            return {}
        began, before = self._began
        if now - began < TUNE_SECONDS:
            return {}
        if self._keeps((steps - before) / (now - began)):
            self._move()
        self._began = now, steps
        return {f"ga3c/{count.name}": count.now for count in self._counts}

    def _keeps(self, rate: float) -> bool:
        """Keep the last move, or take it back; whether it was kept, or there was none."""
        counts = ", ".join(f"{count.now} {count.name}" for count in self._counts)
        kept = self._moved is None or rate > self._rate
        log.info("tune: %s: %.0f steps/s, %s", counts, rate, "kept" if kept else f"less than {self._rate:.0f}")
        if kept:
            self._rate = rate
        elif self._moved is not None:
            count, by = self._moved
            count.move(-by)
            self._moved = None
        return kept

    def _move(self) -> None:
        moves = [(count, by) for count in self._counts for by in (-1, 1) if 1 <= count.now + by <= count.most]
        self._moved = moves[self._rng.integers(len(moves))] if moves else None
        if self._moved is not None:
            count, by = self._moved
            count.move(by)
