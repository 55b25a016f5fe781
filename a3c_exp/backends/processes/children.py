"""Worker processes: start them from the fork server, and end them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import connection
from multiprocessing.process import BaseProcess

from a3c_exp.backends import forkserver
from a3c_exp.backends.messages import GRACE_SECONDS, Inbox, WorkerExit, send_events
from a3c_exp.backends.supervision import PipeSource
from a3c_exp.common import signals
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.events import Event
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import YieldPoint
from a3c_exp.errors import RunError, one_line

# How often a worker looks whether the fork server is there.
_SERVER_SECONDS = 1.0
# How often, and how many seconds apart, a worker is started: the fork server may be dying, and is started again.
_TRIES, _PAUSE = 10, 0.2
# The standard library gives a child this exit code if the server has died, which would have reported the real one.
_EXIT_CODE_LOST = 255

Run = Callable[[], Iterator[Event | YieldPoint]]


class Child(PipeSource):
    """A worker process. run: called there with the number of its predecessors."""

    process: BaseProcess

    def __init__(self, store: SharedStore, worker: int, run: Callable[..., Iterator[Event | YieldPoint]]) -> None:
        super().__init__(store, worker)
        self._run = run
        self.start(0)

    def prepare(self, attempt: int) -> Run:
        """What is called in a new process, once the one before it has gone."""
        return partial(self._run, attempt)

    def start(self, attempt: int) -> None:
        if attempt:
            _end_process(self.process)  # it may have closed its pipe, and live
            self.process.join()
            self.process.close()
        run = self.prepare(attempt)
        for _ in range(_TRIES):
            reader, writer = forkserver.context().Pipe(duplex=False)
            arguments = self.name, run, writer
            process = forkserver.context().Process(target=_main, args=arguments, name=self.name, daemon=True)
            try:
                forkserver.ensure_running()
                with forkserver.without_main():
                    process.start()
                self.process = process
                self.sentinel = process.sentinel
                self.inbox = Inbox(reader)
                return
            except (OSError, EOFError) as error:
                complaint = one_line(error)
                reader.close()  # should the process have begun after all, it ends when it sends
                time.sleep(_PAUSE)
            finally:
                writer.close()  # the child has the only copy left, so the pipe ends with the child
        raise RunError(f"{self.name} could not be started: {complaint}")

    def kill(self) -> bool:
        self.process.kill()
        return True

    def exit(self) -> WorkerExit:
        self.process.join(GRACE_SECONDS)
        return WorkerExit(f"{self.name} {_exit_text(self.process.exitcode)}")


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


def end(sources: Sequence[PipeSource]) -> None:
    """Wait GRACE_SECONDS, for all together, until the processes among the sources have ended; then kill the others."""
    children = [source for source in sources if isinstance(source, Child)]
    for child in children:
        child.inbox.close()  # a child that sends, now or later, learns that the run is over
    deadline = time.monotonic() + GRACE_SECONDS
    for child in children:
        child.process.join(max(0.0, deadline - time.monotonic()))
        _end_process(child.process)
    for child in children:
        child.process.join()
        child.process.close()


def _main(name: str, run: Run, writer: connection.Connection) -> None:
    """The child's main function."""
    signals.ignore()
    threading.Thread(target=_exit_with_parents, daemon=True).start()
    if logging.lastResort is not None:  # what an environment's code, or the closing of one, logs here
        logging.lastResort.setFormatter(logging.Formatter(f"warning: {name}: %(message)s"))
    with one_thread():
        send_events(name, writer, run)


def _exit_with_parents() -> None:
    """End this process when the one that started it or the fork server has ended, however that ended."""
    parent, server = multiprocessing.parent_process(), os.getppid()
    assert parent is not None
    while os.getppid() == server:
        if connection.wait([parent.sentinel], _SERVER_SECONDS):
            break
    os._exit(1)
