"""The runs of a sweep, each in a process of this program, some at a time.

A run's process is `python -m a3c_exp <its overrides> hydra.run.dir=<its folder> existing=resume`,
or a fork that does the same and need not import anything: see `cli.forked`. All that is known about
a run is what it leaves in its folder, and the exit code of its process.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from subprocess import Popen
from typing import Literal, TypeAlias

from a3c_exp.backends.processes.children import EXIT_CODE_LOST, exit_text
from a3c_exp.cli.existing import Action, how_ended
from a3c_exp.cli.forked import ForkedRun, fork
from a3c_exp.cli.launch import FULL_ERROR, USERS_FULL_ERROR
from a3c_exp.cli.startup import LABEL, PARENT
from a3c_exp.common.signals import ENDING, BreaksIn, Interruption, interruptions
from a3c_exp.ending import StopReason
from a3c_exp.errors import ConfigError, say
from a3c_exp.exit_codes import ExitCode, signal_code
from a3c_exp.report.ranking import MOST_COMPARED, comparison, rank, ranking_table
from a3c_exp.report.runs import find_runs, group
from a3c_exp.run.console import duration, return_text
from a3c_exp.run.files import FolderLockedError, exclusive_folder
from a3c_exp.run.outcome import next_commands, outcome, short
from a3c_exp.run.run_folder import read_summary

POLL_SECONDS = 0.1
LOCK_SECONDS = 0.5
TOGETHER_SECONDS = 0.5
"""Signals within this time are one: a terminal that is closed sends SIGHUP twice."""
MOST_TRIES = 2
"""Processes of one run, if they are killed from outside."""

COLUMNS = {
    "final return": "final return with 95 % interval",
    "steps until solved": "median and range of steps until solved",
}
"""Columns of a report's table, with their names in the last lines of a sweep, which have those that
differ."""

Status = Literal["ended", "failed", "interrupted"]
Process: TypeAlias = Popen[bytes] | ForkedRun
DOES: dict[Action, str] = {"begin": "begins", "resume": "continues", "leave": "stays as it is"}
"""What a run does, in lines."""


@dataclass(eq=False, slots=True)
class Job:
    """A run of a sweep, as it was checked, and how far it is.

    number: in the sweep. overrides: of its process. label: what distinguishes it from the others.
    action: see `cli.existing.find_action`.
    is_forked: whether its process may be forked from one that has imported everything.
    started: when its latest process was started. tries: processes that it has had. killed: the
        latest was, from outside, or nobody knows how it ended.
    look_at: when its folder's lock is looked at again. status, text: how it has ended; None before.
    words: its overrides for Hydra.
    """

    number: int
    overrides: Sequence[str]
    folder: Path
    label: str
    action: Action = "begin"
    is_forked: bool = False
    started: float = 0.0
    tries: int = 0
    killed: bool = False
    look_at: float = 0.0
    status: Status | None = None
    text: str = ""
    words: Sequence[str] = ()


@dataclass(eq=False)
class Runs:
    """The runs of a sweep.

    flags: of a run's command, before its overrides. existing: see `cli.existing`.
    at_once: most runs at the same time.
    """

    jobs: Sequence[Job]
    flags: Sequence[str]
    existing: str
    at_once: int

    def __post_init__(self) -> None:
        self._noted = Interruption(breaks_in=BreaksIn.NOTHING)
        self._asked_at: float | None = None
        self._waiting = deque(self.jobs)
        self._running: list[tuple[Job, Process]] = []
        self._seconds: list[float] = []  # of the processes that have ended

    def run(self) -> int:
        """Run every job once, until a signal asks for the end; return the exit code."""
        try:
            with interruptions(self._noted):
                while self._running or (self._waiting and self._noted.signal is None):
                    self._pass_on_signals()
                    self._start_some()
                    for job, process in list(self._running):
                        code = process.poll()
                        if code is not None:
                            self._running.remove((job, process))
                            self._take(job, code)
                    time.sleep(POLL_SECONDS)
        finally:
            self._kill()  # nobody would say how they end
        return self._report()

    def _kill(self) -> None:
        for _, process in self._running:
            process.kill()

    def _pass_on_signals(self) -> None:
        """Ask the running processes to end after the first signal, and kill them after the second
        one."""
        if self._noted.signal is None:
            return

        if self._asked_at is None:
            self._asked_at = time.monotonic()
            say("running runs are saved and end, others do not start; a second signal kills")
            for _, process in self._running:
                # Ctrl-C reaches them too, from the terminal: another SIGINT would be the second
                # one.
                process.terminate()

        if time.monotonic() < self._asked_at + TOGETHER_SECONDS:
            self._noted.count = 1
        elif self._noted.count > 1:
            self._kill()

    def _start_some(self) -> None:
        """Start jobs that wait while there is room. One whose folder is locked by another program
        waits for that."""
        for job in list(self._waiting):
            if len(self._running) >= self.at_once or self._noted.signal is not None:
                return

            if job.look_at <= time.monotonic():
                self._waiting.remove(job)
                if _is_locked(job.folder):
                    self._wait_for_lock(job)
                else:
                    self._start(job)

    def _wait_for_lock(self, job: Job) -> None:
        if not job.look_at:
            say(f"{job.label}: another process trains there: it is looked at again at the end")
        job.look_at = time.monotonic() + LOCK_SECONDS
        self._waiting.append(job)

    def _start(self, job: Job) -> None:
        """Start the process of a job, unless its run has finished before."""
        if job.action == "leave":
            if how_ended(job.folder) == "failed":
                self._end(job, "failed", f"has failed before: {_ending(job.folder)}")
            else:
                self._end(job, "ended", "has finished before")
            return

        # else its kill came before it had begun anew
        goes_on = job.killed and how_ended(job.folder) == "cut"
        was_tried = self.existing == "refuse" and job.tries
        existing = "resume" if goes_on or was_tried else self.existing
        say(f"{job.label}: {DOES[job.action]}")
        label = f"{job.label}: " if self.at_once > 1 else ""
        variables = {**os.environ, LABEL: label}
        variables[FULL_ERROR] = variables.pop(USERS_FULL_ERROR, "")
        arguments = [*self.flags, *job.overrides, f"existing={existing}"]
        try:
            process = start_process(arguments, variables, is_forked=job.is_forked)
        except OSError as error:
            self._end(job, "failed", str(error))
            return

        job.tries += 1
        job.started = time.monotonic()
        self._running.append((job, process))

    def _take(self, job: Job, code: int) -> None:
        """Note the end of a job's process."""
        self._seconds.append(time.monotonic() - job.started)
        text = _ending(job.folder)
        was_asked = code in map(signal_code, ENDING)
        # it may have ended by itself meanwhile
        if (code <= 0 or was_asked) and how_ended(job.folder) == "finished":
            self._end(job, "ended", text)
        elif was_asked or self._noted.signal is not None:
            self._end(job, "interrupted", text or "interrupted")
        elif code == ExitCode.REFUSED and _is_locked(job.folder):
            self._wait_for_lock(job)
        elif code == ExitCode.FAILED and text:
            self._end(job, "failed", text)
        elif code >= 0 and code not in (ExitCode.REFUSED, EXIT_CODE_LOST):
            # an environment may call os._exit
            self._end(job, "failed", f"its process ended before the run did, with exit code {code}")
        else:
            was_refused = code == ExitCode.REFUSED
            problem = "it was refused" if was_refused else f"its process {exit_text(code)}"
            job.killed = not was_refused
            if job.tries < MOST_TRIES:
                say(f"{job.label}: {problem}: it runs again at the end")
                self._waiting.append(job)
            else:
                self._end(job, "failed", f"{problem}, twice")

    def _end(self, job: Job, status: Status, text: str) -> None:
        """Note how a job has ended, and say so with how far the sweep is. Failures are explained at
        the end."""
        job.status = status
        job.text = text
        ended = sum(other.status in ("ended", "failed") for other in self.jobs)
        outcome_text = status if status == "failed" else text
        say(f"{ended} of {len(self.jobs)}{self._left()}: {job.label}: {outcome_text}")

    def _left(self) -> str:
        """How long the rest takes if its runs take as long as those before: ", 1:20 left"; empty if
        nobody knows."""
        now = time.monotonic()
        mean = fmean(self._seconds or [0.0])
        seconds = mean * len(self._waiting)
        seconds += sum(max(0.0, mean - (now - job.started)) for job, _ in self._running)
        return f", {duration(seconds / self.at_once)} left" if seconds else ""

    def _report(self) -> int:
        """Print how the sweep has ended, with the folders of failed runs; return the exit code."""
        counts = Counter(job.status for job in self.jobs)
        sweep = short(self.jobs[0].folder.parent)
        say(f"{counts['ended']} of {len(self.jobs)} runs have finished, in {sweep}")
        for job in self.jobs:
            if job.status == "failed":
                say(f"failed: {short(job.folder)}: {job.text}")

        if counts["interrupted"] or self._noted.signal is not None:
            say(f"the same command with sweep={sweep} continues the others")

        if self._noted.signal is not None:
            return signal_code(self._noted.signal)

        if counts["failed"]:
            return ExitCode.FAILED

        return ExitCode.PREEMPTED if counts["interrupted"] else ExitCode.DONE


