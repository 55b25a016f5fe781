"""Freed memory, which the C library keeps for the arrays that come next."""

from __future__ import annotations

import ctypes
from contextlib import suppress

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_LARGEST_KEPT = 32 * 2**20
"""Bytes of the largest array whose memory is kept. Some versions of glibc refuse a larger
M_MMAP_THRESHOLD."""


def keep_freed_memory() -> None:
    """Let this process keep the memory of arrays that it frees, at most twice `_LARGEST_KEPT`.

    glibc gives memory of large arrays back to the system as soon as they are freed. A rollout and
    its gradient need as much again a moment later, and the system clears each page of it first.
    Does nothing where the C library is not glibc.

    This is for processes of this package alone: a program that calls `train` may need its memory
    for something else.
    """
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
        mallopt(_M_TRIM_THRESHOLD, 2 * _LARGEST_KEPT)
