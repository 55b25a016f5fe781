"""An open run: the parts that its loop, its recorders and the view of its callbacks share."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from a3c_exp.algorithms.algorithm import CURVE_NAME
from a3c_exp.common.signals import Interruption
from a3c_exp.core.experiment import Experiment
from a3c_exp.core.store import SharedStore
from a3c_exp.ending import Ending
from a3c_exp.networks import ActorCritic
from a3c_exp.run.files import RunOutput
from a3c_exp.run.hooks import Hooks
from a3c_exp.run.metrics import SECONDS, STEP
from a3c_exp.run.milestones import Milestones
from a3c_exp.run.statistics import RunStatistics

# Workers that are asked to stop finish their rollout first. After this time the run no longer waits
# for them.
PATIENCE_SECONDS = 3.0
# The same where they write their memories first.
MEMORY_SECONDS = 300.0


@dataclass(kw_only=True, eq=False)
class OpenRun:
    """The parts of one session of a run.

    config: the final configuration, which is config.yaml. sweep: see `RunView`.
    store, network: of this run. The network gets the present parameters for callbacks alone.
    interruption: what signals have asked for. output: writes the run's files.
    deadline: when the run no longer waits for workers that it has asked to end, in monotonic
        seconds.
    """

    experiment: Experiment
    config: Mapping[str, Any]
    folder: Path
    sweep: str | None
    store: SharedStore
    network: ActorCritic
    statistics: RunStatistics
    milestones: Milestones
    interruption: Interruption
    output: RunOutput
    ending: Ending = field(default_factory=Ending)
    deadline: float = math.inf
    hooks: Hooks = field(init=False)

    @property
    def steps(self) -> int:
        """Environment steps of all workers, of which events have come."""
        return self.statistics.steps

    @property
    def seconds(self) -> float:
        """Seconds of training, earlier sessions included."""
        return self.milestones.seconds

    @property
    def patience(self) -> float:
        """Seconds that workers have to end once they are asked to."""
        memory = self.experiment.memory
        return MEMORY_SECONDS if memory is not None and memory.save else PATIENCE_SECONDS

    def log(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Log a point of the curves: see `RunView.log`."""
        numbers = {
            checked_name(name): value if type(value) in (int, float) else float(value)
            for name, value in values.items()
        }
        self.hooks.on_point(self.steps if step is None else operator.index(step), numbers)

    def ask_workers_to_end(self) -> None:
        """Ask workers to end after their rollout, and set a deadline for them.

        A deterministic backend has none: which rollouts it finishes must not depend on the clock.
        """
        self.store.stop()
        if not self.experiment.backend.deterministic:
            self.deadline = time.monotonic() + self.patience


def checked_name(name: str) -> str:
    """Return the name of a curve.

    Raises ValueError if TensorBoard refuses it, or a column of every point has it.
    """
    if name in (STEP, SECONDS) or not CURVE_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name of a curve: letters, digits, spaces and _-./ are; {STEP}, "
            f"{SECONDS} not"
        )
    return name
