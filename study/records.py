"""Records of finished runs: a line each in results/<entry>.csv, with the settings of the entry in its .yaml."""

from __future__ import annotations

import csv
import inspect
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import reduce
from pathlib import Path
from pydoc import locate
from types import NoneType
from typing import Any, get_args, get_type_hints

import yaml

from a3c_exp.common.settings import flatten
from a3c_exp.config.removed import without_removed
from a3c_exp.run import files


@dataclass(frozen=True, slots=True)
class Record:
    """A finished run.

    seconds: of training. solved_*: when the mean of 100 training episodes first reached the threshold; None if never.
    last_100: mean return of the last 100 training episodes.
    greedy_*: return of the final policy's most likely actions, over `greedy_episodes` whole episodes. best_return: mean
        return of as many episodes with the best checkpoint; None if there is none.
    drawn_*: mean and lowest return of the final policy with drawn actions, over `drawn_episodes`; None in records that
        are older, or of another framework.
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
    greedy_return: float
    greedy_deviation: float
    greedy_episodes: int
    best_return: float | None
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

    def read(self, settings: Mapping[str, Any]) -> list[Record]:
        """The records with these settings, by seed; none if the recorded settings are others.

        A setting that is newer than the records is assumed to have no effect at its default. Raises ConfigError for
        records with a removed setting that did something.
        """
        if not self._table.exists() or self.changes(settings):
            return []
        with open(self._table, newline="", encoding="utf-8") as file:
            return sorted((_record(row) for row in csv.DictReader(file)), key=lambda record: record.seed)

    def changes(self, settings: Mapping[str, Any]) -> list[str]:
        """The settings that are others than those of the records; none if there are no records. Raises as `read`."""
        if not self._table.exists():
            return []
        recorded = without_removed(yaml.safe_load(self._settings.read_text()))
        then, now = dict(flatten(recorded)), dict(flatten(settings))
        gone = then.keys() - now.keys()
        changed = {key for key in then.keys() & now.keys() if then[key] != now[key]}
        changed |= {key for key in now.keys() - then.keys() if not _is_default(settings, key, now[key])}
        return sorted(gone | changed)

    def write(self, settings: Mapping[str, Any], records: Sequence[Record]) -> None:
        """Replace the settings and the records."""
        self._table.parent.mkdir(exist_ok=True)
        text = io.StringIO()
        writer = csv.DictWriter(text, [field.name for field in fields(Record)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(record) for record in records)
        if self._table.exists() and not self.read(settings):
            self._table.unlink()  # first: an interruption must not leave old records with new settings
        files.write_text(self._settings, yaml.safe_dump(dict(settings), sort_keys=False))
        files.write_text(self._table, text.getvalue())


def _is_default(settings: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether a setting has the default of the component that it belongs to; True if there is no such component."""
    *path, name = key.split(".")
    component = reduce(lambda parent, part: parent[part], path, settings)
    target = locate(component.get("_target_", ""))
    parameter = inspect.signature(target).parameters.get(name) if callable(target) else None
    return parameter is None or parameter.default in (value, inspect.Parameter.empty)


def _record(row: Mapping[str, str]) -> Record:
    values: dict[str, Any] = {}
    for name, hint in get_type_hints(Record).items():
        kind = next(part for part in (*get_args(hint), hint) if part is not NoneType)
        values[name] = None if row.get(name, "") == "" else kind(row[name])  # older records have fewer columns
    return Record(**values)
