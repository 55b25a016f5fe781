"""One process a worker, parameters in memory that they share."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from multiprocessing import connection, forkserver, reduction, resource_tracker, util
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from a3c_exp.backends import FAILURES, GRACE_SECONDS, MERGE_SECONDS, Ended, failure, merged
from a3c_exp.errors import ConfigError, RunError, one_line
from a3c_exp.threading_limits import ONE_THREAD, one_thread

if TYPE_CHECKING:  # imports torch, and the server must be started before that
    from a3c_exp.config import Experiment
    from a3c_exp.events import Event
    from a3c_exp.parameters import Layout, SharedParameters
    from a3c_exp.worker import Pause, Setup

Failures = tuple[type[BaseException], ...]

# Of the 103 characters that every system with such sockets has room for, /pymp-12345678/listener-12345678 takes 32.
LONGEST_TEMPORARY_FOLDER = 71
SIGNALS = (signal.SIGINT, signal.SIGTERM)

# Files that a run has open, whatever the number of its workers: fewer than this.
OWN_FILES = 64


class FileLock:
    """A lock between processes that the system releases when its holder dies, however it dies.

    A POSIX record lock on a file that has no name, which excludes processes; and an ordinary one for the threads of
    this process.
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
        except BaseException:  # a second Ctrl-C may come while it waits
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


class Member(Protocol):
    """Someone whose messages `drain` takes: a process, or a thread of this one.

    reader: where they come from, events and at last an Ended. sentinel: what else tells that it is gone; None: nothing.
    """

    @property
    def reader(self) -> connection.Connection: ...

    @property
    def sentinel(self) -> int | None: ...

    def ended(self) -> None:
        """Called when it is known to have ended."""

    def fate(self) -> str:
        """What became of one that is gone without a last message."""


class Job(Protocol):
    """What a process runs, as a worker is run."""

    def run(self) -> Iterator[Event | Pause]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Child:
    """A process that works for the run."""

    worker: int
    process: BaseProcess
    reader: connection.Connection
    store: SharedParameters

    @property
    def sentinel(self) -> int:
        return self.process.sentinel

    def ended(self) -> None:
        self.store.leave(self.worker)

    def fate(self) -> str:
        self.process.join(GRACE_SECONDS)
        return f"worker {self.worker} {_fate(self.process.exitcode)}"


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

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError where no worker process could be started, or not so many of them."""
        _check_temporary_folder()
        allow_files(experiment.worker_count, each=3)
        for part in fields(experiment):
            _check_can_be_sent(part.name, getattr(experiment, part.name))

    def prepare(self) -> None:
        """Start the server; it imports in the background while this process goes on. Raises as `check` does."""
        _check_temporary_folder()
        _context().set_forkserver_preload(["a3c_exp.worker", "a3c_exp.backends.frozen"])
        # It unblocks the signals below when it starts its own helper, so that has to come first.
        resource_tracker.ensure_running()
        # The server and its children inherit these; this process's libraries are as they were.
        with _environment(ONE_THREAD | {"A3C_EXP_TEMPORARY": util.get_temp_dir()}), _signals_blocked(), _without_main():
            forkserver.ensure_running()

    def store(self, layout: Layout) -> SharedParameters:
        from a3c_exp.parameters import SharedParameters

        return SharedParameters(layout, shared_block(layout.nbytes()), FileLock())

    def run(self, setup: Setup, store: SharedParameters) -> Generator[Event | None, None, None]:
        from a3c_exp.worker import Worker

        self.prepare()
        children: list[Child] = []
        try:
            jobs = [partial(Worker, setup, worker, store) for worker in range(setup.experiment.worker_count)]
            start(children, setup, store, jobs)
            yield from drain(children)
        finally:
            store.stop()
            end(children)


def _check_temporary_folder() -> None:
    """The server's socket lies there, and the system has a limit for such paths: 107 characters on Linux."""
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) > LONGEST_TEMPORARY_FOLDER:
        allowed = f"a folder whose path has at most {LONGEST_TEMPORARY_FOLDER} characters"
        raise ConfigError("TMPDIR", folder, f"must be {allowed}: worker processes are asked for through a socket there")


