"""Usable cores, and one BLAS thread a worker: with a thread for each core in every worker, more workers are slower.

Child processes get the limit from their environment, before any library starts its threads. In this process the threads
may have started long ago, so `one_thread` asks the libraries themselves, and restores their settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)


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
    """Number of cores that this process may use. The machine may have more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
