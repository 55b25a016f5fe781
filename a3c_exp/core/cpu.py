"""Usable cores, and one BLAS thread a worker: with a thread for each core in every worker, more workers are slower.

Child processes get the limit from their environment, before any library starts its threads. In this process the threads
may have started long ago, so `one_thread` asks the libraries themselves, and restores their settings.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
CGROUPS = Path("/sys/fs/cgroup")
RUNS_AT_ONCE = "A3C_EXP_RUNS_AT_ONCE"
"""Environment variable: how many runs share this machine's cores, of which this process is one or starts them."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch and numpy's BLAS use one thread for an operation, until the context exits."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        torch.set_num_threads(before)


def usable_cores() -> int:
    """Number of cores that this process may use, by its affinity and its container's quota. The machine may have more.

    A quota of 1.5 cores counts as 2.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _quota())))


@contextmanager
def cores_shared(runs: int) -> Iterator[None]:
    """Within: programs that this process starts are so many runs at once, and `cores_of_a_run` is a share."""
    before = os.environ.get(RUNS_AT_ONCE)
    os.environ[RUNS_AT_ONCE] = str(runs)
    try:
        yield
    finally:
        del os.environ[RUNS_AT_ONCE]
        if before is not None:
            os.environ[RUNS_AT_ONCE] = before


def cores_of_a_run() -> int:
    """Number of cores for the run in this process: the usable ones, or its share of them."""
    runs = os.environ.get(RUNS_AT_ONCE, "1")
    return max(1, usable_cores() // max(1, int(runs) if runs.isdecimal() else 1))


def _quota() -> float:
    """Cores that the control groups of this process grant it: the smallest quota of its group and the groups above."""
    quotas = [math.inf]
    for controllers, path in _own_groups():
        if controllers == "":
            quotas += [_quota_in(folder, "cpu.max") for folder in _upwards(CGROUPS, path)]
        elif "cpu" in controllers.split(","):
            quotas += [_quota_in(folder, "cpu.cfs_quota_us") for folder in _upwards(CGROUPS / "cpu", path)]
    return min(quotas)


def _own_groups() -> list[tuple[str, str]]:
    """The controllers and the path of each control group that this process is in. Version 2 names no controllers."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # not on Linux
        return []
    return [(controllers, path) for _, controllers, path in (line.split(":", 2) for line in lines)]


def _upwards(root: Path, path: str) -> Iterator[Path]:
    """The folder of a control group and those above it. Inside a container `path` may be missing below `root`."""
    group = root / path.lstrip("/")
    while group != root and root in group.parents:
        yield group
        group = group.parent
    yield root


def _quota_in(folder: Path, name: str) -> float:
    """The quota in one group's file: microseconds of computing in each period ("cpu.max" has both in one line)."""
    try:
        words = (folder / name).read_text().split()
        if len(words) == 1:
            words.append((folder / "cpu.cfs_period_us").read_text().strip())
        granted, period = (math.inf if word in ("max", "-1") else float(word) for word in words)
    except (OSError, ValueError):
        return math.inf
    return granted / period if granted > 0 else math.inf
