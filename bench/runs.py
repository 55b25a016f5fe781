"""This project's side: the command as a user gives it, timed and weighed from outside."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
# No end but the clock's, nothing beside training: the peers are measured so too.
ENDLESS = ("stop.mean_return=null", "total_steps=1000000000", "eval.every=null", "checkpoint.every=null")
START_SECONDS = 120.0


def training_speed(*overrides: str, seconds: float) -> float:
    """Environment steps a second of a run of so many seconds, counted from its first worker's first step."""
    with tempfile.TemporaryDirectory() as folder:
        command = _command(folder, *overrides, *ENDLESS, f"stop.max_seconds={seconds}")
        subprocess.run(command, cwd=CHECKOUT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        summary = json.loads((Path(folder) / "summary.json").read_text(encoding="utf-8"))
    return float(summary["steps"] / summary["training_seconds"])


def seconds_to_first_update(*overrides: str) -> float:
    """From the command to the first update that the run reports: Python's start, imports and workers included."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        with _running(folder, *overrides):
            return time.perf_counter() - started


def peak_memory(*overrides: str, seconds: float) -> float:
    """The most bytes that all processes of a run held together within so many seconds; shared pages count once.

    That is the sum of their proportional set sizes, which only Linux tells. Raises OSError elsewhere.
    """
    peak = 0
    with tempfile.TemporaryDirectory() as folder, _running(folder, *overrides) as process:
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            peak = max(peak, sum(map(_proportional_set_size, _tree(process.pid))))
            time.sleep(0.5)
    return float(peak)


def _command(folder: str, *overrides: str) -> list[str]:
    return [sys.executable, "-m", "a3c_exp", *overrides, f"hydra.run.dir={folder}"]


@contextmanager
def _running(folder: str, *overrides: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run that has made its first update; ended behind the block as Ctrl-C ends it."""
    table = Path(folder) / "metrics.csv"
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(_command(folder, *overrides), cwd=CHECKOUT, stdout=quiet, stderr=quiet)
    try:
        deadline = time.perf_counter() + START_SECONDS
        while not _has_updates(table):
            if process.poll() is not None or time.perf_counter() > deadline:
                raise RuntimeError(f"no update came of {' '.join(overrides)}")
            time.sleep(0.005)
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _has_updates(table: Path) -> bool:
    with suppress(FileNotFoundError, TypeError, KeyError), open(table, newline="", encoding="utf-8") as file:
        return any(int(row["train/n_updates"]) > 0 for row in csv.DictReader(file))
    return False


def _tree(pid: int) -> Iterator[int]:
    """A process and all that descend from it."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in children.read_text().split():
                yield from _tree(int(child))


def _proportional_set_size(pid: int) -> int:
    """In bytes; 0 for a process that has just ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
