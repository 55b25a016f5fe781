"""Histograms and videos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from a3c_exp.core.callback import Callback, EvalResult, RunView
from a3c_exp.errors import require


@dataclass(kw_only=True)
class Histograms(Callback):
    """Logs the distribution of the parameters of each group (actor, critic, encoder) with one of so many points.

    Of gradients there is none: they stay with the workers, and are gone after the optimizer's step.
    """

    stays_inside = True

    points: int = 10
    count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        require(self.points >= 1, "points", self.points, "a whole number >= 1")

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        if "train/n_updates" not in values:  # of an evaluation, or of a callback
            return
        self.count += 1
        if self.count % self.points == 0:
            for name, parameters in run.module().parameter_groups().items():
                numbers = np.concatenate([each.detach().numpy().ravel() for each in parameters])
                run.log_histogram(f"parameters/{name}", numbers)


@dataclass(kw_only=True)
class Videos(Callback):
    """Has a video made of the first episode of each evaluation, and logs its first frame as an image."""

    stays_inside = True

    def on_start(self, run: RunView) -> None:
        run.record_evaluations()

    def on_evaluation(self, run: RunView, result: EvalResult) -> None:
        if result.video is not None:
            run.log_image("eval/first_frame", result.video.frame)
            run.log_video("eval/video", result.video.path)
