"""The runs of a sweep, each in a process of this program, some at a time.

A run's process is `python -m a3c_exp <its overrides> hydra.run.dir=<its folder> existing=resume`. All that is known
about a run is what it leaves in its folder, and the exit code of its process.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from subprocess import Popen
from typing import Any, Literal

from a3c_exp.cli.existing import Action, find_action
from a3c_exp.cli.startup import LABEL, PARENT
from a3c_exp.errors import INTERRUPTED, PREEMPTED, ConfigError, say
from a3c_exp.report.ranking import rank, table
from a3c_exp.report.runs import find_runs, group
from a3c_exp.run.console import duration, return_text
from a3c_exp.run.files import FolderLockedError, bytes_text, exclusive_folder, size_of
from a3c_exp.run.interruption import Interruption, interruptions
from a3c_exp.run.outcome import next_commands, outcome, short
from a3c_exp.run.run_folder import read_summary

POLL_SECONDS = 0.1
LOCK_SECONDS = 0.5
MOST_TRIES = 2
"""Processes of one run, if they are killed from outside."""

Status = Literal["ended", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class Job:
    """A run of a sweep, as it was checked.

    overrides: of its process. label: what distinguishes it from the others.
    """

    overrides: Sequence[str]
    config: Mapping[str, Any]
    folder: Path
    label: str


class Runs:
    """The runs of a sweep. They are known by their numbers.

    command: the program and its options, without the overrides of a run. existing: see `cli.existing`.
    at_once: most runs at the same time.
    """

    def __init__(self, jobs: Sequence[Job], command: Sequence[str], existing: str, at_once: int) -> None:
        self._jobs = jobs
        self._command = command
        self._existing = existing
        self._at_once = at_once
        self._noted = Interruption(may_break_in=False)
        self._asked_to_end = False
        self._waiting = deque(range(len(jobs)))
        self._running: dict[int, tuple[Popen[bytes], float]] = {}  # with the time at which it was started
        self._tries = Counter[int]()
        self._locked: dict[int, float] = {}  # when its folder's lock is looked at again
        self._status: dict[int, tuple[Status, str]] = {}
        self._seconds: list[float] = []  # of the processes that have ended

    def run(self) -> int:
        """Run every job once, until a signal asks for the end; return the exit code."""
        try:
            with interruptions(self._noted):
                while self._running or (self._waiting and self._noted.signal is None):
                    self._pass_on_signals()
                    self._start_some()
                    for number in [n for n, (program, _) in self._running.items() if program.poll() is not None]:
                        self._take(number)
                    time.sleep(POLL_SECONDS)
        finally:
            self._kill()  # nobody would say how they end
        return self._report()

    def _kill(self) -> None:
        for program, _ in self._running.values():
            program.kill()

    def _pass_on_signals(self) -> None:
        """Ask the running processes to end after the first signal, and kill them after the second one."""
        if self._noted.count > 1:
            self._kill()
        elif self._noted.signal is not None and not self._asked_to_end:
            self._asked_to_end = True
            say("running runs are saved and end, others do not start; a second signal kills")
            for program, _ in self._running.values():
                # Ctrl-C reaches them too, from the terminal: another SIGINT would be the second one.
                program.terminate()

    def _start_some(self) -> None:
        """Start jobs that wait while there is room. One whose folder is locked by another program waits for that."""
        for number in list(self._waiting):
            if len(self._running) >= self._at_once or self._noted.signal is not None:
                return
            if self._locked.get(number, 0.0) > time.monotonic():
                continue
            self._waiting.remove(number)
            if _is_locked(self._jobs[number].folder):
                self._wait_for_lock(number)
            else:
                self._start(number)

    def _wait_for_lock(self, number: int) -> None:
        if number not in self._locked:
            say(f"{self._jobs[number].label}: another process trains there: it is looked at again at the end")
        self._locked[number] = time.monotonic() + LOCK_SECONDS
        self._waiting.append(number)

    def _start(self, number: int) -> None:
        """Start the process of a job, unless its run has finished before, or meanwhile by another program."""
        job = self._jobs[number]
        existing = "resume" if self._existing == "refuse" and self._tries[number] else self._existing
        try:
            if find_action(job.folder, job.config, existing) is Action.LEAVE:
                self._end(number, "ended", "has finished before")
                return
            say(f"{job.label}: begins")
            label = f"{job.label}: " if self._at_once > 1 else ""
            variables = {**os.environ, PARENT: str(os.getpid()), LABEL: label}
            program = Popen([*self._command, *job.overrides, f"existing={existing}"], env=variables)
        except (ConfigError, OSError) as error:
            self._end(number, "failed", str(error))
            return
        self._tries[number] += 1
        self._running[number] = program, time.monotonic()

    def _take(self, number: int) -> None:
        """Note the end of a job's process."""
        job, (program, started) = self._jobs[number], self._running.pop(number)
        code, seconds = program.returncode, time.monotonic() - started
        self._seconds.append(seconds)
        text = _ending(job.folder)
        if code <= 0 and _has_finished(job):
            self._end(number, "ended", text)
        elif code == 0:  # an environment may call os._exit
            self._end(number, "failed", "its process ended before the run did")
        elif code in (INTERRUPTED, PREEMPTED, 128 + signal.SIGTERM) or self._noted.signal is not None:
            self._end(number, "interrupted", text or "interrupted")
        elif code == 2 and _is_locked(job.folder):
            self._wait_for_lock(number)
        elif code > 0 and code != 2:
            text = text if code == 1 else ""
            self._end(number, "failed", text or f"its process ended with exit code {code}")
        else:
            problem = "it was refused" if code == 2 else f"its process was killed by {signal.Signals(-code).name}"
            if self._tries[number] < MOST_TRIES:
                say(f"{job.label}: {problem}: it runs again at the end")
                self._waiting.append(number)
            else:
                self._end(number, "failed", f"{problem}, twice")

    def _end(self, number: int, status: Status, text: str) -> None:
        """Note how a job has ended, and say so with how far the sweep is. Failures are explained at the end."""
        self._status[number] = status, text
        shown = status if status == "failed" else text
        say(f"{len(self._status)} of {len(self._jobs)}{self._left()}: {self._jobs[number].label}: {shown}")

    def _left(self) -> str:
        """How long the rest takes if its runs take as long as those before: ", 1:20 left"."""
        if not self._seconds or len(self._status) == len(self._jobs):
            return ""
        now, mean = time.monotonic(), fmean(self._seconds)
        rest = sum(max(0.0, mean - (now - started)) for _, started in self._running.values())
        return f", {duration((rest + mean * len(self._waiting)) / self._at_once)} left"

    def _report(self) -> int:
        """Print how the sweep has ended, with the folders of failed runs; return the exit code."""
        found = Counter(status for status, _ in self._status.values())
        root = self._jobs[0].folder.parent
        size = bytes_text(size_of(root))
        say(f"{found['ended']} of {len(self._jobs)} runs have finished; {short(root)} holds {size}")
        for number, (status, text) in sorted(self._status.items()):
            folder = short(self._jobs[number].folder)
            if status == "failed":
                say(f"failed: {folder}: {text}")
            elif status == "interrupted" and self._noted.signal is None:
                say(f"interrupted: {folder}: the same command continues it")
        if self._noted.signal is not None:
            return PREEMPTED if self._noted.signal == signal.SIGUSR2 else 128 + self._noted.signal
        return 1 if found["failed"] else PREEMPTED if found["interrupted"] else 0