def _check_can_be_sent(key: str, component: object) -> None:
    """Workers are sent the whole experiment; a component of the user's own may hold what stays in its process."""
    try:
        reduction.ForkingPickler.dumps(component)
    except RuntimeError:  # multiprocessing's own locks and queues can be pickled only while a process is started
        return
    except Exception as error:  # a component's own way of being pickled may raise anything
        problem = f"cannot be pickled, which worker processes need (backend=threads does not): {one_line(error)}"
        raise ConfigError(key, type(component).__name__, problem) from error


def allow_files(workers: int, each: int) -> None:
    """Let this process have so many files open for each of its workers, beside its own. ConfigError where the system
    does not allow it."""
    needed = workers * each + OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        most = max(0, hard - OWN_FILES) // each
        raise ConfigError(
            "workers", workers, f"must be at most {most}: no more than {hard} files may be open (ulimit -Hn)"
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def shared_block(nbytes: int) -> Any:
    """Zeroed memory without a name, which processes that are started may be given."""
    return _context().RawArray(ctypes.c_char, nbytes)


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


def start(children: list[Child], setup: Setup, store: SharedParameters, jobs: Iterable[Callable[[], Job]]) -> None:
    """Start a process for each job, which is made there; add it to `children` at once, so that it can be ended."""
    plugins = setup.experiment.plugins
    with _without_main():
        for worker, make in enumerate(jobs):
            reader, writer = _context().Pipe(duplex=False)
            arguments = make, worker, plugins, writer
            process = _context().Process(target=_work, args=arguments, name=f"worker {worker}", daemon=True)
            process.start()
            writer.close()  # the child's copy is the only one: its end is the pipe's end
            children.append(Child(worker, process, reader, store))


def drain(members: Sequence[Member]) -> Generator[Event | None, None, None]:
    """What the members send until all have ended. Raises RunError for one that failed or was killed."""
    running = list(members)
    while running:
        # The pipe alone would not do: what a worker has started itself may hold it open after the worker is gone.
        ends = [end for member in running for end in (member.reader, member.sentinel) if end is not None]
        ready = connection.wait(ends, MERGE_SECONDS)
        if not ready:
            yield None
        for member in [member for member in running if member.reader in ready or member.sentinel in ready]:
            message = _receive(member)
            if not isinstance(message, Ended):
                yield message
                continue
            running.remove(member)
            member.ended()
            if message.failure is not None:
                raise RunError(message.failure)


def _receive(member: Member) -> Event | Ended:
    """The next message. One that is gone without a last message did not end by itself."""
    try:
        if member.reader.poll():
            message: Event | Ended = member.reader.recv()
            return message
    except (EOFError, OSError):  # an OSError where it was killed in the middle of a message
        pass
    return Ended(member.fate())


def _fate(exitcode: int | None) -> str:
    if exitcode is None:
        return "closed its connection"
    if exitcode >= 0:
        return f"ended without a word, with exit code {exitcode}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"was killed by signal {-exitcode}"


def end(children: list[Child]) -> None:
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


class UnheardError(Exception):
    """The parent has closed its end: the run is over."""


def send(writer: connection.Connection, message: Event | Ended) -> None:
    try:
        writer.send(message)
    except BrokenPipeError:
        raise UnheardError from None


def report(who: str, writer: connection.Connection, job: Iterator[Event], failures: Failures = FAILURES) -> None:
    """Send what a job does, and at last how it ended."""
    last = Ended()
    try:
        for event in job:
            send(writer, event)
    except UnheardError:
        return
    except failures as error:
        last = Ended(failure(who, error))
    with suppress(UnheardError):
        send(writer, last)


def _work(make: Callable[[], Job], index: int, plugins: Sequence[str], writer: connection.Connection) -> None:
    """The child's main function."""
    for number in SIGNALS:
        # Not SIG_IGN, and not blocked: programs that an environment starts would inherit that.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with one_thread():
        report(f"worker {index}", writer, _events(make, plugins))


def _events(make: Callable[[], Job], plugins: Sequence[str]) -> Iterator[Event]:
    from a3c_exp.schema import import_plugins

    import_plugins(plugins)  # they may register environments
    job = make()
    try:
        yield from merged(job.run())
    finally:
        job.close()


def _end_with_parent() -> None:
    """A worker without the process that started it has nobody to work for."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
