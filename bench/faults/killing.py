"""SIGKILL of a whole run, or of its main process alone, at random moments."""

from __future__ import annotations

import random
import time
from pathlib import Path

from a3c_exp.errors import ConfigError
from bench.faults.cases import Outcome
from bench.faults.program import BACKENDS, EVERY, TOTALS, Program

PHASES = ("start", "training", "checkpoint", "evaluation", "end")
"""Of a run, in which the moment is drawn. Evaluation: a run that evaluates after each checkpoint's interval."""
DELAYS = {"start": 3.0, "training": 0.1, "checkpoint": 0.003, "evaluation": 0.5, "end": 0.2}
"""Most seconds from the sign of a phase to the moment."""
LATE_SECONDS = 0.5
"""So much training may be lost beyond an interval: events come a tenth of a second late, and a save takes time."""


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
        self._settings, self._total = BACKENDS[backend], TOTALS[backend]

    def __call__(self, rng: random.Random, number: int, folder: Path) -> Outcome:
        phase = PHASES[number % len(PHASES)]
        evaluation = (f"eval.every={EVERY}", "eval.episodes=100") if phase == "evaluation" else ()
        program = Program(folder, (*self._settings, *evaluation))
        program.start()
        wait_for(program, phase, rng, self._total)
        program.kill()
        known, ended, files = program.steps, bool(program.summary()), len(list(program.temporary.iterdir()))
        try:
            saved = program.saved_steps()
        except ConfigError as error:
            return Outcome(happened=f"{phase}: no loadable checkpoint", fault=str(error))
        faults = [program.finish()]
        summary = program.summary()
        if not ended and (summary.get("resumed") == 0) is not (saved is None):
            faults.append(f"resumed {summary.get('resumed')} times, with {saved} steps saved")
        lost = max(0, known - (saved or 0))
        if saved is not None and lost > EVERY + LATE_SECONDS * (summary.get("steps_per_second") or 0.0):
            faults.append(f"{lost} steps lost, with a checkpoint every {EVERY}")
        faults += program.left_behind(files=False)
        happened = "had ended" if ended else "begun anew" if saved is None else "resumed"
        figures = {"most steps" if saved is not None else "most steps before the first checkpoint": float(lost)}
        figures |= {"temporary files that nobody deletes": float(files)} if files else {}
        return Outcome(happened=f"{phase}: {happened}", lost=figures, fault="; ".join(filter(None, faults)))


class KillParent:
    """SIGKILL of the main process alone, in its start or while it trains. The others must end by themselves."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._most_seconds = 180.0 if backend == "ray" else 60.0  # Ray's own helpers need most of a minute

    def __call__(self, rng: random.Random, number: int, folder: Path) -> Outcome:
        phase = ("training", "start")[number % 2]
        program = Program(folder, BACKENDS[self._backend])
        program.start()
        wait_for(program, phase, rng, TOTALS[self._backend])
        program.process.kill()
        program.process.wait()
        seconds, faults = program.seconds_to_end(self._most_seconds), list[str]()
        if seconds >= self._most_seconds:
            faults.append(f"processes that go on after {seconds:.0f} s")
            program.kill()
        faults += program.left_behind(files=True)
        lost = {"most seconds until the last process had ended": seconds}
        return Outcome(happened=f"{phase}: all ended", lost=lost, fault="; ".join(faults))
