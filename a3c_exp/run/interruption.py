"""Signals that interrupt a run, or ask it for a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


@dataclass(slots=True)
class Interruption:
    """signal: the one that has interrupted the run; None before. may_break_in: whether a second Ctrl-C still raises.

    save_requested: whether SIGUSR1 has asked for a checkpoint that has not been written yet.
    """

    signal: int | None = None
    may_break_in: bool = True
    save_requested: bool = False


@contextmanager
def interruptions(interruption: Interruption) -> Iterator[None]:
    """Note signals in `interruption`: SIGINT, SIGTERM and SIGUSR2 interrupt, and a second SIGINT raises
    KeyboardInterrupt; SIGUSR1 asks for a checkpoint.

    SIGUSR1 and SIGUSR2 are left to a program that handles them itself, as submitit does.
    Does nothing outside the main thread, where signals do not arrive.
    """

    def ask(signum: int, frame: object) -> None:
        if interruption.signal is not None and signum == signal.SIGINT and interruption.may_break_in:
            raise KeyboardInterrupt
        interruption.signal = interruption.signal or signum

    def save(signum: int, frame: object) -> None:
        interruption.save_requested = True

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signal.SIGINT: ask, signal.SIGTERM: ask}
    preemption = {signal.SIGUSR1: save, signal.SIGUSR2: ask}
    handlers |= {number: f for number, f in preemption.items() if signal.getsignal(number) is signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            with suppress(TypeError):  # None: a handler that was not set from Python cannot be restored
                signal.signal(number, handler)
