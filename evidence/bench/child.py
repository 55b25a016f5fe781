"""The script that `evidence.bench.same` and `evidence.bench.path` run with the package of another
checkout, in a process of its own.

    python evidence/bench/child.py train CHECKOUT key=value ...
    python evidence/bench/child.py update CHECKOUT FOLDER
    python evidence/bench/child.py start CHECKOUT FOLDER

This script imports nothing of bench: the other checkout may have a bench of its own. Neither does
it name anything of a3c_exp but the command, `a3c_exp.train`, the class of a run's output, and the
worker.
"""

from __future__ import annotations

import collections
import contextlib
import csv
import dataclasses
import importlib
import itertools
import json
import os
import re
import runpy
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

MARK = "0.0417"
"""The value of an override that nothing else has."""
RUN = (
    f"env=cartpole env.reward_scale={MARK} backend=serial workers=1 "
    "envs_per_worker=4 rollout_length=64"
)
RUN += " total_steps=2048 stop.mean_return=null eval.every=null checkpoint.every=null"
STEPS_OF_AN_UPDATE = 4 * 64
FIRST_POINT = 4
LAST_POINT = 5
"""Points of the curves: the update that is profiled lies between these two."""
CONSTRUCTORS = {"__init__", "__new__", "<lambda>", "_make"}
"""What Python calls the constructors that it generates; a named tuple's is an unnamed function."""
GENERATED = {"<string>", collections.__file__}
LEVELS = 4
"""So deep an override is looked for in lists, mappings and records."""


