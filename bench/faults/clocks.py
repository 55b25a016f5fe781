"""A wall clock that jumps by hours, forward and back, in all processes of a run."""

from __future__ import annotations

import random
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from a3c_exp.run.run_folder import EPISODES_FILE, METRICS_FILE
from bench.faults import hooks
from bench.faults.cases import Outcome
from bench.faults.program import BACKENDS, MOST_SECONDS, Program

SECONDS = 5.0
"""stop.max_seconds of each session."""
LATE_SECONDS = 5.0
"""So late may a rule about seconds hold: workers end their rollout, and a busy machine lets them wait."""
HOURS = 3600.0


class Jump:
    """A run during whose training the clock jumps, and a resumption by a clock that has been put back."""

    def __call__(self, rng: random.Random, number: int, folder: Path) -> Outcome:
        backend = list(BACKENDS)[number % len(BACKENDS)]
        by = rng.choice((-1, 1)) * rng.uniform(1, 48) * HOURS
        jumps = f"{rng.uniform(0, 3):.2f}:{by:.0f} {rng.uniform(3, 9):.2f}:{-2 * by:.0f}"
        settings = (*BACKENDS[backend], "total_steps=1e9", f"stop.max_seconds={SECONDS}")
        faults = [self._session(Program(folder, settings, {hooks.JUMPS: jumps}), SECONDS)]
        again = (f"resume={folder / 'run'}", f"plugins=[{hooks.__name__}]", f"stop.max_seconds={SECONDS}")
        program = Program(folder, again, {hooks.JUMPS: f"0:{-72 * HOURS:.0f}"})
        faults.append(self._session(program, 2 * SECONDS))
        steps = [event.step for event in EventAccumulator(str(program.folder)).Reload().Scalars("train/entropy")]
        if steps != sorted(set(steps)):
            faults.append("the steps of the event files are not in order")
        fault = "; ".join(filter(None, faults))
        return Outcome(happened=f"{backend}: {'wrong' if fault else 'as without'}", fault=fault)

    def _session(self, program: Program, training_seconds: float) -> str:
        """What is not as it should be of a session, until which the run has trained for so long; empty if all is."""
        program.start()
        code = program.wait(MOST_SECONDS)
        if code is None:
            program.kill()
            return "does not end"
        summary, faults = program.summary(), [program.fault(code, "max_seconds")]
        trained = summary.get("training_seconds") or 0.0
        if not training_seconds <= trained <= training_seconds + 2 * LATE_SECONDS:
            faults.append(f"{trained} seconds of training, not {training_seconds:.0f}")
        for table, column in ((METRICS_FILE, "wall_seconds"), (EPISODES_FILE, "seconds")):
            seconds = program.column(column, table)
            if seconds != sorted(seconds) or not (seconds[0] >= 0 and seconds[-1] <= summary["wall_seconds"] + 0.1):
                faults.append(f"the seconds of {table} are not in order")
        return "; ".join(filter(None, faults))
