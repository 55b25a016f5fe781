"""Speed and memory of this project: the user's command, measured from outside."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import mean

from evidence.bench.checkout import HERE
from evidence.bench.processes import PROC, tree

ENDLESS = (
    "stop.mean_return=null",
    "total_steps=1000000000",
    "eval.every=null",
    "checkpoint.every=null",
)
"""Only the time ends a run, and nothing runs beside the training, as in the measurements of other
systems."""
START_SECONDS = 120.0


def training_speed(*overrides: str, seconds: float, checkout: Path = HERE) -> float:
    """Return the environment steps per second of a run of `seconds`, counted from the first step of
    a worker."""
    return whole_training_speed(*overrides, f"stop.max_seconds={seconds}", checkout=checkout)


def whole_training_speed(*overrides: str, checkout: Path = HERE) -> float:
    """Return the same of a run that overrides end. With epochs that take seconds, a run that ends
    by time would count steps whose updates it has not made."""
    with finished(*ENDLESS, *overrides, checkout=checkout) as run:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return float(summary["steps"] / summary["training_seconds"])


def curve(name: str, *overrides: str, seconds: float) -> float:
    """Return the mean of a curve over a run of `seconds`, without its first point: not all workers
    have started then."""
    with finished(*ENDLESS, *overrides, f"stop.max_seconds={seconds}") as run:
        rows = list(csv.DictReader((run / "metrics.csv").read_text(encoding="utf-8").splitlines()))
    return mean([float(row[name]) for row in rows if row.get(name)][1:])


def seconds_to_first_update(*overrides: str, checkout: Path = HERE) -> float:
    """Return the seconds from the command to the first update in the curves, with Python's start,
    imports and workers."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        with running(folder, *overrides, checkout=checkout):
            return time.perf_counter() - started


def peak_memory(*overrides: str, seconds: float) -> float:
    """Return the greatest memory of all processes of a run within `seconds`, in bytes. Shared pages
    count once.

    This is the sum of proportional set sizes, which only Linux reports. Raises OSError elsewhere.
    """
    peak = 0
    with tempfile.TemporaryDirectory() as folder, running(folder, *overrides) as process:
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            peak = max(peak, sum(memory(pid, "Pss:") for pid in tree(process.pid)))
            time.sleep(0.5)

    return float(peak)


def memory(pid: int, *kinds: str) -> int:
    """Return the bytes of these kinds in a process's smaps_rollup; 0 for a process that has just
    ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(kinds))
    return 0


@contextmanager
def finished(*overrides: str, checkout: Path = HERE) -> Iterator[Path]:
    """Give the folder of a run that has ended by itself."""
    with tempfile.TemporaryDirectory() as folder:
        process = _start(folder, *overrides, checkout=checkout)
        if process.wait():
            raise RuntimeError(f"it failed: a3c_exp {' '.join(overrides)}")
        (run,) = Path(folder).glob("outputs/*")
        yield run


def _start(folder: str, *overrides: str, checkout: Path) -> subprocess.Popen[bytes]:
    """Start a checkout's command in `folder`. Its run is in outputs/ there."""
    places = os.pathsep.join(filter(None, [str(checkout), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "a3c_exp", *overrides]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": places}, stdout=quiet, stderr=quiet
    )


@contextmanager
def running(
    folder: str, *overrides: str, checkout: Path = HERE
) -> Iterator[subprocess.Popen[bytes]]:
    """Give a run that has made its first update. It is ended on exit."""
    process = _start(folder, *overrides, checkout=checkout)
    try:
        deadline = time.perf_counter() + START_SECONDS
        while not _has_updates(folder):
            if process.poll() is not None or time.perf_counter() > deadline:
                raise RuntimeError(f"no update came of a3c_exp {' '.join(overrides)}")
            time.sleep(0.005)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _has_updates(folder: str) -> bool:
    """Return whether a point of the curves counts updates: one in metrics.jsonl, or of an earlier
    version in metrics.csv."""
    for path in Path(folder).glob("outputs/*/metrics.*"):
        with (
            suppress(TypeError, KeyError, ValueError, OSError),
            open(path, newline="", encoding="utf-8") as file,
        ):
            rows = map(json.loads, file) if path.suffix == ".jsonl" else csv.DictReader(file)
            return any(int(row["train/n_updates"]) > 0 for row in rows)

    return False
