"""All workers in one thread: the reference that the other backends are tested against."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from a3c_exp.backends.supervision import MaxRestarts, Outputs
from a3c_exp.backends.turns import build_all, until_event, until_pause, workers_in_turns
from a3c_exp.common.ranges import Whole
from a3c_exp.core import seeding
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Backend, Experiment, RunContext
from a3c_exp.core.store import SharedStore
from a3c_exp.errors import ConfigError, require


@dataclass(frozen=True, kw_only=True)
class Serial(MaxRestarts, Backend):
    """Workers take turns in an order that the settings and the seed determine, so asynchrony itself
    is reproduced bit for bit.

    A turn is a worker's push, and its next pull and gradient. A worker that fails is built again in
    its place. Nobody sees whether one hangs.

    order: of the workers' turns: 'random', with the run's seed, or 'round_robin', one after the
        other.
    weights: chances of a worker's turn in a random order, relative to one another, each > 0. A
        worker of weight 0.1 is ten times slower than one of weight 1. The list is repeated for
        further workers. None: all have the same chance.
    staleness: mean number of updates between a worker's pull and its push, from 0 to workers - 1;
        with 'round_robin' that of every gradient but the first ones. So many workers and one more
        are between pull and push, the others wait to pull. Workers that pull twice for an update,
        for their rollout and for its gradient, pull and push the gradient in one turn: then it is
        the age of the rollout. None: workers - 1, and each pull is a turn.
    """

    deterministic: ClassVar[bool] = True
    has_order: ClassVar[bool] = True

    order: Literal["random", "round_robin"] = "random"
    weights: tuple[float, ...] | None = None
    staleness: Whole | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights is None:
            return

        weights = list(self.weights)
        are_positive = bool(weights) and all(0 < weight < np.inf for weight in weights)
        require(are_positive, "weights", weights, "null, or numbers > 0")
        require(self.order == "random", "weights", weights, "null with order=round_robin")

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError for weights of more workers than there are, and for a staleness that
        this many workers, or rounds, cannot have."""
        workers = experiment.worker_count
        if self.weights is not None:
            allowed = f"at most one number for each of workers={workers}"
            fits = len(self.weights) <= workers
            require(fits, "backend.weights", list(self.weights), allowed)
        if self.staleness is None:
            return

        key = "backend.staleness"
        if self.staleness >= workers:
            problem = f"must be less than workers={workers}, or null"
            raise ConfigError(key, self.staleness, problem)
        if experiment.update == "sync":
            problem = "must be null with update=sync: no gradient of a round is stale"
            raise ConfigError(key, self.staleness, problem)

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        rng = seeding.generator(
            context.experiment.seed, seeding.Role.SCHEDULER, resumed=context.resumed
        )
        with workers_in_turns(self, context, store) as workers:
            running = yield from build_all(workers)
            if self.staleness is None:
                yield from self._run_all(workers, running, rng)
            else:
                yield from self._run_some(workers, running, rng, self.staleness + 1)

    def _run_all(
        self, workers: Sequence[Outputs], running: list[int], rng: np.random.Generator
    ) -> Generator[Event, None, None]:
        """Run workers that pull again as soon as they have pushed. A turn ends with any pause.

        running: indices of the workers. The list is used up.
        """
        while running:
            position = self._next(running, rng)
            worker = running[position]
            if (yield from until_pause(workers[worker])) is None:
                del running[position]
            elif self.order == "round_robin":
                running.append(running.pop(position))

    def _run_some(
        self, workers: Sequence[Outputs], running: list[int], rng: np.random.Generator, most: int
    ) -> Generator[Event, None, None]:
        """Run workers that wait for their pull, in the order of their last pushes.

        most: workers that are between pull and push at a time.
        """
        waiting = deque(running)
        in_flight: list[int] = []
        while waiting or in_flight:
            if waiting and len(in_flight) < most:
                worker = waiting.popleft()
                if (yield from until_pause(workers[worker])) is not None:
                    in_flight.append(worker)
            else:
                worker = in_flight.pop(self._next(in_flight, rng))
                if (yield from until_event(workers[worker])):
                    waiting.append(worker)

    def _next(self, running: Sequence[int], rng: np.random.Generator) -> int:
        """Return the position of the worker whose turn it is."""
        if self.order == "round_robin" or len(running) == 1:
            return 0
        if self.weights is None:
            return int(rng.integers(len(running)))
        weights = np.array([self.weights[worker % len(self.weights)] for worker in running])
        return int(rng.choice(len(running), p=weights / weights.sum()))
