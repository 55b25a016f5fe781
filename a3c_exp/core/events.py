"""What a worker yields: reports to the rest of the program, one for one or more updates, and its
pauses."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from a3c_exp.common.arrays import Floats

RECENT = 100
"""Number of last episodes that a mean return is taken over: the usual window for solving an
environment."""

MOST_NAMES = 100
"""Names of the environment's own numbers in one record of episodes. Further ones are left out."""

SUCCESS_RATE = "success_rate"
SUCCESSES = ("is_success", "success")
"""Names of the flag whose mean is the SUCCESS_RATE, as in stable-baselines3."""


class CountNames(NamedTuple):
    """The names of something that a run counts.

    summary: in summary.json.
    curve: of its curve; None if it has none.
    is_optional: whether it is counted only where a setting asks for it. Then the summary has null
        in place of 0, and checkpoints of earlier versions may lack it.
    """

    summary: str
    curve: str | None = None
    is_optional: bool = False


COUNTS = {
    "rejected": CountNames("rejected_updates", curve="train/rejected_updates"),
    "restarts": CountNames("restarts", curve="workers/restarts"),
    "env_errors": CountNames("env_errors", curve="workers/env_errors"),
    "late_gradients": CountNames("late_gradients", curve="workers/late_gradients"),
    "cut_eval_episodes": CountNames("cut_eval_episodes"),
    "overlaps": CountNames("overlapping_updates", "workers/overlapping_updates", is_optional=True),
}
"""Whatever a run counts besides steps, updates and episodes, by its name in events and checkpoints.

rejected: gradients that were not finite, or too large, and so were not applied.
restarts: workers that were replaced.
env_errors: those of them whose environment went wrong.
late_gradients: gradients whose synchronous round was over when they came.
cut_eval_episodes: episodes of evaluations that `eval.max_steps` has cut.
overlaps: lock-free updates during which another worker was writing (`count_overlaps`).
"""


class YieldPoint(Enum):
    """A worker's reason to pause: it has been built and pulls next, it has a rollout and pulls
    again for its gradient, it has a gradient and pushes next, or it waits in a round."""

    BUILT = auto()
    BEFORE_PULL = auto()
    BEFORE_PUSH = auto()
    WAITING = auto()


@dataclass(slots=True)
class Metric:
    """Sum and count of one quantity over the updates of an event."""

    sum: float
    count: int = 1

    @property
    def mean(self) -> float:
        return self.sum / self.count


@dataclass(slots=True)
class Episodes:
    """E finished episodes, in the order in which they ended.

    returns: float64 [E], the sums of the environment's own rewards, neither scaled nor clipped.
    lengths: int64 [E], in transitions.
    end_steps: int64 [E], the run's environment steps (of all workers) at which each episode ended,
        as its worker knew them.
    envs_with_finished_episode: how many of the worker's environments have ended an episode since
        the run began.
    numbers: the environment's own numbers by name, float64 [E] each, NaN where an episode has none;
        see `info_keys` of `Environment`.
    warnings: lines for the log about the environment's own numbers; see `InfoNumbers`.
    """

    returns: NDArray[np.float64] = field(default_factory=lambda: np.empty(0, np.float64))
    lengths: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    end_steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    envs_with_finished_episode: int = 0
    numbers: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.returns)

    def merge(self, later: Episodes) -> Episodes:
        """Return these episodes followed by later ones of the same worker."""
        if not len(later):
            return self
        if not len(self):
            return later
        names = list(dict.fromkeys([*self.numbers, *later.numbers]))[:MOST_NAMES]
        return Episodes(
            returns=np.concatenate([self.returns, later.returns]),
            lengths=np.concatenate([self.lengths, later.lengths]),
            end_steps=np.concatenate([self.end_steps, later.end_steps]),
            envs_with_finished_episode=later.envs_with_finished_episode,
            numbers={
                name: np.concatenate([self.column(name), later.column(name)]) for name in names
            },
            warnings=self.warnings + later.warnings,
        )

    def column(self, name: str) -> NDArray[np.float64]:
        """Return the environment's own numbers of that name, float64 [E], NaN where an episode has
        none."""
        numbers = self.numbers.get(name)
        return np.full(len(self), math.nan) if numbers is None else numbers

    def last(self, count: int) -> Episodes:
        """Return the last `count` episodes, in the order of the steps at which they ended. Numbers
        that none of them has are left out."""
        order = np.argsort(self.end_steps, kind="stable")[-count:]
        numbers = {name: column[order] for name, column in self.numbers.items()}
        return Episodes(
            returns=self.returns[order],
            lengths=self.lengths[order],
            end_steps=self.end_steps[order],
            envs_with_finished_episode=self.envs_with_finished_episode,
            numbers={
                name: column for name, column in numbers.items() if not np.isnan(column).all()
            },
        )

    def means(self) -> dict[str, float]:
        """Return the means of the environment's own numbers over the episodes that have them, by
        the names of their curves."""
        means: dict[str, float] = {}
        for name, column in self.numbers.items():
            numbers = column[~np.isnan(column)]
            if numbers.size:
                curve = SUCCESS_RATE if name in SUCCESSES else name
                means.setdefault(curve, float(numbers.mean()))
        return means


