"""System resources of worker processes: memory and a lock that they share, open files, components that pickle."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import tempfile
import threading
from dataclasses import fields
from multiprocessing import reduction
from typing import Any

from a3c_exp.backends import forkserver
from a3c_exp.core.experiment import Experiment
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import SharedStore
from a3c_exp.errors import ConfigError, one_line

OWN_FILES = 64
"""An upper bound of the files that a run has open besides those of its workers."""


def check_processes(experiment: Experiment, *, files_each: int) -> None:
    """Raise ConfigError if the worker processes of an experiment could not be started.

    files_each: files that this process has open for each worker.
    """
    forkserver.check_temporary_folder()
    allow_files(experiment.worker_count, files_each)
    for field in fields(experiment):  # a component of a user's own may hold open files or locks
        component = getattr(experiment, field.name)
        if field.name == "callbacks":  # which stay here
            continue
        try:
            with forkserver.without_main():  # a class of the program itself is in no module that a worker could import
                reduction.ForkingPickler.dumps(component)
        except RuntimeError:  # multiprocessing's own locks can be pickled only while a process is being started
            continue
        except Exception as error:  # a component's own __reduce__ may raise anything
            problem = f"cannot be pickled, which worker processes need (backend=threads does not): {one_line(error)}"
            raise ConfigError(field.name, type(component).__name__, problem) from error


def allow_files(workers: int, each: int) -> None:
    """Raise this process's limit of open files to what its workers need, `each` for every worker.

    Raises ConfigError if the system's limit is lower.
    """
    needed = workers * each + OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except ValueError as error:
        raise ConfigError("workers", workers, f"needs {needed} open files: the limit is {hard} (ulimit -Hn)") from error


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
