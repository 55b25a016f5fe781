"""A disk that is full at a random size: a file system in memory that only the run sees, made
without root's rights."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from a3c_exp.errors import ConfigError
from evidence.bench.faults.cases import Outcome
from evidence.bench.faults.program import BACKENDS, Program
from evidence.bench.peers import UnavailableError

LARGEST = 400_000
"""Bytes that are more than a run writes: the disk is full at any size below."""
PRIVATE = ("unshare", "--user", "--map-root-user", "--mount")
MOUNT = 'mount -t tmpfs -o size="$1" tmpfs "$0" && echo mounted && exec cat'


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[int]:
    """A file system of `size` bytes at `place`; a process that sees it there. It is gone when the
    context exits.

    Raises UnavailableError where no such thing can be made.
    """
    place.mkdir()
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        raise UnavailableError("unshare or nsenter is missing")
    command = [*PRIVATE, "sh", "-c", MOUNT, str(place), str(size)]

    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as keeper:
        assert keeper.stdout is not None
        if keeper.stdout.readline() != "mounted\n":
            raise UnavailableError("no private file system can be mounted here")
        yield keeper.pid


def inside(keeper: int) -> list[str]:
    """Return the beginning of a command that is to see what process `keeper` sees."""
    return ["nsenter", f"--target={keeper}", "--user", "--mount", "--preserve-credentials", "--"]


class FullDisk:
    """A run on a disk of random size, and the same command again once there is room."""

    def __call__(self, rng: random.Random, number: int, folder: Path) -> Outcome:
        size = rng.randrange(4096, LARGEST)
        with small_disk(folder / "run", size) as keeper:
            program = Program(
                folder, (*BACKENDS["serial"], "total_steps=20000"), prefix=inside(keeper)
            )
            program.folder = Path(f"/proc/{keeper}/root{folder}/run")
            program.start()
            code = program.wait()
            output, summary, saved = program.output, program.summary(), 0
            faults = ["a traceback"] if "Traceback" in output else []

            try:
                saved = program.saved_steps() or 0
            except ConfigError as error:
                faults.append(str(error))

            happened = _happened(code, output, list(summary.get("unwritten", ())))
            if not happened:
                faults.append(f"exit code {code}, {size} bytes: {output[-1000:]}")
            reached = max(program.steps, summary.get("steps", 0))
            subprocess.run(
                [*inside(keeper), "mount", "-o", "remount,size=64m", str(folder / "run")],
                check=True,
            )
            faults.append(program.finish())

        again = "" if code == 0 else ", then resumed" if saved else ", then begun anew"
        lost = {"most steps": float(max(0, reached - saved)) if code else 0.0}
        return Outcome(happened=happened + again, lost=lost, fault="; ".join(filter(None, faults)))


def _happened(code: int | None, output: str, unwritten: list[str]) -> str:
    """Return what the run has said; empty if it should have said something else."""
    if code == 2 and "cannot be written" in output:
        return "refused in one line, exit code 2"
    if code == 1 and "cannot be written" in output:
        return "trained to its end, said what is not written, exit code 1"
    return "all written, exit code 0" if code == 0 and not unwritten else ""
