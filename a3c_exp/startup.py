"""The first tenth of a second of a command, before anything large is imported."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from a3c_exp.errors import ConfigError


def conf_folder() -> Path:
    """The folder of configuration files: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def start_early(arguments: Sequence[str]) -> None:
    """Let the backend start what takes long, while this process still has Hydra to import and a command to read.

    Worker processes come from a server that imports torch first, which takes seconds on another core. Only for a plain
    command, whose backend can be told without composing it; for the others it starts once they are composed.
    """
    others = ("resume=", "experiment=", "backend.", "+", "~", "hydra")
    if any(text.startswith(others) or (text[:1] == "-" and text not in ("-m", "--multirun")) for text in arguments):
        return
    chosen = [text.partition("=")[2] for text in arguments if text.startswith("backend=")]
    with suppress(OSError, LookupError):  # whatever is wrong is found, and told, when the command is composed
        option = chosen[-1] if chosen else _first(r"- backend: (\w+)", conf_folder() / "config.yaml")
        target = _first(r"_target_: (\S+)", conf_folder() / "backend" / f"{option}.yaml")
        prepare({"backend": {"_target_": target}, "plugins": ()})


def prepare(config: Mapping[str, Any]) -> None:
    """Let the backend of a configuration start what takes long. What is wrong with either is told by the checks."""
    from a3c_exp.backends import Backend
    from a3c_exp.schema import build

    with suppress(ConfigError):
        plugins = build(config.get("plugins"), tuple[str, ...], "plugins")
        build(config.get("backend"), Backend, "backend", plugins).prepare()  # type: ignore[type-abstract]


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


def abandon() -> None:
    """End the server of worker processes, if one was started for a run that is not to be; it would import on."""
    from multiprocessing import forkserver

    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _first(pattern: str, file: Path) -> str:
    found = re.search(pattern, file.read_text(encoding="utf-8"))
    if found is None:
        raise LookupError(f"{pattern} is not in {file}")
    return found[1]
