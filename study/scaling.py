"""The section of RESULTS.md on the number of workers: whether N of them are N times as fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from a3c_exp.common.estimates import median_reached
from a3c_exp.run import markdown
from study.records import Record

ENTRIES = {1: "lunar_workers_1", 2: "lunar", 4: "lunar_workers_4", 8: "lunar_workers_8", 16: "lunar_workers_16"}
"""By the number of workers. `lunar` has one for each core of a machine of two."""
HEADING = "Are N workers N times as fast?"
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
TEXT = """\
A notebook of threads that share one Adam says that N workers should converge N times as fast, and in practice faster
still. Here LunarLander's own settings are run with more and more workers on a machine of two cores; medians over seeds
from the records above, seeds that never reached 200 counted as the slowest.

{table}

Two workers have nearly twice the steps a second, since each has a core of its own; more than two share these cores.
Steps to 200 do not fall with more workers: each update is as large and as noisy as one worker's own, and moves the
parameters by as much. N workers make no better updates, only more of them a second, and staler ones, of which it then
takes some more. So workers pay as far as there are cores for them. They could save steps as well only where one worker
learns worse because its own transitions resemble one another, the reason that Mnih et al. 2016 (section 4) give for
many workers; with two environments and 128 steps of each in an update, nothing of it is seen here."""


def section(records: Mapping[str, Sequence[Record]]) -> str:
    """The section from the records by entry; empty without those of one worker."""
    one = records.get(ENTRIES[1])
    if not one:
        return ""
    by_workers = {workers: records.get(name, ()) for workers, name in ENTRIES.items()}
    table = markdown.table(COLUMNS, [_row(workers, rows, one) for workers, rows in by_workers.items() if rows])
    return f"## {HEADING}\n\n{TEXT.format(table=table)}\n"


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
