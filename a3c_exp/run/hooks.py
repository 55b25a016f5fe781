"""The event hooks of a run: who is notified, and what becomes of the errors of callbacks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec

from a3c_exp.common.log import log
from a3c_exp.core.run_view import Callback, RunView
from a3c_exp.errors import FAILURES, one_line, place_of
from a3c_exp.run import checkpoint

Arguments = ParamSpec("Arguments")


class CallbackErrors:
    """Decides what becomes of the errors of callbacks: warnings, each once, or the end of the run.

    keep: what takes an error that would end a run whose end has begun already; None: it is raised.
    """

    def __init__(self) -> None:
        self.keep: Callable[[BaseException], object] | None = None
        self._warned: set[str] = set()

    def warn_once(self, problem: str, error: BaseException) -> None:
        """Log an error of a callback, unless the same problem has been logged."""
        if problem in self._warned:
            return

        self._warned.add(problem)
        log.warning("%s: %s%s", problem, one_line(error), place_of(error))

    def end_run(self, error: BaseException) -> None:
        """Raise an error of a callback whose `on_error` is raise, or keep it."""
        if self.keep is None:
            raise error
        self.keep(error)


@dataclass(frozen=True, eq=False, slots=True)
class Listener(Generic[Arguments]):
    """A callback that overrides an event hook. notify: its method."""

    callback: Callback
    notify: Callable[Concatenate[RunView, Arguments], None]


class Hook(Generic[Arguments]):
    """One event hook: notifies all callbacks that override it, in their order.

    A callback may cause the event that it is notified of, for example log a point when it is
    notified of one. Such an event waits until all have been notified of the first one, and whoever
    has caused it, or the one before it, is not notified of it.

    Args:
        run: what callbacks are given.
        method: the hook as `Callback` defines it.
        callbacks: all that there are.
        errors: what becomes of what they raise. All are notified before it is raised.
    """

    def __init__(
        self,
        run: RunView,
        method: Callable[Concatenate[Callback, RunView, Arguments], None],
        callbacks: Sequence[Callback],
        errors: CallbackErrors,
    ) -> None:
        self._run = run
        self._name = method.__name__
        self._errors = errors
        self._listeners: list[Listener[Arguments]] = [
            Listener(callback, getattr(callback, self._name))
            for callback in callbacks
            if getattr(type(callback), self._name) is not method
        ]
        self._notified: Listener[Arguments] | None = None
        # The listeners that have caused the event which is under way.
        self._causes: tuple[Listener[Arguments], ...] = ()
        # Events that wait, each with the listeners that have caused it.
        self._waiting: deque[tuple[tuple[Listener[Arguments], ...], Callable[[], None]]] = deque()
        self._error: BaseException | None = None

    def __call__(self, *arguments: Arguments.args, **keywords: Arguments.kwargs) -> None:
        """Notify all callbacks of an event. Called several times for each report of a worker."""
        if self._notified is not None:
            causes = (*self._causes, self._notified)
            self._waiting.append((causes, partial(self._notify, *arguments, **keywords)))
            return
        if not self._listeners:
            return

        try:
            self._notify(*arguments, **keywords)
            while self._waiting:
                self._causes, notify = self._waiting.popleft()
                notify()
        finally:
            self._notified = None
            if self._causes or self._waiting:
                self._causes = ()
                self._waiting.clear()

        if self._error is not None:
            error = self._error
            self._error = None
            self._errors.end_run(error)

    def _notify(self, *arguments: Arguments.args, **keywords: Arguments.kwargs) -> None:
        """Notify all callbacks but those that have caused the event."""
        run = self._run
        causes = self._causes
        for listener in self._listeners:
            if causes and listener in causes:
                continue

            self._notified = listener
            try:
                listener.notify(run, *arguments, **keywords)
            except KeyboardInterrupt:
                self._error = None
                raise
            except BaseException as error:  # SystemExit, and panics of packages in Rust
                self._take_error(listener.callback, error)

    def _take_error(self, callback: Callback, error: BaseException) -> None:
        if callback.on_error == "warn":
            hook = f"{type(callback).__name__}.{self._name}"
            self._errors.warn_once(f"callback {hook} failed", error)
        elif self._error is None:
            self._error = error


class Hooks:
    """The event hooks of a run, by the names that they have in `Callback`.

    Args:
        run: what callbacks are given.
        recorders: the package's own callbacks, which are notified first.
        callbacks: the user's.
    """

    def __init__(
        self, run: RunView, recorders: Sequence[Callback], callbacks: Sequence[Callback]
    ) -> None:
        everyone = [*recorders, *callbacks]
        errors = CallbackErrors()
        self.errors = errors
        self.states = CallbackStates(callbacks, errors)
        self.on_start = Hook(run, Callback.on_start, everyone, errors)
        self.on_event = Hook(run, Callback.on_event, everyone, errors)
        self.on_episodes = Hook(run, Callback.on_episodes, everyone, errors)
        self.on_tick = Hook(run, Callback.on_tick, everyone, errors)
        self.on_point = Hook(run, Callback.on_point, everyone, errors)
        self.on_media = Hook(run, Callback.on_media, everyone, errors)
        self.on_evaluation = Hook(run, Callback.on_evaluation, everyone, errors)
        self.on_checkpoint = Hook(run, Callback.on_checkpoint, everyone, errors)
        self.on_trained = Hook(run, Callback.on_trained, everyone, errors)
        self.on_end = Hook(run, Callback.on_end, everyone, errors)


class CallbackStates:
    """The states of the user's callbacks, by the names of their classes, for checkpoints."""

    def __init__(self, callbacks: Sequence[Callback], errors: CallbackErrors) -> None:
        self._callbacks = {type(callback).__name__: callback for callback in callbacks}
        self._errors = errors

    def state(self) -> dict[str, Any]:
        """Return the states. One that a checkpoint cannot hold is left out, with a warning."""
        states: dict[str, Any] = {}
        for name, callback in self._callbacks.items():
            try:
                with_this = states | {name: callback.state_dict() or {}}
                checkpoint.require_plain(with_this)
            except FAILURES as error:
                self._errors.warn_once(f"checkpoints have no state of callback {name}", error)
            else:
                states = with_this
        return states

    def restore(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Give the callbacks their states. One that does not take its state begins anew."""
        for name in states.keys() & self._callbacks.keys():
            try:
                self._callbacks[name].load_state_dict(states[name])
            except FAILURES as error:
                problem = f"callback {name} begins anew, since its state does not fit it"
                self._errors.warn_once(problem, error)
