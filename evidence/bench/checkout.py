"""Another checkout of this repository, and scripts that run with its package in a process of their
own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from a3c_exp.core.cpu import ONE_THREAD

HERE = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("child.py")
BLAS_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
CHILD_SECONDS = 300.0
"""A run that takes longer than this hangs: the longest takes a few seconds."""


class ChildError(RuntimeError):
    """A process in a checkout has failed. The text is the last line that it wrote."""


def leave_kernels_to_openblas() -> None:
    """Unset what makes OpenBLAS take other kernels than those for the processor, in this process
    and in those that it starts."""
    for name in BLAS_VARIABLES:
        os.environ.pop(name, None)


def checked(folder: str | Path) -> Path:
    """Return the absolute path of a checkout. Raises ValueError, in one line, for a folder that is
    none."""
    path = Path(folder).expanduser().resolve()
    for part in ("a3c_exp/__init__.py", "conf/config.yaml"):
        if not (path / part).is_file():
            raise ValueError(f"{folder}: must be a checkout of this repository, and has no {part}")
    return path


def last_of_each(overrides: Iterable[str]) -> list[str]:
    """Return the last override of each key, since a command takes one."""
    return list({override.partition("=")[0]: override for override in overrides}.values())


def run_child(checkout: Path, *overrides: str) -> None:
    """Run the command with the package of a checkout: see child.py. Raises ChildError."""
    try:
        done = subprocess.run(
            [sys.executable, str(CHILD), str(checkout), *overrides],
            cwd=checkout,
            env=os.environ | ONE_THREAD | {"PYTHONPATH": str(checkout)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHILD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ChildError(f"it took more than {CHILD_SECONDS:g} s") from None

    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise ChildError(lines[-1] if lines else f"exit code {done.returncode}")
