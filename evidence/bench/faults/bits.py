"""Checkpoints with one bit changed, or cut off, and runs whose latest checkpoint is damaged."""

from __future__ import annotations

import contextlib
import io
import pickle
import random
from collections.abc import Callable
from pathlib import Path

from a3c_exp.errors import ConfigError
from a3c_exp.run.checkpoint import load_state
from a3c_exp.run.run_folder import CHECKPOINTS, LATEST, numbered_checkpoints
from evidence.bench.faults.cases import Outcome
from evidence.bench.faults.program import BACKENDS, EVERY, Program
from evidence.bench.fuzz import finished_run

Damage = Callable[[random.Random, bytes], bytes]


def cut_end(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


class Checkpoint:
    """A finished run's checkpoint that is damaged. It must be refused, or be read as it was."""

    def __init__(self, damage: Damage) -> None:
        self._damage = damage
        self._whole = b""
        self._state = b""

    def __call__(self, rng: random.Random, number: int, folder: Path) -> Outcome:
        if not self._whole:
            with contextlib.redirect_stderr(io.StringIO()):
                path = finished_run(folder / "run") / CHECKPOINTS / LATEST
            self._whole, self._state = path.read_bytes(), pickle.dumps(load_state(path))

        path = folder / LATEST
        path.write_bytes(self._damage(rng, self._whole))

        try:
            state = pickle.dumps(load_state(path))
        except ConfigError as error:
            return Outcome(
                happened="refused", fault="more than a line" if "\n" in str(error) else ""
            )

        if state == self._state:
            return Outcome(happened="read as it was")
        return Outcome(happened="read with other content", fault="damage that is not noticed")


class Latest:
    """A run that is killed, and whose latest checkpoint is then damaged: it goes on from the one
    before."""

    def __call__(self, rng: random.Random, number: int, folder: Path) -> Outcome:
        program = Program(folder, BACKENDS["serial"])
        program.start()
        program.wait_until(
            lambda: program.steps >= 4 * EVERY and len(numbered_checkpoints(program.folder)) > 1
        )
        program.kill()
        reached = program.steps
        content = program.latest.read_bytes()
        last = load_state(program.latest)["store"]["steps"]
        before = next(
            steps for steps in numbered_checkpoints(program.folder).values() if steps < last
        )
        middle = len(content) // 2  # in an array: noticed for certain
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        program.latest.write_bytes(cut_end(rng, content) if number % 2 else flipped)
        fault = program.finish()
        if f"goes on from step_{before}.ckpt, step {before}" not in program.output:
            fault = f"{fault}; it does not say that it goes on from step {before}"

        return Outcome(
            happened="went on from the one before",
            lost={"most steps": float(reached - before)},
            fault=fault,
        )
