"""episodes.csv, as a report draws it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from a3c_exp.common.reading import UnreadableError, read_text
from a3c_exp.report.runs import LARGEST_NUMBER
from a3c_exp.run.metrics import MOST_BYTES
from a3c_exp.run.run_folder import EPISODES_FILE

Array = NDArray[np.float64]

COLUMNS = 5


@dataclass(frozen=True, slots=True)
class Episodes:
    """Training episodes of a run in the order in which they ended, float64 [N] each."""

    workers: Array
    returns: Array
    lengths: Array


def read_episodes(folder: Path) -> Episodes:
    """The episodes of the run in `folder`, none if it has recorded none. A last row that is incomplete is skipped.

    Raises OSError, and UnreadableError for a damaged file.
    """
    lines: list[str] = []
    with suppress(FileNotFoundError):
        lines = read_text(folder / EPISODES_FILE, MOST_BYTES).splitlines(keepends=True)[1:]
    if lines and not lines[-1].endswith("\n"):
        del lines[-1]  # it is being written
    try:
        table = np.loadtxt(lines, delimiter=",", ndmin=2, comments=None) if lines else np.empty((0, COLUMNS))
    except ValueError as error:
        raise UnreadableError(" ".join(str(error).split())) from None
    if table.shape[1] != COLUMNS:
        raise UnreadableError(f"it has {table.shape[1]} columns, not {COLUMNS}")
    if not (np.abs(table) < LARGEST_NUMBER).all():
        raise UnreadableError("it has a number that is too large, or is none")
    workers, returns, lengths = table[np.argsort(table[:, 0], kind="stable"), 1:4].T  # by their steps
    return Episodes(workers, returns, lengths)


def running_mean(values: Array, window: int) -> Array:
    """The mean of the last `window` values at each [N], of fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))
