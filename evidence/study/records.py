"""Records of finished runs: a line each in evidence/results/<entry>.csv, with the settings of the
entry in its .yaml.

A record is read by the settings that were recorded with it, whatever this version has become.
Nothing deletes one.
"""

from __future__ import annotations

import csv
import inspect
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from pydoc import locate
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np
import yaml

from a3c_exp.common.estimates import Array
from a3c_exp.common.settings import flatten
from a3c_exp.config.saved import RESOLVED
from a3c_exp.errors import FolderError
from a3c_exp.run import files

Row = TypeVar("Row")

UNRESOLVED = ("auto", "background")
"""Values of settings that stand for others; which ones, a run finds out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A finished run.

    seconds: of training. solved_*: when the mean of 100 training episodes first reached the
        threshold; None if never.
    last_100: mean return of the last 100 training episodes.
    greedy_*: return of the final policy's most likely actions, over `greedy_episodes` whole
        episodes; None without
        an evaluation. best_return: mean return of as many episodes with the best checkpoint; None
        if there is none.
    drawn_*: mean and lowest return of the final policy with sampled actions, over `drawn_episodes`;
        None in records that are older, or of another framework.
    stop_reason: why training ended, as the run's summary has it; None as for drawn_*.
    command: for one seed, as a user types it.
    """

    seed: int
    steps: int
    seconds: float
    steps_per_second: float
    solved_steps: int | None
    solved_seconds: float | None
    last_100: float | None
    greedy_return: float | None = None
    greedy_deviation: float | None = None
    greedy_episodes: int | None = None
    best_return: float | None = None
    staleness_mean: float | None
    staleness_max: int | None
    date: str
    commit: str
    machine: str
    command: str
    drawn_return: float | None = None
    drawn_lowest: float | None = None
    drawn_episodes: int | None = None
    stop_reason: str | None = None


class Results:
    """The records of one entry, in two files that people can read and git can compare."""

    def __init__(self, folder: Path, name: str) -> None:
        self._table = folder / f"{name}.csv"
        self._settings = folder / f"{name}.yaml"

    def read(self) -> list[Record]:
        """The records, by seed."""
        return read_rows(self._table, Record)

    def settings(self) -> dict[str, Any]:
        """The settings with which the records were made; empty without records."""
        return (
            dict(yaml.safe_load(self._settings.read_text(encoding="utf-8")))
            if self._table.exists()
            else {}
        )

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise FolderError if the records were made with other settings.

        `auto` is equal to whatever was recorded for it. A setting that is newer than the records is
        assumed to have no effect at its default.
        """
        recorded = self.settings()
        if not recorded:
            return
        then = dict(flatten(recorded))
        now = dict(flatten(settings))
        same = {key for key in RESOLVED if now.get(key) in UNRESOLVED}
        changed = {key for key in then.keys() & now.keys() if then[key] != now[key]} - same
        changed |= then.keys() - now.keys()
        changed |= {
            key for key in now.keys() - then.keys() if not _is_default(settings, key, now[key])
        }
        if changed:
            others = ", ".join(sorted(changed))
            problem = (
                f"its records have other settings ({others}); they stay: move it away to run anew"
            )
            raise FolderError(self._table, problem, "results")

    def write(self, settings: Mapping[str, Any], records: Sequence[Record]) -> None:
        """Replace the records; with the first ones the settings are written too."""
        if not self._table.exists():
            self._settings.parent.mkdir(parents=True, exist_ok=True)
            files.write_text(self._settings, yaml.safe_dump(dict(settings), sort_keys=False))
        write_rows(self._table, Record, records)


def average(scores: Array) -> Array:
    """The mean over the last axis [..., n]."""
    return np.asarray(scores.mean(axis=-1))


def read_rows(path: Path, kind: type[Row]) -> list[Row]:
    """The rows of a table by seed, each a record of the class `kind`; none without the file.

    An empty cell is None, and so is one of a column that the table has not: older records have
    fewer columns.
    """
    if not path.exists():
        return []
    hints = get_type_hints(kind)
    with open(path, newline="", encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["seed"]))
    return [
        kind(**{name: _value(row.get(name), hint) for name, hint in hints.items()}) for row in rows
    ]


def write_rows(path: Path, kind: type[Row], rows: Sequence[Any]) -> None:
    """Replace the rows of a table, in the order of their seeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(get_type_hints(kind)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in sorted(rows, key=lambda row: int(row.seed)))
    files.write_text(path, text.getvalue())


def _value(cell: str | None, hint: Any) -> Any:
    kind = next(part for part in (*get_args(hint), hint) if part is not NoneType)
    return kind(cell) if cell else None


def _is_default(settings: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether a setting has the default of the component that it belongs to; True if there is no
    such component."""
    *path, name = key.split(".")
    component = reduce(lambda parent, part: parent[part], path, settings)
    target = locate(component.get("_target_", ""))
    parameter = inspect.signature(target).parameters.get(name) if callable(target) else None
    return parameter is None or parameter.default in (value, inspect.Parameter.empty)
