"""The process of a run that is forked from the fork server, which has imported everything once.

It does what `python -m a3c_exp` does with the same arguments. Its workers are forked from the same
server.
"""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess

from a3c_exp.backends import forkserver
from a3c_exp.cli.startup import TRAINING, end_after
from a3c_exp.errors import ConfigError


@dataclass(eq=False)
class ForkedRun:
    """The process of a run, with those methods of `subprocess.Popen` that a sweep uses."""

    process: BaseProcess

    def poll(self) -> int | None:
        code = self.process.exitcode
        if code is not None:
            # If the server was killed, the run may still go on. It ends now: see `end_after`.
            self.process.close()
        return code

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()


def start_server() -> None:
    """Start the fork server. It imports what runs need while this process goes on."""
    with suppress(ConfigError):  # then `fork` says why there is none
        forkserver.ensure_running([*TRAINING, __name__, "a3c_exp.cli.main"])


def fork(arguments: Sequence[str], variables: Mapping[str, str]) -> ForkedRun:
    """Start a command in a process that is forked, with these environment variables and no others.

    Raises ConfigError or OSError if there is no fork server, and none can be started.
    """
    return ForkedRun(forkserver.start(_run_command, "run", list(arguments), dict(variables)))


def _run_command(arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    """Run a command in this process, which has just been forked, and end it."""
    process = multiprocessing.current_process()
    process.daemon = False  # it may start processes
    os.environ.clear()
    os.environ.update(variables)
    # by its name: it imports this module
    program = importlib.import_module("a3c_exp.__main__")
    sys.argv = [str(program.__file__), *arguments]
    sys.orig_argv = [sys.executable, "-m", "a3c_exp", *arguments]
    atexit.unregister(shutil.rmtree)  # the server deletes its folder, once nobody needs it
    forkserver.share()
    parent = multiprocessing.parent_process()
    assert parent is not None
    end_after(parent.join)
    code: int = program.main()
    atexit._run_exitfuncs()  # multiprocessing leaves them out
    sys.exit(code)
