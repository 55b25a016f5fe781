"""Histograms, of parameters and of gradients, and videos."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from a3c_exp.common.arrays import Floats
from a3c_exp.core.callback import Callback, EvalResult, RunView
from a3c_exp.core.events import Event
from a3c_exp.errors import require


@dataclass(kw_only=True)
class Histograms(Callback):
    """Logs the distribution of the parameters of each group (actor, critic, encoder), with one of so many points."""

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
            for name, numbers in self.distributions(run):
                run.log_histogram(name, numbers)

    def distributions(self, run: RunView) -> Iterator[tuple[str, Floats]]:
        """Names of histograms, and their numbers."""
        for name, parameters in run.module().parameter_groups().items():
            yield f"parameters/{name}", np.concatenate([each.detach().numpy().ravel() for each in parameters])


@dataclass(kw_only=True)
class Gradients(Histograms):
    """Logs the share of gradients that are clipped, as train/clipped, and with one of so many points the distribution
    of a worker's gradient by group, before it is clipped: of at most 1,000 of its numbers a group."""

    measures = ("clipped", "gradients")

    last: dict[str, Floats] = field(default_factory=dict, init=False, repr=False)

    def on_event(self, run: RunView, event: Event) -> None:
        if event.measured is not None:
            self.last = event.measured.gradients or self.last

    def distributions(self, run: RunView) -> Iterator[tuple[str, Floats]]:
        return ((f"gradients/{name}", numbers) for name, numbers in self.last.items())


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
