"""All workers in one thread: the reference that the other backends are tested against."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from a3c_exp import seeding
from a3c_exp.backends import FAILURES, failure
from a3c_exp.errors import RunError
from a3c_exp.events import Event
from a3c_exp.parameters import Layout, SharedParameters
from a3c_exp.seeding import Role
from a3c_exp.worker import Pause, Setup, Worker


@dataclass(frozen=True, kw_only=True)
class Serial:
    """Workers take turns in a random order drawn from the seed, so asynchrony itself is replayed bit by bit.

    A turn is a worker's push, and its next pull and gradient. Until its next turn each of the others has had one on
    average, so a gradient is as stale as it would be with workers of equal speed: workers - 1 updates on average.
    """

    deterministic: ClassVar[bool] = True

    def prepare(self) -> None:
        """Nothing to start."""

    def store(self, layout: Layout) -> SharedParameters:
        return SharedParameters(layout)

    def run(self, setup: Setup, store: SharedParameters) -> Generator[Event | None, None, None]:
        rng = seeding.generator(setup.experiment.seed, Role.SCHEDULER, resumed=setup.resumed)
        workers: list[Worker] = []
        try:
            for index in range(setup.experiment.worker_count):
                with _failing(index):
                    workers.append(Worker(setup, index, store))
            running = [(index, worker.run()) for index, worker in enumerate(workers)]
            while running:
                turn = int(rng.integers(len(running))) if len(running) > 1 else 0
                index, steps = running[turn]
                with _failing(index):
                    for step in steps:
                        if isinstance(step, Pause):
                            break
                        yield step
                    else:
                        workers[index].close()
                        del running[turn]
        finally:
            for worker in workers:
                worker.close()


@contextmanager
def _failing(worker: int) -> Iterator[None]:
    """Within, what this worker ends with is the run's failure."""
    try:
        yield
    except FAILURES as error:
        raise RunError(failure(f"worker {worker}", error)) from error
