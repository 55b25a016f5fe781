"""`python -m bench.soak`: runs under load for a long time, and whether they stay as they were.

    python -m bench.soak                               every row of ROWS, 30 minutes each of those that take so long
    python -m bench.soak --only ray --minutes 10       one row
    python -m bench.soak --only runs --runs 50         50 runs in one process instead of 300

The first third of the time is left out: a run settles. After it memory may grow by 1 %, descriptors and threads by
nothing, and the second half must not be slower than the first beyond what chance explains (a 95 % bootstrap interval).
The exit code is 1 if a bar is missed. Linux only: what processes hold is read from /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gc
import io
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import a3c_exp
from a3c_exp.errors import one_line
from a3c_exp.run import markdown
from a3c_exp.run.files import bytes_text
from bench.runs import ENDLESS, finished, running
from bench.watching import SPEEDS, Sample, first_and_last, ratio_interval, speeds, take_sample, watch

MEMORY_GROWTH = 0.01
SLOW_DISK_SHARE = 0.95
EPISODES_AN_HOUR = 1_000_000
SAMPLES = 300
HEADER = ("what", "minutes", "before", "after", "verdict")

# Without learning episodes stay as long as they are. Evaluations and checkpoints are made as in any run.
_CARTPOLE = (
    "env=cartpole", "workers=2", "envs_per_worker=16", "optimizer.learning_rate=1e-12", "record_episodes=1000000000",
)  # fmt: skip
_WHOLE = (*ENDLESS, *_CARTPOLE, "checkpoint.every=2e6", "eval.every=5e6", "eval.episodes=4")


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the table. problem: in what a bar is missed; empty if none is."""

    what: str
    minutes: float
    before: str
    after: str
    problem: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            self.what,
            f"{self.minutes:.1f}",
            self.before,
            self.after,
            f"**{self.problem}**" if self.problem else "ok",
        )


@dataclass(frozen=True)
class Limits:
    """minutes: of a row that takes as long as it is given. runs: of the row `runs`."""

    minutes: float
    runs: int


Row = Callable[[Limits], Iterator[Line]]


def steady(label: str, *overrides: str, most_minutes: float = float("inf")) -> Row:
    """A run at full speed that goes on until it is interrupted."""

    def measure(limits: Limits) -> Iterator[Line]:
        minutes = min(limits.minutes, most_minutes)
        every = min(5.0, 60 * minutes / SAMPLES)
        with (
            tempfile.TemporaryDirectory() as folder,
            running(folder, *_WHOLE, *overrides) as process,
        ):
            samples = watch(process.pid, 60 * minutes, every, lambda: process.poll() is None)
            (points,) = Path(folder).glob("outputs/*/metrics.jsonl")
            both = speeds(points, 2 * SPEEDS)
            alive = process.poll() is None
        yield from held_lines(label, minutes, samples)
        yield speed_line(f"{label}: steps/s", minutes, both[SPEEDS:], both[:SPEEDS])
        if not alive:
            yield Line(what=label, minutes=minutes, before="", after="", problem="the run has ended by itself")

    return measure


def held_lines(label: str, minutes: float, samples: Sequence[Sample]) -> Iterator[Line]:
    """The lines on memory, descriptors and threads."""
    before, after = first_and_last([sample.memory for sample in samples])
    grown = f"memory grew by {after / before - 1:.1%}" if after > before * (1 + MEMORY_GROWTH) else ""
    first, last = bytes_text(round(before)), f"{bytes_text(round(after))} ({after / before - 1:+.2%})"
    yield Line(what=f"{label}: memory", minutes=minutes, before=first, after=last, problem=grown)
    for name in ("descriptors", "threads"):
        before, after = first_and_last([getattr(sample, name) for sample in samples])
        more = f"{after - before:g} {name} more" if after > before else ""
        yield Line(what=f"{label}: {name}", minutes=minutes, before=f"{before:g}", after=f"{after:g}", problem=more)


def speed_line(
    what: str, minutes: float, later: NDArray[np.float64], earlier: NDArray[np.float64], share: float = 1.0
) -> Line:
    """The line on two speeds. share: of the earlier one that the later must reach, unless chance explains less."""
    ratio, low, high = ratio_interval(later, earlier)
    after = f"{later.mean():,.0f} ({ratio:.3f} of it [{low:.3f}, {high:.3f}])"
    slower = f"slower by {1 - ratio:.1%}" if high < share else ""
    return Line(what=what, minutes=minutes, before=f"{earlier.mean():,.0f}", after=after, problem=slower)


