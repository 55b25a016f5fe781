"""Counts and states of each worker, kept for the run: steps, gradients, observation statistics,
generator state.

Every worker has a row of its own, and only that worker writes to it while it lives (on Ray: the
server, with what the worker sends). Totals are sums over rows, so two writers never count in the
same place.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array, ArraySpecs
from a3c_exp.common.fields import Fields, StateField, is_array, is_count, read_state
from a3c_exp.core.normalization import Stats, merge_stats

# Columns of a worker's row. A row has 8 numbers, one cache line: workers do not slow each other
# down by writing.
_GRADIENTS, _STEPS, _STATS_COPY, _HEARTBEAT, _EPISODES, _UPDATING = range(6)
ROW_WIDTH = 8
STARTED = 0

_WORD = (1 << 64) - 1
RNG_WORDS = 6


class Multipliers(NamedTuple):
    """What a run's callbacks multiply: the learning rate, and the weight of the entropy in the
    loss."""

    learning_rate: float = 1.0
    entropy: float = 1.0


class WorkerCounters:
    """Counters, observation statistics and generator states of all workers.

    arrays: views of the shared block, as `specs` describes them.
    steps_by_worker, gradients, episodes, heartbeats, updating: int64 [workers + 1], a number of
        each worker: environment steps, gradients that were applied, finished episodes, the last
        `Heartbeat`, and 1 while it makes an update, if overlaps are counted. The last number has
        steps from before a resumption, and applied gradients of workers that are no
        more.
    rng_states: uint64 [workers that act, RNG_WORDS], see `pack_rng`; zeros if none was saved.

    Statistics have two copies. A worker writes the one that is not active and then makes it active
    by one number, so a worker that is killed in the middle leaves the old row, never half of a new
    one. A generator's state has one: half of a new one is a state of the same generator too.
    """

    FIELDS: ClassVar[Fields[WorkerCounters]] = {
        "applied_gradients": StateField(is_array("i1"), lambda own: own.gradients.copy()),
        "steps": StateField(is_count, lambda own: own.steps),
        "multipliers": StateField(
            lambda value: is_array("f1", finite=True)(value) and len(value) == 2,
            lambda own: own._multipliers.copy(),
        ),
        "worker_episodes": StateField(is_array("i1"), lambda own: own.episodes.copy()),
        "stats": StateField(is_array("f1", finite=True), lambda own: own.stats()),
        "rng_states": StateField(
            lambda value: is_array("u2")(value) and value.shape[1] == RNG_WORDS,
            lambda own: own.rng_states.copy(),
        ),
    }
    """What a checkpoint holds: applied_gradients and worker_episodes [workers + 1], steps,
    multipliers [2], stats, and rng_states [workers that act, RNG_WORDS]."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self._rows = arrays["counters"]
        self.steps_by_worker = self._rows[:, _STEPS]
        self.gradients: Array = self._rows[:, _GRADIENTS]
        self.episodes: Array = self._rows[:, _EPISODES]
        self.heartbeats = self._rows[:, _HEARTBEAT]
        self.updating: Array = self._rows[:, _UPDATING]
        self._stats = arrays["stats"]
        self.rng_states: Array = arrays["rng_states"]
        self._clock = arrays["clock"]
        self._multipliers: Array = arrays["multipliers"]

    @staticmethod
    def specs(workers: int, stats_width: int, actors: int) -> ArraySpecs:
        """Shapes and types of the arrays. stats_width: length of a row of `Stats`. actors: workers
        that act."""
        return {
            "clock": ((ROW_WIDTH,), np.dtype(np.int64)),
            "multipliers": ((2,), np.dtype(np.float64)),
            "counters": ((workers + 1, ROW_WIDTH), np.dtype(np.int64)),
            "stats": ((2, workers, stats_width), np.dtype(np.float64)),
            "rng_states": ((actors, RNG_WORDS), np.dtype(np.uint64)),
        }

    # -- written by the worker of a row

    def count(self, worker: int, steps: int, stats: Stats | None = None) -> None:
        """Count a worker's environment steps, and merge what it measured of observations and
        returns."""
        self.steps_by_worker[worker] += steps
        if stats is not None:
            active = self._rows[worker, _STATS_COPY]
            self._stats[1 - active, worker] = merge_stats([stats, self._stats[active, worker]])
            self._rows[worker, _STATS_COPY] = 1 - active

    def save_rng_state(self, worker: int, rng: np.random.Generator) -> None:
        """Keep the state of a generator for a checkpoint: of a worker that acts."""
        if worker < len(self.rng_states):
            self.rng_states[worker] = pack_rng(rng)

    def counted(self, worker: int) -> Array:
        """Return the steps and gradients that have been counted for a worker, int64 [2]."""
        return np.array([self.steps_by_worker[worker], self.gradients[worker]])

    def start_clock(self, seconds_ago: float = 0.0) -> None:
        """Start the clock of the training, unless another worker already has."""
        if not self._clock[STARTED]:
            self._clock[STARTED] = time.monotonic_ns() - int(1e9 * seconds_ago)

    # -- read by everybody

    @property
    def multipliers(self) -> Multipliers:
        """The numbers that the trainer has set."""
        return Multipliers(*self._multipliers.tolist())

    @multipliers.setter
    def multipliers(self, multipliers: Multipliers) -> None:
        self._multipliers[:] = multipliers

    @property
    def steps(self) -> int:
        """Environment steps of all workers, those before a resumption included."""
        return int(self.steps_by_worker.sum())

    @property
    def training_seconds(self) -> float:
        """Seconds since the first worker's first step; 0 before it. Starting processes is not
        training."""
        started = int(self._clock[STARTED])
        return (time.monotonic_ns() - started) / 1e9 if started else 0.0

    def stats(self) -> Stats:
        """Merge the statistics of all workers. Of no length if nothing is normalized."""
        if not self._stats.size:
            return np.zeros(0)
        workers = np.arange(self._stats.shape[1])
        return merge_stats(self._stats[self._rows[workers, _STATS_COPY], workers])

    # -- checkpoints

    def state(self) -> dict[str, Any]:
        """Return copies of everything that a resumption needs."""
        return read_state(self, self.FIELDS)

    def restore(self, state: Mapping[str, Any], version: int) -> None:
        """Set everything as `state` had it. The number of workers may differ: totals are kept.

        version: number of updates. Without a lock it is the sum of applied gradients: the last row
        has the rest of it.
        """
        self._rows[:] = 0
        applied = state["applied_gradients"]
        workers = min(len(self._rows), len(applied)) - 1  # those that the state has a row for
        self.gradients[:workers] = applied[:workers]
        self.gradients[-1] = version - applied[:workers].sum()
        self.steps_by_worker[-1] = state["steps"]
        self._multipliers[:] = state["multipliers"]
        self.episodes[:workers] = state["worker_episodes"][:workers]

        if self._stats.size:
            self._stats[:] = 0
            # with this, one worker alone continues as if it had never stopped
            self._stats[0, 0] = state["stats"]

        actors = min(len(self.rng_states), len(state["rng_states"]))
        self.rng_states[:] = 0
        self.rng_states[:actors] = state["rng_states"][:actors]

    def take_observation_stats(self, row: Array) -> None:
        """Start from another run's observation statistics, if both runs have some."""
        if self._stats.size and row.shape == self._stats.shape[2:]:
            self._stats[:, 0] = row
            # returns depend on rewards and discount, which may differ here
            self._stats[:, 0, -3:] = 0

    def raise_steps_to(self, steps: int) -> None:
        """Set the total to at least `steps`. The Ray driver uses this: its counters are a copy of
        the servers'."""
        self.steps_by_worker[:-1] = 0
        self.steps_by_worker[-1] = max(self.steps_by_worker[-1], steps)


def pack_rng(rng: np.random.Generator) -> NDArray[np.uint64]:
    """Pack the state of a PCG64 generator into uint64 [RNG_WORDS], for a row of the shared block or
    a checkpoint."""
    state = rng.bit_generator.state
    words = []
    for name in ("state", "inc"):
        number = state["state"][name]  # of 128 bits
        words += [number >> 64, number & _WORD]
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def unpack_rng(rng: np.random.Generator, row: NDArray[np.uint64]) -> None:
    """Set a PCG64 generator to the state that `pack_rng` wrote; leave it as it is if there are
    zeros."""
    if not row.any():
        return
    state, low, inc, low_inc, has_half, half = row.tolist()
    words = {"state": state << 64 | low, "inc": inc << 64 | low_inc}
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": words,
        "has_uint32": has_half,
        "uinteger": half,
    }
