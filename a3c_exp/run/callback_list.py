"""The callbacks of a run: whom each moment is told, and their part of a checkpoint. The base of the package's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from a3c_exp.core.callback import Callback, RunView
from a3c_exp.core.experiment import Experiment
from a3c_exp.errors import one_line, place_of
from a3c_exp.run import checkpoint
from a3c_exp.run.files import RunOutput, log
from a3c_exp.run.interruption import Interruption
from a3c_exp.run.statistics import RunStatistics, TrainingClock

MOMENTS = [name for name in vars(Callback) if name.startswith("on_") and name != "on_error"]


class Training(RunView, Protocol):
    """A run as the package's own callbacks see it: the trainer, and what is one for all of them.

    best_return: of all evaluations; None before the first.
    """

    experiment: Experiment
    statistics: RunStatistics
    clock: TrainingClock
    output: RunOutput
    interruption: Interruption
    best_return: float | None

    def tell(self, moment: str, *arguments: object) -> None:
        """See `CallbackList.tell`."""

    def checkpoint(self, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The content of a checkpoint, as of now. state: of the store; None: its present one."""

    def write(self, name: str, state: Mapping[str, Any]) -> None:
        """Write a checkpoint."""


class Own(Callback):
    """One of the package's own callbacks. Its errors are the run's."""

    on_error = "raise"

    def __init__(self, run: Training) -> None:
        self._run = run

    def flush(self) -> None:
        """Write what has come in: a checkpoint is next, and a resumed run has no other record of what was before it."""

    def close(self, finished: bool) -> None:
        """Write the last of it. finished: whether the run has neither failed nor been interrupted."""


class Every:
    """A rule for when a task is due: a multiple of `interval` has been passed since it was last asked. None: never.

    start: value from which counting begins; a multiple at `start` itself counts as done.
    """

    def __init__(self, interval: int | None, start: int = 0) -> None:
        self._interval = interval
        self._last = start

    def __call__(self, value: int) -> bool:
        before, self._last = self._last, value
        return self._interval is not None and value // self._interval > before // self._interval


class CallbackList:
    """The package's own callbacks of a run, and after them copies of the user's, by the names of their classes."""

    def __init__(self, run: RunView, own: Sequence[Callback], users: Sequence[Callback]) -> None:
        self._run = run
        self._users = {type(each).__name__: each for each in copy.deepcopy(tuple(users))}
        everyone = [*own, *self._users.values()]
        self._listeners = {moment: _listeners(everyone, moment) for moment in MOMENTS}
        self._telling: list[Callable[..., None]] = []
        self._failed: set[str] = set()

    def tell(self, moment: str, *arguments: object) -> None:
        """Call a moment's method of all callbacks that have one. One that logs a point while it is told of a point is
        not told of its own."""
        for callback, method in self._listeners[moment]:
            if method in self._telling:
                continue
            self._telling.append(method)
            try:
                method(self._run, *arguments)
            except Exception as error:
                if callback.on_error == "raise":
                    raise
                self._warn_once(f"callback {type(callback).__name__}.{moment} failed", error)
            finally:
                self._telling.pop()

    def state(self) -> dict[str, Any]:
        """The states of the user's callbacks by name; one that a checkpoint cannot hold is left out."""
        states = {}
        for name, callback in self._users.items():
            try:
                state = callback.state_dict()
                checkpoint.require_plain(state)
            except Exception as error:
                self._warn_once(f"checkpoints have no state of callback {name}", error)
            else:
                states[name] = state
        return states

    def load(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Give the user's callbacks their states."""
        for name in states.keys() & self._users.keys():
            try:
                self._users[name].load_state_dict(states[name])
            except Exception as error:
                self._warn_once(f"callback {name} begins anew, since its state does not fit it", error)

    def _warn_once(self, what: str, error: Exception) -> None:
        if what not in self._failed:
            self._failed.add(what)
            log.warning("%s: %s%s", what, one_line(error), place_of(error))


def _listeners(callbacks: Sequence[Callback], moment: str) -> list[tuple[Callback, Callable[..., None]]]:
    """The callbacks that have a method of their own for a moment, and this method."""
    having = [each for each in callbacks if getattr(type(each), moment) is not getattr(Callback, moment)]
    return [(each, getattr(each, moment)) for each in having]