def many_runs(limits: Limits) -> Iterator[Line]:
    """Runs by `a3c_exp.train`, one after another in this process, on each backend in turn."""
    names, samples, started = set(os.listdir("/dev/shm")), list[Sample](), time.monotonic()
    backends = itertools.cycle(("serial", "threads", "processes", "ga3c"))
    for number, backend in zip(range(limits.runs), backends, strict=False):
        overrides = [
            "env=cartpole", f"backend={backend}", f"seed={number}", "workers=2", "envs_per_worker=2",
            "rollout_length=8", "total_steps=200", "eval.every=100", "eval.episodes=1", "stop.mean_return=null",
        ]  # fmt: skip
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            a3c_exp.train(overrides, folder=f"{folder}/run")
        gc.collect()  # the file behind a store's lock stays open until then: its owners refer to each other
        samples.append(take_sample(os.getpid()))
    minutes = (time.monotonic() - started) / 60
    label = f"{limits.runs} runs in one process"
    yield from held_lines(label, minutes, samples)
    left = sorted(set(os.listdir("/dev/shm")) - names)
    problem = f"left behind: {', '.join(left)}" if left else ""
    yield Line(what=f"{label}: /dev/shm", minutes=minutes, before="0", after=str(len(left)), problem=problem)


def slow_disk(limits: Limits) -> Iterator[Line]:
    """Two runs on a fast disk and two on one whose writes take 200 ms, in turn."""
    minutes = min(limits.minutes, 8.0)
    measured: dict[bool, list[NDArray[np.float64]]] = {False: [], True: []}
    for slow in (False, True, True, False):
        plugins = ["plugins=[bench.slow_disk]"] if slow else []
        with finished(*_CARTPOLE, *plugins, f"stop.max_seconds={15 * minutes}") as run:
            measured[slow].append(speeds(run / "metrics.jsonl", SPEEDS // 2))
    slow_speeds, fast_speeds = np.concatenate(measured[True]), np.concatenate(measured[False])
    what = "writes of 200 ms (after) beside a fast disk (before): steps/s"
    yield speed_line(what, minutes, slow_speeds, fast_speeds, SLOW_DISK_SHARE)


def many_episodes(limits: Limits) -> Iterator[Line]:
    """Episodes of four steps: each is in episodes.csv, in the order of its worker."""
    minutes = min(limits.minutes, 3.0)
    with finished(*_CARTPOLE, "env.max_episode_steps=4", f"stop.max_seconds={60 * minutes}") as run:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        rows, misplaced = count_episodes(run / "episodes.csv")
    ended = int(summary["episodes"])
    rate = 3600 * ended / summary["training_seconds"]
    problems = [f"{ended - rows:,} lost"] if rows != ended else []
    problems += [f"{misplaced:,} out of order"] if misplaced else []
    problems += [f"only {rate:,.0f} an hour"] if rate < EPISODES_AN_HOUR else []
    after = f"{rows:,} rows ({rate:,.0f} an hour), {misplaced} out of order"
    before = f"{ended:,} episodes"
    yield Line(what="short episodes", minutes=minutes, before=before, after=after, problem=", ".join(problems))


def count_episodes(table: Path) -> tuple[int, int]:
    """The rows of an episodes.csv, and how many have a lower step than the one before them of the same worker."""
    rows = misplaced = 0
    latest: dict[str, int] = {}
    with open(table, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows += 1
            misplaced += int(row["step"]) < latest.get(row["worker"], 0)
            latest[row["worker"]] = int(row["step"])
    return rows, misplaced


ROWS: dict[str, Row] = {
    "processes": steady("processes", "backend=processes"),
    "ga3c": steady("ga3c", "backend=ga3c", "backend.device=cpu"),
    "ray": steady("ray", "backend=ray"),
    "workers": steady("64 workers", "backend=processes", "workers=64", "envs_per_worker=1", most_minutes=5.0),
    "runs": many_runs,
    "disk": slow_disk,
    "episodes": many_episodes,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table as it is measured; 0, or 1 if a bar is missed."""
    flags = _parser().parse_args(arguments)
    limits, missed = Limits(flags.minutes, flags.runs), 0
    print(markdown.table(HEADER), flush=True)
    for name in flags.only or ROWS:
        for line in _lines(name, limits):
            print(markdown.row(line.cells), flush=True)
            missed += bool(line.problem)
    return int(missed > 0)


def _lines(name: str, limits: Limits) -> Iterator[Line]:
    """The lines of a row; one that says so if a run of it could not be measured."""
    try:
        yield from ROWS[name](limits)
    except RuntimeError as error:
        yield Line(what=name, minutes=limits.minutes, before="", after="", problem=one_line(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description="Runs under load for a long time.")
    parser.add_argument("--only", action="append", choices=list(ROWS), metavar="NAME", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--minutes", type=float, default=30.0, help="of a row that takes as long as it is given")
    parser.add_argument("--runs", type=int, default=300, help="of the row runs (default 300)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
