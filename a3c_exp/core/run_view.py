"""A run as its callbacks see it, and `Callback`, their base class."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from a3c_exp.core.events import Episodes, Event
from a3c_exp.networks import ActorCritic

Media = Literal["histogram", "image", "text", "video"]
Measure = Literal["gradients", "time"]


@dataclass(frozen=True, slots=True)
class Video:
    """A video that has been written.

    Args:
        path: of the mp4.
        frame: its first one, uint8 [height, width, 3].
    """

    path: Path
    frame: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The result of an evaluation.

    Args:
        steps: the run's environment steps at the time of the evaluated parameters.
        mean_return: over the episodes, of the environment's own rewards.
        mean_length: over the episodes, in transitions.
        cut: how many episodes `eval.max_steps` has cut.
        numbers: means of the environment's own numbers over the episodes that have them, by the
            names of their curves: see `Environment.info_keys`.
        video: of the first episode, if one was made.
    """

    steps: int
    mean_return: float
    mean_length: float
    cut: int = 0
    numbers: Mapping[str, float] = field(default_factory=dict)
    video: Video | None = field(default=None, compare=False)


class RunView(Protocol):
    """A run as its callbacks see it.

    Attributes:
        folder: of the run.
        config: the final configuration, which is config.yaml.
        sweep: the name of the folder of the sweep that the run is a part of; None outside of one.
    """

    folder: Path
    config: Mapping[str, Any]
    sweep: str | None

    @property
    def steps(self) -> int:
        """Environment steps of all workers, those before a resumption included."""

    @property
    def seconds(self) -> float:
        """Seconds of training, earlier sessions of a resumed run included."""

    @property
    def stopping(self) -> bool:
        """Whether the run is about to end."""

    @property
    def dropped(self) -> float:
        """The last step of the points that came after a resumed run's checkpoint, which trackers
        have; -1 if there is none."""

    def stop(self, reason: str) -> None:
        """End the run in order. The first call counts.

        Args:
            reason: becomes `stop_reason` in summary.json. The words of runs that failed or were
                interrupted are the package's own: such a word has "callback: " before it.
        """

    def log(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Add a point to the curves.

        A point that is logged by `on_point` comes after all callbacks have been notified of the
        first one, and its own callback is not notified of it.

        Args:
            values: numbers, by the names of their curves in TensorBoard.
            step: environment step of the run; None: the present one.

        Raises ValueError for a name that is no name of a curve.
        """

    def log_histogram(self, name: str, values: ArrayLike) -> None:
        """Log the distribution of numbers of any shape. Those that are not finite are left out."""

    def log_image(self, name: str, pixels: NDArray[np.uint8]) -> None:
        """Log an image [height, width, 3]. Raises ValueError for another shape or type."""

    def log_text(self, name: str, markdown: str) -> None:
        """Log a text."""

    def log_video(self, name: str, path: Path) -> None:
        """Log an mp4, for trackers: TensorBoard has no place for one."""

    def record_evaluations(self) -> None:
        """Have a video made of the first episode of each evaluation: see `EvalResult.video`. Needs
        the extra `video`.

        Raises ConfigError for an environment that cannot be drawn.
        """

    def set_multipliers(
        self, *, learning_rate: float | None = None, entropy: float | None = None
    ) -> None:
        """Set factors that workers have from their next pull on, and checkpoints hold.

        Args:
            learning_rate: factor of the learning rate, 1 at first; None leaves it as it is.
            entropy: factor of the entropy's weight in the loss, 1 at first; None leaves it.

        Raises ValueError for a number that is not finite, and for a learning rate's below 0.
        """

    def save(self) -> None:
        """Write the latest checkpoint now."""

    def evaluate(self) -> None:
        """Evaluate the present parameters, once no other evaluation is under way."""

    def module(self) -> ActorCritic:
        """Return the network with the present parameters: one module, which the next call fills
        again."""


@dataclass(kw_only=True)
class Callback:
    """Watches a run, in the process that started it and never in a worker, on every backend.

    A subclass is a dataclass, whose fields are settings, and overrides the event hooks that it
    needs. Each run works on a copy. Fields with init=False are the callback's state: see
    `state_dict`.

    Args:
        on_error: what becomes of an exception that a hook raises: a warning in the log, or the end
            of the run.
    """

    on_error: Literal["warn", "raise"] = "warn"

    measures: ClassVar[tuple[Measure, ...]] = ()
    """What workers measure for the callback, which costs them time.

    gradients: the curve train/clipped, the share of gradients that were clipped, and
        `Event.gradients`.
    time: the curves seconds/<part>, of an update, and `Event.spans`.
    """

    def on_start(self, run: RunView) -> None:
        """Called before the workers start, and again when the run is resumed."""

    def on_event(self, run: RunView, event: Event) -> None:
        """Called with each report of a worker. There may be thousands a second.

        Args:
            event: of one or more updates.
        """

    def on_episodes(self, run: RunView, worker: int, episodes: Episodes) -> None:
        """Called with episodes that have ended.

        Args:
            worker: index of the worker that played them.
            episodes: in the order in which they ended.
        """

    def on_tick(self, run: RunView) -> None:
        """Called after each report, and ten times a second without any."""

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        """Called with each point of the curves.

        Args:
            step: environment step of the run.
            values: by the names of the curves.
        """

    def on_media(self, run: RunView, step: int, kind: Media, name: str, value: Any) -> None:
        """Called with what a callback has logged besides numbers.

        Args:
            step: environment step of the run.
            kind: by which method it was logged.
            name: of the curve.
            value: float64 [N] of a histogram, uint8 [height, width, 3] of an image, the text, or
                the path of a video.
        """

    def on_evaluation(self, run: RunView, result: EvalResult) -> None:
        """Called with the result of each evaluation.

        Args:
            result: of all its episodes.
        """

    def on_checkpoint(self, run: RunView, path: Path) -> None:
        """Called when a checkpoint, latest or best, has been written.

        Args:
            path: of the file.
        """

    def on_trained(self, run: RunView) -> None:
        """Called when all workers have ended in order, before the last evaluation."""

    def on_end(self, run: RunView, summary: Mapping[str, Any]) -> None:
        """Called last, however the run has ended. Nothing can be logged any more; `on_trained` is
        the place for that.

        Args:
            summary: the content of summary.json.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds of this callback, as plain data and arrays.

        By default these are the fields with init=False.
        """
        return {
            field.name: copy.deepcopy(getattr(self, field.name))
            for field in fields(self)
            if not field.init
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state of a checkpoint, in a resumed run.

        Args:
            state: what `state_dict` returned when the checkpoint was written. Names that are no
                longer a part of the state are ignored.
        """
        own_state = self.state_dict()
        for name, value in state.items():
            if name in own_state:
                setattr(self, name, value)
