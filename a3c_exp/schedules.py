"""Values that change over a run: learning rates and coefficients as functions of its progress."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from a3c_exp.common.ranges import BelowOne, Checked, Finite
from a3c_exp.errors import ConfigError


class Schedule(Checked, ABC):
    """A number as a function of a run's progress.

    Every schedule derives from this class, as a frozen dataclass. Its values must lie between those
    at progress 0 and 1, where their range is checked.
    """

    @abstractmethod
    def __call__(self, progress: float) -> float:
        """Return the value at a moment of the run.

        progress: the share of the run that is done, from 0 to 1: environment steps of all workers
            together, over `total_steps`.
        """


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The same `value` from the first step to the last."""

    value: Finite = 1.0

    def __call__(self, progress: float) -> float:
        return self.value


@dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
    """A straight line from `start`, where the share `after` of the run is done, to `end`, where the
    share `until` is.

    Mnih et al. 2016 (arXiv 1602.01783, section 8) let the learning rate fall to 0 this way, over
    the whole run.

    start: the value up to `after`.
    end: the value from `until` on.
    after: a share of the run, from 0 to less than 1.
    until: a share of the run, more than `after` and at most 1.
    """

    start: Finite = 1.0
    end: Finite = 0.0
    after: BelowOne = 0.0
    until: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.after < self.until <= 1:
            problem = f"must be a number > {self.after:g}, and at most 1"
            raise ConfigError("until", self.until, problem)

    def __call__(self, progress: float) -> float:
        """Return the value at `progress`: `start` up to `after`, `end` from `until` on."""
        share = min(max((progress - self.after) / (self.until - self.after), 0.0), 1.0)
        return (1 - share) * self.start + share * self.end


@dataclass(frozen=True, kw_only=True)
class EpsilonByWorker(Schedule):
    """Straight lines from `start` to each of `ends`, where the share `until` of the run is done.

    A worker samples the line that counts for its next rollout, with `probabilities`. So Mnih et al.
    2016 (arXiv 1602.01783) let the workers of Q-learning and Sarsa explore: section 4.1 has the
    periodic sampling, section 8 the numbers. The paper does not give the period. Without a worker
    the value is the mean of the lines.

    start: the value where the run begins.
    ends: from 0 to 1, one for each line.
    probabilities: of the lines, as many as `ends`; their sum is 1.
    until: a share of the run, more than 0 and at most 1.
    """

    start: float = 1.0
    ends: tuple[float, ...] = (0.1, 0.01, 0.5)
    probabilities: tuple[float, ...] = (0.4, 0.3, 0.3)
    until: float = 1.0

    def __post_init__(self) -> None:
        Linear(start=self.start, until=self.until)  # checks both
        ends = self.ends
        if not ends or not all(0 <= end <= 1 for end in ends):
            raise ConfigError("ends", ends, "must be numbers from 0 to 1")

        shares = self.probabilities
        count = len(ends)
        if len(shares) != count or min(shares) < 0 or not math.isclose(sum(shares), 1):
            problem = f"must be {count} numbers >= 0, as many as ends, whose sum is 1"
            raise ConfigError("probabilities", shares, problem)

    def __call__(self, progress: float) -> float:
        return self._towards(float(np.dot(self.ends, self.probabilities)), progress)

    def sample(self, progress: float, rng: np.random.Generator) -> float:
        """Return the value at `progress` on a line that `rng` draws."""
        return self._towards(float(rng.choice(self.ends, p=self.probabilities)), progress)

    def _towards(self, end: float, progress: float) -> float:
        return Linear(start=self.start, end=end, until=self.until)(progress)


def progress_of(steps: int, total_steps: int) -> float:
    """Return the share of a run that is done after so many environment steps, from 0 to 1."""
    return min(1.0, steps / total_steps)


def value(x: float | Schedule, progress: float) -> float:
    """Return the value at `progress` of a coefficient, which may be a number or a schedule."""
    return x if isinstance(x, (int, float)) else x(progress)
