"""All workers in one thread: the reference that the other backends are tested against."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

from a3c_exp.backends.supervision import MaxRestarts
from a3c_exp.backends.turns import build_all, until_pause, workers_in_turns
from a3c_exp.core import seeding
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Backend, RunContext
from a3c_exp.core.store import SharedStore


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

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        rng = seeding.generator(
            context.experiment.seed, seeding.Role.SCHEDULER, resumed=context.resumed
        )
        with workers_in_turns(self, context, store) as workers:
            running = yield from build_all(workers)
            while running:
                turn = int(rng.integers(len(running))) if len(running) > 1 else 0
                if (yield from until_pause(workers[running[turn]])) is None:
                    del running[turn]
