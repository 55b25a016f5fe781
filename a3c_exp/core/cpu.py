"""One BLAS thread a worker: with as many as there are cores in each, more workers would be slower.

Child processes get it from their environment, before any library starts its threads; in this process, where they may
have started long ago, `one_thread` asks the libraries themselves and puts everything back.
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
    """Within: torch and numpy's BLAS use one thread for an operation."""
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
    """The cores that this process may use: fewer than the machine has, where it was given a share."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
