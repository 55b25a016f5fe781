"""`python -m evidence.bench.peers`: this project beside other libraries, on tasks that everybody
knows: steps per second, and seconds until a task is solved.

    python -m evidence.bench.peers --install                # a virtual environment for each library
    python -m evidence.bench.peers --file cleanrl=ppo.py --file purejaxrl=../purejaxrl/ppo.py

What is measured is in evidence/bench/peers.yaml, and how in evidence/bench/drivers. All libraries
have the same stop rule, and each the better of one and two threads. A training ends when the task
is solved, after the steps that its settings name, or after 300 s. Every figure is kept in
evidence/bench/peers.csv, from which evidence/bench/PEERS.md is written; its first table is the one
for README.md. A library that is not there is a line of the output, and no failure.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import importlib.util
import io
import json
import math
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from a3c_exp.run import files, markdown, provenance
from evidence.bench.checkout import HERE, leave_kernels_to_openblas
from evidence.bench.drivers import cleanrl, purejaxrl
from evidence.bench.drivers.watch import Task

FOLDER = Path(__file__).parent
VENVS = HERE / "build" / "peers"
"""Where `--install` makes the virtual environments."""

ZOO: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "zoo.yaml").read_text(encoding="utf-8"))
"""The zoo's settings, by "algorithm environment"."""
LISTS: dict[str, Any] = yaml.safe_load((FOLDER / "peers.yaml").read_text(encoding="utf-8"))
"""The content of peers.yaml, which says what its parts are."""

THREADS = (1, 2)
LIMIT_SECONDS = 300.0
GRACE_SECONDS = 300.0
"""For what comes before and after a training: to import, to compile, to finish an iteration."""

CHANGES = {"CleanRL": cleanrl.CHANGES, "purejaxrl": purejaxrl.CHANGES + purejaxrl.WRAPPER_CHANGES}


class UnavailableError(Exception):
    """A system that is not installed. The message says how to install it."""


class DriverError(RuntimeError):
    """A driver that has failed. The message is the last line that it wrote."""


@dataclass(frozen=True)
class Peer:
    """A line of the table.

    name: library and algorithm. driver: a module of evidence/bench/drivers.
    settings: as the driver takes them, by environment; {zoo: algorithm} for those of zoo.yaml.
    venv: key of `venvs`. None: this interpreter. file: key of `files`, if the library is a file.
    source: where the settings are published, by environment. Others are defaults.
    """

    name: str
    driver: str
    settings: Mapping[str, Mapping[str, Any]]
    venv: str | None = None
    file: str | None = None
    source: Mapping[str, str] = field(default_factory=dict)

    def settings_in(self, environment: str) -> dict[str, Any]:
        """Return the settings of a training."""
        settings = dict(self.settings[environment])
        algorithm = settings.pop("zoo", None)
        return settings if algorithm is None else zoo(algorithm, environment) | settings


@dataclass(frozen=True)
class Figure:
    """A row of peers.csv: a speed, or a training until the task is solved.

    seed: of a training; empty for a speed. solved_seconds: empty if the task was not solved.
    measured: when, how and where.
    """

    peer: str
    environment: str
    threads: str
    seed: str
    steps_per_second: str
    steps: str
    solved_seconds: str
    mean_return: str
    start_seconds: str
    measured: str


