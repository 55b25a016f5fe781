"""Two runs compared bit for bit: checkpoints, summary.json and metrics.csv, without times.

The files are read without a3c_exp, so that it does not matter which version of the package is imported.
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

# Entries of a checkpoint that were renamed: the present name first. A row is for an entry or for all below it.
SYNONYMS = (
    ("statistics", "tally"),
    ("store/optimizer_state", "store/moments"),
    ("store/stats", "store/statistics"),
    ("store/rng_states", "store/random_states"),
    ("store/applied_gradients", "store/updates"),
)
# Entries that both runs need to have, so that enough is compared.
REQUIRED = (
    "latest.ckpt/store/parameters",
    "latest.ckpt/store/optimizer_state",
    "latest.ckpt/store/version",
    "latest.ckpt/store/applied_gradients",
    "latest.ckpt/store/steps",
    "latest.ckpt/store/rng_states",
    "latest.ckpt/statistics/steps",
    "latest.ckpt/statistics/episodes",
    "latest.ckpt/statistics/recent_returns",
    "latest.ckpt/statistics/recent_lengths",
    "latest.ckpt/statistics/recent_end_steps",
    "metrics.csv/step",
    "metrics.csv/train/policy_loss",
)
# Entries that depend on the clock, by their last name or their whole name; and the provenance in summary.json.
TIMES = {"seconds", "training_seconds", "wall_seconds", "steps_per_second", "solved_at_seconds", "solved/1"}
ORIGIN = {"versions", "commit", "command", "machine"}


@dataclass(frozen=True)
class Comparison:
    """differences: `entry: what differs`, in the order of the checkpoint. here, there: entries of one side alone."""

    differences: list[str]
    here: list[str]
    there: list[str]


def compare(here: Entries, there: Entries) -> Comparison:
    """Compare two results of `read_run`. A required entry that is not on both sides is a difference; other entries of
    one side alone are listed."""
    lacking = [f"{name}: not on both sides" for name in REQUIRED if not (name in here and name in there)]
    found = ((name, difference(here[name], there[name])) for name in here if name in there)
    return Comparison(
        [*lacking, *(f"{name}: {text}" for name, text in found if text is not None)],
        [name for name in here if name not in there],
        [name for name in there if name not in here],
    )


def difference(here: NDArray[Any], there: NDArray[Any]) -> str | None:
    """The difference between two arrays, as text; None for the same bits."""
    if here.shape != there.shape:
        return f"shape {list(here.shape)} here, {list(there.shape)} there"
    if "U" in (here.dtype.kind, there.dtype.kind):
        unequal = np.atleast_1d(here.astype(str) != there.astype(str))
    elif here.dtype != there.dtype:
        return f"{here.dtype} here, {there.dtype} there"
    else:
        unequal = np.atleast_1d(_bits(here) != _bits(there))
    if not unequal.any():
        return None
    place = np.unravel_index(int(unequal.argmax()), unequal.shape)
    one, other = np.atleast_1d(here)[place], np.atleast_1d(there)[place]
    where = f"first at {[int(index) for index in place]}: " if here.shape else ""
    return f"{where}{one} here, {other} there; {int(unequal.sum())} of {unequal.size}{_greatest(here, there)}"


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    """The array's bytes, an element each: NaN equals NaN, and 0 is not -0."""
    return np.ascontiguousarray(array).view(f"V{array.dtype.itemsize}").reshape(array.shape)


def _greatest(here: NDArray[Any], there: NDArray[Any]) -> str:
    """The greatest difference, as an end of a sentence; empty for what is no number."""
    try:
        with np.errstate(all="ignore"):
            apart = np.abs(_numbers(here) - _numbers(there))
    except ValueError:
        return ""
    return "" if np.isnan(apart).all() else f", at most {np.nanmax(apart):.3g} apart"


def _numbers(array: NDArray[Any]) -> NDArray[np.float64]:
    """As float64; NaN for empty text."""
    return np.where(array == "", "nan", array).astype(np.float64) if array.dtype.kind == "U" else array.astype(float)


# -- reading --------------------------------------------------------------------------------------------------------


def read_run(folder: Path) -> Entries:
    """The content of a run's folder by `file/name`, with the present names and without times.

    A column of metrics.csv is an array of text [rows]. Raises OSError, ValueError and KeyError if it is no run.
    """
    entries: Entries = {}
    for path in sorted((folder / "checkpoints").glob("*.ckpt"), reverse=True):  # latest before best
        entries |= {f"{path.name}/{name}": array for name, array in read_checkpoint(path).items()}
    entries |= {f"metrics.csv/{name}": array for name, array in _read_metrics(folder / "metrics.csv").items()}
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    plain = {name: value for name, value in summary.items() if name not in ORIGIN}
    return entries | {f"summary.json/{name}": array for name, array in _flat(plain) if not _is_time(name)}


def read_checkpoint(path: Path) -> Entries:
    """All arrays and plain values of a checkpoint by `section/name`, without times."""
    entries: Entries = {}
    with zipfile.ZipFile(path) as archive:
        arrays = set(archive.namelist()) - {"state.json"}
        for name, value in _flat(json.loads(archive.read("state.json"))["state"]):
            if value.dtype.kind == "U" and str(value) in arrays:  # {"__array__": "store/parameters.npy"}
                name, data = name.rpartition("/")[0], io.BytesIO(archive.read(str(value)))
                value = np.lib.format.read_array(data, allow_pickle=False)
            entries[_present_name(name)] = value
    return {name: value for name, value in entries.items() if not _is_time(name)}


def _read_metrics(path: Path) -> Entries:
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    names = [name for name in reader.fieldnames or () if not _is_time(name)]
    return {name: np.array([row[name] for row in rows], np.str_) for name in names}


def _flat(value: Any, place: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """The leaves of nested plain data by their place, with a slash between names; null is text."""
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(inner, f"{place}/{name}" if place else str(name))
    else:
        yield place, np.array("null" if value is None else value)


def _present_name(name: str) -> str:
    for present, former in SYNONYMS:
        if name == former or name.startswith(f"{former}/"):
            name = present + name[len(former) :]
    return name


def _is_time(name: str) -> bool:
    return name in TIMES or name.rpartition("/")[2] in TIMES or name.startswith("time/")
