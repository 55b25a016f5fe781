"""Two runs compared bit for bit: checkpoints, summary.json and metrics.csv, without times.

The files are read without a3c_exp, so that it does not matter which version of the package is
imported.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Entries = dict[str, NDArray[Any]]

REQUIRED = (
    "latest.ckpt/store/parameters",
    "latest.ckpt/store/optimizer_state",
    "latest.ckpt/statistics/recent_returns",
    "metrics.csv/train/policy_loss",
)
"""Entries that both runs need to have, so that enough is compared."""
TIMES = {
    "seconds",
    "training_seconds",
    "wall_seconds",
    "steps_per_second",
    "solved_at_seconds",
    "solved/1",
}
"""Entries that depend on the clock, by their last name or their whole name."""
ORIGIN = {"versions", "commit", "command", "machine"}
"""Entries of summary.json about who has made the run, and where."""


@dataclass(frozen=True)
class Comparison:
    """differences: `entry: what differs`, in the order of the checkpoint. here, there: entries of
    one side alone."""

    differences: list[str]
    here: list[str]
    there: list[str]


def compare(here: Entries, there: Entries) -> Comparison:
    """Compare two results of `read_run`. A required entry that is not on both sides is a
    difference; other entries of one side alone are listed."""
    lacking = [
        f"{name}: not on both sides" for name in REQUIRED if not (name in here and name in there)
    ]
    texts = ((name, difference(here[name], there[name])) for name in here if name in there)
    return Comparison(
        [*lacking, *(f"{name}: {text}" for name, text in texts if text is not None)],
        [name for name in here if name not in there],
        [name for name in there if name not in here],
    )


def difference(here: NDArray[Any], there: NDArray[Any]) -> str | None:
    """Return the difference between two arrays, as text; None for the same bits. NaN equals NaN,
    and 0 is not -0."""
    if here.shape != there.shape:
        return f"shape {list(here.shape)} here, {list(there.shape)} there"
    if "U" in (here.dtype.kind, there.dtype.kind):
        here, there = here.astype(str), there.astype(str)
        unequal = np.atleast_1d(here != there)
    elif here.dtype != there.dtype:
        return f"{here.dtype} here, {there.dtype} there"
    else:
        bits = f"V{here.dtype.itemsize}"
        unequal = np.atleast_1d(
            np.ascontiguousarray(here).view(bits) != np.ascontiguousarray(there).view(bits)
        )

    if not unequal.any():
        return None
    first = int(unequal.argmax())
    return (
        f"{here.flat[first]} here, {there.flat[first]} there; "
        f"{int(unequal.sum())} of {unequal.size}"
    )


# -- reading
# --------------------------------------------------------------------------------------------------


def read_run(folder: Path) -> Entries:
    """Return the content of a run's folder by `file/name`, without times.

    A column of metrics.csv is an array of text [rows]. Raises OSError, ValueError and KeyError if
    it is no run.
    """
    entries: Entries = {}
    for path in sorted((folder / "checkpoints").glob("*.ckpt"), reverse=True):  # latest before best
        entries |= {f"{path.name}/{name}": array for name, array in read_checkpoint(path).items()}
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    entries |= {
        f"metrics.csv/{name}": np.array([row[name] for row in rows], np.str_) for name in rows[0]
    }
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    plain = {name: value for name, value in summary.items() if name not in ORIGIN}
    entries |= {f"summary.json/{name}": array for name, array in _flat(plain)}

    return {name: array for name, array in entries.items() if not _is_time(name.partition("/")[2])}


def read_checkpoint(path: Path) -> Entries:
    """Return all arrays and plain values of a checkpoint by `section/name`."""
    entries: Entries = {}
    with zipfile.ZipFile(path) as archive:
        arrays = set(archive.namelist()) - {"state.json"}
        for name, value in _flat(json.loads(archive.read("state.json"))["state"]):
            # {"__array__": "store/parameters.npy"}
            if value.dtype.kind == "U" and str(value) in arrays:
                data = io.BytesIO(archive.read(str(value)))
                entries[name.rpartition("/")[0]] = np.lib.format.read_array(
                    data, allow_pickle=False
                )
            else:
                entries[name] = value

    return entries


def _flat(value: Any, place: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the leaves of nested plain data by their place, with a slash between names; null is
    text."""
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(inner, f"{place}/{name}" if place else str(name))
    else:
        yield place, np.array("null" if value is None else value)


def _is_time(name: str) -> bool:
    return name in TIMES or name.rpartition("/")[2] in TIMES or name.startswith("time/")
