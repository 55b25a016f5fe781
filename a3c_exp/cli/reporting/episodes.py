"""episodes.csv, as a report draws it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from a3c_exp.run.run_folder import EPISODES_FILE

Array = NDArray[np.float64]

COLUMNS = 5


@dataclass(frozen=True, slots=True)
class Episodes:
    """Training episodes of a run in the order in which they ended, float64 [N] each."""

    steps: Array
    workers: Array
    returns: Array
    lengths: Array


def read_episodes(folder: Path) -> Episodes:
    """The episodes of the run in `folder`, none if it has recorded none. A row that is incomplete ends them.

    Raises OSError and ValueError for a damaged file.
    """
    path = folder / EPISODES_FILE
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)[1:] if path.exists() else []
    if lines and not lines[-1].endswith("\n"):
        del lines[-1]  # it is being written
    table = np.loadtxt(lines, delimiter=",", ndmin=2) if lines else np.empty((0, COLUMNS))
    if table.shape[1] != COLUMNS:
        raise ValueError(f"{EPISODES_FILE} has {table.shape[1]} columns, not {COLUMNS}")
    steps, workers, returns, lengths = table[np.argsort(table[:, 0], kind="stable"), :4].T
    return Episodes(steps, workers, returns, lengths)


def running_mean(values: Array, window: int) -> Array:
    """The mean of the last `window` values at each [N], of fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))
