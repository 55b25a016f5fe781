"""`python -m evidence.bench`: measure every row, print the table, and write
evidence/bench/RESULTS.md.

The measurements are kept in evidence/bench/results.csv, from which the document is written.
`--only` replaces its rows there; the other rows keep their dates and commits.

Nothing that is measured has OPENBLAS_CORETYPE or OPENBLAS_L2_SIZE in its environment: OpenBLAS
chooses by the processor, here and in the systems that are compared.

The systems take turns (this project, the one it is compared with, this project, ...), so that a
machine that slows down does so for both. The table has the medians, and the median, lowest and
highest of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from statistics import median

import torch

from a3c_exp.networks.cnn import multiplies_bfloat16
from a3c_exp.run import files, markdown, provenance
from evidence.bench.checkout import HERE, leave_kernels_to_openblas
from evidence.bench.peers import UnavailableError
from evidence.bench.rows import ROWS, Row

FOLDER = Path(__file__).parent
INTRODUCTION = """Written by `make bench` from [results.csv](results.csv);
`python -m evidence.bench --only lunar` measures a row anew. Figures are medians over rounds, a
ratio that of the rounds' own. Where one thing is compared with several, the bar is for the first
of them. Measured: the date, the commit, how many rounds of how many seconds, and the machine. In
newer rows it ends with the kernels that OpenBLAS has chosen for the processor: OPENBLAS_CORETYPE
and OPENBLAS_L2_SIZE are unset, for this project and for the others. Our networks for images have
`network.precision=auto`: float32, and for 12 pictures and more (IMPALA's: 4) bfloat16 where the
processor multiplies it (AMX, or AVX-512's bfloat16)."""
HEADER = (
    "what",
    "a3c_exp",
    "compared with",
    "its figure",
    "ratio (lowest - highest)",
    "bar",
    "reached",
    "measured",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, also if a bar is missed, which the table shows; 2 for a bad
    argument."""
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(
        prog="python -m evidence.bench", description="Speed and memory, beside others'."
    )
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help=f"one of {', '.join(names)}"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often everything is measured (default 3)"
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of each measurement (default 10)"
    )
    flags = parser.parse_args(arguments)
    leave_kernels_to_openblas()
    commit = provenance.commit() or "no commit"
    how = f"{flags.rounds} x {flags.seconds:g} s"
    measured = f"{datetime.date.today()}, {commit[:7]}{commit[40:]}, {how}, {_machine()}"

    for row in ROWS:
        if flags.only is not None and row.name not in flags.only:
            continue
        if row.gpu and not torch.cuda.is_available():
            print(f"{row.name}: torch finds no GPU", file=sys.stderr)
        else:
            lines = [[*line, measured] for line in table_lines(row, flags.rounds, flags.seconds)]
            print(f"\n{markdown.table(HEADER, lines)}\n", flush=True)
            record(row.name, lines)

    return 0


def record(name: str, lines: list[list[str]]) -> None:
    """Replace a row's lines in results.csv, and write RESULTS.md from it."""
    table = FOLDER / "results.csv"

    recorded: dict[str, list[list[str]]] = {}
    if table.exists():
        for row_name, *line in csv.reader(io.StringIO(table.read_text(encoding="utf-8"))):
            recorded.setdefault(row_name, []).append(line)

    recorded[name] = lines
    table_rows = [(row.name, line) for row in ROWS for line in recorded.get(row.name, [])]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [row_name, *line] for row_name, line in table_rows
    )
    files.write_text(table, text.getvalue())
    parts = (
        "# Speed and memory",
        INTRODUCTION,
        _versions(),
        markdown.table(HEADER, [line for _, line in table_rows]),
    )
    files.write_text(FOLDER / "RESULTS.md", "\n\n".join(parts) + "\n")


def table_lines(row: Row, rounds: int, seconds: float) -> list[list[str]]:
    """Measure a row. Returns one line of cells for each system that it is compared with."""
    figures: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    for number in range(rounds):
        for measurement in (row.subject, *row.against):
            if measurement.label in missing:
                continue
            try:
                figure = measurement.measure(seconds)
            except UnavailableError as reason:
                missing[measurement.label] = str(reason)
                continue

            figures.setdefault(measurement.label, []).append(figure)
            print(
                (
                    f"{row.name}, round {number + 1}: {measurement.label}: "
                    f"{_figure(figure)} {row.unit}"
                ),
                file=sys.stderr,
            )

    ours = figures[row.subject.label]
    head = [row.title, f"{_figure(median(ours))} {row.unit}"]
    if not row.against:
        return [[*head, "", "", "", *_bar(median(ours), row.at_least, row.at_most)]]

    lines = []
    for other in row.against:
        bar = row.at_least if other is row.against[0] else None
        if other.label in missing:
            comparison = [missing[other.label], "", *_bar(None, bar)]
        else:
            theirs = figures[other.label]
            ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
            spread = f"{_figure(median(ratios))} ({_figure(min(ratios))} - {_figure(max(ratios))})"
            comparison = [
                f"{_figure(median(theirs))} {row.unit}",
                spread,
                *_bar(median(ratios), bar),
            ]

        lines.append([*head, other.label, *comparison])

    return lines


def _bar(value: float | None, at_least: float | None, at_most: float | None = None) -> list[str]:
    """Return the bar, and whether `value` reaches it. None: it could not be measured."""
    if at_least is not None:
        bar = f">= {at_least:g}"
        reached = value is not None and value >= at_least
    elif at_most is not None:
        bar = f"<= {at_most:g}"
        reached = value is not None and value <= at_most
    else:
        return ["", ""]

    return [bar, "not measured" if value is None else "yes" if reached else "no"]


def _figure(value: float) -> str:
    """Return three significant digits, thousands with commas."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _machine() -> str:
    machine = provenance.machine()
    half = " with bfloat16" if multiplies_bfloat16() else ""
    memory = f"{int(machine['memory_bytes'] or 0) / 1e9:.0f} GB"
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    cores = f"{machine['usable_cores']} usable cores"
    return f"{machine['processor']}{half}, {cores}, {memory}{gpu}{_blas()}"


def _blas() -> str:
    """Return the kernels that OpenBLAS chooses in a process of the package: `, OpenBLAS Zen`."""
    script = (
        "import a3c_exp, json, numpy, threadpoolctl as t\nprint(json.dumps(t.threadpool_info()))"
    )
    libraries = json.loads(subprocess.check_output([sys.executable, "-c", script], cwd=HERE))
    kernels = {lib["architecture"] for lib in libraries if lib["internal_api"] == "openblas"}
    return "".join(f", OpenBLAS {name}" for name in sorted(kernels))


def _versions() -> str:
    """Return the versions of the installed libraries."""
    versions = provenance.versions()
    for name in ("ale-py", "stable-baselines3"):
        versions[name] = None
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)

    return (
        ", ".join(f"{name} {version or '(not here)'}" for name, version in versions.items()) + "."
    )


if __name__ == "__main__":
    sys.exit(main())
