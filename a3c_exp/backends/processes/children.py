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
    MERGE_SECONDS,
    ReceiverClosedError,
    WorkerExit,
    send,
    send_events,
)
from a3c_exp.backends.supervision import PipeSource, Run, end_all
from a3c_exp.common import signals
from a3c_exp.core.cpu import one_thread
from a3c_exp.envs import close_within
from a3c_exp.errors import one_line

# How often a worker looks whether the fork server is there.
_SERVER_SECONDS = 1.0
# From the end of its parents to the end of a worker, which closes its environments meanwhile.
ORPHAN_SECONDS = 2.0
# How often, and how many seconds apart, a worker is started: the fork server may be dying, and is
# started again.
_TRIES = 10
_PAUSE = 0.2
# The standard library gives a child this exit code if the server has died, which would have
# reported the real one.
_EXIT_CODE_LOST = 255


@dataclass(kw_only=True, eq=False)
class Child(PipeSource):
    """A worker process. run: is called there.

    process: None until it has been started, which a thread does: the fork server may have to import
        everything first.
    """

    process: BaseProcess | None = field(default=None, init=False)

    @property
    def beat(self) -> int | None:
        return None if self.process is None else super().beat

    def begin(self, run: Run, writer: connection.Connection) -> None:
        self.process = self.sentinel = None
        self.store.counters.heartbeats[self.worker] = 0  # not what its predecessor did
        self.wanted = True
        thread = threading.Thread(target=self._start, args=(run, writer), daemon=True)
        thread.start()
        self._thread = thread  # only now: one that has not started cannot be joined
        thread.join(MERGE_SECONDS)

    def _start(self, run: Run, writer: connection.Connection) -> None:
        """Start the process, or send the reason why there is none. Its copy of the writer is the
        last."""
        for tries_left in reversed(range(_TRIES)):
            try:
                with forkserver.starting():
                    if self.wanted:
                        self._fork(run, writer)
                break
            except (
                Exception
            ) as error:  # of many kinds, where the fork server is dying or a limit is reached
                if tries_left:
                    time.sleep(_PAUSE)
                    continue
                with suppress(ReceiverClosedError):
                    send(
                        writer,
                        WorkerExit(
                            f"{self.name} could not be started: {one_line(error)}", final=True
                        ),
                    )
        writer.close()

    def _fork(self, run: Run, writer: connection.Connection) -> None:
        arguments = self.name, run, writer, forkserver.server()
        process = forkserver.CONTEXT.Process(
            target=_main, args=arguments, name=self.name, daemon=True
        )
        process.start()
        self.process, self.sentinel = process, process.sentinel

    def join(self, deadline: float) -> bool:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self.process is None:
            return not self._thread.is_alive()
        self.process.join(max(0.0, deadline - time.monotonic()))
        return self.process.exitcode is not None

    def kill(self) -> bool:
        assert self.process is not None
        _kill(self.process)
        return True

    def exit(self) -> WorkerExit:
        assert self.process is not None
        self.process.join(GRACE_SECONDS)
        return WorkerExit(f"{self.name} {_exit_text(self.process.exitcode)}")

    def on_exit(self, *, replaced: bool) -> None:
        """Release what it had, and kill what it has started. It may also have closed its pipe, and
        live. At the end of a run that is done for all together."""
        super().on_exit(replaced=replaced)
        if replaced or not self.store.is_over:
            end([self])


def _kill(process: BaseProcess) -> None:
    """Kill a worker's process, and those that its environments have started: its group."""
    pid = process.pid
    assert pid is not None
    process.kill()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if process.exitcode == _EXIT_CODE_LOST:
        with suppress(ProcessLookupError):  # it may live, for up to _SERVER_SECONDS
            os.kill(pid, signal.SIGKILL)


def _exit_text(exitcode: int | None) -> str:
    if exitcode is None:
        return "closed its connection"
    if exitcode == _EXIT_CODE_LOST:
        return (
            f"ended with exit code {exitcode}, or the fork server, from which it was started, "
            "has died"
        )
    if exitcode >= 0:
        return f"ended unexpectedly, with exit code {exitcode}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"was killed by signal {-exitcode}"


def end(sources: Sequence[PipeSource]) -> None:
    """Wait GRACE_SECONDS, for all together, until the processes among the sources have ended; then
    kill the others.

    One that a dead disk keeps from dying is left behind.
    """
    children = [source for source in sources if isinstance(source, Child) and source.wanted]
    for child in children:
        child.wanted = False
    end_all(children)
    for child in children:
        if child.process is not None:
            _kill(child.process)
    end_all(children)
    for child in children:
        if child.process is not None and child.process.exitcode is not None:
            child.process.close()


def _main(name: str, run: Run, writer: connection.Connection, server: int) -> None:
    """The child's main function. server: the process that has forked it."""
    os.setpgid(0, 0)  # what its environments start ends with it: see `_kill`
    multiprocessing.current_process().daemon = False  # they may start processes
    orphaned = threading.Event()
    signals.set_for_worker(partial(_end_orphan, orphaned))
    threading.Thread(target=_watch_parents, args=(server, orphaned), daemon=True).start()
    # what an environment's code, or the closing of one, logs here
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(logging.Formatter(f"warning: {name}: %(message)s"))
    with suppress(ReceiverClosedError), one_thread():  # orphaned before or after it sends
        send_events(name, writer, run)
    if orphaned.is_set():
        os.killpg(0, signal.SIGKILL)


def _end_orphan(orphaned: threading.Event, signum: int, frame: FrameType | None) -> None:
    """Break off whatever the main thread does, but for the closing of environments."""
    while frame is not None and frame.f_code is not close_within.__code__:
        frame = frame.f_back
    if orphaned.is_set() and frame is None:
        raise ReceiverClosedError


def _watch_parents(server: int, orphaned: threading.Event) -> None:
    """End this process when the one that started it or the fork server has ended, however that
    ended.

    Its environments are closed first, in the thread that made them, if that takes no more than
    ORPHAN_SECONDS.
    """
    parent = multiprocessing.parent_process()
    main = threading.main_thread().ident
    assert parent is not None and main is not None
    while os.getppid() == server and not connection.wait([parent.sentinel], _SERVER_SECONDS):
        pass
    orphaned.set()
    signal.pthread_kill(main, signals.ORPHANED)
    time.sleep(ORPHAN_SECONDS)
    os.killpg(0, signal.SIGKILL)