def say_best(jobs: Sequence[Job]) -> None:
    """Print the best configuration of each environment in finished runs, and the command for the report on them."""
    folders = [job.folder for job in jobs if read_summary(job.folder) is not None]
    with suppress(ConfigError):  # none has finished
        for env, configurations in group(find_runs(folders)[0] if folders else []).items():
            best = table(rank(configurations))[0]
            if best["final return"] != "-" and len(configurations) > 1:
                say(f"best on {env}: {best['configuration']}: final return {best['final return']}")
    say(f"  {next_commands('total_steps', jobs[0].folder.parent)[1]}")


def _ending(folder: Path) -> str:
    """How a run has ended, as its summary says. Empty without a summary."""
    summary = read_summary(folder)
    if summary is None:
        return ""
    unwritten, best = summary.get("unwritten"), summary.get("best_eval_return")
    text = outcome(summary) + ("" if best is None else f", best evaluation {return_text(best)}")
    error = summary.get("error") or (f"cannot be written: {', '.join(unwritten)}" if unwritten else "")
    return f"{text}: {error.strip().splitlines()[-1]}" if error else text  # of a traceback, the line with the error


def _has_finished(job: Job) -> bool:
    with suppress(ConfigError):
        return find_action(job.folder, job.config, "resume") is Action.LEAVE
    return False


def _is_locked(folder: Path) -> bool:
    try:
        with exclusive_folder(folder):
            return False
    except FolderLockedError:
        return True
    except ConfigError:  # there is no such folder yet
        return False
