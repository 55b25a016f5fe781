"""The shared parameters: pull and push. The only asynchronous update in the project.

Everything that workers share lies in one block of memory: the parameters and the optimizer's moments, each a flat
float32 vector; a row for each worker that only that worker writes while it lives (counters, moments for normalisation,
the state of its generator); and a few flags. Totals are sums of rows, so no two writers ever count in the same place.

Two ways to update:

- lock-free (Hogwild, Recht et al. 2011): workers step the same vectors in place, whenever they are ready. A pull may
  see half an update; that is legitimate, and what Mnih et al. 2016 (section 4, "without locking") do.
- locked: one update at a time, prepared in a second copy of parameters and moments and committed by one store to
  `version`, whose parity says which copy is in force. A writer that dies half-way has changed nothing.

A synchronous round is a locked update of the average of one gradient from every living worker. A worker that makes
several gradients of a rollout is a member of rounds until it says that it has finished with the rollout, and waits for
the others to finish with theirs before it goes on: so all of them act with the same parameters.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from a3c_exp import seeding
from a3c_exp.blocks import Shapes, arrays_in, block_size
from a3c_exp.normalisation import Moments, Normalisation
from a3c_exp.optimizers import Optimizer, rates
from a3c_exp.schedules import Schedule

Lock = AbstractContextManager[Any]
_NO_LOCK = nullcontext()

# Columns of a worker's row of counters; 8 to a row, so that two workers' rows share no cache line.
UPDATES, STEPS, FINISHED, ROUND, TRANSITIONS = range(5)
COLUMNS = 8
LEFT = np.iinfo(np.int64).max  # rollouts finished, by one that finishes no more

# Flags at the head of the block.
VERSION, ROUNDS, STOP, STARTED = range(4)
FLAGS = 8


class Pulled(NamedTuple):
    """What came with the parameters: how many updates they have had, the run's steps so far, the frozen statistics."""

    version: int
    steps: int
    normalisation: Normalisation | None


