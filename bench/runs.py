"""This project's side: the command as a user gives it, timed and weighed from outside."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import mean

CHECKOUT = Path(__file__).resolve().parent.parent
# No end but the clock's, nothing beside training: the peers are measured so too.
ENDLESS = ("stop.mean_return=null", "total_steps=1000000000", "eval.every=null", "checkpoint.every=null")
START_SECONDS = 120.0


def training_speed(*overrides: str, seconds: float) -> float:
    """Environment steps a second of a run of so many seconds, counted from its first worker's first step."""
    return _speed(*overrides, f"stop.max_seconds={seconds}")


def whole_training_speed(*overrides: str, steps: int) -> float:
    """The same of a run of so many steps, all of them learned from as often as they are to be: where rollouts are gone
    over for seconds, a run that ends by the clock has taken steps that it has not paid for."""
    return _speed(*overrides, f"total_steps={steps}")


def _speed(*overrides: str) -> float:
    with _finished(*overrides) as run:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return float(summary["steps"] / summary["training_seconds"])


def curve(name: str, *overrides: str, seconds: float) -> float:
    """The mean over a run of so many seconds of one of its curves, without the first point, when not all have begun."""
    with (
        _finished(*overrides, f"stop.max_seconds={seconds}") as run,
        open(run / "metrics.csv", newline="", encoding="utf-8") as file,
    ):
        _, *points = (float(row[name]) for row in csv.DictReader(file) if row.get(name))
    return mean(points)


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


@contextmanager
def _finished(*overrides: str) -> Iterator[Path]:
    """The folder of a run that ends by itself."""
    with tempfile.TemporaryDirectory() as folder:
        process = _start(folder, *ENDLESS, *overrides)
        if process.wait():
            raise RuntimeError(f"it failed: a3c_exp {' '.join(overrides)}")
        (run,) = Path(folder).glob("outputs/*")
        yield run


def _start(folder: str, *overrides: str) -> subprocess.Popen[bytes]:
    """The command, given in a folder: its run comes under outputs/ there."""
    places = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "a3c_exp", *overrides]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=folder, env=os.environ | {"PYTHONPATH": places}, stdout=quiet, stderr=quiet)


@contextmanager
def _running(folder: str, *overrides: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run that has made its first update; ended behind the block as Ctrl-C ends it."""
    process = _start(folder, *overrides)
    try:
        deadline = time.perf_counter() + START_SECONDS
        while not _has_updates(folder):
            if process.poll() is not None or time.perf_counter() > deadline:
                raise RuntimeError(f"no update came of a3c_exp {' '.join(overrides)}")
            time.sleep(0.005)
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _has_updates(folder: str) -> bool:
    for table in Path(folder).glob("outputs/*/metrics.csv"):
        with suppress(TypeError, KeyError), open(table, newline="", encoding="utf-8") as file:
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
