"""SIGSTOP of a worker, and SIGCONT after some seconds, as of a machine that swaps or a debugger."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from bench.faults.cases import Outcome
from bench.faults.program import BACKENDS, Program
from bench.processes import marked, read_process, worker_pids

STALL_SECONDS = 15.0
"""backend.stall_seconds: a worker that is stopped for longer is replaced."""
SHORT, LONG = (2.0, 8.0), (60.0, 65.0)
"""Seconds for which a worker is stopped, from and to."""
TURNS = ("processes", "ga3c", "ray")


def workers(backend: str, program: Program) -> list[int]:
    """Processes of the workers of a run."""
    if backend == "ray":
        return [each for each in marked(program.mark) if read_process(each, "cmdline").startswith("ray::WorkerActor")]
    return worker_pids(program.process.pid)


class Stop:
    """A worker that is stopped for a short or a long time. The run must end by its rule, the long one with another."""

    def __call__(self, rng: random.Random, number: int, folder: Path) -> Outcome:
        backend, is_long = TURNS[number % len(TURNS)], number // len(TURNS) % 2 == 0
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
        length, went_on = "a minute" if is_long else "a moment", "replaced" if restarts else "went on"
        return Outcome(happened=f"{backend}, {length}: {went_on}", fault=fault)
