"""All workers in one thread: the reference that the other backends are tested against."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from a3c_exp.backends.messages import failure_text
from a3c_exp.core import seeding
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Backend, RunContext
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.seeding import Role
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import Worker, YieldPoint
from a3c_exp.errors import FAILURES, RunError, stop_reason


@dataclass(frozen=True, kw_only=True)
class Serial(Backend):
    """Workers take turns in a random order drawn from the seed, so asynchrony itself is reproduced bit for bit.

    A turn is a worker's push, and its next pull and gradient. Between two turns of a worker each of the others has one
    turn on average. So a gradient is as stale as with workers of equal speed: with A3C workers - 1 updates on average.
    """

    deterministic: ClassVar[bool] = True

    def store(self, spec: StoreSpec) -> SharedStore:
        return SharedStore(spec)

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        rng = seeding.generator(context.experiment.seed, Role.SCHEDULER, resumed=context.resumed)
        workers: list[Worker] = []
        try:
            for index in range(context.experiment.worker_count):
                with _failing(index):
                    workers.append(Worker(context, index, store))
            running = [(index, worker.run()) for index, worker in enumerate(workers)]
            while running:
                turn = int(rng.integers(len(running))) if len(running) > 1 else 0
                index, steps = running[turn]
                with _failing(index):
                    for step in steps:
                        if isinstance(step, YieldPoint):
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
    """Within: an exception becomes a RunError that names the worker."""
    try:
        yield
    except FAILURES as error:
        raise RunError(failure_text(f"worker {worker}", error), stop_reason(error)) from error
