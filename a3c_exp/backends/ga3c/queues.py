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
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import numpy as np

from a3c_exp.backends.messages import ReceiverClosedError

_WIDTH = np.dtype(np.int64).itemsize


class IndexQueue:
    """Indices (int64) from all agents through one pipe, for threads of this process to take, one at a time."""

    def __init__(self) -> None:
        self._reader, self.writer = Pipe(duplex=False)
        self._poll = polling(self._reader)

    def take(self, count: int, seconds: float) -> list[int]:
        """Wait until there is an index; then take up to `count` of them. Empty if none comes within `seconds`."""
        if not self._poll.poll(1000 * seconds):
            return []
        indices: list[int] = np.frombuffer(os.read(self._reader.fileno(), _WIDTH * count), np.int64).tolist()
        return indices

    def __len__(self) -> int:
        return bytes_in(self._reader) // _WIDTH

    def close(self) -> None:
        self._reader.close()
        self.writer.close()


def write_index(pipe: Connection, index: int) -> None:
    """Put an index into a queue, from the process of an agent. pipe: the writing end."""
    try:
        os.write(pipe.fileno(), np.int64(index).tobytes())
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
