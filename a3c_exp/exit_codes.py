"""Exit codes: what each of them means, and the end of a program that has one.

A command returns its code, or an exception ends it, which `exit_code` turns into one. The
KeyboardInterrupt that ends it after a signal has its code as argument: see `common.signals`.
docs/exit_codes.md is the table for users.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import IntEnum
from typing import Any

from a3c_exp.errors import ConfigError, RunError, one_line, place_of, say, shown

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


class ExitCode(IntEnum):
    """The exit codes of commands. After a signal it is `signal_code`."""

    DONE = 0
    """The command has done what it was asked for."""

    FAILED = 1
    """A run failed, a replay differs from its run, or a result could not be written."""

    REFUSED = 2
    """The command cannot be run. Nothing was started and nothing written."""

    PREEMPTED = 75
    """SIGUSR2, which batch systems send before they take a machine away, ended the run, and the
    same command continues it: EX_TEMPFAIL, try again."""

    PIPE_CLOSED = 128 + signal.SIGPIPE
    """The reader of the command's output has closed it."""


def signal_code(number: int) -> int:
    """Return the exit code of a program that a signal has ended: 128 + its number, but PREEMPTED
    after SIGUSR2."""
    return ExitCode.PREEMPTED if number == signal.SIGUSR2 else 128 + number


def run_exit_code(summary: Mapping[str, Any]) -> int:
    """Return the exit code of a run, by its summary.

    It is `signal_code` of the signal that interrupted the run; otherwise FAILED if the run failed
    or a file could not be written, and DONE if not.
    """
    if summary["signal"] is not None:
        return signal_code(summary["signal"])
    if summary["error"] is not None or summary["unwritten"]:
        return ExitCode.FAILED
    return ExitCode.DONE


def exit_code(program: Callable[[], int]) -> int:
    """Run a program and return its exit code, or that of the error which ended it.

    That is REFUSED for a ConfigError and for a file that the system refuses to open, which are
    printed in one line; FAILED for a RunError and a full disk, which are printed too; `signal_code`
    after a signal.
    """
    try:
        code = program()
        with suppress(AttributeError, ValueError):  # a program, or an environment, has closed it
            sys.stdout.flush()
        return code
    except ConfigError as error:
        # as Hydra has it, for the error's whole traceback
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            sys.excepthook(*sys.exc_info())
        line = str(error).replace("\n", " ")
        say(f"a3c_exp: {line}")
        return ExitCode.REFUSED
    except BrokenPipeError:  # as of a program that the signal ends: `| head` has read enough
        _drop_stdout()
        return ExitCode.PIPE_CLOSED
    except OSError as error:
        name = "" if error.filename is None else f"{shown(str(error.filename))}: "
        if not name and isinstance(error, FileNotFoundError):  # of os.getcwd alone
            name = "the current folder: "
        say(f"a3c_exp: {name}{error.strerror or one_line(error)}{place_of(error)}")
        if error.errno not in FULL_DISK:
            return ExitCode.REFUSED

        _drop_stdout()
        return ExitCode.FAILED
    except RunError as error:
        say(f"a3c_exp: {error}")
        return ExitCode.FAILED
    except KeyboardInterrupt as interruption:  # its argument: the exit code of an interrupted run
        interrupted = signal_code(signal.SIGINT)
        code = interruption.args[0] if interruption.args else interrupted
        # an environment may have raised it, with any argument
        return code if isinstance(code, int) else interrupted


def _drop_stdout() -> None:
    """Let what is left of stdout be dropped: Python flushes it again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


LEAVING_SECONDS = 30.0
"""How long the end of a program waits for threads that an environment has started."""


def leave(code: int) -> int:
    """Return the code for `sys.exit`, and end this process with it where that takes too long:
    Python waits for threads and for what was registered with `atexit`, without end."""

    def end() -> None:
        time.sleep(LEAVING_SECONDS)
        names = [thread.name for thread in threading.enumerate() if not thread.daemon]
        say(f"a3c_exp: ended although code still runs, in threads {', '.join(names)}")
        os._exit(code)

    with suppress(RuntimeError):  # no thread is to be had
        threading.Thread(target=end, daemon=True).start()
    return code
