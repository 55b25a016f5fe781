"""Signals: which of them do what to a program, its run and its workers.

| | a program that starts | a run | a worker, the fork server |
|---|---|---|---|
| SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU | ends, `end_early` | ends, saved | nothing |
| SIGUSR2 | ends, `end_early` | ends, saved; then a handler of the program's own | nothing |
| SIGUSR1 | the program's own | saves a checkpoint | of a worker: the run's process is gone |

Signals often come to a whole group of processes (Ctrl-C, timeout, a batch system). A run's main
process alone acts on them. A sweep passes them on, but for SIGUSR1: see `cli.processes`. SIGALRM
breaks off the close of an environment: see `envs.errors`.

The first signal ends a run in order: its workers finish their rollout, and it is saved. A signal
may also break in, by a KeyboardInterrupt, into what the main thread does. `run.session` sets which
one may, in `Interruption.breaks_in`:

| what the run does | what breaks in |
|---|---|
| `on_start` of callbacks, which may wait for a server | any signal |
| trains, evaluates, waits for its workers | the second Ctrl-C: it waits no longer |
| ends its workers | nothing; where it closes environments itself, the second Ctrl-C |
| saves | nothing |
| `on_end` of callbacks, after all is saved | any signal; if one came before, the second Ctrl-C |

Each of these steps is broken into at most once, and the write of a file by the third signal alone.
A run that a signal has interrupted ends its program with `exit_codes.signal_code`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from types import FrameType
from typing import Any

from a3c_exp.exit_codes import signal_code

ENDING = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR2,
    signal.SIGXCPU,
)
"""Signals that end a run in order: a closed terminal, Ctrl-C and Ctrl-\\, a batch system, a limit
of processor time."""

PREEMPTION = signal.SIGUSR2
"""The one of ENDING that batch systems send before they take a machine away."""

SAVE = signal.SIGUSR1
"""The signal that asks a run for a checkpoint."""

SIGNALS = (*ENDING, SAVE)

ORPHANED = signal.SIGUSR1
"""The signal that a worker's process sends to its own main thread once the run's process is
gone."""

Handler = Callable[[int, FrameType | None], object]


# A program that starts.


class SignalInterrupt(KeyboardInterrupt):
    """An early end. Python ends by SIGINT where `exec` was left by a KeyboardInterrupt itself, even
    a caught one."""


def end_early() -> None:
    """Let each of ENDING end this process with its `signal_code`, until a run has handlers of its
    own.

    A signal that is ignored stays ignored, as by nohup.
    """
    for number in ENDING:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, end)


def end(number: int, frame: object) -> None:
    """The handler of `end_early`. Not SystemExit, for which code of an environment may be blamed:
    see `FAILURES`.

    A destructor or a weak reference's callback that is interrupted swallows the exception: the
    signal comes again then.
    """
    again = threading.Timer(0.1, os.kill, (os.getpid(), number))
    before = sys.unraisablehook
    sys.unraisablehook = lambda lost: (
        again.start() if lost.exc_type is SignalInterrupt else before(lost)
    )
    raise SignalInterrupt(signal_code(number))


# A run.


class BreaksIn(Enum):
    """Which signal of ENDING raises KeyboardInterrupt: see the table at the head."""

    NOTHING = "nothing"
    SECOND_CTRL_C = "the second Ctrl-C"
    ANY_SIGNAL = "any signal"


@dataclass(slots=True)
class Interruption:
    """What signals have asked a run for.

    signal: the first one that interrupted, but PREEMPTION if that has come too; None before.
    count: how many have interrupted.
    breaks_in: which signal raises KeyboardInterrupt.
    writing: whether a file is being written, into which the third signal breaks instead.
    save_requested: whether SAVE has asked for a checkpoint that has not been written yet.
    """

    signal: int | None = None
    count: int = 0
    breaks_in: BreaksIn = BreaksIn.SECOND_CTRL_C
    writing: bool = False
    save_requested: bool = False

    def interrupt(self, number: int, frame: object) -> None:
        """Note a signal of ENDING, as its handler. Raises KeyboardInterrupt where it breaks in."""
        self.count += 1
        # a batch system may send SIGTERM before PREEMPTION
        if self.signal is None or number == PREEMPTION:
            self.signal = number

        if self.writing:
            if self.count > 2:
                raise KeyboardInterrupt
            return

        is_second_ctrl_c = self.count > 1 and number == signal.SIGINT
        if self.breaks_in is BreaksIn.ANY_SIGNAL or (
            self.breaks_in is BreaksIn.SECOND_CTRL_C and is_second_ctrl_c
        ):
            self.breaks_in = BreaksIn.NOTHING  # a third one would break off the end of the workers
            raise KeyboardInterrupt(signal_code(self.signal))

    def request_save(self, number: int, frame: object) -> None:
        """Note SAVE, as its handler."""
        self.save_requested = True


@contextmanager
def interruptions(interruption: Interruption) -> Iterator[None]:
    """Note signals of ENDING and SAVE in `interruption`.

    A signal that is ignored stays so.
    A program's own handler of SAVE stays. Its own handler of PREEMPTION is called at the end, when
    the run has been saved: submitit's ends the process, and has the job queued again.
    Does nothing outside the main thread, where signals do not arrive.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    handlers: dict[signal.Signals, Handler] = {
        number: interruption.interrupt
        for number in ENDING
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    if signal.getsignal(SAVE) is signal.SIG_DFL:
        handlers[SAVE] = interruption.request_save
    with handled(handlers) as before:
        yield

    requeue = before.get(PREEMPTION)
    if interruption.signal == PREEMPTION and callable(requeue) and requeue is not end:
        requeue(PREEMPTION, None)


def error_of(number: int) -> BaseException:
    """Return what ends the program that has trained a run which a signal has interrupted."""
    code = signal_code(number)
    return KeyboardInterrupt(code) if number == signal.SIGINT else SystemExit(code)


# Workers, and the fork server that starts them.


def set_for_worker(on_orphaned: Handler) -> None:
    """Let signals to its group do nothing in a worker's process, which is a group of its own.

    on_orphaned: the handler of ORPHANED.
    """
    ignore()
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # its group is not that of the terminal
    signal.signal(ORPHANED, on_orphaned)


def ignore() -> None:
    """Let SIGNALS do nothing in this process. Programs that it starts inherit none of that, as they
    would SIG_IGN."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    unblock()


@contextmanager
def blocked() -> Iterator[None]:
    """Block SIGNALS in programs that are started."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock() -> None:
    """Undo `blocked` in a process that was started within."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


# Handlers.


@contextmanager
def handled(handlers: Mapping[signal.Signals, Handler]) -> Iterator[dict[signal.Signals, Any]]:
    """Set handlers of signals, and give those before, which come back afterwards."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield before
    finally:
        for number, handler in before.items():
            # None: a handler that was not set from Python cannot be restored
            with suppress(TypeError):
                signal.signal(number, handler)


@contextmanager
def kept() -> Iterator[None]:
    """Undo handlers of SIGNALS that code of an environment's own sets."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def take_back() -> None:
    """Install this program's handlers of SIGNALS again, where a library has replaced them in C from
    another thread."""
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            signal.signal(number, handler)
