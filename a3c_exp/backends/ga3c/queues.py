"""Queues of indices between processes: pipes.

The system writes an index whole or not at all, even if the writing process is killed at that moment, and wakes whoever
waits for it. There is no lock between processes that could be left held.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import termios
import threading
from collections import deque
from collections.abc import Iterable
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import numpy as np

from a3c_exp.backends.messages import ReceiverClosedError

_WIDTH = np.dtype(np.int32).itemsize
_MOST = 1 << 16  # bytes, no fewer than a pipe holds


class IndexQueue:
    """Indices (int32) from all agents through one pipe, for threads of this process to take.

    An index that has been taken is held until it is dropped. Any thread may call any method, but only one at a time may
    `take`.
    """

    def __init__(self) -> None:
        self._reader, self.writer = Pipe(duplex=False)
        self._poll = polling(self._reader)
        self._lock = threading.Lock()
        self._indices = deque[int]()  # those that have left the pipe, before all that are in it
        self._held = set[int]()

    def take(self, count: int, seconds: float) -> list[int]:
        """Wait until there is an index; then take up to `count` of them. Empty if none comes within `seconds`."""
        if not self._indices and not self._poll.poll(1000 * seconds):
            return []
        with self._lock:
            if len(self._indices) < count:
                self._read()
            taken = [self._indices.popleft() for _ in range(min(count, len(self._indices)))]
            self._held.update(taken)
        return taken

    def drop(self, indices: Iterable[int]) -> None:
        """Hold these no longer."""
        with self._lock:
            self._held.difference_update(indices)

    def known(self) -> set[int]:
        """All indices that are queued or held."""
        with self._lock:
            self._read()
            return self._held | set(self._indices)

    def __len__(self) -> int:
        with self._lock:
            return len(self._indices) + bytes_in(self._reader) // _WIDTH

    def close(self) -> None:
        self._reader.close()
        self.writer.close()

    def _read(self) -> None:
        """Move indices out of the pipe. The caller holds the lock."""
        if bytes_in(self._reader):
            self._indices.extend(np.frombuffer(os.read(self._reader.fileno(), _MOST), np.int32).tolist())


def write_index(pipe: Connection, index: int) -> None:
    """Put an index into a queue, from the process of an agent. pipe: the writing end."""
    try:
        os.write(pipe.fileno(), np.int32(index).tobytes())
    except BrokenPipeError:
        raise ReceiverClosedError from None


def polling(pipe: Connection) -> select.poll:
    """What waits for a pipe to be read, in a fraction of the time that `Connection.poll` takes."""
    poll = select.poll()
    poll.register(pipe.fileno(), select.POLLIN)
    return poll


def bytes_in(pipe: Connection) -> int:
    """Number of bytes that wait to be read from a pipe."""
    waiting = array.array("i", [0])
    fcntl.ioctl(pipe.fileno(), termios.FIONREAD, waiting)
    return waiting[0]
