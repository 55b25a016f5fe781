"""Signals to whole groups of processes (Ctrl-C, timeout, a batch system): a run's main process alone acts on them."""

from __future__ import annotations

import signal
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
