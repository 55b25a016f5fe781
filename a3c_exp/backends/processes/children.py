"""Worker processes: start them from the fork server, and end them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import connection
from multiprocessing.process import BaseProcess

from a3c_exp.backends import forkserver
from a3c_exp.backends.messages import GRACE_SECONDS, Inbox, Job, WorkerExit, send_events
from a3c_exp.common import signals
from a3c_exp.common.trust import import_plugins
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.store import SharedStore
from a3c_exp.errors import RunError, one_line

# How often a worker looks whether the fork server is there.
_SERVER_SECONDS = 1.0
# How often, and how many seconds apart, a worker is started: the fork server may be dying, and is started again.
_TRIES, _PAUSE = 10, 0.2
# The standard library gives a child this exit code if the server has died, which would have reported the real one.
_EXIT_CODE_LOST = 255

MakeJob = Callable[[], Job]


class Child:
    """A worker process: an `EventSource`.

    worker: the index of its rows in the store.
    prepare: called here with the number of its predecessors; returns what makes the job in the new process.
    """

    inactivity = "its environment had not stepped"
    serves_others = False

    def __init__(self, context: RunContext, store: SharedStore, worker: int, prepare: Callable[[int], MakeJob]) -> None:
        self.name = f"worker {worker}"
        self.worker = worker
        self._plugins = context.experiment.plugins
        self._store = store
        self._prepare = prepare
        self.process, self.reader = self._start(0)

    def _start(self, attempt: int) -> tuple[BaseProcess, Inbox]:
        make_job = self._prepare(attempt)
        for _ in range(_TRIES):
            reader, writer = forkserver.context().Pipe(duplex=False)
            arguments = make_job, self.worker, self._plugins, writer
            process = forkserver.context().Process(target=_main, args=arguments, name=self.name, daemon=True)
            try:
                forkserver.ensure_running()
                with forkserver.without_main():
                    process.start()
                return process, Inbox(reader)
            except (OSError, EOFError) as error:
                complaint = one_line(error)
                reader.close()  # should the process have begun after all, it ends when it sends
                time.sleep(_PAUSE)
            finally:
                writer.close()  # the child has the only copy left, so the pipe ends with the child
        raise RunError(f"{self.name} could not be started: {complaint}")

    @property
    def sentinel(self) -> int:
        return self.process.sentinel

    @property
    def beat(self) -> int:
        return self._store.counters.heartbeat_of(self.worker)

    def kill(self) -> bool:
        self.process.kill()
        return True

    def on_exit(self, *, replaced: bool) -> None:
        self._store.leave(self.worker)

    def exit(self) -> WorkerExit:
        self.process.join(GRACE_SECONDS)
        return WorkerExit(f"{self.name} {_exit_text(self.process.exitcode)}")

    def restart(self, attempt: int) -> None:
        process, reader = self.process, self.reader
        _end_process(process)  # it may have closed its pipe, and live
        process.join()
        self.process, self.reader = self._start(attempt)
        process.close()
        reader.close()


def _end_process(process: BaseProcess) -> None:
    """Kill a worker's process."""
    process.kill()
    if process.exitcode == _EXIT_CODE_LOST and process.pid is not None:
        with suppress(ProcessLookupError):  # it may live, for up to _SERVER_SECONDS
            os.kill(process.pid, signal.SIGKILL)


def _exit_text(exitcode: int | None) -> str:
    if exitcode is None:
        return "closed its connection"
    if exitcode == _EXIT_CODE_LOST:
        return f"ended with exit code {exitcode}, or the fork server, from which it was started, has died"
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
        _end_process(child.process)
    for child in children:
        child.process.join()
        child.process.close()


def _main(make_job: MakeJob, worker: int, plugins: Sequence[str], writer: connection.Connection) -> None:
    """The child's main function."""
    signals.ignore()
    threading.Thread(target=_exit_with_parents, daemon=True).start()
    if logging.lastResort is not None:  # what an environment's code, or the closing of one, logs here
        logging.lastResort.setFormatter(logging.Formatter(f"warning: worker {worker}: %(message)s"))
    with one_thread():
        send_events(f"worker {worker}", writer, partial(_import_and_make, plugins, make_job))


def _import_and_make(plugins: Sequence[str], make_job: MakeJob) -> Job:
    import_plugins(plugins)  # they may register environments
    return make_job()


def _exit_with_parents() -> None:
    """End this process when the one that started it or the fork server has ended, however that ended."""
    parent, server = multiprocessing.parent_process(), os.getppid()
    assert parent is not None
    while os.getppid() == server:
        if connection.wait([parent.sentinel], _SERVER_SECONDS):
            break
    os._exit(1)
