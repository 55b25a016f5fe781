"""What the processes of a run hold while it goes on, and how fast it is; and what has become of both. Linux only."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from a3c_exp.run.metrics import SECONDS, STEP, read_points
from bench.runs import tree

SPEEDS = 10
"""Speeds of a half of the time that are compared with those of the other half."""
DRAWS = 10_000
# Of smaps_rollup. Pages of files are left out: the system takes them away and gives them back as it likes.
_MEMORY = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")


@dataclass(frozen=True, slots=True)
class Sample:
    """What all processes of a run hold together. memory: bytes; shared pages count once."""

    processes: int
    memory: int
    descriptors: int
    threads: int


def take_sample(pid: int) -> Sample:
    """A sample of a process and all its descendants."""
    processes = memory = descriptors = threads = 0
    for each in tree(pid):
        place = Path(f"/proc/{each}")
        with suppress(OSError):  # it has just ended
            lines = [line.split() for line in (place / "smaps_rollup").read_text().splitlines()]
            memory += sum(int(words[1]) * 1024 for words in lines if words[0] in _MEMORY)
            descriptors += len(list((place / "fd").iterdir()))
            threads += len(list((place / "task").iterdir()))
            processes += 1
    return Sample(processes, memory, descriptors, threads)


def watch(pid: int, seconds: float, every: float, going_on: Callable[[], bool]) -> list[Sample]:
    """Samples of a run for so many seconds, or as long as it goes on."""
    samples, end = [take_sample(pid)], time.monotonic() + seconds
    while time.monotonic() < end and going_on():
        time.sleep(every)
        samples.append(take_sample(pid))
    return samples


def first_and_last(values: Sequence[int]) -> tuple[float, float]:
    """The medians of the first and of the last tenth of the last two thirds of the values: a run settles at first."""
    kept = values[len(values) // 3 :]
    count = max(1, len(kept) // 10)
    return median(kept[:count]), median(kept[-count:])


def speeds(path: Path, count: int, skip: float = 1 / 3) -> NDArray[np.float64]:
    """Steps a second in each of `count` equal parts of the time in a metrics.jsonl. skip: share of the time before."""
    seconds, steps = np.array([(point[SECONDS], point[STEP]) for point in read_points(path)]).T
    edges = np.linspace(seconds[0] + skip * (seconds[-1] - seconds[0]), seconds[-1], count + 1)
    return np.asarray(np.diff(np.interp(edges, seconds, steps)) / np.diff(edges))


def ratio_interval(
    later: NDArray[np.float64], earlier: NDArray[np.float64], seed: int = 0
) -> tuple[float, float, float]:
    """The ratio of the means, and its 95 % percentile bootstrap interval."""
    rng = np.random.default_rng(seed)
    means = [each[rng.integers(len(each), size=(DRAWS, len(each)))].mean(axis=1) for each in (later, earlier)]
    low, high = np.quantile(means[0] / means[1], [0.025, 0.975])
    return float(later.mean() / earlier.mean()), float(low), float(high)
