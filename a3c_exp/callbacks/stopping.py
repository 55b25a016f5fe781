"""Stop rules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from a3c_exp.core.callback import Callback, EvalResult, RunView
from a3c_exp.errors import require


@dataclass(kw_only=True)
class NoImprovement(Callback):
    """Ends a run after so many evaluations in a row without a better mean return."""

    stays_inside = True

    evaluations: int = 5
    best: float = field(default=-math.inf, init=False)
    count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        require(self.evaluations >= 1, "evaluations", self.evaluations, "a whole number >= 1")

    def on_evaluation(self, run: RunView, result: EvalResult) -> None:
        self.count = 0 if result.mean_return > self.best else self.count + 1
        self.best = max(self.best, result.mean_return)
        if self.count >= self.evaluations:
            run.stop("no_improvement")


@dataclass(kw_only=True)
class MetricTarget(Callback):
    """Ends a run once a curve has a value. at_most: once it is that or less, not that or more."""

    stays_inside = True

    metric: str
    value: float
    at_most: bool = False

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        value = values.get(self.metric)
        if value is not None and (value <= self.value if self.at_most else value >= self.value):
            run.stop("metric_target")
