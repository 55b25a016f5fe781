"""Signals to whole groups of processes (Ctrl-C, timeout, a batch system): a run's main process
alone acts on them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from a3c_exp.ending import signal_code

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
SIGNALS = (*ENDING, signal.SIGUSR1)


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


@contextmanager
def handled(
    handlers: Mapping[signal.Signals, Callable[[int, Any], object]],
) -> Iterator[dict[signal.Signals, Any]]:
    """Within: these handlers of signals. Gives those before, which come back afterwards."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield before
    finally:
        for number, handler in before.items():
            # None: a handler that was not set from Python cannot be restored
            with suppress(TypeError):
                signal.signal(number, handler)


@contextmanager
def blocked() -> Iterator[None]:
    """Within: programs that are started have SIGNALS blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock() -> None:
    """Undo `blocked` in a process that was started within."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def ignore() -> None:
    """Let SIGNALS do nothing in this process. Programs that it starts inherit none of that, as they
    would SIG_IGN."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    unblock()


def take_back() -> None:
    """Install this program's handlers of SIGNALS again, where a library has replaced them in C from
    another thread."""
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            signal.signal(number, handler)
