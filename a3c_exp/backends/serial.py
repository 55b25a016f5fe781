"""All workers in one thread: the reference that the other backends are tested against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from a3c_exp import seeding
from a3c_exp.events import Event
from a3c_exp.parameters import Layout, SharedParameters
from a3c_exp.seeding import Role
from a3c_exp.worker import Pause, Setup, Worker


@dataclass(frozen=True, kw_only=True)
class Serial:
    """Workers take turns in a random order drawn from the seed, so asynchrony itself is replayed bit by bit.

    A turn goes from a push to the next gradient, or from a gradient to its push: between the two others may push, and
    a gradient is as stale as it would be with workers of equal speed (workers - 1 on average).
    """

    deterministic: ClassVar[bool] = True

    def prepare(self, modules: Iterable[str]) -> None:
        """Nothing to start."""

    def store(self, layout: Layout) -> SharedParameters:
        return SharedParameters(layout)

    def run(self, setup: Setup, store: SharedParameters) -> Iterator[Event | None]:
        rng = seeding.generator(setup.experiment.seed, Role.SCHEDULER, resumed=setup.resumed)
        workers: list[Worker] = []
        try:
            for index in range(setup.experiment.worker_count):
                workers.append(Worker(setup, index, store))
            running = [(worker, worker.run()) for worker in workers]
            while running:
                turn = int(rng.integers(len(running))) if len(running) > 1 else 0
                worker, steps = running[turn]
                step = next(steps, None)
                if step is None:
                    worker.close()
                    del running[turn]
                elif not isinstance(step, Pause):
                    yield step
        finally:
            for worker in workers:
                worker.close()
