"""The task, the clock and the stop rule that all drivers have in common.

A driver runs in another library's environment: this module needs the standard library alone.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

EPISODES = 100
"""The environment is solved by the mean return of so many training episodes."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")
"""What torch, numpy and, with NPROC, XLA read."""


@dataclass(frozen=True)
class Task:
    """A training.

    environment: its name in gymnasium.
    settings: of the library, as the driver takes them.
    seed: of everything.
    threads: of torch or XLA. None: as the library comes, its preparations to render included.
    goal: the mean return that ends the training. None: its speed is measured.
    seconds: after which the training ends at the latest, counted from its first step; where the
        speed is measured, from the end of the first iteration.
    file: the library, where it is a file and no package.
    launched: when the process was started, in seconds since the epoch.
    """

    environment: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    threads: int | None = 1
    goal: float | None = None
    seconds: float = 300.0
    file: str | None = None
    launched: float = 0.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def variables(self) -> dict[str, str]:
        """Return the environment of its process: one without a GPU, and with these threads."""
        variables = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
        if self.threads is not None:
            variables |= dict.fromkeys(THREAD_VARIABLES, str(self.threads))
        return dict(os.environ) | variables


class Watch:
    """Times a training from its first step, and says when it is over.

    It is solved when the mean return of the last 100 training episodes reaches the goal, and each
    environment has ended one: the rule of this project's own runs.

    goal: that mean. None: it is never solved, and the seconds count from the end of the first
        iteration, in which libraries compile and allocate.
    environments: how many are stepped together.
    seconds: after which the training is over at the latest.
    """

    def __init__(self, goal: float | None, environments: int, seconds: float = math.inf) -> None:
        self.goal = goal
        self.environments = environments
        self.seconds = seconds
        self.returns = list[float]()
        self.solved_steps: int | None = None
        self.solved_seconds: float | None = None
        self._with_end = set[int]()
        self._iterations = list[tuple[int, float]]()  # steps and seconds at the end of each
        self.start()

    def start(self) -> None:
        """Begin to count seconds: called just before the first step."""
        self._started_at = time.time()
        self._started = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Return the seconds since the first step."""
        return time.perf_counter() - self._started

    @property
    def is_over(self) -> bool:
        """Return whether the environment is solved, or the time is up."""
        if self.goal is not None:
            return self.solved_steps is not None or self.elapsed >= self.seconds
        if len(self._iterations) < 2:
            return False
        return self.elapsed - self._iterations[0][1] >= self.seconds

    def episode(self, episode_return: float, environment: int, steps: int) -> None:
        """Note the end of a training episode. steps: of all environments together until then."""
        self.returns.append(episode_return)
        self._with_end.add(environment)
        if self.goal is None or self.solved_steps is not None:
            return

        is_enough = len(self.returns) >= EPISODES and len(self._with_end) == self.environments
        if is_enough and self.mean_return() >= self.goal:
            self.solved_steps = steps
            self.solved_seconds = self.elapsed

    def iteration(self, steps: int) -> bool:
        """Note the end of an iteration, a rollout with its updates. Returns whether the training
        goes on."""
        self._iterations.append((steps, self.elapsed))
        return not self.is_over

    def mean_return(self) -> float:
        """Return the mean of the last 100 episodes, or of all if fewer; nan of none."""
        last = self.returns[-EPISODES:]
        return math.fsum(last) / len(last) if last else math.nan

    def steps_per_second(self) -> float | None:
        """Return the speed without the first iteration. None: there was no second one."""
        if len(self._iterations) < 2:
            return None
        (first, started), (last, ended) = self._iterations[0], self._iterations[-1]
        return (last - first) / (ended - started)

    def report(self, task: Task) -> dict[str, Any]:
        """Return the result of a task. `start_seconds` go from the command to the first step."""
        steps = self._iterations[-1][0] if self._iterations else 0
        return {
            "steps": self.solved_steps or steps,
            "steps_per_second": self.steps_per_second(),
            "solved_steps": self.solved_steps,
            "solved_seconds": self.solved_seconds,
            "mean_return": None if not self.returns else self.mean_return(),
            "episodes": len(self.returns),
            "start_seconds": self._started_at - task.launched,
        }


def run(train: Callable[[Task], Mapping[str, Any]], arguments: Sequence[str] | None = None) -> None:
    """Run a driver's command: carry out the task that is its argument, and print the report."""
    (text,) = sys.argv[1:] if arguments is None else arguments
    report = train(Task(**json.loads(text)))
    print(json.dumps(report), flush=True)
