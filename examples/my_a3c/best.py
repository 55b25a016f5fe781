from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from a3c_exp.callbacks import Callback, RunView
from a3c_exp.core.events import Episodes


@dataclass(kw_only=True)
class BestReturn(Callback):
    """Logs the highest return of any training episode so far. A return of `enough` ends the run."""

    enough: float | None = None
    best: float = field(default=-math.inf, init=False)

    def on_episodes(self, run: RunView, worker: int, episodes: Episodes) -> None:
        self.best = max(self.best, float(episodes.returns.max()))
        if self.enough is not None and self.best >= self.enough:
            run.stop("enough")

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        if "rollout/episodes" in values and math.isfinite(self.best):  # not a callback's
            run.log({"mine/best_return": self.best})
