"""Tables that hold the rows of many records. The column `record` names the record of a row, and
`seed` its run.

Rows stand in the order of records and seeds, so that git shows a new run as new lines.
"""

from __future__ import annotations

import csv
import fcntl
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path

from a3c_exp.run import files

RECORD = "record"
SEED = "seed"

Grid = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The columns and the rows of a table that a page shows."""


def read(path: Path) -> Sequence[Mapping[str, str]]:
    """Return the rows of a table; none without the file."""
    return parsed(path.read_text(encoding="utf-8")) if path.exists() else ()


@lru_cache
def parsed(text: str) -> Sequence[Mapping[str, str]]:
    """Return the rows of a table's text."""
    return tuple(csv.DictReader(io.StringIO(text, newline="")))


def put(path: Path, rows: Sequence[Mapping[str, object]], key: Sequence[str]) -> None:
    """Add rows to a table, in place of those with the same values in the columns `key`.

    The file is replaced at once, and several processes may add to it.
    """
    with alone_in(path.parent):
        new = {tuple(str(row[column]) for column in key) for row in rows}
        unchanged = [row for row in read(path) if tuple(row[column] for column in key) not in new]
        every: list[Mapping[str, object]] = [*unchanged, *rows]
        every.sort(key=lambda row: (row[RECORD], int(str(row[SEED]))))

        text = io.StringIO()
        columns = list(dict.fromkeys(chain.from_iterable([*unchanged, *rows])))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(every)
        files.write_text(path, text.getvalue())


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make a folder, and wait until no other process changes its tables."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
