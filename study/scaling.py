"""The section of RESULTS.md on the number of workers: whether N of them are N times as fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from a3c_exp.common.estimates import median_reached
from a3c_exp.run import markdown
from study.records import Record
from study.text import text

ENTRIES = {1: "lunar_workers_1", 2: "lunar", 4: "lunar_workers_4", 8: "lunar_workers_8", 16: "lunar_workers_16"}
"""By the number of workers. `lunar` has one for each core of a machine of two."""
COLUMNS = (
    "workers",
    "seeds",
    "steps/s",
    "steps to 200",
    "seconds to 200",
    "against one worker: steps/s",
    "steps",
    "seconds",
)


def section(records: Mapping[str, Sequence[Record]]) -> str:
    """The section from the records by entry; empty without those of one worker."""
    one = records.get(ENTRIES[1])
    if not one:
        return ""
    by_workers = {workers: records.get(name, ()) for workers, name in ENTRIES.items()}
    table = markdown.table(COLUMNS, [_row(workers, rows, one) for workers, rows in by_workers.items() if rows])
    return text("scaling", table=table)


def _row(workers: int, rows: Sequence[Record], one: Sequence[Record]) -> list[str]:
    figures, reference = _medians(rows), _medians(one)
    ratios = [figure / base for figure, base in zip(figures, reference, strict=True)]
    return [
        f"{workers}",
        f"{len(rows)}",
        *(f"{figure:,.{digits}f}" for figure, digits in zip(figures, (0, 0, 1), strict=True)),
        *(f"{ratio:.2f}" for ratio in ratios),
    ]


def _medians(rows: Sequence[Record]) -> tuple[float, float, float]:
    """Steps a second, and steps and seconds until solved."""
    return (
        median(row.steps_per_second for row in rows),
        median_reached([row.solved_steps for row in rows]),
        median_reached([row.solved_seconds for row in rows]),
    )