Span = tuple[str, float, float]
"""A piece of a worker's time: its part (see `core.measuring.PARTS`), its start by
time.perf_counter, its seconds."""


@dataclass(slots=True)
class Event:
    """Report of one worker on one or more updates.

    worker: index of the worker; that of a trainer of GA3C comes after those of the agents.
    updates: optimizer steps that this worker made. In a synchronous round only the worker that
        closes it makes one.
    steps: environment transitions collected.
    metrics: sums and counts by name (policy_loss, value_loss, entropy, grad_norm, ...). An update
        adds at most one value to each.
    staleness: number of updates by staleness. The staleness of an update is the number of updates
        between the pull that it is based on and its push.
    episodes: episodes that have ended.
    contributions: rollouts whose first gradient was pushed; of a GA3C agent, rollouts collected.
    counts: whatever else is counted, by the names in COUNTS. What has not happened is not in it.
    replaced: whether the event reports a worker that has failed and is replaced.
    warnings: lines for the log.
    left: the rule of `Stop` by which the worker leaves the run; None if it stays.
    explanation: line for the log about a rejected gradient, the first if there are several; None if
        there is none.
    gradients: numbers of a recent gradient before it was clipped, float32 [N] by parameter
        group; None unless a callback measures them.
    spans: where the worker's time went, the first spans alone; empty unless a callback
        measures them.
    """

    worker: int
    updates: int = 0
    steps: int = 0
    metrics: dict[str, Metric] = field(default_factory=dict)
    staleness: Counter[int] = field(default_factory=Counter)
    episodes: Episodes = field(default_factory=Episodes)
    contributions: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    replaced: bool = False
    warnings: tuple[str, ...] = ()
    left: str | None = None
    explanation: str | None = None
    gradients: dict[str, Floats] | None = None
    spans: tuple[Span, ...] = ()

    def add(self, values: dict[str, float]) -> None:
        """Add the metrics of one more update.

        NaN and infinities are left out: a quantity without a value (explained variance of constant
        targets) must not spoil the mean of those that have one.
        """
        for name, value in values.items():
            if math.isfinite(value):
                self._add(name, Metric(value + 0.0))  # without the sign of -0.0

    def _add(self, name: str, metric: Metric) -> None:
        total = self.metrics.setdefault(name, metric)
        if total is not metric:
            total.sum += metric.sum
            total.count += metric.count

    def merge(self, later: Event) -> None:
        """Add a later event of the same worker, which loses its metrics to this one. Called at
        nearly every update."""
        self.updates += later.updates
        self.steps += later.steps
        self.contributions += later.contributions
        for name, metric in later.metrics.items():
            self._add(name, metric)
        for staleness, count in later.staleness.items():
            self.staleness[staleness] += count
        if later.counts:
            self.counts.update(later.counts)
        self.episodes = self.episodes.merge(later.episodes)
        self.replaced = self.replaced or later.replaced
        self.warnings += later.warnings
        self.left = self.left or later.left
        self.explanation = self.explanation or later.explanation
        self.gradients = later.gradients or self.gradients
        self.spans += later.spans
