"""`python -m bench`: measure every row, print the table, and write it to bench/RESULTS.md.

Figures are taken by turns (this project, what it is compared with, this project, ...), so that a machine that slows
down does so for both; the table has the medians, and the median, lowest and highest of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from a3c_exp import provenance
from bench.peers import MissingPeerError, peer_versions
from bench.rows import ROWS, Row

RESULTS = Path(__file__).parent / "RESULTS.md"
HEADER = ("what", "a3c_exp", "compared with", "its figure", "ratio (lowest - highest)", "bar", "reached")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 2 for a bad argument. A bar that is missed is told in the table, and is no failure."""
    flags = _parser().parse_args(arguments)
    rounds, seconds = (1, 2.0) if flags.quick else (flags.rounds, flags.seconds)
    chosen = [row for row in ROWS if flags.only is None or row.name in flags.only]
    cells = [line for row in chosen for line in table_lines(row, rounds, seconds)]
    text = f"{_conditions(rounds, seconds)}\n\n{_table(cells)}\n"
    print(f"\n{text}")
    if flags.quick or flags.only is not None:
        print(f"{RESULTS.name} is left as it is: only a full run writes it")
    else:
        RESULTS.write_text(f"# Speed and memory\n\nWritten by `make bench`.\n\n{text}", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(prog="python -m bench", description="Speed and memory, beside others'.")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"one of {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="one short round of each: to see that it works")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured (default 3)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement (default 10)")
    return parser


def table_lines(row: Row, rounds: int, seconds: float) -> list[list[str]]:
    """Measure a row; one line of cells for each figure that it is compared with."""
    found: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    for number in range(rounds):
        for measurement in (row.subject, *row.against):
            if measurement.label in missing:
                continue
            try:
                figure = measurement.measure(seconds)
            except MissingPeerError as reason:
                missing[measurement.label] = str(reason)
                continue
            found.setdefault(measurement.label, []).append(figure)
            print(f"{row.name}, round {number + 1}: {measurement.label}: {_figure(figure)} {row.unit}", file=sys.stderr)
    ours = found[row.subject.label]
    own = f"{_figure(median(ours))} {row.unit}"
    if not row.against:
        return [[row.title, own, "", "", "", *_bar(median(ours), row.at_least, row.at_most)]]
    lines = []
    for other in row.against:
        bar = row.at_least if other is row.against[0] else None
        if other.label in missing:
            comparison = [missing[other.label], "", *_bar(None, bar, None)]
        else:
            comparison = _comparison(ours, found[other.label], row.unit, bar)
        lines.append([row.title, own, other.label, *comparison])
    return lines


def _comparison(ours: list[float], theirs: list[float], unit: str, bar: float | None) -> list[str]:
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    spread = f"{_figure(median(ratios))} ({_figure(min(ratios))} - {_figure(max(ratios))})"
    return [f"{_figure(median(theirs))} {unit}", spread, *_bar(median(ratios), bar, None)]


def _bar(value: float | None, at_least: float | None, at_most: float | None) -> list[str]:
    """The bar, and whether it is reached; a value of None could not be measured."""
    if at_least is None and at_most is None:
        return ["", ""]
    bar = f">= {at_least:g}" if at_least is not None else f"<= {at_most:g}"
    if value is None:
        return [bar, "not measured"]
    reached = value >= at_least if at_least is not None else at_most is not None and value <= at_most
    return [bar, "yes" if reached else "no"]


def _figure(value: float) -> str:
    """Three significant digits, thousands with commas."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _conditions(rounds: int, seconds: float) -> str:
    """Everything that the figures depend on."""
    machine, versions = provenance.machine(), provenance.versions()
    versions |= peer_versions()
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    lines = [
        f"{machine['processor']}, {machine['usable_cores']} usable cores, "
        f"{int(machine['memory_bytes'] or 0) / 1e9:.0f} GB, {machine['system']}; load average at the end {load}.",
        ", ".join(f"{name} {version or '(not here)'}" for name, version in versions.items()) + ".",
        f"{datetime.date.today()}, commit {provenance.commit()}, `{provenance.command()}`: "
        f"medians of {rounds} rounds of {seconds:g} s each.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _table(cells: list[list[str]]) -> str:
    rows = [HEADER, ["---"] * len(HEADER), *cells]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
