"""One job of a command: a run in the folder that Hydra has made for it.

Jobs of a sweep run in the process of the command, or in processes that a launcher starts, here or elsewhere. So what
they are told is data that can be pickled, and they say how they ended in the sweep's journal.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import to_absolute_path
from omegaconf import DictConfig

from a3c_exp.backends import forkserver
from a3c_exp.cli.execute import Checked, Plan, execute
from a3c_exp.cli.hydra_compose import job_config as composed
from a3c_exp.cli.journal import Journal, Outcome
from a3c_exp.cli.startup import prestart
from a3c_exp.common.reading import expanded
from a3c_exp.core.cpu import cores_shared
from a3c_exp.errors import ConfigError, RunError, one_line, printable
from a3c_exp.run.interruption import Interruption
from a3c_exp.run.session import Session

if TYPE_CHECKING:  # importing it takes seconds: it imports torch
    from a3c_exp.run.trainer import Run

SIGNALS = (signal.SIGINT, signal.SIGTERM)
WATCH_SECONDS = 0.2


def job_config(node: DictConfig) -> tuple[dict[str, Any], Path]:
    """The plain configuration of Hydra's current job, and its folder."""
    hydra, config = HydraConfig.get(), composed()
    start = config.get("init_from")
    if hydra.job.chdir and start is not None:  # it was checked in the folder where the command was given
        config["init_from"] = to_absolute_path(str(expanded(start)))
    return config, expanded(hydra.runtime.output_dir).absolute()


def train_in(folder: Path, config: Mapping[str, Any], existing: str, session: Session) -> Run | None:
    """Train in a folder as `existing` says; None if it holds a finished run, which stays as it is.

    Raises ConfigError for a run that is refused, and FolderLockedError if another process trains there.
    """
    from a3c_exp.config.builder import load_experiment, resolve

    plan = Plan(config=config, folder=folder, existing=existing, session=session)
    final = resolve(config)
    return execute(plan, Checked(final, load_experiment(final, check=False)))


def own_session(command: str, **further: Any) -> Session:
    """The session of Hydra's current job. command: the command line as it was typed."""
    return Session(
        command=command,
        overrides=tuple(text.removeprefix("++") for text in HydraConfig.get().overrides.task),
        **further,
    )


def sweeper_job(command: str, node: DictConfig) -> float | None:
    """A job of a sweeper that chooses its jobs while they run. Returns the score that it may maximise."""
    config, folder = job_config(node)
    finished = train_in(folder, config, "refuse", own_session(command))
    assert finished is not None
    if finished.summary["signal"] is not None:
        raise KeyboardInterrupt(finished.exit_code)  # ends the sweep too
    if finished.exit_code:
        raise RunError(f"{folder}: {finished.summary['stop_reason']}")
    best: float | None = finished.summary["best_eval_return"]
    return best if best is not None else finished.summary["mean_return_100"]


@dataclass(frozen=True, kw_only=True)
class SweepJobs:
    """What every job of a sweep is told.

    folders, labels: of all jobs, by their numbers. existing: see a3c_exp.cli.existing. command: as it was typed.
    at_once: jobs that run at the same time on a machine. with_starter: they end when the starting process dies.
    pid, host: of the process that started the sweep.
    """

    journal: Journal
    folders: tuple[str, ...]
    labels: tuple[str, ...]
    existing: str
    command: str
    at_once: int = 1
    with_starter: bool = False
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)

    @property
    def is_starter(self) -> bool:
        """Whether this process is the one that started the sweep."""
        return (os.getpid(), socket.gethostname()) == (self.pid, self.host)

    def title(self, job: int) -> str:
        return f"{job + 1} of {len(self.folders)}"


def sweep_job(jobs: SweepJobs, node: DictConfig) -> None:
    """A job of a sweep. How it ended is in the journal."""
    config, folder = job_config(node)
    job = jobs.folders.index(str(folder))
    if not jobs.is_starter:
        prestart(config)  # it imports torch while this process does
    if jobs.with_starter:
        forkserver.ensure_running()  # also for a backend that needs none: `has_died` is asked below
    interruption = Interruption()
    with stop_requests(jobs, interruption), cores_shared(jobs.at_once):
        if jobs.journal.stop_signal() is not None:
            return
        jobs.journal.begin(job)
        say(f"{jobs.title(job)}: {jobs.labels[job]}")
        start = time.monotonic()
        label = "" if jobs.is_starter else f"{jobs.title(job)}: "
        outcome = _outcome(jobs, folder, config, own_session(jobs.command, interruption=interruption, label=label))
        if jobs.with_starter and outcome.status in ("interrupted", "failed") and forkserver.has_died(0.0):
            return  # without an outcome, as if it had been killed itself: the starter runs it again
        seconds = f", {time.monotonic() - start:.1f} s" if outcome.status in ("ended", "failed") else ""
        say(f"{jobs.title(job)}: {outcome.text}{seconds}")
        jobs.journal.end(job, outcome)
    if outcome.status == "interrupted" and jobs.is_starter:
        assert interruption.signal is not None
        jobs.journal.stop(interruption.signal)
        raise KeyboardInterrupt  # ends a launcher that starts one job after the other


