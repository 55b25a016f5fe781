from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Backend, RunContext
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import Worker


@dataclass(frozen=True, kw_only=True)
class InTurn(Backend):
    """All workers in this thread, one after the other. In each round all collect, then all push:
    worker i pushes after i others, so its gradients are always i updates stale."""

    deterministic: ClassVar[bool] = True

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        workers: list[Worker] = []
        try:
            for index in range(context.experiment.worker_count):
                workers.append(Worker(context, index, store))
            running = {worker: worker.run() for worker in workers}
            while running:
                for worker, steps in list(running.items()):
                    step = next(steps, None)
                    if step is None:
                        worker.close()
                        del running[worker]
                    elif isinstance(step, Event):
                        yield step
        finally:
            for worker in workers:
                worker.close()
