"""What a worker yields: reports to the rest of the program, one for one or more updates, and its
pauses."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto

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


COUNTS: dict[str, tuple[str, str | None]] = {
    "rejected": ("rejected_updates", "train/rejected_updates"),
    "restarts": ("restarts", "workers/restarts"),
    "env_errors": ("env_errors", "workers/env_errors"),
    "late_gradients": ("late_gradients", "workers/late_gradients"),
    "cut_eval_episodes": ("cut_eval_episodes", None),
}
"""Whatever a run counts besides steps, updates and episodes, by its name in events and checkpoints:
its name in summary.json, and that of its curve, if it has one.

rejected: gradients that were not finite, and so were not applied. restarts: workers that were
replaced. env_errors: those of them whose environment went wrong. late_gradients: their synchronous
round was over when they came.
cut_eval_episodes: episodes of evaluations that `eval.max_steps` has cut.
"""


class YieldPoint(Enum):
    """A worker's reason to pause: before it first pulls again for a rollout, before a push, or
    waiting in a round."""

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
    """Finished episodes, in the order in which they ended.

    returns: float64 [E], the sums of the environment's own rewards, neither scaled nor clipped.
    lengths: int64 [E], in transitions.
    end_steps: int64 [E], the run's environment steps (of all workers) at which each ended, as its
        worker knew them.
    envs_with_finished_episode: how many of the worker's environments have ended an episode since
        the run began.
    numbers: the environment's own by name, float64 [E] each, NaN where an episode has none; see
        `info_keys` of `Environment`.
    warnings: lines for the log about the environment's own numbers, see `InfoNumbers`.
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
        """These episodes and later ones of the same worker."""
        if not len(later):
            return self
        if not len(self):
            return later
        names = list(dict.fromkeys([*self.numbers, *later.numbers]))[:MOST_NAMES]
        return Episodes(
            np.concatenate([self.returns, later.returns]),
            np.concatenate([self.lengths, later.lengths]),
            np.concatenate([self.end_steps, later.end_steps]),
            later.envs_with_finished_episode,
            {name: np.concatenate([self.column(name), later.column(name)]) for name in names},
            self.warnings + later.warnings,
        )

    def column(self, name: str) -> NDArray[np.float64]:
        """The environment's own numbers of that name, float64 [E], NaN where an episode has
        none."""
        found = self.numbers.get(name)
        return np.full(len(self), math.nan) if found is None else found

    def last(self, count: int) -> Episodes:
        """The last `count` episodes, in the order of the steps at which they ended."""
        order = np.argsort(self.end_steps, kind="stable")[-count:]
        numbers = {name: column[order] for name, column in self.numbers.items()}
        numbers = {name: column for name, column in numbers.items() if not np.isnan(column).all()}
        returns, lengths, end_steps = (
            self.returns[order],
            self.lengths[order],
            self.end_steps[order],
        )
        return Episodes(returns, lengths, end_steps, self.envs_with_finished_episode, numbers)

    def means(self) -> dict[str, float]:
        """Means of the environment's own numbers over the episodes that have them, by the names of
        their curves."""
        means: dict[str, float] = {}
        for name, column in self.numbers.items():
            there = column[~np.isnan(column)]
            if there.size:
                means.setdefault(SUCCESS_RATE if name in SUCCESSES else name, float(there.mean()))
        return means


Span = tuple[str, float, float]
"""A piece of a worker's time: its part (see `core.measuring.PARTS`), its start by
time.perf_counter, its seconds."""


@dataclass(slots=True)
class Event:
    """Report of one worker on one or more updates.

    updates: optimizer steps that this worker made. In a synchronous round only the worker that
        closes it makes one.
    steps: environment transitions collected.
    metrics: by name (policy_loss, value_loss, entropy, grad_norm, ...), one entry an update.
    staleness: how many updates had which staleness: updates that landed between a pull and the push
        based on it.
    contributions: rollouts whose first gradient it has pushed; rollouts of a GA3C agent.
    counts: what is counted besides, by the names in COUNTS; what has not happened is not in it.
    replaced: whether it reports a worker that failed, and whose place another one takes.
    warnings: lines for the log. left: the rule of `Stop` by which the worker leaves the run.
    explanation: of a rejected gradient, a line for the log; of the first if there are several.
    gradients, spans: for callbacks that ask for them. Numbers of a recent gradient before it was
    clipped, float32 [N] by part of the network; where the first moments of the worker's time went.
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
        known = self.metrics.setdefault(name, metric)
        if known is not metric:
            known.sum += metric.sum
            known.count += metric.count

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