def _outcome(jobs: SweepJobs, folder: Path, config: Mapping[str, Any], session: Session) -> Outcome:
    from a3c_exp.run.files import FolderLockedError

    try:
        finished = train_in(folder, config, jobs.existing, session)
    except FolderLockedError:
        return Outcome("locked", "another process trains there: it is looked at again at the end")
    except ConfigError as error:
        return Outcome("failed", str(error))
    except Exception as error:  # the other jobs go on
        traceback.print_exc()
        return Outcome("failed", one_line(error))
    if finished is None:
        return Outcome("left", "has finished before")
    summary = finished.summary
    values = {"return": summary["mean_return_100"], "best evaluation": summary["best_eval_return"]}
    numbers = [f"{name} {value:.1f}" for name, value in values.items() if value is not None]
    text = ", ".join([summary["stop_reason"], *numbers])
    if summary["signal"] is not None:
        return Outcome("interrupted", text)
    if not finished.exit_code:
        return Outcome("ended", text)
    unwritten = f"cannot be written: {', '.join(summary['unwritten'])}"
    reason = (summary["error"] or unwritten).strip().splitlines()[-1]  # the last line of a traceback is the error
    return Outcome("failed", f"{text}: {reason}")


def say(text: str) -> None:
    """Print a line on stderr, in one piece: several processes do. A stream that has gone is no error."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{printable(text)}\n")
        sys.stderr.flush()


class _Watch(threading.Thread):
    """Passes on what ends the jobs of this process: the journal's request, and the death of the starting process."""

    def __init__(self, jobs: SweepJobs) -> None:
        super().__init__(daemon=True)
        self._jobs = jobs
        self._server = os.getppid()
        self.interruption: Interruption | None = None  # of the current job

    def run(self) -> None:
        while True:
            orphaned = self._jobs.with_starter and self._is_orphaned()
            current = self.interruption
            if current is None and orphaned:
                os._exit(1)
            if current is not None and current.signal is None:
                current.signal = signal.SIGTERM if orphaned else self._jobs.journal.stop_signal()
            time.sleep(WATCH_SECONDS)

    def _is_orphaned(self) -> bool:
        """Return whether the starting process has died, or the fork server, from which this process comes."""
        starter = multiprocessing.parent_process()
        return os.getppid() != self._server or starter is None or not starter.is_alive()


_watches: dict[Path, _Watch] = {}


@contextmanager
def stop_requests(jobs: SweepJobs, interruption: Interruption) -> Iterator[None]:
    """Within: `interruption` notes whatever asks the job to end.

    The signals of a terminal or a batch system reach whole groups of processes, the starting one too: outside, in a
    process that a launcher has started, they are ignored, so that none of them ends it between two jobs.
    """
    if jobs.is_starter:
        with _noting_first(interruption):
            yield
        return

    def note(signum: int, frame: FrameType | None) -> None:
        # Slurm may send SIGTERM before the signal after which submitit has the job queued again.
        if interruption.signal is None or signum == signal.SIGUSR2:
            interruption.signal = signum

    watch = _watches.get(jobs.journal.folder)
    if watch is None:
        watch = _watches[jobs.journal.folder] = _Watch(jobs)
        watch.start()
    watch.interruption = interruption
    for number in SIGNALS:
        signal.signal(number, note)
    requeue = signal.getsignal(signal.SIGUSR2)  # submitit's: the batch system is about to take the machine away
    if callable(requeue):
        signal.signal(signal.SIGUSR2, note)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        yield
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        watch.interruption = None
    if callable(requeue):
        signal.signal(signal.SIGUSR2, requeue)
        if interruption.signal == signal.SIGUSR2:
            requeue(signal.SIGUSR2, None)


@contextmanager
def _noting_first(interruption: Interruption) -> Iterator[None]:
    """Within: a signal is noted in `interruption`, and then handled as before.

    A run handles signals itself from its first step on, but SIGUSR2 only where nobody else does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGUSR2)}
    before = {number: handler for number, handler in handlers.items() if callable(handler)}

    def note(signum: int, frame: FrameType | None) -> None:
        interruption.signal = interruption.signal or signum
        before[signal.Signals(signum)](signum, frame)

    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
