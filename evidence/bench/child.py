"""The script that `evidence.bench.same` runs with the package of another checkout, in a process of
its own.

    python evidence/bench/child.py CHECKOUT key=value ...

It runs the command with a clock that stands still, and moves on by 1000 s with each saved
checkpoint. Curves get their points by the clock, and with this one at the same steps in every run.

This script imports nothing of evidence: the other checkout may have other modules there. Neither
does it name anything of a3c_exp but the command.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def main(arguments: Sequence[str]) -> int:
    """Run the command of a checkout; its exit code."""
    checkout = Path(arguments[0]).resolve()
    sys.path[0] = str(checkout)  # in the place of this script's own folder
    saved = 0
    replace = os.replace

    def count_checkpoints(source: Any, target: Any, **descriptors: Any) -> None:
        nonlocal saved
        replace(source, target, **descriptors)
        saved += Path(os.fsdecode(target)).parent.name == "checkpoints"

    os.replace = count_checkpoints  # type: ignore[assignment]
    set_clock(lambda: 1.0 + 1000.0 * saved)
    check_package(checkout)

    sys.argv = ["a3c_exp", *arguments[1:]]
    try:
        runpy.run_module("a3c_exp", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return int(end.code or 0)

    return 0


def check_package(checkout: Path) -> None:
    """End the process where the package that is imported is that of another checkout."""
    package = Path(str(importlib.import_module("a3c_exp").__file__)).resolve().parent
    if package != checkout / "a3c_exp":
        sys.exit(f"the package that is imported is not that of {checkout}: {package}")


def set_clock(clock: Callable[[], float]) -> None:
    """Let Python's clocks that never go backwards tell these seconds. To be called before the
    package is imported."""
    time.perf_counter = time.monotonic = clock
    time.perf_counter_ns = time.monotonic_ns = lambda: int(clock() * 1e9)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
