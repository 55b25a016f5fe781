"""Usable cores, and one BLAS thread a worker: with a thread for each core in every worker, more
workers are slower.

Child processes get the limit from their environment, before any library starts its threads. In this
process the threads may have started long ago, so `one_thread` asks the libraries themselves, and
restores their settings.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
ONE_THREAD = dict.fromkeys(_LIMITS, "1")
CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
RUNS_AT_ONCE = "A3C_EXP_RUNS_AT_ONCE"
"""Environment variable: how many runs share this machine's cores, of which this process is one or
starts them."""


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
    """Return the number of cores that this process may use, by its affinity and its container's
    quota. The machine may have more.

    A quota of 1.5 cores counts as 2.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _quota())))


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within this context. Programs that are started inherit them."""
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)  # an environment may have removed it
        os.environ.update(before)


def cores_of_a_run() -> int:
    """Return the number of cores for the run in this process: the usable ones, or its share of
    them."""
    text = os.environ.get(RUNS_AT_ONCE, "1")
    runs = int(text) if text.isdecimal() else 1
    return max(1, usable_cores() // max(1, runs))


def _quota() -> float:
    """Return how many cores this process's container grants it.

    Inside a container the file CPU_MAX is the container's own. It has the microseconds of computing
    in each period.
    """
    with suppress(OSError, ValueError):  # there is no quota, or this is not Linux
        granted, period = CPU_MAX.read_text().split()
        return math.inf if granted == "max" else float(granted) / float(period)
    return math.inf
