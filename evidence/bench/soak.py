"""`python -m evidence.bench.soak`: runs under load for a long time, and whether they stay as they
were.

    python -m evidence.bench.soak                           every row, most of them for 30 minutes
    python -m evidence.bench.soak --only ray --minutes 10   one row
    python -m evidence.bench.soak --only runs --runs 50     50 runs in one process instead of 300

The first third of the time is left out: a run settles. After it memory may grow by 1 %, descriptors
and threads by nothing, and the second half must not be slower than the first beyond what chance
explains (a 95 % bootstrap interval). The exit code is 1 if a bar is missed. Linux only: what
processes hold is read from /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import a3c_exp
from a3c_exp.errors import one_line
from a3c_exp.run import markdown
from a3c_exp.run.files import amount
from a3c_exp.run.metrics import SECONDS, STEP, read_points
from evidence.bench.processes import PROC, tree
from evidence.bench.runs import ENDLESS, memory, running

MEMORY_GROWTH = 0.01
SAMPLES = 300
SPEEDS = 10
"""Speeds of a half of the time that are compared with those of the other half."""
RESAMPLES = 10_000
HEADER = ("what", "minutes", "before", "after", "verdict")

# Without learning episodes stay as long as they are. Evaluations and checkpoints are made as in any
# run.
CARTPOLE = (
    "env=cartpole workers=2 envs_per_worker=16 optimizer.learning_rate=1e-12 "
    "record_episodes=1000000000"
)
AROUND = "checkpoint.every=2e6 eval.every=5e6 eval.episodes=4"
SHORT_RUN = (
    "env=cartpole workers=2 envs_per_worker=2 rollout_length=8 total_steps=200 "
    "eval.every=100 eval.episodes=1"
)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the table. problem: in what a bar is missed; empty if none is."""

    label: str
    minutes: float
    before: str = ""
    after: str = ""
    problem: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        verdict = f"**{self.problem}**" if self.problem else "ok"
        return self.label, f"{self.minutes:.1f}", self.before, self.after, verdict


class Sample(NamedTuple):
    """What all processes of a run hold together. memory: bytes; shared pages count once."""

    memory: int
    descriptors: int
    threads: int


def take_sample(pid: int) -> Sample:
    """Return a sample of a process and all its descendants.

    Pages of files are left out: the system takes them away and gives them back as it likes.
    """
    held = descriptors = threads = 0
    for process in tree(pid):
        with contextlib.suppress(OSError):  # it has just ended
            held += memory(process, "Pss_Anon:", "Pss_Shmem:", "SwapPss:")
            descriptors += len(list((PROC / str(process) / "fd").iterdir()))
            threads += len(list((PROC / str(process) / "task").iterdir()))

    return Sample(held, descriptors, threads)


# -- rows
# --------------------------------------------------------------------------------------------------


def steady(
    flags: argparse.Namespace, *, label: str, overrides: str, most_minutes: float = 600.0
) -> Iterator[Line]:
    """Measure a run at full speed that goes on until it is interrupted."""
    minutes = min(flags.minutes, most_minutes)
    with (
        tempfile.TemporaryDirectory() as folder,
        running(folder, *ENDLESS, *f"{CARTPOLE} {AROUND} {overrides}".split()) as process,
    ):
        samples = [take_sample(process.pid)]
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end and process.poll() is None:
            time.sleep(min(5.0, 60 * minutes / SAMPLES))
            samples.append(take_sample(process.pid))

        (points,) = Path(folder).glob("outputs/*/metrics.csv")
        halves = speeds(points, 2 * SPEEDS)
        alive = process.poll() is None

    yield from held_lines(label, minutes, samples)
    yield speed_line(f"{label}: steps/s", minutes, halves[:SPEEDS], halves[SPEEDS:])
    if not alive:
        yield Line(label=label, minutes=minutes, problem="the run has ended by itself")


def many_runs(flags: argparse.Namespace) -> Iterator[Line]:
    """Measure runs by `a3c_exp.train`, one after another in this process, on each backend in
    turn."""
    names = set(os.listdir("/dev/shm"))
    samples = list[Sample]()
    started = time.monotonic()

    backends = itertools.cycle(("serial", "threads", "processes", "ga3c"))
    for number, backend in zip(range(flags.runs), backends, strict=False):
        overrides = [
            *SHORT_RUN.split(),
            f"backend={backend}",
            f"seed={number}",
            "stop.mean_return=null",
        ]
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            a3c_exp.train(overrides, folder=f"{folder}/run")
        # the file behind a store's lock stays open until then: its owners refer to each other
        gc.collect()
        samples.append(take_sample(os.getpid()))

    minutes = (time.monotonic() - started) / 60
    label = f"{flags.runs} runs in one process"
    yield from held_lines(label, minutes, samples)
    stays = sorted(set(os.listdir("/dev/shm")) - names)
    problem = f"stays there: {', '.join(stays)}" if stays else ""
    yield Line(
        label=f"{label}: /dev/shm",
        minutes=minutes,
        before="0",
        after=str(len(stays)),
        problem=problem,
    )


