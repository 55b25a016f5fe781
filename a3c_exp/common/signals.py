"""Signals to whole groups of processes (Ctrl-C, timeout, a batch system): a run's main process alone acts on them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


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
    """Let SIGNALS do nothing in this process. Programs that it starts inherit none of that, as they would SIG_IGN."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    unblock()


def take_back() -> None:
    """Install this program's handlers of SIGNALS again, where a library has replaced them in C from another thread."""
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            signal.signal(number, handler)
