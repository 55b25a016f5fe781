"""Signals that interrupt a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


@dataclass(slots=True)
class Interruption:
    """signal: the one that has interrupted the run; None before. may_break_in: whether a second Ctrl-C still raises."""

    signal: int | None = None
    may_break_in: bool = True


@contextmanager
def interruptions(interruption: Interruption) -> Iterator[None]:
    """Note SIGINT and SIGTERM in `interruption`; a second SIGINT raises KeyboardInterrupt.

    Does nothing outside the main thread, where signals do not arrive.
    """

    def ask(signum: int, frame: object) -> None:
        if interruption.signal is not None and signum == signal.SIGINT and interruption.may_break_in:
            raise KeyboardInterrupt
        interruption.signal = interruption.signal or signum

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            with suppress(TypeError):  # None: a handler that was not set from Python cannot be restored
                signal.signal(number, handler)
