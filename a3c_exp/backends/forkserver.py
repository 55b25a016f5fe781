"""The fork server: worker processes are forked from it. It has imported everything once, so they
start in milliseconds.

This module imports nothing large. The server is started before the program imports torch, so that
both import it at the same time, on two cores. A server that has died is started again with the next
worker.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.process import BaseProcess

from a3c_exp.common import signals
from a3c_exp.core.cpu import ONE_THREAD, environment
from a3c_exp.errors import require

# A socket's path may have 103 characters on every system. /pymp-12345678/listener-12345678 takes 32
# of them.
LONGEST_TEMPORARY_FOLDER = 71
PRELOAD = ["a3c_exp.backends.forkserver_preload"]
CONTEXT = multiprocessing.get_context("forkserver")
SERVER = forkserver._forkserver


def ensure_running(preload: Sequence[str] = ()) -> None:
    """Start the server unless it runs. It imports while this process goes on.

    preload: modules that it imports besides those that workers need. Raises ConfigError.
    """
    check_temporary_folder()
    if multiprocessing.get_start_method(allow_none=True) not in (
        None,
        *multiprocessing.get_all_start_methods(),
    ):
        # joblib's own "loky": a child process is told the default method, and looks it up before it
        # imports joblib.
        multiprocessing.set_start_method("forkserver", force=True)

    CONTEXT.set_forkserver_preload([*PRELOAD, *preload])
    # Only the server and its children inherit these variables: this process's libraries keep their
    # threads.
    variables = dict(ONE_THREAD)
    # else the folder is that of the process which has started this one
    if multiprocessing.parent_process() is None:
        variables["A3C_EXP_TEMPORARY"] = util.get_temp_dir()
    # The tracker unblocks these signals when it starts its own process, so it has to be started
    # first.
    resource_tracker.ensure_running()
    with environment(variables), signals.blocked(), unchanged():
        try:
            SERVER.ensure_running()
        except ChildProcessError:  # this is a fork of the process that had started the server
            SERVER.__init__()  # type: ignore[misc]
            CONTEXT.set_forkserver_preload([*PRELOAD, *preload])
            SERVER.ensure_running()


def share() -> None:
    """Let the server from which this process was forked start this one's children too.

    multiprocessing promises that, and yet would start another server, which imports all again.
    """
    SERVER.ensure_running = resource_tracker.ensure_running  # type: ignore[method-assign]


def start(function: Callable[..., object], name: str, *arguments: object) -> BaseProcess:
    """Start a process that calls `function`, in any thread, also in a process of a pool.

    Waits until the server has imported everything. Raises OSError.
    """
    process = CONTEXT.Process(target=function, name=name, args=arguments, daemon=True)
    with _starting:
        ensure_running()
        with unchanged():
            try:
                process.start()
            except (ConnectionRefusedError, ConnectionResetError, EOFError):
                _forget_server()
                ensure_running()  # in place of the server, which was ending
                try:
                    process.start()
                except EOFError as error:  # the server has died of what the system refused it
                    raise OSError(
                        "no process can be forked (`ulimit -u` shows the limit)"
                    ) from error

    return process


_starting = threading.Lock()


def _forget_server() -> None:
    """Forget the server, which is ending."""
    pid = SERVER._forkserver_pid  # type: ignore[attr-defined]
    if pid is not None:
        os.waitpid(pid, 0)
        return

    del SERVER.ensure_running  # it was shared, see `share`
    SERVER.__init__()  # type: ignore[misc]


def check_temporary_folder() -> None:
    """Raise ConfigError if the path of the server's socket would be longer than the system allows:
    107 on Linux."""
    folder = tempfile.gettempdir()
    most = (
        f"a folder whose path has at most {LONGEST_TEMPORARY_FOLDER} characters: "
        "a socket lies there"
    )
    require(len(os.fsencode(folder)) <= LONGEST_TEMPORARY_FOLDER, "TMPDIR", folder, most)


@contextmanager
def unchanged() -> Iterator[None]:
    """Let a process be started. Afterwards this program is as it was before.

    Child processes do not import the program that starts them: they need nothing from it, and a
    program without
    `if __name__ == "__main__"` would run again in each of them. A process of a pool, which is a
    daemon, may have children. To start a process fixes the default method, which the program may
    want to choose later.
    """
    main = sys.modules["__main__"]
    process = multiprocessing.current_process()
    daemon = process.daemon
    method = multiprocessing.get_start_method(allow_none=True)
    sys.modules["__main__"] = types.ModuleType("__main__")
    process.daemon = False
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        process.daemon = daemon
        if method is None:
            multiprocessing.set_start_method(None, force=True)
