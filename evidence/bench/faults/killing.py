"""Signals at random moments: SIGKILL of a whole run or of its main process alone; SIGSTOP of a
worker."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from a3c_exp.errors import ConfigError
from evidence.bench.faults.cases import Outcome
from evidence.bench.faults.program import BACKENDS, EVERY, TOTALS, Program
from evidence.bench.processes import marked, read_process, worker_pids

PHASES = ("start", "training", "checkpoint", "evaluation", "end")
"""Of a run, in which the moment is drawn. Evaluation: a run that evaluates after each checkpoint's
interval."""
DELAYS = {"start": 3.0, "training": 0.1, "checkpoint": 0.003, "evaluation": 0.5, "end": 0.2}
"""Most seconds from the sign of a phase to the moment."""
LATE_SECONDS = 0.5
"""So much training may be lost beyond an interval: events come a tenth of a second late, and a save
takes time."""

STALL_SECONDS = 15.0
"""backend.stall_seconds: a worker that is stopped for longer is replaced."""
SHORT = (2.0, 8.0)
LONG = (60.0, 65.0)
"""Seconds for which a worker is stopped, from and to."""
TURNS = ("processes", "ga3c", "ray")


def wait_for(program: Program, phase: str, rng: random.Random, total: int) -> None:
    """Wait for a random moment in a phase of a run; no longer than the run goes on."""
    if phase != "start":
        # Before the last quarter: the run must not end within the delay.
        steps = total if phase == "end" else rng.randrange(EVERY, 3 * total // 4)
        program.wait_until(lambda: program.steps >= steps and program.latest.exists())

    if phase == "checkpoint":
        program.wait_until(program.latest.with_name(f"{program.latest.name}.partial").exists)
    time.sleep(rng.uniform(0.0, DELAYS[phase]))


class Kill:
    """SIGKILL of every process of a run. Then the same command is given again."""

    def __init__(self, backend: str) -> None:
        self._settings = BACKENDS[backend]
        self._total = TOTALS[backend]

    def __call__(self, rng: random.Random, number: int, folder: Path) -> Outcome:
        phase = PHASES[number % len(PHASES)]
        evaluation = (f"eval.every={EVERY}", "eval.episodes=100") if phase == "evaluation" else ()
        program = Program(folder, (*self._settings, *evaluation))
        program.start()
        wait_for(program, phase, rng, self._total)
        program.kill()
        reached = program.steps
        ended = bool(program.summary())
        files = len(list(program.temporary.iterdir()))

        try:
            saved = program.saved_steps()
        except ConfigError as error:
            return Outcome(happened=f"{phase}: no loadable checkpoint", fault=str(error))

        faults = [program.finish()]
        summary = program.summary()
        if not ended and (summary.get("resumed") == 0) is not (saved is None):
            faults.append(f"resumed {summary.get('resumed')} times, with {saved} steps saved")

        lost = max(0, reached - (saved or 0))
        if saved is not None and lost > EVERY + LATE_SECONDS * (
            summary.get("steps_per_second") or 0.0
        ):
            faults.append(f"{lost} steps lost, with a checkpoint every {EVERY}")

        faults += program.left_behind(files=False)
        happened = "had ended" if ended else "begun anew" if saved is None else "resumed"
        figures = {
            "most steps" if saved is not None else "most steps before the first checkpoint": float(
                lost
            )
        }
        figures |= {"temporary files that nobody deletes": float(files)} if files else {}

        return Outcome(
            happened=f"{phase}: {happened}", lost=figures, fault="; ".join(filter(None, faults))
        )


class KillParent:
    """SIGKILL of the main process alone, in its start or while it trains. The others must end by
    themselves."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        # Ray's own helpers need most of a minute
        self._most_seconds = 180.0 if backend == "ray" else 60.0

    def __call__(self, rng: random.Random, number: int, folder: Path) -> Outcome:
        phase = ("training", "start")[number % 2]
        program = Program(folder, BACKENDS[self._backend])
        program.start()
        wait_for(program, phase, rng, TOTALS[self._backend])
        program.process.kill()
        program.process.wait()
        seconds = program.seconds_to_end(self._most_seconds)

        faults = list[str]()
        if seconds >= self._most_seconds:
            faults.append(f"processes that go on after {seconds:.0f} s")
            program.kill()

        faults += program.left_behind(files=True)
        lost = {"most seconds until the last process had ended": seconds}
        return Outcome(happened=f"{phase}: all ended", lost=lost, fault="; ".join(faults))


def workers(backend: str, program: Program) -> list[int]:
    """Return the worker processes of a run."""
    if backend == "ray":
        return [
            pid
            for pid in marked(program.mark)
            if read_process(pid, "cmdline").startswith("ray::WorkerActor")
        ]
    return worker_pids(program.process.pid)


class Stop:
    """SIGSTOP of a worker, and SIGCONT after a short or a long time, as of a machine that swaps or
    a debugger.

    The run must end by its rule, after a long time with another worker.
    """

    def __call__(self, rng: random.Random, number: int, folder: Path) -> Outcome:
        backend = TURNS[number % len(TURNS)]
        is_long = number // len(TURNS) % 2 == 0
        seconds = rng.uniform(*(LONG if is_long else SHORT))
        update = rng.choice(("async", "sync")) if backend == "processes" else "async"
        rules = f"total_steps=1e9 stop.max_seconds={seconds + STALL_SECONDS} checkpoint.every=null"
        stall = f"backend.stall_seconds={STALL_SECONDS}"
        program = Program(folder, (*BACKENDS[backend], *rules.split(), stall, f"update={update}"))
        program.start()
        program.wait_until(lambda: program.steps > 1000)

        victims = workers(backend, program)
        if not victims:
            program.kill()
            return Outcome(happened=f"{backend}: no worker found", fault=program.output[-1000:])

        victim = rng.choice(victims)
        os.kill(victim, signal.SIGSTOP)
        time.sleep(seconds)
        with suppress(ProcessLookupError):  # it has been replaced
            os.kill(victim, signal.SIGCONT)
        fault = program.fault(program.wait(), "max_seconds")
        restarts = program.summary().get("restarts", 0)
        if bool(restarts) is not is_long:
            fault = f"{fault}; {restarts} restarts after {seconds:.0f} s: {program.output[-1000:]}"
        length = "a minute" if is_long else "a moment"
        went_on = "replaced" if restarts else "went on"

        return Outcome(happened=f"{backend}, {length}: {went_on}", fault=fault)