PEERS = tuple(Peer(**row) for row in LISTS["peers"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, also where a library is not there; 1 if a driver failed; 2 for
    bad arguments; 130 after Ctrl-C or SIGTERM, which end the driver too."""
    flags = _flags(arguments)
    leave_kernels_to_openblas()
    chosen = [peer for peer in PEERS if flags.only is None or peer.name in flags.only]
    if flags.install:
        names = dict.fromkeys(peer.venv for peer in chosen if peer.venv)
        failures = [name for name in names if not install(name)]
        return int(bool(failures))

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        failed = False if flags.table else measure_all(chosen, flags)
    except KeyboardInterrupt:
        print("interrupted: what was measured is kept", file=sys.stderr)
        return 130

    print(table(read()))
    return int(failed)


def measure_all(chosen: Iterable[Peer], flags: argparse.Namespace) -> bool:
    """Measure and record each peer in each environment. Returns whether a driver failed."""
    has_failed = False
    for peer in chosen:
        for environment in peer.settings:
            if flags.env not in (None, environment):
                continue
            try:
                record(measure(peer, environment, flags))
            except UnavailableError as reason:
                print(f"{peer.name}: {reason}", file=sys.stderr)
                break
            except DriverError as error:
                print(f"{peer.name} on {environment} failed: {error}", file=sys.stderr)
                has_failed = True
    return has_failed


def _flags(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m evidence.bench.peers", description="This project beside other libraries."
    )
    names = [peer.name for peer in PEERS]
    parser.add_argument("--install", action="store_true", help="make virtual environments, by pip")
    parser.add_argument(
        "--table", action="store_true", help="measure nothing: print the table that is recorded"
    )
    parser.add_argument(
        "--only", action="append", choices=names, metavar="PEER", help=f"of {'; '.join(names)}"
    )
    parser.add_argument("--env", choices=LISTS["goals"], help="only this environment")
    for flag, what, group in (("--python", "interpreter", "venvs"), ("--file", "file", "files")):
        parser.add_argument(
            flag,
            action="append",
            default=[],
            type=_pair(LISTS[group]),
            metavar="NAME=PATH",
            help=f"the {what} of {', '.join(LISTS[group])}",
        )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of a speed (default 3)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each of them (default 5)")
    parser.add_argument("--seeds", type=int, help="trainings (default 5; LunarLander: 3)")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_SECONDS, help="seconds of a training (default 300)"
    )
    flags = parser.parse_args(arguments)
    for name in ("rounds", "seconds", "seeds", "limit"):
        number = getattr(flags, name)
        if number is not None and not 0 < number < math.inf:
            parser.error(f"argument --{name}: {number} must be above 0")
    return flags


def _pair(names: Iterable[str]) -> Any:
    """Return a parser of NAME=PATH."""

    def parse(text: str) -> tuple[str, Path]:
        name, _, path = text.partition("=")
        if name not in names or not Path(path).is_file():
            allowed = f"NAME=PATH of a file, with NAME one of {', '.join(names)}"
            raise argparse.ArgumentTypeError(f"{text!r} must be {allowed}")
        return name, Path(path).absolute()

    return parse


# Environments.


def install(name: str) -> bool:
    """Make the virtual environment of a library. torch comes from where the user's pip takes it.
    Returns whether pip has succeeded."""
    folder = VENVS / name
    venv.create(folder, with_pip=True)
    packages = LISTS["venvs"][name]
    print(f"{folder}: pip install {' '.join(packages)}", flush=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", *packages]
    return subprocess.run(pip).returncode == 0


def python_of(name: str | None, given: Mapping[str, Path] | None = None) -> Path:
    """Return the interpreter that has a library: the given one, that of `install`, or this one.
    Raises UnavailableError."""
    if name is None:
        return Path(sys.executable)
    if given and name in given:
        return given[name]

    installed = VENVS / name / "bin" / "python"
    if installed.exists():
        return installed
    if importlib.util.find_spec(name.replace("-", "_")):
        return Path(sys.executable)
    raise UnavailableError("not installed: python -m evidence.bench.peers --install")


# Measurements.


def zoo(algorithm: str, environment: str) -> dict[str, Any]:
    """Return the settings of stable-baselines3's driver that rl-baselines3-zoo has published."""
    return {"algorithm": algorithm, **ZOO[f"{algorithm} {environment}"]}


def drive(driver: str, python: Path, task: Task) -> dict[str, Any]:
    """Carry out a task in a process with both cores to itself, and return the report of the watch.
    Raises DriverError."""
    launched = replace(task, launched=time.time())
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [python, "-m", f"evidence.bench.drivers.{driver}", launched.to_json()],
                cwd=folder,
                env=task.variables() | {"PYTHONPATH": str(HERE), "TMPDIR": folder},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=task.seconds + GRACE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise DriverError(f"it took {GRACE_SECONDS:g} s more than it may") from None
        except OSError as error:  # --python names a file that is no program
            raise DriverError(str(error)) from None

    lines = (done.stdout if done.returncode == 0 else done.stderr).splitlines()
    last = next((line for line in reversed(lines) if line.strip()), "it wrote nothing")
    if done.returncode:
        raise DriverError(last)
    report: dict[str, Any] = json.loads(last)
    return report


def speed(driver: str, python: Path, task: Task) -> float:
    """Return the steps per second of a task without a goal. Raises DriverError."""
    value = drive(driver, python, task)["steps_per_second"]
    if value is None:
        raise DriverError("it made fewer than two iterations")
    return float(value)


def measure(peer: Peer, environment: str, flags: argparse.Namespace) -> list[Figure]:
    """Measure speeds with each number of threads, then train with the better one. Raises
    UnavailableError and DriverError."""
    python = python_of(peer.venv, dict(flags.python))
    file = None if peer.file is None else dict(flags.file).get(peer.file)
    if peer.file is not None and file is None:
        raise UnavailableError(f"--file {peer.file}=PATH of {LISTS['files'][peer.file]}")

    task = Task(
        environment, peer.settings_in(environment), file=None if file is None else str(file)
    )
    # this project has a process for each core
    choices = (1,) if peer.venv is None else THREADS
    speeds: dict[int, list[float]] = {threads: [] for threads in choices}
    for _ in range(flags.rounds):
        for threads, values in speeds.items():
            timed = replace(task, threads=threads, seconds=flags.seconds)
            values.append(speed(peer.driver, python, timed))
            print(f"{peer.name}, {environment}, threads={threads}: {values[-1]:,.0f}", flush=True)

    best = max(speeds, key=lambda threads: median(speeds[threads]))
    measured = _measured(flags)
    figures = [
        _figure(peer, environment, best, {"steps_per_second": value}, measured)
        for value in speeds[best]
    ]
    for seed in range(flags.seeds or LISTS["seeds"][environment]):
        goal = LISTS["goals"][environment]
        training = replace(task, threads=best, seed=seed, goal=goal, seconds=flags.limit)
        report = drive(peer.driver, python, training)
        print(f"{peer.name}, {environment}, seed {seed}: {report}", flush=True)
        figures.append(_figure(peer, environment, best, report, measured, seed))

    return figures


def _figure(
    peer: Peer,
    environment: str,
    threads: int,
    report: Mapping[str, Any],
    measured: str,
    seed: int | None = None,
) -> Figure:
    numbers = ("steps_per_second", "steps", "solved_seconds", "mean_return", "start_seconds")
    cells = {name: "" if report.get(name) is None else f"{report[name]:.6g}" for name in numbers}
    return Figure(
        peer=peer.name,
        environment=environment,
        threads=str(threads),
        seed="" if seed is None else str(seed),
        measured=measured,
        **cells,
    )


def _measured(flags: argparse.Namespace) -> str:
    """Return when, how and where figures are measured."""
    machine = provenance.machine()
    commit = provenance.commit() or "no commit"
    how = f"{flags.rounds} x {flags.seconds:g} s, trainings at most {flags.limit:g} s"
    where = f"{machine['processor']}, {machine['usable_cores']} usable cores"
    return f"{datetime.date.today()}, {commit[:7]}{commit[40:]}, {how}, {where}"


# The record and its tables.


def read() -> list[Figure]:
    """Return all rows of peers.csv."""
    path = FOLDER / "peers.csv"
    if not path.exists():
        return []
    rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
    return [Figure(**row) for row in rows]


def record(figures: Sequence[Figure]) -> None:
    """Replace the rows of a peer in an environment, and write PEERS.md."""
    replaced = (figures[0].peer, figures[0].environment)
    others = [row for row in read() if (row.peer, row.environment) != replaced]
    rows = [*others, *figures]

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(column.name for column in fields(Figure))
    writer.writerows(map(astuple, rows))
    files.write_text(FOLDER / "peers.csv", text.getvalue())
    files.write_text(FOLDER / "PEERS.md", document(rows))


def document(figures: Sequence[Figure]) -> str:
    """Return PEERS.md: the table, what is behind each of its cells, and the changes of files."""
    changes = [
        f"- {name}: {change.reason}." for name, changes in CHANGES.items() for change in changes
    ]
    pinned = map(" ".join, LISTS["venvs"].values())
    parts = [
        "# Beside other libraries",
        "`python -m evidence.bench.peers` writes this file. A task is solved when the mean of the "
        "last 100 training episodes reaches gymnasium's reward threshold. Seconds count from the "
        "first step; `start` is what passes from the command until then: imports, and compiling "
        "if a library does that first. Speeds and seconds are medians over rounds and seeds. In "
        "brackets: how many seeds have solved the task, if not all, within the time that "
        "`measured` names and the steps of their settings. Bold: the best of a column. The "
        "environments of purejaxrl are gymnax's, which are compiled together with the training.",
        table(figures),
        "## Settings and seeds",
        details(figures),
        "## Versions",
        "\n".join(f"- {packages}" for packages in [*pinned, *LISTS["files"].values()]),
        "## Changes",
        "These lines of the files of CleanRL and purejaxrl are replaced, in memory.",
        "\n".join(changes),
    ]
    return "\n\n".join(parts) + "\n"


def table(figures: Sequence[Figure]) -> str:
    """Return the table of README.md: a line for each peer that was measured."""
    header = ["library"]
    columns: list[list[tuple[str, float]]] = []
    measured = [peer for peer in PEERS if any(row.peer == peer.name for row in figures)]
    for environment in LISTS["goals"]:
        name = environment.partition("-")[0]
        header += [f"{name}, steps/s", f"{name}, seconds until solved"]
        cells = [cells_of(peer.name, environment, figures) for peer in measured]
        columns += [[speed for speed, _ in cells], [solved for _, solved in cells]]

    texts = [_with_best(column) for column in columns]
    rows = [[peer.name, *cells] for peer, *cells in zip(measured, *texts, strict=True)]
    return markdown.table(header, rows)


def cells_of(
    name: str, environment: str, figures: Sequence[Figure]
) -> tuple[tuple[str, float], tuple[str, float]]:
    """Return the speed and the seconds of a peer, each as a text with its rank: the lower, the
    better."""
    rows = [row for row in figures if (row.peer, row.environment) == (name, environment)]
    if not rows:
        return ("-", math.inf), ("-", math.inf)

    speeds = [float(row.steps_per_second) for row in rows if not row.seed]
    trainings = [float(row.solved_seconds or math.inf) for row in rows if row.seed]
    solved = sum(map(math.isfinite, trainings))
    seconds = median(trainings)
    text = f"{seconds:.1f}" if math.isfinite(seconds) else "not reached"
    if solved < len(trainings):
        text += f" ({solved} of {len(trainings)})"
    return (f"{median(speeds):,.0f}", -median(speeds)), (text, seconds)


def _with_best(column: Sequence[tuple[str, float]]) -> list[str]:
    best = min((rank for _, rank in column), default=math.inf)
    return [
        f"**{text}**" if rank == best and math.isfinite(rank) else text for text, rank in column
    ]


def details(figures: Sequence[Figure]) -> str:
    """Return the table of every training."""
    header = (
        "library",
        "task",
        "settings",
        "threads",
        "seconds of each seed",
        "start, s",
        "measured",
    )
    rows = []
    for peer in PEERS:
        for environment in peer.settings:
            trainings = [
                row
                for row in figures
                if row.seed and (row.peer, row.environment) == (peer.name, environment)
            ]
            if not trainings:
                continue

            seconds = [
                f"{float(row.solved_seconds):.1f}"
                if row.solved_seconds
                else f"not reached ({float(row.mean_return or math.nan):.4g})"
                for row in trainings
            ]
            start = median(float(row.start_seconds) for row in trainings)
            source = peer.source.get(environment, "defaults")
            first = trainings[0]
            rows.append(
                (
                    peer.name,
                    environment,
                    source,
                    first.threads,
                    ", ".join(seconds),
                    f"{start:.1f}",
                    first.measured,
                )
            )

    return markdown.table(header, rows)


if __name__ == "__main__":
    sys.exit(main())
