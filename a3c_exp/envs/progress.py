"""Reports of progress, after each of several environments that are made, reset, stepped or closed:
a limit of time is one for each of them."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

_progress: ContextVar[Callable[[], None]] = ContextVar("progress", default=lambda: None)


def on_progress(call: Callable[[], None]) -> None:
    """Have this called from now on, in this thread, whenever one of several environments has been
    made, reset, stepped or closed. It counts for the batches that are made from now on."""
    _progress.set(call)


def progress_call() -> Callable[[], None]:
    """Return what `on_progress` has set."""
    return _progress.get()


def report_progress() -> None:
    """Say that one of several environments has been made, reset or closed, which may take long for
    each."""
    _progress.get()()
