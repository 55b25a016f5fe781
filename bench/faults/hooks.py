"""A plugin of the runs that faults are caused in. It notes their steps, and lets their wall clock jump.

STEPS: a file for the steps that the run knew of last, an int64. A killed run leaves it as it was.
JUMPS: the times at which the clock jumps and by how much, as "1:3600 2.5:-7200": after 1 s by an hour, after 2.5 s back
by two. The clock is Python's, in the main process and in the workers, from the import of this module.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

STEPS, JUMPS = "A3C_EXP_FAULTS_STEPS", "A3C_EXP_FAULTS_JUMPS"


def note_steps(path: Path) -> None:
    """Let the trainer of this process note the steps of its run, some ten times a second or more."""
    import numpy as np

    from a3c_exp.run.trainer import Trainer

    steps = np.memmap(path, np.int64, "w+", shape=(1,))
    periodic = Trainer._run_periodic_tasks

    def note_and_go_on(self: Trainer) -> None:
        steps[0] = self._store.steps
        periodic(self)

    Trainer._run_periodic_tasks = note_and_go_on  # type: ignore[method-assign]


def jumping(jumps: str, clock: Callable[[], float], elapsed: Callable[[], float]) -> Callable[[], float]:
    """`clock` with jumps. elapsed: monotonic seconds."""
    pairs = [(float(after), float(by)) for after, _, by in (jump.partition(":") for jump in jumps.split())]
    begun = elapsed()

    def jumped() -> float:
        seconds = elapsed() - begun
        return clock() + sum(by for after, by in pairs if seconds >= after)

    return jumped


if os.environ.get(STEPS) and not Path(os.environ[STEPS]).exists():  # workers find it there
    note_steps(Path(os.environ[STEPS]))
if os.environ.get(JUMPS):
    time.time = jumping(os.environ[JUMPS], time.time, time.monotonic)
