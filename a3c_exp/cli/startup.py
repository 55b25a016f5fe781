"""The first tenth of a second of a command, before anything large is imported."""

from __future__ import annotations

import gc
import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from a3c_exp.backends import forkserver
from a3c_exp.errors import ConfigError


def conf_folder() -> Path:
    """The folder of configuration files: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


FORKSERVER_BACKENDS = ("a3c_exp.backends.processes.Processes", "a3c_exp.backends.ga3c.Ga3c")
"""Backends whose processes are forked from a server, which imports torch first: seconds, on another core."""


def prestart_backend(arguments: Sequence[str]) -> None:
    """Start the fork server while this process still has Hydra to import and a command to read.

    Only for a plain command, whose backend is known without composing it. For others it starts once they are composed.
    """
    others = ("resume=", "experiment=", "backend.", "+", "~", "hydra")
    if any(text.startswith(others) or (text[:1] == "-" and text not in ("-m", "--multirun")) for text in arguments):
        return
    chosen = [text.partition("=")[2] for text in arguments if text.startswith("backend=")]
    with suppress(OSError, LookupError):  # whatever is wrong is found, and reported, when the command is composed
        option = chosen[-1] if chosen else _first(r"- backend: (\w+)", conf_folder() / "config.yaml")
        prestart({"backend": {"_target_": _first(r"_target_: (\S+)", conf_folder() / "backend" / f"{option}.yaml")}})


def prestart(config: Mapping[str, Any]) -> None:
    """Start the fork server if the configuration's backend will use it. The checks report what is wrong with either."""
    backend = config.get("backend")
    if isinstance(backend, Mapping) and backend.get("_target_") in FORKSERVER_BACKENDS:
        with suppress(ConfigError):
            forkserver.ensure_running()


@contextmanager
def importing() -> Iterator[None]:
    """Within: no garbage collection, and afterwards none of what is there by then. For commands, not for a program
    that uses this package. Imports leave next to nothing to collect, and to look for it takes a tenth of their time.

    A Ctrl-C is heard at the end: libraries try imports of theirs in ways that swallow it. A second one, at once.
    """
    asked = False

    def note(signum: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, note) if main else None
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
    if asked:
        raise KeyboardInterrupt


def _first(pattern: str, file: Path) -> str:
    found = re.search(pattern, file.read_text(encoding="utf-8"))
    if found is None:
        raise LookupError(f"{pattern} is not in {file}")
    return found[1]