Row = Callable[[argparse.Namespace], Iterator[Line]]
ROWS: dict[str, Row] = {
    "processes": partial(steady, label="processes", overrides="backend=processes"),
    "ga3c": partial(steady, label="ga3c", overrides="backend=ga3c backend.device=cpu"),
    "ray": partial(steady, label="ray", overrides="backend=ray"),
    "workers": partial(
        steady, label="64 workers", overrides="workers=64 envs_per_worker=1", most_minutes=5.0
    ),
    "runs": many_runs,
}


# -- bars
# --------------------------------------------------------------------------------------------------


def held_lines(label: str, minutes: float, samples: Sequence[Sample]) -> Iterator[Line]:
    """Yield the lines on memory, descriptors and threads."""
    before, after = first_and_last([sample.memory for sample in samples])
    grown = (
        f"memory grew by {after / before - 1:.1%}" if after > before * (1 + MEMORY_GROWTH) else ""
    )
    first = f"{amount(before)}B"
    last = f"{amount(after)}B ({after / before - 1:+.2%})"
    yield Line(label=f"{label}: memory", minutes=minutes, before=first, after=last, problem=grown)

    for name in ("descriptors", "threads"):
        before, after = first_and_last([getattr(sample, name) for sample in samples])
        more = f"{after - before:g} {name} more" if after > before else ""
        yield Line(
            label=f"{label}: {name}",
            minutes=minutes,
            before=f"{before:g}",
            after=f"{after:g}",
            problem=more,
        )


def first_and_last(values: Sequence[int]) -> tuple[float, float]:
    """Return the medians of the first and of the last tenth of the last two thirds of the values: a
    run settles at first."""
    settled = values[len(values) // 3 :]
    count = max(1, len(settled) // 10)
    return median(settled[:count]), median(settled[-count:])


def speed_line(
    label: str, minutes: float, earlier: NDArray[np.float64], later: NDArray[np.float64]
) -> Line:
    """Return the line on the speeds of the two halves of the time, with the 95 % bootstrap interval
    of their ratio."""
    rng = np.random.default_rng(0)
    means = [rng.choice(half, (RESAMPLES, len(half))).mean(axis=1) for half in (later, earlier)]
    low, high = np.quantile(means[0] / means[1], [0.025, 0.975])
    ratio = later.mean() / earlier.mean()
    after = f"{later.mean():,.0f} ({ratio:.3f} of it [{low:.3f}, {high:.3f}])"
    slower = f"slower by {1 - ratio:.1%}" if high < 1 else ""

    return Line(
        label=label, minutes=minutes, before=f"{earlier.mean():,.0f}", after=after, problem=slower
    )


def speeds(file: Path, count: int, skip: float = 1 / 3) -> NDArray[np.float64]:
    """Return the steps a second in each of `count` equal parts of the time in a metrics.csv. skip:
    share of the time before."""
    seconds, steps = np.array([(point[SECONDS], point[STEP]) for point in read_points(file)]).T
    edges = np.linspace(seconds[0] + skip * (seconds[-1] - seconds[0]), seconds[-1], count + 1)
    return np.asarray(np.diff(np.interp(edges, seconds, steps)) / np.diff(edges))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table as it is measured; 0, or 1 if a bar is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m evidence.bench.soak", description="Runs under load for a long time."
    )
    parser.add_argument(
        "--only", action="append", choices=list(ROWS), metavar="NAME", help=f"of {', '.join(ROWS)}"
    )
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="of a row that takes as long as it is given"
    )
    parser.add_argument("--runs", type=int, default=300, help="of the row runs (default 300)")
    flags = parser.parse_args(arguments)
    missed = False
    print(markdown.table(HEADER), flush=True)

    for name in flags.only or ROWS:
        try:
            for line in ROWS[name](flags):
                print(markdown.row(line.cells), flush=True)
                missed = missed or bool(line.problem)
        except RuntimeError as error:  # a run that could not be measured
            print(
                markdown.row(
                    Line(label=name, minutes=flags.minutes, problem=one_line(error)).cells
                ),
                flush=True,
            )
            missed = True

    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
