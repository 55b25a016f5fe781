"""Worker processes: start them from the fork server, and end them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from types import FrameType

from a3c_exp.backends import forkserver
from a3c_exp.backends.messages import (
    GRACE_SECONDS,
    ReceiverClosedError,
    WorkerExit,
    send_events,
)
from a3c_exp.backends.supervision import PipeSource, WorkerRun, end_all
from a3c_exp.common import signals
from a3c_exp.common.malloc import keep_freed_memory
from a3c_exp.core.cpu import one_thread
from a3c_exp.envs import close_within

ORPHAN_SECONDS = 2.0
"""From the end of the run's process to that of a worker, which closes its environments
meanwhile."""

EXIT_CODE_LOST = 255
"""The standard library gives a child this exit code if the fork server has died, which would have
reported the real one."""


@dataclass(kw_only=True, eq=False)
class Child(PipeSource):
    """The process of a worker, or of several that take turns in it. run: is called there.

    others: the workers besides the first one.
    process: None before it has been started, and once it has ended or was left behind.
    """

    others: Sequence[int] = ()
    process: BaseProcess | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.others:
            self.name = f"worker process {self.worker}-{self.others[-1]}"
        super().__post_init__()

    def begin(self, run: WorkerRun, writer: connection.Connection) -> None:
        self.store.counters.heartbeats[self.worker] = 0  # not what its predecessor did
        process = forkserver.start(_main, self.name, run, writer)
        self.process = process
        self.sentinel = process.sentinel
        writer.close()  # that of the process is the last

    def join(self, deadline: float) -> bool:
        if self.process is None:
            return True
        self.process.join(max(0.0, deadline - time.monotonic()))
        return self.process.exitcode is not None

    def kill(self) -> bool:
        """Kill the process, and those that its environments have started: its group."""
        assert self.process is not None and self.process.pid is not None
        self.process.kill()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return True

    def release(self) -> None:
        """Give up the process. One that a dead disk keeps from dying is left behind."""
        if self.join(0.0) and self.process is not None:
            self.process.close()
        self.process = None

    def exit(self) -> WorkerExit:
        assert self.process is not None
        self.process.join(GRACE_SECONDS)
        return WorkerExit(f"{self.name} {exit_text(self.process.exitcode)}")

    def on_exit(self, *, replaced: bool) -> None:
        """Release what it had, and kill what it has started. It may also have closed its pipe, and
        live. At the end of a run that is done for all together."""
        super().on_exit(replaced=replaced)
        for worker in self.others:
            self.store.leave(worker)
        if replaced or not self.store.is_over:
            end_children([self])


def exit_text(exitcode: int | None) -> str:
    """Return how a process has ended, after its name; None: it has not."""
    if exitcode is None:
        return "closed its connection"
    if exitcode == EXIT_CODE_LOST:
        return (
            f"ended with exit code {exitcode}, or the fork server, from which it was started, "
            "has died"
        )
    if exitcode >= 0:
        return f"ended unexpectedly, with exit code {exitcode}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"was killed by signal {-exitcode}"


def end_children(sources: Sequence[PipeSource]) -> None:
    """Wait GRACE_SECONDS, for all together, until the processes among the sources have ended; then
    kill the others."""
    children = [
        source for source in sources if isinstance(source, Child) and source.process is not None
    ]
    end_all(children)
    for child in children:
        child.kill()
    end_all(children)
    for child in children:
        child.release()


def _main(run: WorkerRun, writer: connection.Connection) -> None:
    """Run the worker, in its process."""
    os.setpgid(0, 0)  # what its environments start ends with it: see `Child.kill`
    keep_freed_memory()
    process = multiprocessing.current_process()
    process.daemon = False  # they may start processes
    orphaned = threading.Event()
    signals.set_for_worker(partial(_end_orphan, orphaned))
    threading.Thread(target=_watch_parent, args=(orphaned,), daemon=True).start()
    # what an environment's code, or the closing of one, logs here
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(logging.Formatter(f"warning: {process.name}: %(message)s"))
    with suppress(ReceiverClosedError), one_thread():  # orphaned before or after it sends
        send_events(process.name, writer, run)
    if orphaned.is_set():
        os.killpg(0, signal.SIGKILL)


def _end_orphan(orphaned: threading.Event, signum: int, frame: FrameType | None) -> None:
    """Break off whatever the main thread does, but for the closing of environments."""
    while frame is not None and frame.f_code is not close_within.__code__:
        frame = frame.f_back
    if orphaned.is_set() and frame is None:
        raise ReceiverClosedError


def _watch_parent(orphaned: threading.Event) -> None:
    """End this process when the one that started it has ended, however that ended.

    Its environments are closed first, in the thread that made them, if that takes no more than
    ORPHAN_SECONDS.
    """
    parent = multiprocessing.parent_process()
    main = threading.main_thread().ident
    assert parent is not None and main is not None
    connection.wait([parent.sentinel])
    orphaned.set()
    signal.pthread_kill(main, signals.ORPHANED)
    time.sleep(ORPHAN_SECONDS)
    os.killpg(0, signal.SIGKILL)