class Pushed(NamedTuple):
    """What became of a push. staleness: updates that landed between its pull and itself. accepted: it is in the
    parameters. applied: optimizer steps made on its occasion (in a synchronous round one worker makes the step for
    all)."""

    staleness: int
    accepted: bool
    applied: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What the shared block must hold, and how it is stepped; for the settings see `Experiment`.

    size: P, the length of the parameter vector. parts: where each part of the network lies in it.
    synchronous, locked, moments_per_worker: update=sync, lock=true, moments=worker. observation_shape: of one.
    """

    size: int
    parts: dict[str, slice]
    workers: int
    optimizer: Optimizer
    schedule: Schedule
    total_steps: int
    synchronous: bool = False
    locked: bool = False
    moments_per_worker: bool = False
    observation_shape: tuple[int, ...] = ()
    normalize_observations: bool = False
    normalize_rewards: bool = False

    @property
    def copies(self) -> int:
        """Of parameters and moments: two where an update is prepared beside what is in force."""
        return 2 if self.locked or self.synchronous else 1

    def arrays(self) -> Shapes:
        """Shape and type of every array in the block, in order."""
        rows, size = self.workers + 1, self.size  # the last row: totals from before a resumption
        width = Moments.width(self.observation_shape, self.normalize_observations, self.normalize_rewards)
        banks = self.workers if self.moments_per_worker else 1
        return {
            "flags": ((FLAGS,), np.dtype(np.int64)),
            "rows": ((rows, COLUMNS), np.dtype(np.int64)),
            "statistics": ((self.workers, width), np.dtype(np.float64)),
            "random_states": ((self.workers, seeding.STATE_WORDS), np.dtype(np.uint64)),
            "parameters": ((self.copies, size), np.dtype(np.float32)),
            "moments": ((self.copies, banks, self.optimizer.moment_count, size), np.dtype(np.float32)),
            "gradients": ((self.workers if self.synchronous else 0, size), np.dtype(np.float32)),
        }

    def nbytes(self) -> int:
        return block_size(self.arrays())


class SharedParameters:
    """Parameters, moments and counters in a block of memory that several workers may map.

    block: a writable buffer of `layout.nbytes()` bytes, zeroed when it is new. lock: excludes other writers of a locked
    store; it must be one that the system releases when its holder dies.
    """

    def __init__(self, layout: Layout, block: Any = None, lock: Lock | None = None) -> None:
        self.layout = layout
        self._block = block
        self._lock: Lock = threading.Lock() if lock is None else lock
        self._locked = layout.copies == 2
        arrays = arrays_in(bytearray(layout.nbytes()) if block is None else block, layout.arrays())
        self._flags, self._rows = arrays["flags"], arrays["rows"]
        self._statistics, self._random_states = arrays["statistics"], arrays["random_states"]
        self._parameters, self._moments = arrays["parameters"], arrays["moments"]
        self._gradients = arrays["gradients"]

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to a child process, this is a map of the same block."""
        if self._block is None:
            raise TypeError("this block of parameters belongs to one process")
        return SharedParameters, (self.layout, self._block, self._lock)

    # -- the worker's side ------------------------------------------------------------------------------------------

    def pull(self, worker: int, into: NDArray[np.float32]) -> Pulled:
        """Copy the parameters into a worker's own vector [P], and say how far the run is."""
        if self._locked:
            with self._lock:
                version = self.version
                into[:] = self._parameters[version & 1]
        else:
            version = self.version
            into[:] = self._parameters[0]
        return Pulled(version, self.steps, self.normalisation())

    def look(self) -> Pulled:
        """What comes with the parameters, without them: for one that acts with a network elsewhere."""
        return Pulled(self.version, self.steps, self.normalisation())

    def push(
        self,
        worker: int,
        gradient: NDArray[np.float32] | None,
        pulled: Pulled,
        transitions: int,
        observed: Moments | None = None,
        weight: int | None = None,
        number: int | None = None,
    ) -> Pushed | None:
        """Step the parameters with a worker's gradient [P]; None where there is none to step with: only counters move.

        transitions: environment steps to count. weight: of the gradient in a synchronous round's average; None: by
        these. number: of the synchronous round that it is for, behind `rounds`; None: the next. Rounds before it do not
        wait for this worker.
        Returns what became of it, or None while a synchronous round waits for other workers: then ask `poll`.
        """
        row = self._rows[worker]
        self.count(worker, transitions, observed)
        if self.layout.synchronous:
            with self._lock:  # a barrier: whoever sees the row's round also sees its gradient
                if gradient is not None:
                    self._gradients[worker] = gradient
                row[TRANSITIONS] = 0 if gradient is None else transitions if weight is None else weight
                row[ROUND] = self._flags[ROUNDS] + 1 if number is None else number
            return self.poll(worker, pulled)
        pushed = Pushed(0, False, 0)
        if gradient is not None:
            with self._lock if self._locked else _NO_LOCK:
                pushed = self._step(worker, gradient, pulled)
        return pushed

    def count(self, worker: int, transitions: int, observed: Moments | None = None) -> None:
        """Count a worker's environment steps, and what was observed in them."""
        if observed is not None:
            self._statistics[worker] = observed.merge(Moments(self._statistics[worker])).row
        self._rows[worker, STEPS] += transitions

    def poll(self, worker: int, pulled: Pulled) -> Pushed | None:
        """What became of a push into a synchronous round; None while the round still waits.

        Whoever finds the round complete makes its step, so no round depends on one particular worker.
        """
        row = self._rows[worker]
        applied = 0
        while self._flags[ROUNDS] < row[ROUND] and self._round_is_complete():
            with self._lock:
                if self._flags[ROUNDS] < row[ROUND] and self._round_is_complete():
                    applied += self._step_round(pulled)
        if self._flags[ROUNDS] < row[ROUND]:
            return None
        accepted = bool(row[TRANSITIONS])
        row[UPDATES] += accepted
        return Pushed(0, accepted, applied)

    def _step(self, worker: int, gradient: NDArray[np.float32], pulled: Pulled) -> Pushed:
        layout, row = self.layout, self._rows[worker]
        version = self.version
        bank = worker if layout.moments_per_worker else 0
        t = int(row[UPDATES] if layout.moments_per_worker else version) + 1
        staleness = version - pulled.version
        self._optimize(gradient, pulled.steps, bank, t, staleness)
        row[UPDATES] += 1
        if self._locked:
            self._flags[VERSION] = version + 1
        return Pushed(staleness, True, 1)

    def _step_round(self, pulled: Pulled) -> int:
        """Average the gradients of the round by their weights, and step once. Returns the steps made."""
        members = self._rows[:-1, ROUND] == self._flags[ROUNDS] + 1  # others are for a later one, or have not pushed
        weights = self._rows[:-1, TRANSITIONS] * members
        applied = 0
        if weights.any():
            gradient = (weights / weights.sum()).astype(np.float32) @ self._gradients
            version = self.version
            self._optimize(gradient, pulled.steps, 0, version + 1)
            self._flags[VERSION] = version + 1
            applied = 1
        self._flags[ROUNDS] += 1
        return applied

    def _optimize(self, gradient: NDArray[np.float32], steps: int, bank: int, t: int, staleness: int = 0) -> None:
        """One optimizer step: in place, or from the copy in force into the other one."""
        layout, front = self.layout, 0
        if self._locked:
            version = self.version
            front, back = (version + 1) & 1, version & 1
            self._parameters[front] = self._parameters[back]
            self._moments[front] = self._moments[back]
        factor = layout.schedule(self.progress(steps))
        rate = rates(layout.optimizer, layout.parts, layout.size, factor, staleness)
        layout.optimizer.step(self._parameters[front], self._moments[front, bank], gradient, rate, t)

    def _round_is_complete(self) -> bool:
        finished = self._rows[:-1, FINISHED]
        ready = self._rows[:-1, ROUND] > self._flags[ROUNDS]
        return bool((ready | (finished > finished.min())).all())

    def finish(self, worker: int) -> None:
        """The worker makes no more gradients of its rollout: rounds go on without it until `others_learn` is over."""
        if self._rows[worker, FINISHED] != LEFT:
            self._rows[worker, FINISHED] += 1

    def others_learn(self, worker: int) -> bool:
        """Whether others still make gradients, in rounds, of rollouts of the same turn as the one finished here."""
        finished = self._rows[:-1, FINISHED]
        return self.layout.synchronous and bool(finished.min() < finished[worker])

    def leave(self, worker: int) -> None:
        """The worker has ended or died: synchronous rounds no longer wait for it."""
        self._rows[worker, FINISHED] = LEFT

    def join(self, worker: int) -> None:
        """One that had left is back, or another in its place: it takes part in the turn that the others are in."""
        finished = self._rows[:-1, FINISHED]
        if finished[worker] == LEFT:
            turn = finished.min()
            finished[worker] = 0 if turn == LEFT else turn

    def random_state(self, worker: int) -> NDArray[np.uint64]:
        """Where the state of a worker's generator is kept, as `seeding.pack` gives it; zeros if there is none."""
        row: NDArray[np.uint64] = self._random_states[worker]
        return row

    def keep_random_state(self, worker: int, rng: np.random.Generator) -> None:
        """Write down a worker's generator, so that a checkpoint has it."""
        self._random_states[worker] = seeding.pack(rng)

    def restore_random_state(self, worker: int, rng: np.random.Generator) -> None:
        """Set a worker's generator as a checkpoint had it; left alone if the checkpoint had none for this worker."""
        if self._random_states[worker].any():
            seeding.unpack(rng, self._random_states[worker])

    # -- everybody's ------------------------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """How many synchronous rounds are over."""
        return int(self._flags[ROUNDS])

    @property
    def version(self) -> int:
        """How many updates the parameters have had."""
        return int(self._flags[VERSION] if self._locked else self._rows[:, UPDATES].sum())

    @property
    def steps(self) -> int:
        """Environment transitions behind all pushes, of all workers."""
        return int(self._rows[:, STEPS].sum())

    def progress(self, steps: int) -> float:
        """How much of the run lies behind, in [0, 1]: what schedules are functions of."""
        return min(1.0, steps / self.layout.total_steps)

    def normalisation(self) -> Normalisation | None:
        """The statistics of all workers together, as they are now; None if nothing is normalised."""
        layout = self.layout
        if not self._statistics.size:
            return None
        row, shape = Moments.together(self._statistics).row, layout.observation_shape
        return Normalisation.from_row(row, shape, layout.normalize_observations, layout.normalize_rewards)

    def start(self) -> None:
        """A worker is about to take its first step; the first of all starts the clock of the training."""
        if not self._flags[STARTED]:
            self._flags[STARTED] = time.monotonic_ns()

    @property
    def training_seconds(self) -> float:
        """Seconds since the first worker's first step; 0 before it. Starting processes is not training."""
        started = int(self._flags[STARTED])
        return (time.monotonic_ns() - started) / 1e9 if started else 0.0

    def stop(self) -> None:
        """Ask every worker to end before its next rollout."""
        self._flags[STOP] = 1

    @property
    def stopped(self) -> bool:
        return bool(self._flags[STOP])

    # -- the runner's side ------------------------------------------------------------------------------------------

    def initialise(self, parameters: NDArray[np.float32]) -> None:
        """Set the parameters [P] and the optimizer's first moments, in both copies."""
        self._parameters[:] = parameters
        self._moments[:] = self.layout.optimizer.initial_moments(self.layout.size)

    def parameters(self) -> NDArray[np.float32]:
        """A copy of the parameters in force, float32 [P]."""
        with self._lock if self._locked else _NO_LOCK:
            parameters: NDArray[np.float32] = self._parameters[self._front].copy()
        return parameters

    def state(self) -> dict[str, Any]:
        """All that a resumption needs, as plain numbers and copies of arrays."""
        with self._lock if self._locked else _NO_LOCK:
            return {
                "parameters": self._parameters[self._front].copy(),
                "moments": self._moments[self._front].copy(),
                "version": self.version,
                "updates": self._rows[:, UPDATES].copy(),
                "steps": self.steps,
                "statistics": Moments.together(self._statistics).row,
                "random_states": self._random_states.copy(),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set everything as `state` had it. The number of workers may differ: totals are kept, and a worker that has no
        moments of its own in the state begins with the first ones, which is what the optimizer corrects for.

        Raises ValueError if the state is one of another network or optimizer.
        """
        moments, updates = state["moments"], state["updates"]
        expected = self._parameters.shape[1:], self._moments.shape[2:]
        if (state["parameters"].shape, moments.shape[1:]) != expected:
            raise ValueError(
                f"parameters and moments of shapes {state['parameters'].shape}, {moments.shape[1:]} for {expected}"
            )
        self._parameters[:] = state["parameters"]
        self._moments[:] = self.layout.optimizer.initial_moments(self.layout.size)
        kept = min(self._moments.shape[1], len(moments))
        self._moments[:, :kept] = moments[:kept]
        self._rows[:] = 0
        self._flags[ROUNDS] = 0
        known = min(self.layout.workers, len(updates) - 1)
        self._rows[:known, UPDATES] = updates[:known]
        self._rows[-1, UPDATES] = state["version"] - updates[:known].sum()
        self._flags[VERSION] = state["version"]
        self._rows[-1, STEPS] = state["steps"]
        if self._statistics.size:
            self._statistics[:] = 0
            self._statistics[0] = state["statistics"]  # where one worker alone goes on as if it had never stopped
        self._random_states[:] = 0
        self._random_states[:known] = state["random_states"][:known]

    def start_from(self, state: Mapping[str, Any]) -> None:
        """Take the parameters of `state`, and what it knows of observations where both know some. Raises ValueError."""
        if state["parameters"].shape != (self.layout.size,):
            raise ValueError(f"it has {state['parameters'].size} parameters, this one {self.layout.size}")
        self._parameters[:] = state["parameters"]
        if self._statistics.size and state["statistics"].shape == self._statistics.shape[1:]:
            self._statistics[0] = Moments(state["statistics"]).without_returns().row

    @property
    def _front(self) -> int:
        return self.version & 1 if self._locked else 0
