"""One process a worker, parameters in memory that they share."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import signal
import tempfile
import threading
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import connection, forkserver, reduction
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar

from a3c_exp.backends import MERGE_SECONDS, merged
from a3c_exp.errors import RunError
from a3c_exp.threading_limits import ONE_THREAD

# Between asking workers to stop and ending them: they finish a rollout first.
GRACE_SECONDS = 5.0


class FileLock:
    """A lock between processes that the system releases when its holder dies, however it dies.

    A POSIX record lock on a file that has no name. It excludes processes, not threads of one process.
    """

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        self._fd = fd

    def __enter__(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def __del__(self) -> None:
        os.close(self._fd)

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach_lock, (reduction.DupFd(self._fd),)


def _attach_lock(fd: Any) -> FileLock:
    return FileLock(fd.detach())


@dataclass(frozen=True, slots=True)
class _Failed:
    """The last message of a worker that raised."""

    traceback: str


@dataclass(frozen=True, slots=True)
class _Child:
    worker: int
    process: BaseProcess
    reader: connection.Connection


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Workers are forked from a server process that has imported everything once, so a worker starts in milliseconds
    and shares the libraries' memory with the others. (A plain fork of a program that has used its OpenMP threads would
    hang at the first forward pass.)

    Parameters lie in memory without a name, which the system takes back with the last process, and a worker ends
    itself when this process is gone: nothing is left behind even by SIGKILL.
    """

    deterministic: ClassVar[bool] = False

    def prepare(self, modules: Iterable[str]) -> None:
        """Start the server; it imports in the background while this process goes on."""
        context = _context()
        context.set_forkserver_preload([*modules, "a3c_exp.worker", "a3c_exp.backends.frozen"])
        kept = {name: os.environ.get(name) for name in ONE_THREAD}
        os.environ.update(ONE_THREAD)  # the server and its children inherit it; this process's libraries are as they were
        try:
            forkserver.ensure_running()
        finally:
            for name, value in kept.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def store(self, layout: Any) -> Any:
        from a3c_exp.parameters import SharedParameters

        block = _context().RawArray(ctypes.c_char, layout.nbytes())
        return SharedParameters(layout, block, FileLock())

    def run(self, setup: Any, store: Any) -> Iterator[Any]:
        self.prepare(())
        children: list[_Child] = []
        try:
            for worker in range(setup.experiment.worker_count):
                children.append(_start(setup, worker, store))
            yield from _drain(children, store)
        finally:
            store.stop()
            _end(children)


def _context() -> ForkServerContext:
    return multiprocessing.get_context("forkserver")


def _start(setup: Any, worker: int, store: Any) -> _Child:
    reader, writer = _context().Pipe(duplex=False)
    process = _context().Process(target=_work, args=(setup, worker, store, writer), name=f"worker {worker}", daemon=True)
    process.start()
    writer.close()  # the child's copy is the only one: its end is the pipe's end
    return _Child(worker, process, reader)


def _drain(children: list[_Child], store: Any) -> Iterator[Any]:
    """What the workers send until all have ended. Raises RunError for one that failed or was killed."""
    running = {child.reader: child for child in children}
    while running:
        ready = connection.wait(list(running), MERGE_SECONDS)
        if not ready:
            yield None
        for reader in ready:
            child = running[reader]  # type: ignore[index]
            try:
                message = child.reader.recv()
            except (EOFError, ConnectionResetError):
                del running[child.reader]
                store.leave(child.worker)
                child.process.join()
                if child.process.exitcode:
                    raise RunError(f"worker {child.worker} {_fate(child.process.exitcode)}") from None
                continue
            if isinstance(message, _Failed):
                raise RunError(f"worker {child.worker} failed:\n{message.traceback}")
            yield message


def _fate(exitcode: int) -> str:
    if exitcode < 0:
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"ended with exit code {exitcode}"


def _end(children: list[_Child]) -> None:
    """Give the workers a moment to end by themselves, then end them."""
    for reader in [child.reader for child in children]:
        reader.close()  # a worker that is about to send finds out at once
    deadline = GRACE_SECONDS
    for child in children:
        connection.wait([child.process.sentinel], deadline)
        if child.process.is_alive():
            deadline = 0.0
            child.process.kill()
        child.process.join()
        child.process.close()


def _work(setup: Any, index: int, store: Any, writer: connection.Connection) -> None:
    """The child's main function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    from a3c_exp.worker import Worker

    torch.set_num_threads(1)
    try:
        worker = Worker(setup, index, store)
        try:
            for event in merged(worker.run()):
                writer.send(event)
        finally:
            worker.close()
    except BrokenPipeError:
        return  # the parent has stopped listening
    except Exception:  # noqa: BLE001 - the parent reports it
        writer.send(_Failed(traceback.format_exc()))


def _end_with_parent() -> None:
    """A worker without the process that started it has nobody to work for."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
