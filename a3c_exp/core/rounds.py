"""Synchronous rounds: one gradient from every living worker, or of a quorum, averaged, then one
optimizer step.

A worker that makes several gradients of one rollout takes part in rounds until it has finished with
the rollout. It then waits until the others have finished with theirs, so that all workers act with
the same parameters.

A round needs gradients of a quorum, M of N workers, or one from each worker that can bring one
where these are fewer. Without a quorum M is N. The rounds of one rollout are a cycle, which needs
as many: it is over once M living workers, or all, have finished with a rollout in it, and these go
on. Nobody waits for ever: if all wait, those that have not finished have submitted, so the round is
complete; if there are none of these, the cycle is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from a3c_exp.common.arrays import Array, ArraySpecs, Floats
from a3c_exp.core.counters import ROW_WIDTH

# Columns of a worker's row, which only that worker writes.
ROUND, WEIGHT, FINISHED = range(3)
COMPLETED, CYCLES = range(2)

HAS_LEFT = np.iinfo(np.int64).max
"""Finished rollouts of a worker that has left: no other worker waits for it."""


class SynchronousRounds:
    """The workers that have submitted a gradient to the current round, or finished with their
    rollout.

    arrays: views of the shared block, as `specs` describes them.
    lock: the store's, which `submit` needs too: who sees a worker's round must also see its
        gradient.
    quorum: number of gradients that close a round.
    """

    def __init__(
        self, arrays: dict[str, Array], lock: AbstractContextManager[Any], quorum: int
    ) -> None:
        self._rows = arrays["rounds"]
        self._gradients = arrays["gradients"]
        self._flags = arrays["round_flags"]
        self._lock = lock
        self._quorum = quorum

    @staticmethod
    def specs(workers: int, size: int) -> ArraySpecs:
        """Return shapes and types of the arrays. size: of the parameter vector."""
        return {
            "round_flags": ((ROW_WIDTH,), np.dtype(np.int64)),
            "rounds": ((workers, ROW_WIDTH), np.dtype(np.int64)),
            "gradients": ((workers, size), np.dtype(np.float32)),
        }

    @property
    def completed(self) -> int:
        """Number of rounds that are over."""
        return int(self._flags[COMPLETED])

    def submit(self, worker: int, gradient: Floats | None, weight: int, round: int) -> None:
        """Put a worker's gradient [P] into the round of that index.

        gradient: None submits nothing, but the round no longer waits for the worker.
        weight: of the gradient in the round's average.
        """
        row = self._rows[worker]
        if gradient is not None:
            self._gradients[worker] = gradient
        row[WEIGHT] = 0 if gradient is None else weight
        row[ROUND] = round

    def round_in_progress(self, worker: int, step: Callable[[Floats], object]) -> bool:
        """Return whether the round to which the worker last submitted is still open.

        Whoever finds a round complete ends it, so no round depends on one particular worker. step:
        is called with the average [P], at last: if this worker is killed in between, the round has
        no step, rather than two.
        """
        while self._waits_for_round(worker) and self._is_round_complete():
            with self._lock:
                if self._waits_for_round(worker) and self._is_round_complete():
                    gradient = self._average()
                    self._flags[COMPLETED] += 1
                    if gradient is not None:
                        step(gradient)
        return self._waits_for_round(worker)

    def _waits_for_round(self, worker: int) -> bool:
        return bool(self._flags[COMPLETED] < self._rows[worker, ROUND])

    def _is_round_complete(self) -> bool:
        """Return whether a quorum, or every worker that takes part, has submitted to the current
        round.

        A gradient of a worker that has died since counts for the quorum: it is in the average.
        """
        ready = self._rows[:, ROUND] > self._flags[COMPLETED]
        takes_part = self._rows[:, FINISHED] <= self._flags[CYCLES]
        return bool(ready.sum() >= self._quorum or (ready | ~takes_part).all())

    def _average(self) -> Floats | None:
        """Return the round's gradients averaged by their weights, float32 [P]; None if the round
        has none."""
        # others wait for a later round
        members = self._rows[:, ROUND] == self._flags[COMPLETED] + 1
        weights = self._rows[:, WEIGHT] * members
        if not weights.any():
            return None
        gradient: Floats = (weights / weights.sum()).astype(np.float32) @ self._gradients
        return gradient

    def finish_rollout(self, worker: int) -> None:
        """Take a worker out of rounds until all others, or a quorum, have finished their rollouts
        too."""
        with self._lock:  # so that the cycle does not end meanwhile
            if self._rows[worker, FINISHED] != HAS_LEFT:
                self._rows[worker, FINISHED] = self._flags[CYCLES] + 1

    def cycle_in_progress(self, worker: int) -> bool:
        """Return whether the cycle is still open in which this worker has finished its rollout.

        Whoever finds a cycle complete ends it, so no cycle depends on one particular worker.
        """
        if self._waits_for_cycle(worker) and self._is_cycle_complete():
            with self._lock:
                if self._waits_for_cycle(worker) and self._is_cycle_complete():
                    self._flags[CYCLES] += 1
        return self._waits_for_cycle(worker)

    def _waits_for_cycle(self, worker: int) -> bool:
        return bool(self._flags[CYCLES] < self._rows[worker, FINISHED] < HAS_LEFT)

    def _is_cycle_complete(self) -> bool:
        finished = self._rows[:, FINISHED]
        living = finished < HAS_LEFT
        waiting = living & (finished > self._flags[CYCLES])
        return int(waiting.sum()) >= min(self._quorum, int(living.sum()))

    def leave(self, worker: int) -> None:
        """Take a worker out for good: it has ended or died."""
        self._rows[worker, FINISHED] = HAS_LEFT

    def join(self, worker: int) -> None:
        """Let a worker that has left, or its replacement, take part in the cycle that the others
        are in."""
        if self._rows[worker, FINISHED] == HAS_LEFT:
            self._rows[worker, FINISHED] = self._flags[CYCLES]
