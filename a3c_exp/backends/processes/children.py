"""Worker processes: start them from the fork server, and end them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from multiprocessing.process import BaseProcess

from a3c_exp.backends import forkserver
from a3c_exp.backends.messages import GRACE_SECONDS, Job, send_events
from a3c_exp.common.plugins import import_plugins
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.store import SharedStore


@dataclass(frozen=True, slots=True)
class Child:
    """A worker process. worker: the index of its rows in the store."""

    worker: int
    process: BaseProcess
    reader: connection.Connection
    store: SharedStore

    @property
    def sentinel(self) -> int:
        return self.process.sentinel

    def on_exit(self) -> None:
        self.store.leave(self.worker)

    def exit_reason(self) -> str:
        self.process.join(GRACE_SECONDS)
        return f"worker {self.worker} {_exit_text(self.process.exitcode)}"


def start(children: list[Child], context: RunContext, store: SharedStore, jobs: Iterable[Callable[[], Job]]) -> None:
    """Start a process for each job.

    jobs: called in the new process, to make the job there. Each child is appended to `children` as soon as it runs, so
    that `end` finds it even if a later one cannot be started.
    """
    plugins = context.experiment.plugins
    with forkserver.without_main():
        for worker, make_job in enumerate(jobs):
            reader, writer = forkserver.context().Pipe(duplex=False)
            arguments = make_job, worker, plugins, writer
            process = forkserver.context().Process(target=_main, args=arguments, name=f"worker {worker}", daemon=True)
            process.start()
            writer.close()  # the child has the only copy left, so the pipe ends with the child
            children.append(Child(worker, process, reader, store))


def _exit_text(exitcode: int | None) -> str:
    if exitcode is None:
        return "closed its connection"
    if exitcode >= 0:
        return f"ended unexpectedly, with exit code {exitcode}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"was killed by signal {-exitcode}"


def end(children: Sequence[Child]) -> None:
    """Wait GRACE_SECONDS, for all together, until the children have ended; then kill those that have not."""
    for child in children:
        child.reader.close()  # a child that sends, now or later, learns that the run is over
    deadline = time.monotonic() + GRACE_SECONDS
    for child in children:
        child.process.join(max(0.0, deadline - time.monotonic()))
        if child.process.is_alive():
            child.process.kill()
    for child in children:
        child.process.join()
        child.process.close()


def _main(make_job: Callable[[], Job], worker: int, plugins: Sequence[str], writer: connection.Connection) -> None:
    """The child's main function."""
    for number in forkserver.SIGNALS:
        # Neither SIG_IGN nor blocked: programs that an environment starts would inherit either.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, forkserver.SIGNALS)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    with one_thread():
        send_events(f"worker {worker}", writer, partial(_import_and_make, plugins, make_job))


def _import_and_make(plugins: Sequence[str], make_job: Callable[[], Job]) -> Job:
    import_plugins(plugins)  # they may register environments
    return make_job()


def _exit_with_parent() -> None:
    """End this process when the one that started it has ended, however that ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