def say_comparison(folders: Sequence[Path]) -> None:
    """Print how the first MOST_COMPARED configurations of each environment compare in finished
    runs, and the commands that show them."""
    finished = [folder for folder in folders if how_ended(folder) == "finished"]
    with suppress(ConfigError):  # none has finished
        for env, configurations in group(find_runs(finished)[0] if finished else []).items():
            ranked = rank(configurations)
            for sentence in comparison(ranked):
                say(f"{env}: {sentence}")

            _say_rows(ranking_table(ranked)[:MOST_COMPARED])
            if len(ranked) > MOST_COMPARED:
                say(f"  and {len(ranked) - MOST_COMPARED} more, below them: the report has all")

    for line in next_commands(StopReason.TOTAL_STEPS, folders[0].parent):
        say(f"  {line}")


def _say_rows(rows: Sequence[Mapping[str, str]]) -> None:
    """Print the columns in which rows of a report's table differ."""
    columns = {key: text for key, text in COLUMNS.items() if len({row[key] for row in rows}) > 1}
    for row in rows if columns else ():
        numbers = ", ".join(f"{text} {row[key]}" for key, text in columns.items())
        say(f"  {row['configuration']}: {numbers}")


def _ending(folder: Path) -> str:
    """How a run has ended, as its summary says. Empty without a summary."""
    summary = read_summary(folder)
    if summary is None:
        return ""

    text = outcome(summary)
    best = summary.get("best_eval_return")
    if best is not None:
        text += f", best evaluation {return_text(best)}"

    if error := summary.get("error"):
        # of a traceback, the line with the error
        return f"{text}: {error.strip().splitlines()[-1]}"

    if unwritten := summary.get("unwritten"):
        return f"{text}: cannot be written: {', '.join(unwritten)}"

    return text


def start_process(
    arguments: Sequence[str], variables: Mapping[str, str], *, is_forked: bool
) -> Process:
    """Start the process of a run. Raises OSError."""
    if is_forked:
        with suppress(ConfigError, OSError):  # a new one does not need the fork server
            return fork(arguments, variables)
    command = [sys.executable, "-m", "a3c_exp", *arguments]
    return Popen(command, env={**variables, PARENT: str(os.getpid())})


def _is_locked(folder: Path) -> bool:
    try:
        with exclusive_folder(folder):
            return False
    except (ConfigError, OSError) as error:  # perhaps there is no such folder yet
        return isinstance(error, FolderLockedError)
