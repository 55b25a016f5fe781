"""Any number of workers in one thread, in the order of a clock that only counts."""

from __future__ import annotations

import heapq
from collections.abc import Generator
from dataclasses import dataclass, replace
from itertools import count
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np

from a3c_exp.backends.supervision import MaxRestarts
from a3c_exp.backends.turns import build_all, workers_in_turns
from a3c_exp.common.ranges import Count, NotNegative, Positive, Range, Share, within
from a3c_exp.core import seeding
from a3c_exp.core.events import Event, YieldPoint
from a3c_exp.core.experiment import Backend, RunContext
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import SharedStore

Spread = Annotated[float, within(0, 3)]
Slowdown = Annotated[float, Range("a number from 1 to 1e+06", 1, 1e6)]


class SimulatedStore(SharedStore):
    """A store whose seconds of training are those of a simulated clock.

    seconds: set by the backend.
    """

    seconds = 0.0

    @property
    def training_seconds(self) -> float:
        return self.seconds


@dataclass(frozen=True, kw_only=True)
class Simulated(MaxRestarts, Backend):
    """Workers of a cluster that need not exist. Their pulls, rollouts, gradients and pushes are
    computed in one thread, in the order in which the cluster would finish them, and a clock counts
    the time that the cluster would need.

    Curves, stop rules and summary.json have the seconds of that clock. Only `wall_seconds` is real.
    Equal settings and seeds give equal runs, bit for bit.

    step_ms: milliseconds of one step of all environments of a worker, with the choice of actions.
    gradient_ms: milliseconds of one gradient.
    push_ms: milliseconds of one push. With lock=true and in rounds, pushes follow one another.
    pull_ms: milliseconds from a pull's reading of the parameters until the worker acts with them.
    worker_spread, turn_spread: standard deviation of the logarithm of a factor that multiplies
        step_ms and gradient_ms. Its mean is 1, and it is drawn once for each worker, or for each
        rollout and gradient.
    stragglers: share of the workers that are slower than the others.
    slowdown: factor of step_ms and gradient_ms of stragglers.
    cores: cores that compute rollouts and gradients. A worker waits until one is free; a push needs
        none. None: one for each worker.
    """

    step_ms: Positive = 0.1
    gradient_ms: NotNegative = 1.0
    push_ms: NotNegative = 0.0
    pull_ms: NotNegative = 0.0
    worker_spread: Spread = 0.0
    turn_spread: Spread = 0.0
    stragglers: Share = 0.0
    slowdown: Slowdown = 4.0
    cores: Count | None = None

    deterministic: ClassVar[bool] = True
    clock: ClassVar[Literal["real", "simulated"]] = "simulated"

    def store(self, spec: StoreSpec) -> SimulatedStore:
        return SimulatedStore(spec)

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        assert isinstance(store, SimulatedStore)
        experiment = context.experiment
        steps = [0.0] * experiment.worker_count

        def on_rollout(worker: int, transitions: int) -> None:
            steps[worker] = transitions / experiment.envs_per_worker

        rng = seeding.generator(experiment.seed, seeding.Role.SCHEDULER, resumed=context.resumed)
        cluster = _Cluster(
            self,
            experiment.worker_count,
            takes_turns_to_push=experiment.lock or experiment.update == "sync",
            rng=rng,
        )
        context = replace(context, on_rollout=on_rollout)
        with workers_in_turns(self, context, store) as workers:
            for worker in (yield from build_all(workers)):
                cluster.resume(worker, 0.0)

            while (turn := cluster.next_turn()) is not None:
                store.seconds = turn.time
                pause = None
                for output in workers[turn.worker]:
                    if isinstance(output, YieldPoint):
                        pause = output
                        break
                    cluster.resume_suspended(turn.time)  # it may have closed a round
                    yield output

                if pause is YieldPoint.WAITING:
                    cluster.suspend(turn.worker)
                    continue
                cluster.resume_suspended(turn.time)  # it may have left the others
                if pause is not None:
                    cluster.work(turn, steps[turn.worker], pushes=pause is YieldPoint.BEFORE_PUSH)
                    steps[turn.worker] = 0.0


class _Turn(NamedTuple):
    """The beginning of a worker's turn.

    time: in seconds. tie: orders the turns of one time.
    needs_lock: the worker is about to push, and needs the lock first.
    """

    time: float
    tie: int
    worker: int
    needs_lock: bool = False


class _Cluster:
    """The turns of the workers, in the order of their times.

    takes_turns_to_push: whether one worker pushes at a time.
    rng: draws the factors of times.
    """

    def __init__(
        self,
        settings: Simulated,
        workers: int,
        *,
        takes_turns_to_push: bool,
        rng: np.random.Generator,
    ) -> None:
        self._settings = settings
        self._takes_turns_to_push = takes_turns_to_push
        self._rng = rng
        spread = settings.worker_spread
        self._slowness = rng.lognormal(_log_mean(spread), spread, workers)
        stragglers = round(settings.stragglers * workers)
        self._slowness[workers - stragglers :] *= settings.slowdown
        self._turns: list[_Turn] = []
        self._ties = count()
        self._suspended: list[int] = []
        self._lock_is_free_at = 0.0
        # the times at which cores become free
        self._cores = None if settings.cores is None else [0.0] * settings.cores

    def resume(self, worker: int, time: float, *, needs_lock: bool = False) -> None:
        """Let a worker go on at a time."""
        heapq.heappush(self._turns, _Turn(time, next(self._ties), worker, needs_lock))

    def suspend(self, worker: int) -> None:
        """Let a worker wait in a round, until `resume_suspended`."""
        self._suspended.append(worker)

    def resume_suspended(self, time: float) -> None:
        """Let all workers that wait look again whether their round is over."""
        for worker in self._suspended:
            self.resume(worker, time)
        self._suspended.clear()

    def next_turn(self) -> _Turn | None:
        """Take the next turn; None if all workers have ended."""
        while self._turns:
            turn = heapq.heappop(self._turns)
            if not turn.needs_lock:
                return turn
            # Whoever comes first gets the lock first.
            start = max(turn.time, self._lock_is_free_at)
            self._lock_is_free_at = start + self._settings.push_ms / 1000
            self.resume(turn.worker, self._lock_is_free_at)
        return None

    def work(self, turn: _Turn, steps: float, *, pushes: bool) -> None:
        """Let the time of a worker's rollout and gradient pass.

        steps: of the worker's environments since its last pause.
        pushes: whether it has made a gradient, which it pushes next.
        """
        settings = self._settings
        if not steps and not pushes:  # it has only been built
            self.resume(turn.worker, turn.time)
            return

        spread = settings.turn_spread
        factor = self._slowness[turn.worker] * self._rng.lognormal(_log_mean(spread), spread)
        milliseconds = (settings.step_ms * steps + settings.gradient_ms * pushes) * float(factor)
        start = turn.time + settings.pull_ms / 1000
        if self._cores is not None:
            start = max(start, self._cores[0])
            heapq.heapreplace(self._cores, start + milliseconds / 1000)

        needs_lock = pushes and self._takes_turns_to_push
        if pushes and not needs_lock:
            milliseconds += settings.push_ms
        self.resume(turn.worker, start + milliseconds / 1000, needs_lock=needs_lock)


def _log_mean(spread: float) -> float:
    """Return the mean of the logarithm of a lognormal factor whose own mean is 1."""
    return -(spread**2) / 2
