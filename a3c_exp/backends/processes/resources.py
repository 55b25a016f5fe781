"""System resources of worker processes: memory and a lock that they share, open files, components
that pickle."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import tempfile
import threading
from dataclasses import fields, replace
from multiprocessing import reduction
from typing import Any

from a3c_exp.backends import forkserver
from a3c_exp.core.experiment import Experiment
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import SharedStore
from a3c_exp.errors import ConfigError, RunError, one_line

OWN_FILES = 64
"""An upper bound of the files that a run has open besides those of its workers."""


def check_processes(experiment: Experiment, *, files_each: int) -> None:
    """Raise ConfigError if the worker processes of an experiment could not be started.

    files_each: files that this process has open for each worker.
    """
    forkserver.check_temporary_folder()
    allow_files(experiment.worker_count, files_each)

    sent = replace(experiment, callbacks=())  # which stay here
    for field in fields(sent):  # a component of a user's own may hold open files or locks
        component = getattr(sent, field.name)
        try:
            # a class of the program itself is in no module that a worker could import
            with forkserver.unchanged():
                reduction.ForkingPickler.dumps(component)
        except RuntimeError:
            # multiprocessing's own locks can be pickled only while a process is being started
            continue
        except Exception as error:  # a component's own __reduce__ may raise anything
            raise ConfigError(
                field.name,
                type(component).__name__,
                "cannot be pickled, which worker processes need (backend=threads does not): "
                f"{one_line(error)}",
            ) from error


def allow_files(workers: int, each: int) -> None:
    """Raise this process's limit of open files to what its workers need, `each` for every worker.

    Raises ConfigError if the system's limit is lower.
    """
    needed = workers * each + OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        if soft != resource.RLIM_INFINITY and soft < needed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except ValueError as error:
        raise ConfigError(
            "workers", workers, f"needs {needed} open files: the limit is {hard} (ulimit -Hn)"
        ) from error


def shared_store(spec: StoreSpec) -> SharedStore:
    """Make a store that can be sent to child processes."""
    block = shared_block(spec.nbytes())
    return SharedStore(spec, block, FileLock(block))


def shared_block(nbytes: int, blocks: int = 1) -> SharedBlock:
    """Make zeroed anonymous shared memory, which can be sent to child processes while they are
    started.

    All of it is reserved now, since a process that writes to pages that are not to be had is killed
    by SIGBUS.

    blocks: how many of this size there will be.

    Raises RunError if there is too little.
    """
    fd = _anonymous_file()
    try:
        if nbytes * blocks > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, max(nbytes, 1))
        else:
            os.ftruncate(fd, max(nbytes, 1))
        return SharedBlock(fd)
    except OSError as error:
        os.close(fd)
        raise RunError(
            f"{nbytes * blocks:,} bytes of memory that processes share are not to be had: "
            f"{one_line(error)}"
        ) from error


def _anonymous_file() -> int:
    """Open a file without a name, in memory where the system has such files, however small /dev/shm
    and TMPDIR are."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("a3c_exp")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SharedBlock(mmap.mmap):
    """Shared memory that is the whole file of a descriptor, which belongs to it."""

    fd: int

    def __new__(cls, fd: int) -> SharedBlock:
        block = super().__new__(cls, fd, 0)
        block.fd = fd
        return block

    def __del__(self) -> None:
        os.close(self.fd)

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (reduction.DupFd(self.fd),)


def _attach(fd: Any) -> SharedBlock:
    """The block of a descriptor that came from another process."""
    return SharedBlock(fd.detach())


class FileLock:
    """A lock between processes that the system releases when its holder dies, however it dies.

    It is a POSIX record lock on a block's file, which excludes other processes, and an ordinary
    lock, which excludes other threads of this process. A program's main thread, which Ctrl-C may
    interrupt, never waits for it.
    """

    def __init__(self, block: SharedBlock) -> None:
        self._block = block
        self._threads = threading.Lock()

    def __enter__(self) -> None:
        self._threads.acquire()
        fcntl.lockf(self._block.fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._block.fd, fcntl.LOCK_UN)
        self._threads.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return FileLock, (self._block,)
