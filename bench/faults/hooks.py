"""A plugin of the runs that faults are caused in. It notes their steps.

STEPS: a file for the steps that the run knew of last, an int64. A killed run leaves it as it was.
"""

from __future__ import annotations

import os
from pathlib import Path

STEPS = "A3C_EXP_FAULTS_STEPS"


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


if os.environ.get(STEPS) and not Path(os.environ[STEPS]).exists():  # workers find it there
    note_steps(Path(os.environ[STEPS]))
