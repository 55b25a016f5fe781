"""Signals that interrupt a program, or ask a run for a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from a3c_exp.common.signals import ENDING, end, handled
from a3c_exp.ending import signal_code


@dataclass(slots=True)
class Interruption:
    """What signals have asked for.

    signal: the first one that interrupted, but SIGUSR2 if that has come too; None before.
    count: how many have interrupted. may_break_in: whether a second Ctrl-C raises
        KeyboardInterrupt. at_once: any signal does, the first one too. writing: whether a file is
        being written, into which a third signal breaks instead.
    save_requested: whether SIGUSR1 has asked for a checkpoint that has not been written yet.
    """

    signal: int | None = None
    count: int = 0
    may_break_in: bool = True
    at_once: bool = False
    writing: bool = False
    save_requested: bool = False


@contextmanager
def interruptions(interruption: Interruption) -> Iterator[None]:
    """Note signals in `interruption`: those of ENDING interrupt; SIGUSR1 asks for a checkpoint.

    A signal that is ignored stays so.
    A program's own handler of SIGUSR1 stays. Its own handler of SIGUSR2 is called at the end, when
    the run has been saved: submitit's ends the process, and has the job queued again.
    Does nothing outside the main thread, where signals do not arrive.
    """

    def ask(signum: int, frame: object) -> None:
        interruption.count += 1
        # a batch system may send SIGTERM before it
        if interruption.signal is None or signum == signal.SIGUSR2:
            interruption.signal = signum
        again = interruption.count > 1 and signum == signal.SIGINT
        if interruption.writing:
            if interruption.count > 2:
                raise KeyboardInterrupt
        elif interruption.may_break_in and (again or interruption.at_once):
            interruption.may_break_in = False  # a third one would break off the end of the workers
            raise KeyboardInterrupt(signal_code(interruption.signal))

    def save(signum: int, frame: object) -> None:
        interruption.save_requested = True

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = dict.fromkeys(
        (each for each in ENDING if signal.getsignal(each) is not signal.SIG_IGN), ask
    )
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        handlers[signal.SIGUSR1] = save
    with handled(handlers) as before:
        yield
    requeue = before.get(signal.SIGUSR2)
    if interruption.signal == signal.SIGUSR2 and callable(requeue) and requeue is not end:
        requeue(signal.SIGUSR2, None)
