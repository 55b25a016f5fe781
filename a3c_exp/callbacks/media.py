"""Histograms, of parameters and of gradients, and videos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from a3c_exp.common.arrays import Floats
from a3c_exp.core.callback import Callback, EvalResult, RunView
from a3c_exp.core.events import Event
from a3c_exp.errors import require


@dataclass(kw_only=True)
class Histograms(Callback):
    """Logs the distributions of the parameters and of a gradient, by part (actor, critic, encoder), with one of so many
    points; and the share of gradients that are clipped, as train/clipped.

    A gradient is one of a worker before it is clipped, and at most 1,000 of its numbers a part.
    """

    stays_inside = True
    measures = ("gradients",)

    points: int = 10
    count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.gradients: dict[str, Floats] = {}
        require(self.points >= 1, "points", self.points, "a whole number >= 1")

    def on_event(self, run: RunView, event: Event) -> None:
        self.gradients = event.gradients or self.gradients

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        if "train/n_updates" not in values:  # of an evaluation, or of a callback
            return
        self.count += 1
        if self.count % self.points == 0:
            for name, parameters in run.module().parameter_groups().items():
                numbers = np.concatenate([each.detach().numpy().ravel() for each in parameters])
                run.log_histogram(f"parameters/{name}", numbers)
            for name, numbers in self.gradients.items():
                run.log_histogram(f"gradients/{name}", numbers)


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
