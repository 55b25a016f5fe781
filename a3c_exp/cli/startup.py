"""The start of a command, before it imports anything large."""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from a3c_exp.errors import named
from a3c_exp.exit_codes import ExitCode, exit_code


def conf_folder() -> Path:
    """The folder of configuration files: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def folder_command(
    name: str,
    options: type,
    command: Callable[[Path, Sequence[str]], int],
    arguments: Sequence[str],
) -> int:
    """Run `python -m a3c_exp.<name> <run folder> [key=value ...]`, or print its help: the docstring
    of its options."""

    def run() -> int:
        if not arguments or not {"-h", "--help"}.isdisjoint(arguments):
            usage = f"usage: python -m a3c_exp.{name} <run folder> [key=value ...]"
            print(f"{usage}\n\n{inspect.getdoc(options)}")
            return ExitCode.DONE if arguments else ExitCode.REFUSED
        from a3c_exp.run.run_folder import locate_run

        with named("run"):
            folder = locate_run(arguments[0])
        return command(folder, arguments[1:])

    return exit_code(run)


TRAINING = ("a3c_exp.run.session", "a3c_exp.config.builder")
"""The modules that import what a run needs."""


def import_training() -> None:
    """Import what a run needs. None of it is garbage, and to search it takes half a second: now,
    where the command has disabled the collector, and at the end of the process."""
    for module in TRAINING:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()


PARENT = "A3C_EXP_PARENT"
LABEL = "A3C_EXP_LABEL"
"""Environment variables of a sweep's runs: the process that has started them; a label for their
warnings."""
LOOK_SECONDS = 1.0
SAVING_SECONDS = 45.0


def end_with_parent() -> None:
    """End this process when the sweep that has started it is gone: see `end_after`."""
    parent = os.environ.pop(PARENT, None)
    if parent is None:
        return

    def wait() -> None:
        while str(os.getppid()) == parent:
            time.sleep(LOOK_SECONDS)

    end_after(wait)


def end_after(wait: Callable[[], object]) -> None:
    """End this process once `wait` has returned: as after SIGTERM, and by force if that takes long.

    A run is saved then, and none is left without anybody who knows of it.
    """

    def watch() -> None:
        wait()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(SAVING_SECONDS)
        os._exit(ExitCode.FAILED)

    threading.Thread(target=watch, daemon=True).start()
