"""Records of finished runs: a row each in evidence/results/<kind>.csv, with the settings of their
entry in <kind>.yaml.

A record is read by the settings that were recorded with it, whatever this version has become.
Nothing deletes one.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache, reduce
from pathlib import Path
from pydoc import locate
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np
import yaml

from a3c_exp.common.estimates import Scores
from a3c_exp.common.reading import parse_yaml
from a3c_exp.common.settings import flatten
from a3c_exp.config.saved import RESOLVED
from a3c_exp.errors import FolderError
from a3c_exp.run import files
from evidence.study import tables

Row = TypeVar("Row")

UNRESOLVED = ("auto", "background")
"""Values of settings that stand for others; which ones, a run finds out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A finished run.

    seconds: of training.
    solved_*: when the mean of 100 training episodes first reached the
        threshold; None if never.
    last_100: mean return of the last 100 training episodes.
    greedy_*: return of the final policy's most likely actions, over `greedy_episodes` whole
        episodes; None without an evaluation.
    best_return: mean return of as many episodes with the best checkpoint; None if there is none.
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
    """The records of one entry, and the settings with which they were made.

    folder: of all records. kind: names the two files there. name: of the entry.
    """

    def __init__(self, folder: Path, kind: str, name: str) -> None:
        self._table = folder / f"{kind}.csv"
        self._settings = folder / f"{kind}.yaml"
        self._name = name

    def read(self) -> list[Record]:
        """Return the records, by seed."""
        return read_rows(self._table, Record, self._name)

    def settings(self) -> dict[str, Any]:
        """Return the settings with which the records were made; empty without records."""
        return dict(read_settings(self._settings)[self._name]) if self.read() else {}

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
            names = ", ".join(sorted(changed))
            problem = (
                f"the records of {self._name} have other settings ({names}); "
                "they stay: rename them to run it anew"
            )
            raise FolderError(self._table, problem, "results")

    def add(self, settings: Mapping[str, Any], record: Record) -> None:
        """Add a record, and with the first one the settings."""
        if not self.read():
            with tables.alone_in(self._settings.parent):
                every = {**read_settings(self._settings), self._name: dict(settings)}
                text = yaml.safe_dump(dict(sorted(every.items())), sort_keys=False)
                files.write_text(self._settings, text)
        add_row(self._table, self._name, record)


def average(scores: Scores) -> Scores:
    """Return the mean over the last axis [..., n]."""
    return np.asarray(scores.mean(axis=-1))


def read_settings(path: Path) -> Mapping[str, Any]:
    """Return the settings in a file by the names of records; none without the file."""
    return _settings(path.read_text(encoding="utf-8")) if path.exists() else {}


@lru_cache
def _settings(text: str) -> Mapping[str, Any]:
    return dict(parse_yaml(text))


def read_rows(path: Path, kind: type[Row], name: str) -> list[Row]:
    """Return the rows of a record by seed, each an instance of the class `kind`; none without the
    file.

    An empty cell is None: older records have fewer columns.
    """
    hashable: Any = kind
    return list(_rows(path.read_text(encoding="utf-8"), hashable, name)) if path.exists() else []


@cache  # the points of a figure share a record
def _rows(text: str, kind: Any, name: str) -> Sequence[Any]:
    hints = get_type_hints(kind)
    return tuple(
        kind(**{column: _value(row.get(column), hint) for column, hint in hints.items()})
        for row in tables.parsed(text)
        if row[tables.RECORD] == name
    )


def add_row(path: Path, name: str, row: Any) -> None:
    """Add a row, an instance of a dataclass, to a record. One of the same seed and command is
    replaced."""
    cells = {tables.RECORD: name, **asdict(row)}
    tables.put(path, [cells], key=(tables.RECORD, tables.SEED, "command"))


def _value(cell: str | None, hint: Any) -> Any:
    kind = next(part for part in (*get_args(hint), hint) if part is not NoneType)
    return kind(cell) if cell else None


def _is_default(settings: Mapping[str, Any], key: str, value: Any) -> bool:
    """Return whether a setting has the default of the component that it belongs to; True if there
    is no such component."""
    *path, name = key.split(".")
    component = reduce(lambda parent, part: parent[part], path, settings)
    target = locate(component.get("_target_", ""))
    parameter = inspect.signature(target).parameters.get(name) if callable(target) else None
    return parameter is None or parameter.default in (value, inspect.Parameter.empty)
