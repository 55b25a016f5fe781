"""Checkpoints: nested plain data and numpy arrays, written whole or not at all, read without
running any code.

A checkpoint is a zip archive, which `numpy.load` opens too: `state.json` holds the nesting and the
plain values, each array is a `.npy` file named by its place ("store/parameters.npy"). Nothing is
pickled. The archive has
a checksum of every file in it, which reveals damage. The values of a run's state are checked before
anything is built from them.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from a3c_exp.common.fields import Check, Fields
from a3c_exp.core.counters import WorkerCounters
from a3c_exp.core.parameters import SharedParameters
from a3c_exp.errors import FolderError, shown
from a3c_exp.run import files
from a3c_exp.run.milestones import Milestones
from a3c_exp.run.run_folder import CHECKPOINTS, LATEST, latest_checkpoints
from a3c_exp.run.statistics import RunStatistics

VERSION = 3
"""The version that is written, and the only one that is read. Since 3 the keys are optimizer_state
and stats."""

_STATE = "state.json"
_ARRAY = "__array__"  # {"__array__": "parameters.npy"} stands for an array in state.json


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write `state` to `path` atomically: `path` is always the old checkpoint or the new one,
    whole.

    state: by name int, float, str, bool, None, lists and dicts of those, and numpy arrays of
    numbers or text. Names
        are printable and without a slash. Scalars of numpy become plain numbers.

    Raises TypeError for anything else, and OSError if it cannot be written (a full disk). The old
    one stays then.
    """
    arrays: dict[str, np.ndarray] = {}
    plain = json.dumps({"version": VERSION, "state": _split(state, "", arrays)})

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(zipfile.ZipInfo(_STATE), plain)
            for name, array in arrays.items():
                with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, array, allow_pickle=False)

    files.atomic_write(path, write)


def require_plain(value: Any) -> None:
    """Raise TypeError for what a checkpoint cannot hold."""
    _split(value, "", {})


def _split(value: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
    """`value` as JSON can hold it, its arrays moved to `arrays` by file name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        name = f"{place}.npy"
        arrays[name] = value
        return {_ARRAY: name}
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    if isinstance(value, list):
        return [_split(item, f"{place}/{index}", arrays) for index, item in enumerate(value)]
    if isinstance(value, Mapping) and all(map(_is_name, value)):
        return {
            key: _split(item, f"{place}/{key}" if place else key, arrays)
            for key, item in value.items()
        }
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__} (at {place or 'the top'})")


def _is_name(key: object) -> bool:
    """Return whether a key can be part of a file's name in the archive, which no other key
    gives."""
    return isinstance(key, str) and key.isprintable() and key not in ("", _ARRAY) and "/" not in key


def load_file(path: Path) -> dict[str, Any]:
    """Return the state that `save` wrote. Nothing in the file can run code.

    Raises FolderError for a file that is missing, damaged, of another kind or of another version.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {
                name: np.lib.format.read_array(io.BytesIO(archive.read(name)), allow_pickle=False)
                for name in archive.namelist()
                if name != _STATE
            }
            header = json.loads(
                archive.read(_STATE),
                object_hook=lambda value: arrays[value[_ARRAY]] if _ARRAY in value else value,
            )

        version = int(header["version"])
        if version != VERSION:
            raise FolderError(
                path, f"is of version {version}, and this program reads version {VERSION}"
            )
        state = header["state"]
        if not isinstance(state, dict):
            raise ValueError("no state in it")
        return state
    except FileNotFoundError:
        raise FolderError(
            path, "there is no such checkpoint (checkpoint.every, checkpoint.keep, eval.every)"
        ) from None
    except FolderError:
        raise
    except Exception as error:  # zipfile, json and numpy raise a dozen kinds of errors on damage
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FolderError(path, f"is no checkpoint, or a damaged one ({reason})") from error


# The state of a run: which values there are, and of which kinds.

STATE_ERRORS = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError)
"""Errors that a whole state may raise where it is restored: it is of another network, or of another
optimizer."""


SECTIONS: Mapping[str, Fields[Any]] = {
    "store.": {**SharedParameters.FIELDS, **WorkerCounters.FIELDS},
    "statistics.": RunStatistics.FIELDS,
    "": Milestones.FIELDS,
}
"""The fields of a run's checkpoint, as their owners declare them, by the place of each section."""

OTHERS: Mapping[str, Check] = {
    "store.constants": lambda value: (
        isinstance(value, dict) and all(type(array) is np.ndarray for array in value.values())
    ),
    "callbacks": lambda value: isinstance(value, dict),
}
"""Values that a checkpoint may have besides, and their checks: the constants of the network by
name, and the states of the user's callbacks."""

_MISSING = object()


def load_state(path: Path) -> dict[str, Any]:
    """Return the state of a run in a checkpoint, as `Checkpoints.content` has it, with its values
    checked. Raises FolderError: see `load_file`."""
    state = load_file(path)
    for prefix, fields in SECTIONS.items():
        for name, field in fields.items():
            _check_value(path, state, f"{prefix}{name}", field.fits, field.may_be_missing)
    for name, fits in OTHERS.items():
        _check_value(path, state, name, fits, may_be_missing=True)
    return state


def _check_value(
    path: Path, state: Any, place: str, fits: Check, may_be_missing: bool = False
) -> None:
    value = state
    for name in place.split("."):
        value = value.get(name, _MISSING) if isinstance(value, Mapping) else _MISSING

    if value is _MISSING:
        if not may_be_missing:
            raise FolderError(path, f"is a damaged checkpoint: {place} is missing")
    elif not fits(value):
        text = " ".join(shown(value).split())
        raise FolderError(path, f"is a damaged checkpoint: {place} is {text}")


def load_latest(folder: Path) -> tuple[dict[str, Any], Path, str]:
    """The state that the run in `folder` continues from, its checkpoint, and a warning if that is
    not latest.ckpt.

    A latest checkpoint that is refused has the last numbered one that can be read in its place: a
    run that was cut has that of the save before. Raises FolderError as `load_state` does.
    """
    path, *before = latest_checkpoints(folder) or [folder / CHECKPOINTS / LATEST]
    try:
        missing = f"there is no {LATEST}: the run goes on from {path.name}"
        return load_state(path), path, "" if path.name == LATEST else missing
    except FolderError as refused:
        for earlier in before:
            with suppress(FolderError):
                state = load_state(earlier)
                step = state["store"]["steps"]
                text = (
                    f"{path.name} {refused.problem}: the run goes on from {earlier.name}, "
                    f"step {step}"
                )
                return state, earlier, text
        raise
