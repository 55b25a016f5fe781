"""The script that `bench.same` and `bench.path` run with the package of another checkout, in a process of its own.

    python bench/child.py train CHECKOUT key=value ...
    python bench/child.py path CHECKOUT FOLDER

This script imports nothing of bench: the other checkout may have a bench of its own, or none. Neither does it name
anything of a3c_exp but the command and `a3c_exp.train`.
"""

from __future__ import annotations

import collections
import contextlib
import csv
import dataclasses
import importlib
import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

PATH_RUN = (
    "env=cartpole", "backend=serial", "workers=1", "envs_per_worker=4", "rollout_length=64", "total_steps=2048",
    "stop.mean_return=null", "eval.every=null", "checkpoint.every=null",
)  # fmt: skip
STEPS_OF_AN_UPDATE = 4 * 64
# Points of the curves: the way that is counted lies between these two.
FIRST_POINT, LAST_POINT = 4, 5
# What Python calls the constructors that it generates; a named tuple's is an unnamed function.
CONSTRUCTORS = {"__init__", "__new__", "<lambda>", "_make"}
GENERATED = {"<string>", collections.__file__}


def main(arguments: Sequence[str]) -> int:
    """Run a command; its exit code."""
    command, checkout, *rest = arguments
    place = Path(checkout).resolve()
    sys.path[0] = str(place)  # in the place of this script's own folder
    if command == "train":
        return train(place, rest)
    measure(place, Path(rest[0]))
    return 0


def package_of(checkout: Path) -> ModuleType:
    """The package, imported. Ends the process where it is that of another checkout."""
    package = importlib.import_module("a3c_exp")
    found = Path(str(package.__file__)).resolve()
    if found.parent != checkout / "a3c_exp":
        sys.exit(f"the package that is imported is not that of {checkout}: {found}")
    return package


# -- train ----------------------------------------------------------------------------------------------------------


def train(checkout: Path, overrides: Sequence[str]) -> int:
    """Run `python -m a3c_exp` with a clock that stands still, and moves on with each checkpoint alone."""
    set_clock(_clock_of_checkpoints())
    package_of(checkout)
    _make_every_point()
    sys.argv = ["a3c_exp", *overrides]
    try:
        runpy.run_module("a3c_exp", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def _make_every_point() -> None:
    """Let curves get a point while the last one is still being written: none may depend on the disk."""
    with contextlib.suppress(ImportError):  # an older checkout, which writes each point at once
        from a3c_exp.run.output import RunOutput

        RunOutput.busy = property(lambda output: False)  # type: ignore[method-assign,assignment]


def _clock_of_checkpoints() -> Callable[[], float]:
    """Seconds: a thousand more for each checkpoint that has taken its place.

    Curves get their points by the clock. With this one they get them at the same steps in every run, however often the
    program looks at it.
    """
    saved = 0
    replace = os.replace

    def counting(source: Any, target: Any, **places: Any) -> None:
        nonlocal saved
        replace(source, target, **places)
        saved += Path(os.fsdecode(target)).parent.name == "checkpoints"

    os.replace = counting  # type: ignore[assignment]
    return lambda: 1.0 + 1000.0 * saved


def set_clock(clock: Callable[[], float]) -> None:
    """Let Python's clocks that never go backwards tell these seconds. To be called before the package is imported."""
    time.perf_counter = time.monotonic = clock
    time.perf_counter_ns = time.monotonic_ns = lambda: int(clock() * 1e9)


# -- path -----------------------------------------------------------------------------------------------------------


def measure(checkout: Path, folder: Path) -> None:
    """Train a moment, and write to `folder`/path.json what `bench.path` tells: files, records and frames."""
    calls = 0

    def clock() -> float:
        nonlocal calls
        calls += 1
        return 10.0 * calls  # so far on whenever it is looked at that each update gets a point of the curves

    set_clock(clock)
    package = package_of(checkout)
    importlib.import_module("torch")  # not under the profiler, which would take seconds
    way = Way(checkout, folder / "run")
    sys.setprofile(way.note)
    try:
        package.train(list(PATH_RUN), folder=folder / "run")
    finally:
        sys.setprofile(None)
    with open(folder / "run" / "metrics.csv", newline="", encoding="utf-8") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    if steps[LAST_POINT - 1] - steps[FIRST_POINT - 1] != STEPS_OF_AN_UPDATE:
        sys.exit(f"not every update has got a point of the curves; they are at the steps {steps}")
    found = {"files": sorted(way.files), "records": sorted(way.records), "frames": way.frames}
    (folder / "path.json").write_text(json.dumps(found), encoding="utf-8")


class Way:
    """Calls between two points of the curves.

    checkout: with the package. run: the folder of the run. Its metrics.jsonl, or in earlier checkouts its metrics.csv,
        grows with each point.

    files, records: by name. frames: the deepest stack, outermost first, as `file:function`.
    """

    def __init__(self, checkout: Path, run: Path) -> None:
        self.files: set[str] = set()
        self.records: set[str] = set()
        self.frames: list[str] = []
        self._root = f"{checkout}/"
        self._package = f"{checkout}/a3c_exp/"
        self._tables = [(str(run / "metrics.jsonl"), 0), (str(run / "metrics.csv"), 1)]  # with lines that are no point
        self._size = self._points = 0

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """Take in an event of Python's profiler."""
        if event not in ("call", "return") or self._points > LAST_POINT:
            return
        self._look_at_table()
        if event != "call" or not FIRST_POINT <= self._points < LAST_POINT:
            return
        name = frame.f_code.co_filename
        if name.startswith(self._package):
            self.files.add(name.removeprefix(self._root))
            stack = list(self._stack(frame))
            if len(stack) > len(self.frames):
                self.frames = stack[::-1]
        if frame.f_code.co_name in CONSTRUCTORS and (name in GENERATED or name.startswith(self._package)):
            self._note_record(frame)

    def _look_at_table(self) -> None:
        for path, heads in self._tables:
            try:
                size = os.stat(path).st_size
            except FileNotFoundError:
                continue
            if size != self._size:
                self._size = size
                self._points = Path(path).read_bytes().count(b"\n") - heads
            return

    def _stack(self, frame: FrameType | None) -> Iterator[str]:
        """The package's frames from here outwards."""
        while frame is not None:
            if frame.f_code.co_filename.startswith(self._package):
                yield f"{frame.f_code.co_filename.removeprefix(self._root)}:{frame.f_code.co_qualname}"
            frame = frame.f_back

    def _note_record(self, frame: FrameType) -> None:
        code = frame.f_code
        if not code.co_argcount:
            return
        first = frame.f_locals.get(code.co_varnames[0])
        kind = first if isinstance(first, type) else type(first)
        module = sys.modules.get(kind.__module__)
        ours = (getattr(module, "__file__", None) or "").startswith(self._package)
        if ours and (dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))):
            self.records.add(f"{kind.__module__}.{kind.__qualname__}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
