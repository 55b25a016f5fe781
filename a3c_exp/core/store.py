"""The store: everything that workers share, with pull and push.

A store joins three things in one block of memory: the parameters (`parameters`), the synchronous
rounds (`rounds`) and what each worker counts (`counters`). A worker sees it only through the
protocol `Store`, which backends implement for parameters that live elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from a3c_exp.common.arrays import Floats, Vector, arrays_in
from a3c_exp.core.counters import Multipliers, WorkerCounters, pack_rng, unpack_rng
from a3c_exp.core.events import Event
from a3c_exp.core.heartbeat import Heartbeat
from a3c_exp.core.normalization import Normalizer, Stats
from a3c_exp.core.order import CHECKSUM_EVERY, Begin, Kind, Order
from a3c_exp.core.parameters import Lock, SharedParameters, StoreSpec
from a3c_exp.core.rounds import SynchronousRounds

STOP = 0


class Snapshot(NamedTuple):
    """The information that a pull brings besides the parameters.

    version: number of updates that the parameters have had.
    steps: environment steps of the run so far.
    normalizer: the frozen observation and reward statistics; None if nothing is normalized.
    rounds: number of synchronous rounds that are over. A gradient belongs to the one after these.
    multipliers: factors for the gradients that are based on this pull.
    """

    version: int
    steps: int
    normalizer: Normalizer | None
    rounds: int = 0
    multipliers: Multipliers = Multipliers()


@dataclass(slots=True, kw_only=True)
class Push:
    """A gradient on its way to the store, and what goes with it.

    gradient: float32 [P], clipped; None if it was not finite or of no transition. Then only
        counters move.
    snapshot: the pull that the gradient is based on.
    event: reports the push. The store completes it with what became of the gradient.
    weight: of the gradient in the average of a synchronous round; not used if there is no gradient.
    stats: measured in the rollouts of the gradient; None if nothing is normalized.
    rng: the worker's generator, whose state is saved with the push.
    parameters: those of the pull [P], for the distance to those of the push, and for an optimizer
        that needs them; None: the distance is not measured.
    """

    gradient: Vector | None
    snapshot: Snapshot
    event: Event
    weight: int
    stats: Stats | None
    rng: np.random.Generator
    parameters: Vector | None = None


class Ticket:
    """What a worker holds after a push, or after the end of a rollout, until it may go on. This one
    is of work that is done already."""

    def done(self) -> bool:
        """Return, without blocking, whether nothing that the worker waits for is open."""
        return True


DONE = Ticket()


class Store(Protocol):
    """The shared parameters as a worker sees them, wherever they live.

    worker: the index of a worker, which is that of its rows.
    """

    @property
    def stopped(self) -> bool:
        """Return whether workers are to end."""

    def start(self, worker: int, rng: np.random.Generator, incarnation: int = 0) -> int:
        """Announce the worker's first step. Sets the generator to its saved state if there is one.

        incarnation: `RunContext.resumed`, which tells the worker from those that had its index
            before.

        Returns how many episodes the worker has finished in earlier sessions, or its predecessors
        in this one.
        """

    def heartbeat(self, worker: int) -> Heartbeat:
        """Return the worker's sign of life."""

    def pull(self, worker: int, into: Vector) -> Snapshot:
        """Copy the parameters into a vector [P]."""

    def push(self, worker: int, push: Push) -> Ticket:
        """Hand over a gradient, without waiting for those of other workers.

        The worker asks the ticket until it is done. Then the event is complete.
        """

    def finish_rollout(self, worker: int) -> Ticket:
        """Say that no more gradients of the rollout will come: rounds go on without this worker.

        Once the ticket is done, the worker may pull again.
        """

    def leave(self, worker: int) -> None:
        """Say that the worker has ended: no other waits for it any more."""


