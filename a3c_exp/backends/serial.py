"""All workers in one thread: the reference that the other backends are tested against."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar

from a3c_exp.backends.messages import failed
from a3c_exp.backends.supervision import MaxRestarts, Outputs, Restarts, run_worker
from a3c_exp.core import seeding
from a3c_exp.core.events import Event, YieldPoint
from a3c_exp.core.experiment import Backend, RunContext
from a3c_exp.core.store import SharedStore
from a3c_exp.errors import FAILURES


@dataclass(frozen=True, kw_only=True)
class Serial(MaxRestarts, Backend):
    """Workers take turns in a random order drawn from the seed, so asynchrony itself is reproduced
    bit for bit.

    A turn is a worker's push, and its next pull and gradient. Between two turns of a worker each of
    the others has one turn on average. So a gradient is as stale as with workers of equal speed:
    with A3C workers - 1 updates on average.

    A worker that fails is built again in its place. Nobody sees whether one hangs.
    """

    deterministic: ClassVar[bool] = True
    has_order: ClassVar[bool] = True

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        rng = seeding.generator(
            context.experiment.seed, seeding.Role.SCHEDULER, resumed=context.resumed
        )
        restarts = Restarts(self, store, context.experiment.envs_per_worker)
        workers = [
            _replaceable_worker(context, index, store, restarts)
            for index in range(context.experiment.worker_count)
        ]
        try:
            unbuilt = iter(workers)
            running = list(workers)
            while running:
                worker = next(unbuilt, None)  # all are built before the first has a turn
                if worker is None:
                    turn = int(rng.integers(len(running))) if len(running) > 1 else 0
                    worker = running[turn]
                for output in worker:
                    if isinstance(output, YieldPoint):
                        break
                    yield output
                else:
                    running.remove(worker)
        finally:
            for worker in workers:
                worker.close()


def _replaceable_worker(
    context: RunContext, index: int, store: SharedStore, restarts: Restarts
) -> Outputs:
    """Run a worker, and after a failure another one in its place. Pauses once it has been built,
    and as it does."""
    while True:
        try:
            with closing(
                run_worker(context, index, store, restarts.next_attempt(index))
            ) as outputs:
                for output in outputs:
                    if isinstance(output, Event):
                        restarts.on_event(index, output)
                    yield output
            return
        except FAILURES as error:
            verdict = restarts.on_failure(index, index, failed(f"worker {index}", error))
        yield verdict.event
        if not verdict.is_replaced:
            return
