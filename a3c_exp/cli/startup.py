"""The start of a command, before it imports anything large."""

from __future__ import annotations

import gc
import inspect
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from a3c_exp.backends import forkserver
from a3c_exp.common.reading import expanded
from a3c_exp.errors import ConfigError, RunError, exit_code, printable


def conf_folder() -> Path:
    """The folder of configuration files: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def folder_command(
    name: str, options: type, command: Callable[[Path, Sequence[str]], int], arguments: Sequence[str]
) -> int:
    """Run `python -m a3c_exp.<name> <run folder> [key=value ...]`, or print its help: the docstring of its options.

    A RunError, of environments that go wrong, is printed: there is no run that reports it.
    """

    def run() -> int:
        try:
            return command(expanded(arguments[0]), arguments[1:])
        except RunError as error:
            print(printable(f"a3c_exp: {error}"), file=sys.stderr)
            raise

    if not arguments or not {"-h", "--help"}.isdisjoint(arguments):
        usage = f"usage: python -m a3c_exp.{name} <run folder> [key=value ...]"
        print(f"{usage}\n\n{inspect.getdoc(options)}")
        return 0 if arguments else 2
    return exit_code(run)


FORKSERVER_BACKENDS = ("a3c_exp.backends.processes.Processes", "a3c_exp.backends.ga3c.Ga3c")
"""Backends whose processes are forked from a server. It imports torch first, which takes seconds on another core."""


def prestart_backend(arguments: Sequence[str]) -> None:
    """Start the fork server before this process imports Hydra and composes the command.

    Only for a plain command, whose backend is known without composing it, and for runs at once, which need the server
    with every backend. Others start it after that: see `prestart`.
    """
    if any(text.startswith("jobs=") and text != "jobs=1" for text in arguments):
        with suppress(ConfigError):
            forkserver.ensure_running()
        return
    not_plain = ("resume=", "from=", "jobs=", "experiment=", "backend.", "+", "~", "hydra")
    if any(text.startswith(not_plain) or (text[:1] == "-" and text not in ("-m", "--multirun")) for text in arguments):
        return
    chosen = [text.partition("=")[2] for text in arguments if text.startswith("backend=")]
    with suppress(OSError, LookupError):  # composing the command reports what is wrong
        option = chosen[-1] if chosen else _first_match(r"- backend: (\w+)", conf_folder() / "config.yaml")
        prestart(
            {"backend": {"_target_": _first_match(r"_target_: (\S+)", conf_folder() / "backend" / f"{option}.yaml")}}
        )


def prestart(config: Mapping[str, Any]) -> None:
    """Start the fork server if the configuration's backend uses it. Errors in either are left to the checks."""
    backend = config.get("backend")
    if isinstance(backend, Mapping) and backend.get("_target_") in FORKSERVER_BACKENDS:
        with suppress(ConfigError):
            forkserver.ensure_running()


@contextmanager
def forked_jobs() -> Iterator[None]:
    """Within: processes that joblib starts are forked from the server, and import next to nothing.

    joblib's own start method starts programs. Each would import torch, and so would a fork server of its own.
    """
    from joblib.externals.loky.backend.context import set_start_method

    forkserver.ensure_running()
    set_start_method("forkserver", force=True)
    try:
        with forkserver.without_main():
            yield
    finally:
        set_start_method(None, force=True)


@contextmanager
def importing() -> Iterator[None]:
    """Import without garbage collection, and exempt the imported objects from it. For commands only.

    Imports leave next to nothing to collect, and the search for it takes a tenth of their time.
    Ctrl-C raises at the end of the block, since some libraries swallow it when they try an import. A second one raises
    at once.
    """
    interrupted = False

    def on_sigint(signum: int, frame: object) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True

    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, on_sigint) if in_main_thread else None
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
        if enabled:
            gc.freeze()
            gc.enable()
    if interrupted:
        raise KeyboardInterrupt


def _first_match(pattern: str, file: Path) -> str:
    found = re.search(pattern, file.read_text(encoding="utf-8"))
    if found is None:
        raise LookupError(f"{pattern} is not in {file}")
    return found[1]
