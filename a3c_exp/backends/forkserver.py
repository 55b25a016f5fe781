"""The fork server: worker processes are forked from it. It has imported everything once, so they start in milliseconds.

This module imports nothing large. The server is started before the program imports torch, so that both import it at the
same time, on two cores. Runs at once share one server: each runs in a process that is itself forked from it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import ForkServerContext

from a3c_exp.core.cpu import ONE_THREAD
from a3c_exp.errors import ConfigError

# A socket's path may have 103 characters on every system. /pymp-12345678/listener-12345678 takes 32 of them.
LONGEST_TEMPORARY_FOLDER = 71
# The standard library gives a child this exit code if the server has died, which would have reported the real one.
EXIT_CODE_LOST = 255
# From the server's death, which its children's sentinels report at once, to the time at which the system tells of it.
DYING_SECONDS = 0.5
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
PRELOAD = ["a3c_exp.backends.processes.children", "a3c_exp.backends.forkserver_preload"]
_parent: int | None = None  # the server that this process was forked from, and that it uses


def ensure_running() -> None:
    """Start the server unless it runs. It imports while this process goes on. Raises ConfigError."""
    if _is_forked():
        _share()
        return
    check_temporary_folder()
    _leave_foreign_context()
    context().set_forkserver_preload(PRELOAD)
    # The tracker unblocks these signals when it starts its own process, so it has to be started first.
    resource_tracker.ensure_running()
    # Only the server and its children inherit these variables: this process's libraries keep their threads.
    with _environment(ONE_THREAD | {"A3C_EXP_TEMPORARY": util.get_temp_dir()}), _signals_blocked(), without_main():
        forkserver.ensure_running()


def _is_forked() -> bool:
    """Return whether this process was forked from a server: it knows its address, and has not started it."""
    return _pid() is None and getattr(forkserver._forkserver, "_forkserver_address", None) is not None


def _share() -> None:
    """Use the server that this process was forked from. The standard library means to, but would start another."""
    global _parent
    if _parent is None:  # else the server may have died since
        _parent = os.getppid()
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]


def _leave_foreign_context() -> None:
    """Within a process of joblib's own "loky": undo what multiprocessing has there from it, or from its starter.

    A child process is told its parent's default start method, and looks it up before joblib is imported there.
    The temporary folder is the starter's, which the server must not remove.
    """
    if multiprocessing.get_start_method(allow_none=True) not in (None, *multiprocessing.get_all_start_methods()):
        multiprocessing.set_start_method("forkserver", force=True)
        multiprocessing.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]


def has_died(seconds: float = DYING_SECONDS) -> bool:
    """Return whether the server has died; waits so long for one that is about to."""
    deadline = time.monotonic() + seconds
    while not _is_dead():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def _is_dead() -> bool:
    if _is_forked():
        return os.getppid() != _parent
    pid = _pid()
    if pid is None:
        return True
    try:
        # The standard library collects the server, not this call.
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _pid() -> int | None:
    pid: int | None = getattr(forkserver._forkserver, "_forkserver_pid", None)
    return pid


def kill() -> None:
    """Kill the server, if it runs. For a run that will not start: the server would go on importing."""
    pid = _pid()
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def check_temporary_folder() -> None:
    """Raise ConfigError if the path of the server's socket would be longer than the system allows: 107 on Linux."""
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) > LONGEST_TEMPORARY_FOLDER:
        allowed = f"a folder whose path has at most {LONGEST_TEMPORARY_FOLDER} characters"
        raise ConfigError("TMPDIR", folder, f"must be {allowed}: the socket of the fork server lies there")


def context() -> ForkServerContext:
    return multiprocessing.get_context("forkserver")


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Within: these environment variables are set, and programs that are started inherit them."""
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
    """Within: programs that are started have SIGNALS blocked.

    They are sent to whole groups of processes (Ctrl-C, timeout, a batch system). This process alone decides what they
    mean.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def without_main() -> Iterator[None]:
    """Within: child processes do not import the program that starts them.

    They need nothing from it, and a program without `if __name__ == "__main__"` would run again in each of them.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
