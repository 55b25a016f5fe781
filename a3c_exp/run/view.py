"""A run as its callbacks see it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from a3c_exp.core.run_view import Media, RunView
from a3c_exp.networks import ActorCritic
from a3c_exp.run.open_run import OpenRun, checked_name
from a3c_exp.run.recorders import Recorders


class View(RunView):
    """What callbacks may read and do: see `RunView`, which says what each method means.

    recorders: the run's, of which some do what a callback asks for.
    """

    def __init__(self, run: OpenRun, recorders: Recorders) -> None:
        self._run = run
        self._recorders = recorders
        self.folder = run.folder
        self.config = run.config
        self.sweep = run.sweep

    @property
    def steps(self) -> int:
        return self._run.statistics.steps

    @property
    def seconds(self) -> float:
        return self._run.seconds

    @property
    def stopping(self) -> bool:
        return self._run.ending.reason is not None

    @property
    def dropped(self) -> float:
        return self._recorders.curves.dropped

    def stop(self, reason: str) -> None:
        if self._run.ending.stop_by_callback(reason):
            self._run.ask_workers_to_end()

    def log(self, values: Mapping[str, float], step: int | None = None) -> None:
        self._run.log(values, step)

    def log_histogram(self, name: str, values: ArrayLike) -> None:
        numbers = np.asarray(values, np.float64).ravel()
        numbers = numbers[np.isfinite(numbers)]
        # no bins fit between them
        if numbers.size and np.ptp(numbers) < 1e-12 * np.abs(numbers).max():
            numbers = np.full_like(numbers, numbers[0])
        self._log_media("histogram", name, numbers)

    def log_image(self, name: str, pixels: NDArray[np.uint8]) -> None:
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
            raise ValueError(
                f"{name} is {pixels.dtype} {list(pixels.shape)}; "
                "an image is uint8 [height, width, 3]"
            )
        self._log_media("image", name, pixels)

    def log_text(self, name: str, markdown: str) -> None:
        self._log_media("text", name, markdown)

    def log_video(self, name: str, path: Path) -> None:
        self._log_media("video", name, path)

    def _log_media(self, kind: Media, name: str, value: object) -> None:
        self._run.hooks.on_media(self.steps, kind, checked_name(name), value)

    def record_evaluations(self) -> None:
        self._recorders.evaluations.record()

    def set_multipliers(
        self, *, learning_rate: float | None = None, entropy: float | None = None
    ) -> None:
        self._run.store.set_multipliers(learning_rate=learning_rate, entropy=entropy)

    def save(self) -> None:
        self._recorders.checkpoints.save()

    def evaluate(self) -> None:
        self._recorders.evaluations.asked = True

    def module(self) -> ActorCritic:
        network = self._run.network
        network.vector[:] = self._run.store.state()["parameters"]
        normalizer = self._run.store.normalizer()
        if normalizer is not None:
            normalizer.scale_pixels(network)
        return network
