"""Memory and a lock that processes share."""

from __future__ import annotations

import ctypes
import fcntl
import os
import tempfile
import threading
from multiprocessing import reduction
from typing import Any

from a3c_exp.backends import forkserver
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import SharedStore


def shared_store(spec: StoreSpec) -> SharedStore:
    """A store that can be sent to child processes."""
    return SharedStore(spec, shared_block(spec.nbytes()), FileLock())


def shared_block(nbytes: int) -> Any:
    """Zeroed anonymous shared memory, which can be sent to child processes while they are started."""
    return forkserver.context().RawArray(ctypes.c_char, nbytes)


class FileLock:
    """A lock between processes that the system releases when its holder dies, however it dies.

    It is a POSIX record lock on a file without a name, which excludes other processes, and an ordinary lock, which
    excludes other threads of this process.
    """

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        self._fd = fd
        self._threads = threading.Lock()

    def __enter__(self) -> None:
        self._threads.acquire()
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
        except BaseException:  # a second Ctrl-C may come while this waits
            self._threads.release()
            raise

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)
        self._threads.release()

    def __del__(self) -> None:
        os.close(self._fd)

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach_lock, (reduction.DupFd(self._fd),)


def _attach_lock(fd: Any) -> FileLock:
    return FileLock(fd.detach())