def main(arguments: Sequence[str]) -> int:
    """Run a command; its exit code."""
    command, checkout, *rest = arguments
    place = Path(checkout).resolve()
    sys.path[0] = str(place)  # in the place of this script's own folder
    if command == "train":
        return train(place, rest)
    folder = Path(rest[0])
    found = (
        profile_update(place, folder / "run")
        if command == "update"
        else profile_start(place, folder / "run")
    )
    (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
    return 0


def check_package(checkout: Path) -> None:
    """End the process where the package that is imported is that of another checkout."""
    found = Path(str(importlib.import_module("a3c_exp").__file__)).resolve()
    if found.parent != checkout / "a3c_exp":
        sys.exit(f"the package that is imported is not that of {checkout}: {found}")


def run_command(overrides: Sequence[str]) -> int:
    """Run `python -m a3c_exp`; its exit code."""
    sys.argv = ["a3c_exp", *overrides]
    try:
        runpy.run_module("a3c_exp", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def set_clock(clock: Callable[[], float]) -> None:
    """Let Python's clocks that never go backwards tell these seconds. To be called before the
    package is imported."""
    time.perf_counter = time.monotonic = clock
    time.perf_counter_ns = time.monotonic_ns = lambda: int(clock() * 1e9)


# -- train
# --------------------------------------------------------------------------------------------------


def train(checkout: Path, overrides: Sequence[str]) -> int:
    """Run the command with a clock that stands still, and moves on by 1000 s with each saved
    checkpoint.

    Curves get their points by the clock. With this one they get them at the same steps in every
    run.
    """
    saved = 0
    replace = os.replace

    def counting(source: Any, target: Any, **places: Any) -> None:
        nonlocal saved
        replace(source, target, **places)
        saved += Path(os.fsdecode(target)).parent.name == "checkpoints"

    os.replace = counting  # type: ignore[assignment]
    set_clock(lambda: 1.0 + 1000.0 * saved)
    check_package(checkout)
    return run_command(overrides)


# -- update
# --------------------------------------------------------------------------------------------------


def profile_update(checkout: Path, folder: Path) -> dict[str, list[str]]:
    """Train a moment in `folder`. Returns the files, records and frames of an update."""
    calls = itertools.count(1)
    # so far on whenever it is looked at that each update gets a point
    set_clock(lambda: 10.0 * next(calls))
    check_package(checkout)
    importlib.import_module("torch")  # not under the profiler, which would take seconds
    update = Update(checkout, folder)
    train_function = importlib.import_module("a3c_exp").train
    sys.setprofile(update.note)
    try:
        train_function(RUN.split(), folder=folder)
    finally:
        sys.setprofile(None)
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    if steps[LAST_POINT - 1] - steps[FIRST_POINT - 1] != STEPS_OF_AN_UPDATE:
        sys.exit(f"not every update has got a point of the curves; they are at the steps {steps}")
    return {
        "files": sorted(update.files),
        "records": sorted(update.records),
        "frames": update.frames,
    }


class Package:
    """The functions of a checkout's package, as `file:function`."""

    def __init__(self, checkout: Path) -> None:
        self._root = f"{checkout}/"
        self.folder = f"{checkout}/a3c_exp/"

    def has(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(self.folder)

    def name(self, frame: FrameType) -> str:
        """A comprehension counts as the function that it is in."""
        function = re.sub(r"(\.<locals>)?\.<\w+>$", "", frame.f_code.co_qualname)
        return f"{frame.f_code.co_filename.removeprefix(self._root)}:{function}"

    def stack(self, frame: FrameType | None) -> list[str]:
        """The package's functions on the stack, outermost first."""
        names = []
        while frame is not None:
            if self.has(frame):
                names.append(self.name(frame))
            frame = frame.f_back
        return names[::-1]


class Update:
    """Calls between two points of the curves.

    run: the folder of the run, whose metrics.csv grows with each point after its header.
    files, records: by name. frames: the deepest stack, outermost first.
    """

    def __init__(self, checkout: Path, run: Path) -> None:
        self.files: set[str] = set()
        self.records: set[str] = set()
        self.frames: list[str] = []
        self._package = Package(checkout)
        self._table = run / "metrics.csv"
        self._size = self._points = 0

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """Take in an event of Python's profiler."""
        if event not in ("call", "return") or self._points > LAST_POINT:
            return
        self._look_at_table()
        if event != "call" or not FIRST_POINT <= self._points < LAST_POINT:
            return
        if self._package.has(frame):
            self.files.add(self._package.name(frame).partition(":")[0])
            self.frames = max(self.frames, self._package.stack(frame), key=len)
        if frame.f_code.co_name in CONSTRUCTORS:
            self._note_record(frame)

    def _look_at_table(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            size = self._table.stat().st_size
            if size != self._size:
                self._size = size
                self._points = self._table.read_bytes().count(b"\n") - 1

    def _note_record(self, frame: FrameType) -> None:
        code = frame.f_code
        if not code.co_argcount or not (code.co_filename in GENERATED or self._package.has(frame)):
            return
        first = frame.f_locals.get(code.co_varnames[0])
        kind = first if isinstance(first, type) else type(first)
        module = sys.modules.get(kind.__module__)
        ours = (getattr(module, "__file__", None) or "").startswith(self._package.folder)
        if ours and (
            dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
        ):
            self.records.add(f"{kind.__module__}.{kind.__qualname__}")


# -- start
# --------------------------------------------------------------------------------------------------


def profile_start(checkout: Path, folder: Path) -> dict[str, list[str]]:
    """Run the command up to the worker's first call. Returns where its overrides pass."""
    start = Start(checkout)
    sys.setprofile(start.note)
    code = run_command([*RUN.split(), f"hydra.run.dir={folder}"])
    if code or not start.ended:
        sys.exit(f"exit code {code}; the worker {'has' if start.ended else 'has not'} started")
    check_package(checkout)
    return {"overrides": sorted(start.functions)}


class Start:
    """The functions of which an argument or a local variable holds the marked override."""

    def __init__(self, checkout: Path) -> None:
        self.functions: set[str] = set()
        self.ended = False
        self._package = Package(checkout)

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """Take in an event of Python's profiler."""
        if (
            event not in ("call", "return")
            or not self._package.has(frame)
            or frame.f_code.co_name == "<module>"
        ):
            return
        name = self._package.name(frame)
        if name.startswith("a3c_exp/core/worker.py:Worker."):
            self.ended = True
            sys.setprofile(None)
        elif any(holds(value) for value in list(frame.f_locals.values())):
            self.functions.add(name)


def holds(value: Any, levels: int = LEVELS, numbers: bool = True) -> bool:
    """Whether a value is the marked override, or holds it: as a text, or as its number in lists and
    mappings.

    The number in a record is none: it is a component, which has been built from the override.
    """
    if isinstance(value, str):
        return MARK in value
    if isinstance(value, float):
        return numbers and value == float(MARK)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        numbers = False
        parts = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        parts = _values(value)
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
    else:
        return False
    return levels > 0 and any(holds(part, levels - 1, numbers) for part in parts)


def _values(mapping: Mapping[Any, Any]) -> list[Any]:
    try:
        return list(mapping.values())
    except Exception:  # a configuration of OmegaConf with an interpolation that leads nowhere
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
