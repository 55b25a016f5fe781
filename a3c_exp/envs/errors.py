"""Errors of environments, also of their `close`."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from a3c_exp.common.log import log
from a3c_exp.common.signals import handled
from a3c_exp.ending import StopReason
from a3c_exp.envs.answers import WrongAnswerError
from a3c_exp.envs.progress import on_progress, progress_call
from a3c_exp.errors import LONGEST_TEXT, RunError, leaves_debugger, one_line, place_of

CLOSE_SECONDS = 1.0
"""The longest wait for one environment that is being closed."""


class EnvError(RunError):
    """An environment raised an error, or returned what cannot be used. It ends the worker, which is
    replaced.

    Its text is one line, and below it the traceback if the environment raised.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text, StopReason.ENV_ERRORS)


class CloseTimeoutError(TimeoutError):
    """The time of `close_within` is up. An environment's own TimeoutError is an error as any
    other."""


def env_error(
    error: BaseException, name: str, *, index: int | None = None, step: int | None = None
) -> EnvError:
    """Make the error of an environment. Raises KeyboardInterrupt if a debugger was left in it.

    error: raised by it, or a WrongAnswerError. name: of the environments ('LunarLander-v3').
    index: of the environment in its batch; None: the error may know it. step: of its episode, in a
        native vector of all; None in a reset.
    """
    if leaves_debugger(error):
        raise KeyboardInterrupt from error
    if index is None and isinstance(error, WrongAnswerError):
        index = error.index

    who = f"the vector environment ({name})" if index is None else f"environment {index} ({name})"
    when = "in a reset" if step is None else f"at step {step:,}"
    if isinstance(error, WrongAnswerError):
        return EnvError(f"{who} returned {error} {when}")

    lines = "".join(line[:LONGEST_TEXT] for line in traceback.format_exception(error)).rstrip()
    return EnvError(f"{who} raised {one_line(error)} {when}{place_of(error)}\n{lines}")


def close_within(env: Any, seconds: float = CLOSE_SECONDS) -> None:
    """Close environments, a batch or one, in this thread, in which they were made. Errors are
    logged, never raised.

    In a main thread, that of a worker process too, a CloseTimeoutError breaks the close off once
    none of them has been closed for that time. Code in C, and another thread, cannot be broken off.
    """
    try:
        with _alarm(seconds):
            env.close()
    except BaseException as error:  # whatever it is, the run goes on or ends without it
        log.warning("an environment could not be closed: %s", one_line(error))


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise CloseTimeoutError at each end of the interval, in a main thread. SIGALRM is the user's:
    not if a timer runs."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    timer_runs = bool(signal.getitimer(signal.ITIMER_REAL)[0])
    if not in_main_thread or timer_runs:
        yield
        return

    def ring(signum: int, frame: object) -> None:
        raise CloseTimeoutError(f"its close took longer than {seconds:g} s")

    outer = progress_call()

    def start() -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
        outer()

    with handled({signal.SIGALRM: ring}):
        on_progress(start)
        start()
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            on_progress(outer)
