"""Commands in processes of their own that start in a moment: forked from the server that has imported torch."""

from __future__ import annotations

import os
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from a3c_exp.backends import forkserver


def start(folder: Path, *words: str) -> ForkServerProcess:
    """Start `python -m a3c_exp <words>` in a folder. Its exit code is that of the process."""
    forkserver.ensure_running()
    with forkserver.without_main():
        process = forkserver.context().Process(target=_run, args=(str(folder), words))
        process.start()
    return process


def _run(folder: str, words: tuple[str, ...]) -> None:
    from a3c_exp.__main__ import main

    os.chdir(folder)
    raise SystemExit(main(words))
