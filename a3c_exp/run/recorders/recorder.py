"""The base class of the recorders: the package's own callbacks of a run."""

from __future__ import annotations

from a3c_exp.core.run_view import Callback
from a3c_exp.run.open_run import OpenRun


class RunRecorder(Callback):
    """Records something about a run, or decides about it. Its errors are the run's.

    run: the open run, of which a recorder knows more than a `RunView` shows.
    """

    on_error = "raise"

    def __init__(self, run: OpenRun) -> None:
        self._run = run

    def close(self, finished: bool) -> None:
        """Write the last of it. finished: whether the run has neither failed nor been
        interrupted."""


class Every:
    """Tells when a task is due: whenever a multiple of `interval` has been passed since it was last
    asked.

    Args:
        interval: None: never.
        start: value from which counting begins; a multiple at `start` itself counts as done.
    """

    def __init__(self, interval: int | None, start: int = 0) -> None:
        self._interval = interval
        self._last = start

    def __call__(self, value: int) -> bool:
        before = self._last
        self._last = value
        return self._interval is not None and value // self._interval > before // self._interval