class SharedStore:
    """Parameters, rounds and counters in one block of memory that several workers may map.

    spec: what the block holds.
    block: a writable buffer of `spec.nbytes()` bytes, zeroed when it is new; None for memory of
        this process.
    lock: see `SharedParameters`; None for a lock between the threads of this process.
    """

    def __init__(self, spec: StoreSpec, block: Any = None, lock: Lock | None = None) -> None:
        self.spec = spec
        self._block = block
        arrays = arrays_in(bytearray(spec.nbytes()) if block is None else block, spec.arrays())

        self.counters = WorkerCounters(arrays)
        self.parameters = SharedParameters(spec, arrays, self.counters, lock)

        lock = self.parameters.lock
        self.rounds = (
            SynchronousRounds(arrays, lock, spec.closed_by or spec.workers)
            if spec.synchronous
            else None
        )
        self.order = Order(arrays) if spec.record else None
        self._flags = arrays["store_flags"]

    def __reduce__(self) -> tuple[Any, ...]:
        """Map the same block in the child process that this is sent to."""
        return SharedStore, (self.spec, self._block, self.parameters.lock)

    # -- the worker's side

    @property
    def stopped(self) -> bool:
        return bool(self._flags[STOP])

    @property
    def is_over(self) -> bool:
        """Return whether the run has been stopped or has made all its steps."""
        return self.stopped or self.steps >= self.spec.total_steps

    def start(self, worker: int, rng: np.random.Generator, incarnation: int = 0) -> int:
        """Set the worker's generator to its saved state, take part in rounds, and start the clock
        of the training."""
        unpack_rng(rng, self.counters.rng_states[worker])
        if self.order is not None:
            counted = self.counters.counted(worker)
            begin = Begin(incarnation, pack_rng(rng), counted)
            with self.parameters.update_lock:
                self.order.add(Kind.BEGIN, worker, begin.words())
        if self.rounds is not None:
            self.rounds.join(worker)
        self.counters.start_clock()
        return int(self.counters.episodes[worker])

    def heartbeat(self, worker: int) -> Heartbeat:
        return Heartbeat(self.counters.heartbeats[worker : worker + 1])

    def pull(self, worker: int, into: Vector) -> Snapshot:
        """Copy the parameters into a worker's own vector [P]."""
        if self.order is not None:
            self.order.wait_for_room()
        with self.parameters.update_lock:
            version = self.parameters.copy(into)
            rounds = 0 if self.rounds is None else self.rounds.completed
            multipliers = self.counters.multipliers
            snapshot = Snapshot(
                version, self.counters.steps, self.normalizer(), rounds, multipliers
            )
            if self.order is not None:
                self.order.add_pull(worker, multipliers)
        return snapshot

    def peek(self) -> Snapshot:
        """Return what a pull brings besides the parameters, for a worker whose network is
        elsewhere."""
        return Snapshot(self.parameters.version, self.counters.steps, self.normalizer())

    def push(self, worker: int, push: Push) -> Ticket:
        """Step the parameters, or submit to the synchronous round after those that were over at the
        pull."""
        self.counters.episodes[worker] += len(push.event.episodes)
        ticket = DONE
        if self.rounds is not None:
            self.counters.count(worker, push.event.steps, push.stats)
            ticket = self._submit(self.rounds, worker, push)
            ticket.done()  # whoever completes a round makes its step
        else:
            self._apply(worker, push)
        self.counters.save_rng_state(worker, push.rng)
        return ticket

    def _apply(self, worker: int, push: Push) -> None:
        """Count a push, and step by its gradient if it has one: with a lock both at once, so that
        what a pull brings depends on the order of pulls and pushes alone."""
        if self.order is not None:
            self.order.wait_for_room()
        if push.gradient is not None and push.parameters is not None:
            push.event.add({"workers/distance": self.parameters.distance(push.parameters)})
        with self.parameters.update_lock:
            self.counters.count(worker, push.event.steps, push.stats)
            if push.gradient is not None:
                version, steps, _, _, multipliers = push.snapshot
                pulled = push.parameters if self.spec.optimizer.needs_pulled else None
                staleness, rate, overlaps = self.parameters.step(
                    worker, push.gradient, version, steps, multipliers.learning_rate, pulled
                )
                push.event.updates += 1
                push.event.staleness[staleness] += 1
                if overlaps:
                    push.event.counts["overlaps"] += 1
                push.event.add({"learning_rate": rate})
            if self.order is not None:
                self._record_push(self.order, worker, push)

    def _record_push(self, order: Order, worker: int, push: Push) -> None:
        if push.gradient is None:
            order.add(Kind.REFUSED if push.weight else Kind.EMPTY, worker)
            return
        version = self.version
        order.add_push(worker, version)
        if version % CHECKSUM_EVERY == 0:
            order.add(Kind.CHECKSUM, worker, [self.parameters.checksum()])

    def _submit(self, rounds: SynchronousRounds, worker: int, push: Push) -> Ticket:
        """Submit to a round. With a quorum it may be over: the gradient is late. It is dropped, and
        nobody waits.

        A quorum is of gradients: who has none does not submit, and may bring another one to the
        same round.
        """
        with self.parameters.lock:  # so that the gradient is visible before the row's round
            if push.snapshot.rounds < rounds.completed:
                if push.gradient is not None:
                    push.event.counts["late_gradients"] += 1
                return DONE
            if push.gradient is None and self.spec.closed_by is not None:
                return DONE
            rounds.submit(worker, push.gradient, push.weight, push.snapshot.rounds + 1)
        return _RoundTicket(self, rounds, worker, push)

    def finish_rollout(self, worker: int) -> Ticket:
        if self.rounds is None:
            return DONE
        self.rounds.finish_rollout(worker)
        return _CycleTicket(self.rounds, worker)

    def leave(self, worker: int) -> None:
        self.counters.updating[worker] = 0  # it may have been killed in an update
        if self.rounds is not None:
            self.rounds.leave(worker)

    # -- everybody's

    @property
    def version(self) -> int:
        """Number of updates that the parameters have had."""
        return self.parameters.version

    @property
    def steps(self) -> int:
        """Environment steps of all workers."""
        return self.counters.steps

    @property
    def training_seconds(self) -> float:
        """Seconds of training in this session, by the clock of the curves and of `stop`."""
        return self.counters.training_seconds

    def normalizer(self) -> Normalizer | None:
        """Return the statistics of all workers as they are now; None if nothing is normalized."""
        stats = self.counters.stats()
        if not len(stats):
            return None
        return Normalizer.from_row(stats, self.spec.observations, self.spec.normalize_rewards)

    def stop(self) -> None:
        """Ask every worker to end before its next rollout."""
        self._flags[STOP] = 1

    # -- the trainer's side

    def initialize(self, parameters: Floats) -> None:
        """Set the parameters [P], the optimizer's initial state, and multipliers of 1."""
        self.parameters.initialize(parameters)
        self.counters.multipliers = Multipliers()

    def set_multipliers(
        self, *, learning_rate: float | None = None, entropy: float | None = None
    ) -> None:
        """Multiply the learning rate, or the derivatives of the loss by the policy's entropy, from
        each worker's next pull on. None leaves a multiplier as it is.

        Raises ValueError for a number that is not finite, and for a learning rate's below 0.
        """
        multipliers = self.counters.multipliers
        if learning_rate is not None:
            multipliers = multipliers._replace(learning_rate=learning_rate)
        if entropy is not None:
            multipliers = multipliers._replace(entropy=entropy)

        if not (0 <= multipliers.learning_rate < math.inf and math.isfinite(multipliers.entropy)):
            raise ValueError(
                f"multipliers must be finite, and the learning rate's >= 0: {multipliers}"
            )
        self.counters.multipliers = multipliers

    def state(self) -> dict[str, Any]:
        """Return copies of everything that a resumption needs, as plain numbers and arrays.

        This never takes the lock: a worker may be stopped while it holds it. An update is prepared
        in the second copy, so what was copied while the version stayed the same is whole. Otherwise
        it is copied again. Without a lock there is one copy, which may be in the middle of an
        update, as in a pull. Counters may be some updates newer: wide statistics take longer to
        copy than an update takes.
        """
        while True:
            version = self.version
            parameters = self.parameters.state()
            if self.spec.copies == 1 or self.version == version:
                return {**parameters, **self.counters.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set everything but rounds as `state` had it. The number of workers may differ.

        Raises ValueError if the state is of another network or optimizer.
        """
        self.parameters.restore(state)
        self.counters.restore(state, state["version"])

    def start_from(self, state: Mapping[str, Any]) -> None:
        """Begin with another run's parameters, and its observation statistics if both runs have
        some.

        Raises ValueError if they are of another network.
        """
        self.parameters.initialize(state["parameters"])
        self.counters.take_observation_stats(state["stats"])


@dataclass(slots=True, eq=False)
class _RoundTicket(Ticket):
    """The ticket of a push that takes part in a synchronous round."""

    store: SharedStore
    rounds: SynchronousRounds
    worker: int
    push: Push
    is_over: bool = False

    def done(self) -> bool:
        """Make the steps of complete rounds, and return whether the round of the push is over."""
        if self.is_over:
            return True
        if self.rounds.round_in_progress(self.worker, self._step):
            return False
        self.is_over = True
        if self.push.gradient is not None:
            self.store.counters.gradients[self.worker] += 1
            self.push.event.staleness[0] += 1
        return True

    def _step(self, gradient: Floats) -> None:
        snapshot = self.push.snapshot
        rate = self.store.parameters.step_round(
            gradient, snapshot.steps, snapshot.multipliers.learning_rate
        )
        self.push.event.updates += 1
        self.push.event.add({"learning_rate": rate})


@dataclass(slots=True, eq=False)
class _CycleTicket(Ticket):
    """The ticket of a rollout that has ended before those of other workers."""

    rounds: SynchronousRounds
    worker: int

    def done(self) -> bool:
        return not self.rounds.cycle_in_progress(self.worker)
