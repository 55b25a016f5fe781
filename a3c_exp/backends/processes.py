"""One process a worker, parameters in memory that they share."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, forkserver, reduction, resource_tracker, util
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, ClassVar

from a3c_exp.backends import FAILURES, GRACE_SECONDS, MERGE_SECONDS, Ended, failure, merged
from a3c_exp.errors import RunError
from a3c_exp.threading_limits import ONE_THREAD, one_thread

if TYPE_CHECKING:  # imports torch, and the server must be started before that
    from a3c_exp.events import Event
    from a3c_exp.parameters import Layout, SharedParameters
    from a3c_exp.worker import Setup

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
    itself when this process is gone: nothing is left behind even by SIGKILL. The server stays until this process ends,
    so that the next run of a program starts at once.
    """

    deterministic: ClassVar[bool] = False

    def prepare(self, modules: Iterable[str]) -> None:
        """Start the server; it imports in the background while this process goes on."""
        _context().set_forkserver_preload([*modules, "a3c_exp.worker", "a3c_exp.backends.frozen"])
        # It unblocks the signals below when it starts its own helper, so that has to come first.
        resource_tracker.ensure_running()
        # The server and its children inherit these; this process's libraries are as they were.
        with _environment(ONE_THREAD | {"A3C_EXP_TEMPORARY": util.get_temp_dir()}), _signals_blocked(), _without_main():
            forkserver.ensure_running()

    def store(self, layout: Layout) -> SharedParameters:
        from a3c_exp.parameters import SharedParameters

        block = _context().RawArray(ctypes.c_char, layout.nbytes())
        return SharedParameters(layout, block, FileLock())

    def run(self, setup: Setup, store: SharedParameters) -> Generator[Event | None, None, None]:
        self.prepare(())
        children: list[_Child] = []
        try:
            with _without_main():
                for worker in range(setup.experiment.worker_count):
                    children.append(_start(setup, worker, store))
            yield from _drain(children, store)
        finally:
            store.stop()
            _end(children)


def _context() -> ForkServerContext:
    return multiprocessing.get_context("forkserver")


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Within: these environment variables are set, for programs that are started."""
    kept = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Within: a program that is started never sees SIGINT and SIGTERM. Both are sent to whole groups of processes
    (Ctrl-C, timeout, a batch system); it is for this process to decide what they mean."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_main() -> Iterator[None]:
    """Within: child processes do not import the program that starts them. They need nothing from it, and one that has
    no `if __name__ == "__main__"` would run again in each."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _start(setup: Setup, worker: int, store: SharedParameters) -> _Child:
    reader, writer = _context().Pipe(duplex=False)
    arguments = setup, worker, store, writer
    process = _context().Process(target=_work, args=arguments, name=f"worker {worker}", daemon=True)
    process.start()
    writer.close()  # the child's copy is the only one: its end is the pipe's end
    return _Child(worker, process, reader)


def _drain(children: list[_Child], store: SharedParameters) -> Generator[Event | None, None, None]:
    """What the workers send until all have ended. Raises RunError for one that failed or was killed."""
    running = list(children)
    while running:
        # The pipe alone would not do: what a worker has started itself may hold it open after the worker is gone.
        ends = [end for child in running for end in (child.reader, child.process.sentinel)]
        ready = connection.wait(ends, MERGE_SECONDS)
        if not ready:
            yield None
        for child in [child for child in running if child.reader in ready or child.process.sentinel in ready]:
            message = _receive(child)
            if not isinstance(message, Ended):
                yield message
                continue
            running.remove(child)
            store.leave(child.worker)
            if message.failure is not None:
                raise RunError(message.failure)


def _receive(child: _Child) -> Event | Ended:
    """The next message of a worker. One that is gone without a last message did not end by itself."""
    try:
        if child.reader.poll():
            message: Event | Ended = child.reader.recv()
            return message
    except (EOFError, OSError):  # an OSError where it was killed in the middle of a message
        pass
    child.process.join(GRACE_SECONDS)
    return Ended(child.worker, f"worker {child.worker} {_fate(child.process.exitcode)}")


def _fate(exitcode: int | None) -> str:
    if exitcode is None:
        return "closed its connection"
    if exitcode >= 0:
        return f"ended without a word, with exit code {exitcode}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"was killed by signal {-exitcode}"


def _end(children: list[_Child]) -> None:
    """Give the workers a moment to end by themselves, then end them."""
    for child in children:
        child.reader.close()  # a worker that sends, or is about to, finds out at once
    deadline = time.monotonic() + GRACE_SECONDS
    for child in children:
        child.process.join(max(0.0, deadline - time.monotonic()))
        if child.process.is_alive():
            child.process.kill()
    for child in children:
        child.process.join()
        child.process.close()


class _UnheardError(Exception):
    """The parent has closed its end: the run is over."""


def _send(writer: connection.Connection, message: Event | Ended) -> None:
    try:
        writer.send(message)
    except BrokenPipeError:
        raise _UnheardError from None


def _work(setup: Setup, index: int, store: SharedParameters, writer: connection.Connection) -> None:
    """The child's main function."""
    for number in SIGNALS:
        # Not SIG_IGN, and not blocked: programs that an environment starts would inherit that.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    last = Ended(index)
    try:
        with one_thread():
            _train(setup, index, store, writer)
    except _UnheardError:
        return
    except FAILURES as error:
        last = Ended(index, failure(index, error))
    with suppress(_UnheardError):
        _send(writer, last)


def _train(setup: Setup, index: int, store: SharedParameters, writer: connection.Connection) -> None:
    from a3c_exp.schema import import_plugins
    from a3c_exp.worker import Worker

    import_plugins(setup.experiment.plugins)  # they may register environments
    worker = Worker(setup, index, store)
    try:
        for event in merged(worker.run()):
            _send(writer, event)
    finally:
        worker.close()


def _end_with_parent() -> None:
    """A worker without the process that started it has nobody to work for."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
