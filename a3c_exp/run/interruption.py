"""Signals that ask a run to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


@dataclass(slots=True)
class Interruption:
    """signal: which has asked the run to end. may_break_in: whether a second Ctrl-C still may."""

    signal: int | None = None
    may_break_in: bool = True


@contextmanager
def interruptions(interruption: Interruption) -> Iterator[None]:
    """SIGINT and SIGTERM ask for an orderly end; a second SIGINT for one at once. In the main thread only: elsewhere
    signals do not arrive."""

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
            with suppress(TypeError):  # None: a handler that was not set from Python cannot be put back
                signal.signal(number, handler)
