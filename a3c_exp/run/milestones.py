"""What a run has reached: its seconds of training, its best evaluation, when it was solved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from a3c_exp.common.fields import (
    Fields,
    StateField,
    attribute,
    is_count,
    is_list,
    is_number,
    or_none,
    read_state,
    write_state,
)


class Milestones:
    """What a run has reached, earlier sessions of a resumed run included.

    Args:
        clock: seconds of training of this session.

    resumed: how often the run has been resumed.
    best_return: mean return of the best evaluation; None before the first.
    solved: environment steps and seconds at which `reward_threshold` was reached; None before.
    goal_return: the mean return by which `stop.mean_return` ended this session; None if it did not.
    """

    FIELDS: ClassVar[Fields[Milestones]] = {
        "resumed": attribute("resumed", is_count),
        "training_seconds": StateField(
            is_number,
            lambda own: own.seconds,
            lambda own, seconds: setattr(own, "_earlier_seconds", seconds),
        ),
        "best_eval_return": attribute("best_return", or_none(is_number)),
        "solved": StateField(
            or_none(lambda value: is_list(value, is_number, 2)),
            lambda own: None if own.solved is None else list(own.solved),
            lambda own, solved: setattr(own, "solved", None if solved is None else tuple(solved)),
        ),
    }
    """What a checkpoint holds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.resumed = 0
        self.best_return: float | None = None
        self.solved: tuple[int, float] | None = None
        self.goal_return: float | None = None
        self._clock = clock
        self._earlier_seconds = 0.0
        self._ended_at: float | None = None

    @property
    def session_seconds(self) -> float:
        """Seconds of training of this session."""
        return self._clock() if self._ended_at is None else self._ended_at

    @property
    def seconds(self) -> float:
        """Seconds of training of all sessions."""
        return self._earlier_seconds + self.session_seconds

    def stop_clock(self) -> None:
        """Count no more seconds: the workers have ended."""
        self._ended_at = self.session_seconds

    def state(self) -> dict[str, Any]:
        """Return the content of a checkpoint."""
        return read_state(self, self.FIELDS)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state()`, in one more session."""
        write_state(self, self.FIELDS, state)
        self.resumed += 1
