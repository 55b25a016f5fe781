"""The shared parameter vector and its optimizer step: the only asynchronous update in the project.

Two ways to update:

- lock-free (Hogwild, Recht et al. 2011): workers step the same vectors in place, whenever they are
  ready. A pull may see half an update. That is legitimate, and it is what Mnih et al. 2016 do
  (section 4, "without locking").
- locked: one update at a time, prepared in a second copy of parameters and optimizer state. It
  becomes valid when one number is written: the version, whose parity says which copy is active. A
  writer that dies half-way has changed nothing.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np

from a3c_exp.common.arrays import Array, ArraySpecs, Floats, Vector, block_size
from a3c_exp.common.fields import Fields, StateField, is_array, is_count, read_state
from a3c_exp.common.ranges import NOT_NEGATIVE, Checked, Count
from a3c_exp.core.counters import ROW_WIDTH, WorkerCounters
from a3c_exp.core.normalization import NormalizedObservations, stats_width
from a3c_exp.core.order import Order
from a3c_exp.core.rounds import SynchronousRounds
from a3c_exp.envs.batch import RewardNormalization
from a3c_exp.optimizers import Optimizer, euclidean_norm, functions_of, rates
from a3c_exp.schedules import Schedule, progress_of

Lock = AbstractContextManager[Any]

UPDATES, REFRESHES = range(2)

LARGE_ARRAYS = ("parameters", "optimizer_state")
"""Names of the arrays of `SharedParameters` that are on a GPU if the store uses one."""


@dataclass(frozen=True, kw_only=True)
class UpdateSettings(Checked):
    """The settings of a run's updates, which the `Experiment` and its store have in common.

    optimizer, schedule: the component of each group.
    total_steps: environment steps of all workers together.
    update: 'async', each worker pushes when it is ready; 'sync', one step for a round of one
        gradient from each worker.
    quorum: gradients that close a synchronous round, or one from each living worker if these are
        fewer; 'all': always one from each. A gradient whose round a quorum has closed enters no
        update, though its steps and episodes count. One that was refused is none of a quorum's.
    lock: one update at a time. Without it workers may overwrite each other (Hogwild). Synchronous
        rounds always lock.
    count_overlaps: count the lock-free updates during which another worker was writing.
    optimizer_state: running means of RMSProp or Adam: one for all workers ('shared') or one for
        each ('per_worker').
    record: 'order' writes the order of the workers' pulls and pushes into the run's folder, and
        `replay=` repeats the run by it. Needs `lock`.
    """

    optimizer: Optimizer
    schedule: Annotated[Schedule, NOT_NEGATIVE]
    total_steps: Count
    update: Literal["async", "sync"] = "async"
    quorum: Count | Literal["all"] = "all"
    lock: bool = False
    count_overlaps: bool = False
    optimizer_state: Literal["shared", "per_worker"] = "shared"
    record: Literal["order"] | None = None


@dataclass(frozen=True, kw_only=True)
class StoreSpec(UpdateSettings):
    """Content of the shared block, and the settings of its updates.

    size: P, the length of the parameter vector. param_slices: where each parameter group
        of the network lies in it.
    workers: number of rows, of which the last `services` are of threads that do not act, and whose
        generators begin anew with each session.
    target_every, target_decay: see `Algorithm`. The parameter group `target` is a copy of `online`,
        or an average of it.
    observations: how they are measured and normalized. normalize_rewards: by running statistics.
    """

    size: int
    param_slices: dict[str, slice]
    workers: int
    services: int = 0
    target_every: int | None = None
    target_decay: float | None = None
    observations: NormalizedObservations = field(default_factory=NormalizedObservations)
    normalize_rewards: RewardNormalization = False

    @property
    def synchronous(self) -> bool:
        """Return whether updates are made in rounds."""
        return self.update == "sync"

    @property
    def closed_by(self) -> int | None:
        """Return how many gradients close a round; None: one from each living worker."""
        return None if self.quorum == "all" or self.quorum >= self.workers else self.quorum

    @property
    def per_worker(self) -> bool:
        """Return whether each worker has an optimizer state of its own."""
        return self.optimizer_state == "per_worker"

    @property
    def copies(self) -> int:
        """Copies of parameters and optimizer state: two if an update is prepared beside the active
        copy."""
        return 2 if self.lock or self.synchronous else 1

    def arrays(self) -> ArraySpecs:
        """Shape and type of every array in the block, in order."""
        form = self.observations
        width = stats_width(form.shape, form.measured, self.normalize_rewards)
        states = self.workers if self.per_worker else 1
        return {
            "store_flags": ((ROW_WIDTH,), np.dtype(np.int64)),
            **WorkerCounters.specs(self.workers, width, self.workers - self.services),
            **(SynchronousRounds.specs(self.workers, self.size) if self.synchronous else {}),
            **(Order.specs(self.workers) if self.record else {}),
            "parameter_flags": ((ROW_WIDTH,), np.dtype(np.int64)),
            "parameters": ((self.copies, self.size), np.dtype(np.float32)),
            "optimizer_state": (
                (self.copies, states, self.optimizer.state_rows, self.size),
                np.dtype(np.float32),
            ),
        }

    def nbytes(self) -> int:
        """Size of the block in bytes."""
        return block_size(self.arrays())


class Update(NamedTuple):
    """What became of a gradient that was applied.

    staleness: updates between the pull that it is based on and its own.
    rate: the learning rate of the update; the mean over the parameters [P] if parameter groups have
        rates of their own.
    overlaps: whether another worker was writing meanwhile. False if that is not counted.
    """

    staleness: int
    rate: float
    overlaps: bool


class SharedParameters:
    """Parameters and optimizer state, stepped by any number of workers.

    arrays: views of the shared block, as `StoreSpec.arrays` describes them.
    counters: those of the workers. Without a lock the version is the sum of their applied
        gradients.
    lock: excludes other writers of a locked store. The system must release it when its holder
        dies.
    """

    FIELDS: ClassVar[Fields[SharedParameters]] = {
        "parameters": StateField(
            is_array("f1", finite=True), lambda own: own._vectors[own._active].copy()
        ),
        "optimizer_state": StateField(is_array("f3"), lambda own: own._states[own._active].copy()),
        "version": StateField(is_count, lambda own: own.version),
        "refreshes": StateField(
            is_count, lambda own: int(own._flags[REFRESHES + own._active]), may_be_missing=True
        ),
    }
    """What a checkpoint holds: parameters [P], optimizer_state [workers or 1, M, P], version, and
    the multiple of `target_every` at which the target network was copied last."""

    def __init__(
        self, spec: StoreSpec, arrays: dict[str, Array], counters: WorkerCounters, lock: Lock | None
    ) -> None:
        self.spec = spec
        self.arrays = {name: arrays[name] for name in ("parameter_flags", *LARGE_ARRAYS)}
        self.counters = counters
        self._flags: Array = arrays["parameter_flags"]
        self._vectors: Array = arrays["parameters"]
        self._states: Array = arrays["optimizer_state"]
        self._two_copies = spec.copies == 2
        self._per_worker = spec.per_worker
        self.lock: Lock = threading.Lock() if lock is None else lock
        self.update_lock = self.lock if self._two_copies else nullcontext()

    @property
    def version(self) -> int:
        """Number of updates that the parameters have had."""
        if self._two_copies:
            return int(self._flags[UPDATES])
        return int(self.counters.gradients.sum())

    @property
    def _active(self) -> int:
        """The copy of parameters and optimizer state that counts."""
        return self.version & 1 if self._two_copies else 0

    def copy(self, into: Vector) -> int:
        """Copy the parameters into a vector [P], and return their version. The caller holds
        `update_lock`."""
        version = self.version
        into[:] = self._vectors[version & 1 if self._two_copies else 0]
        return version

    @np.errstate(over="ignore", invalid="ignore")
    def distance(self, vector: Vector) -> float:
        """Return the Euclidean distance of a vector [P] to the parameters, relative to its norm;
        infinite for a vector of zeros."""
        norm = euclidean_norm(vector)
        return euclidean_norm(self._vectors[self._active] - vector) / norm if norm else math.inf

    def step(
        self,
        worker: int,
        gradient: Vector,
        base_version: int,
        steps: int,
        multiplier: float = 1.0,
        pulled: Vector | None = None,
    ) -> Update:
        """Step with a worker's gradient [P]. The caller holds `update_lock`.

        base_version: of the parameters that the gradient is based on.
        steps: of the run at the pull, for the schedule.
        multiplier: of the learning rate.
        pulled: the parameters that the gradient is based on [P]; None unless the optimizer needs
            them.
        """
        per_worker = self._per_worker
        counters = self.counters
        counts_overlaps = self.spec.count_overlaps
        if counts_overlaps:
            counters.updating[worker] = 1
        version = self.version
        staleness = version - base_version
        t = (int(counters.gradients[worker]) if per_worker else version) + 1
        state_index = worker if per_worker else 0
        rate = self._optimize(gradient, steps, multiplier, state_index, t, staleness, pulled)
        # another update has ended since this one began, or is not over
        overlaps = counts_overlaps and bool(self.version > version or counters.updating.sum() > 1)
        counters.gradients[worker] += 1
        if counts_overlaps:
            counters.updating[worker] = 0
        if self._two_copies:
            self._flags[UPDATES] = version + 1
        return Update(staleness, _mean_rate(rate), overlaps)

    def step_round(self, gradient: Floats, steps: int, multiplier: float) -> float:
        """Step with a round's average [P], and return the learning rate. The caller holds the
        lock."""
        version = self.version
        rate = self._optimize(gradient, steps, multiplier, 0, version + 1)
        self._flags[UPDATES] = version + 1
        return _mean_rate(rate)

    def _optimize(
        self,
        gradient: Vector,
        steps: int,
        multiplier: float,
        state_index: int,
        t: int,
        staleness: int = 0,
        pulled: Vector | None = None,
    ) -> float | Vector:
        """Make one optimizer step, in place or from the active copy into the other one, and return
        its learning rate."""
        spec = self.spec
        source = destination = 0
        if self._two_copies:
            version = self.version
            source = version & 1
            destination = (version + 1) & 1
            self._vectors[destination] = self._vectors[source]
            self._states[destination] = self._states[source]

        factor = spec.schedule(progress_of(steps, spec.total_steps)) * multiplier
        parameters = self._vectors[destination]
        rate = rates(spec.optimizer, spec.param_slices, parameters, factor, staleness)
        state = self._states[destination, state_index]
        if pulled is not None:
            gradient = spec.optimizer.compensate(gradient, parameters, pulled, state)
        if spec.target_every is None and spec.target_decay is None:
            spec.optimizer.step(parameters, state, gradient, rate, t)
            return rate

        # the online network alone
        online = spec.param_slices["online"]
        if not isinstance(rate, int | float):
            rate = rate[online]
        spec.optimizer.step(parameters[online], state[:, online], gradient[online], rate, t)
        self._update_target(parameters, source, destination)
        return rate

    def _update_target(self, parameters: Vector, source: int, destination: int) -> None:
        """Move the average after the online network, or copy that after `target_every` steps.

        source, destination: the copies that an update is made from and into.
        """
        spec = self.spec
        online = parameters[spec.param_slices["online"]]
        target = parameters[spec.param_slices["target"]]
        if spec.target_every is None:
            assert spec.target_decay is not None
            target += (1 - spec.target_decay) * (online - target)
            return

        refreshes = self.counters.steps // spec.target_every
        if refreshes > self._flags[REFRESHES + source]:  # each copy has its own number
            target[:] = online
            self._flags[REFRESHES + destination] = refreshes
        elif self._two_copies:
            self._flags[REFRESHES + destination] = self._flags[REFRESHES + source]

    def checksum(self) -> int:
        """Return the CRC-32 of the parameters. The caller holds `update_lock`."""
        return zlib.crc32(self._vectors[self._active])

    def initialize(self, parameters: Floats) -> None:
        """Set the parameters [P] and the optimizer's initial state, in both copies."""
        self._vectors[:] = parameters
        self._states[:] = self.spec.optimizer.initial_state(self.spec.size)

    def state(self) -> dict[str, Any]:
        """Return copies of everything that a resumption needs. Whole if no update was made
        meanwhile."""
        return read_state(self, self.FIELDS)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set everything as `state` had it. A worker without a row in `state` starts with the
        initial optimizer state, and its own gradients are counted for the bias correction. Rows of
        workers that are no more are left out.

        Raises ValueError if the state is of another network or optimizer.
        """
        optimizer_state = state["optimizer_state"]
        expected = self._vectors.shape[1:], self._states.shape[2:]
        if (state["parameters"].shape, optimizer_state.shape[1:]) != expected:
            raise ValueError(
                f"parameters and optimizer state of shapes {state['parameters'].shape}, "
                f"{optimizer_state.shape[1:]} for {expected}"
            )

        self.initialize(state["parameters"])
        workers = min(self._states.shape[1], len(optimizer_state))
        self._states[:, :workers] = optimizer_state[:workers]
        self._flags[UPDATES] = state["version"]
        if self.spec.target_every is not None:
            due = state["steps"] // self.spec.target_every
            self._flags[REFRESHES:] = min(state.get("refreshes", due), due)


def _mean_rate(rate: float | Vector) -> float:
    if isinstance(rate, int | float):
        return rate
    xp = functions_of(rate)
    return float(xp.mean(rate, dtype=xp.float64))
