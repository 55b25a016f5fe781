"""The server that worker processes are forked from: it has imported everything once, so a worker starts in milliseconds.

This module imports nothing large: the server is started before the program imports torch, which the server then does
on another core.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import ForkServerContext

from a3c_exp.core.cpu import ONE_THREAD
from a3c_exp.errors import ConfigError

# Of the 103 characters that every system with such sockets has room for, /pymp-12345678/listener-12345678 takes 32.
LONGEST_TEMPORARY_FOLDER = 71
SIGNALS = (signal.SIGINT, signal.SIGTERM)
PRELOAD = ["a3c_exp.backends.processes.children", "a3c_exp.backends.forkserver_preload"]


def ensure_running() -> None:
    """Start the server unless it runs; it imports in the background while this process goes on. Raises ConfigError."""
    check_temporary_folder()
    context().set_forkserver_preload(PRELOAD)
    # It unblocks the signals below when it starts its own helper, so that has to come first.
    resource_tracker.ensure_running()
    # The server and its children inherit these; this process's libraries are as they were.
    with _environment(ONE_THREAD | {"A3C_EXP_TEMPORARY": util.get_temp_dir()}), _signals_blocked(), without_main():
        forkserver.ensure_running()


def kill() -> None:
    """End the server, if one was started for a run that is not to be: it would import on."""
    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def check_temporary_folder() -> None:
    """The server's socket lies there, and the system has a limit for such paths: 107 characters on Linux."""
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) > LONGEST_TEMPORARY_FOLDER:
        allowed = f"a folder whose path has at most {LONGEST_TEMPORARY_FOLDER} characters"
        raise ConfigError("TMPDIR", folder, f"must be {allowed}: worker processes are asked for through a socket there")


def context() -> ForkServerContext:
    return multiprocessing.get_context("forkserver")


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Within: these environment variables are set, for programs that are started."""
    kept = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Within: a program that is started never sees SIGINT and SIGTERM. Both are sent to whole groups of processes
    (Ctrl-C, timeout, a batch system); it is for this process to decide what they mean."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def without_main() -> Iterator[None]:
    """Within: child processes do not import the program that starts them. They need nothing from it, and one that has
    no `if __name__ == "__main__"` would run again in each."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
