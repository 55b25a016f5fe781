"""Records of finished runs: a line each in results/<entry>.csv, with the settings of the entry in its .yaml."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import yaml

from a3c_exp.config.schema import flatten
from a3c_exp.config.settings import RENAMED
from a3c_exp.errors import ConfigError
from a3c_exp.run import files


@dataclass(frozen=True, slots=True)
class Record:
    """A finished run.

    seconds: of training. solved_*: when the mean of 100 training episodes first reached the threshold; None if never.
    last_100: mean return of the last 100 training episodes.
    greedy_*: return of the final policy's most likely actions, over `greedy_episodes` whole episodes. best_return: mean
        return of as many episodes with the best checkpoint; None if there is none.
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


class Results:
    """The records of one entry, in two files that people can read and git can compare."""

    def __init__(self, folder: Path, name: str) -> None:
        self._table, self._settings = folder / f"{name}.csv", folder / f"{name}.yaml"

    def read(self, settings: Mapping[str, Any]) -> list[Record]:
        """The records with these settings, by seed; none if the recorded settings are others.

        A setting that is newer than the records is assumed to have no effect by default. Raises ConfigError for records
        with former names of settings, which would look like other settings.
        """
        if not self._table.exists() or self.changes(settings):
            return []
        with open(self._table, newline="", encoding="utf-8") as file:
            return sorted((_record(row) for row in csv.DictReader(file)), key=lambda record: record.seed)

    def changes(self, settings: Mapping[str, Any]) -> list[str]:
        """The settings that are others than those of the records; none if there are no records. Raises as `read`."""
        if not self._table.exists():
            return []
        then, now = dict(flatten(yaml.safe_load(self._settings.read_text()))), dict(flatten(settings))
        gone = then.keys() - now.keys()
        former = sorted(key for key in gone if not RENAMED.keys().isdisjoint(key.split(".")))
        if former:
            problem = f"has former names of settings, to be renamed there and in its records: {', '.join(former)}"
            raise ConfigError("results", self._settings.name, problem)
        return sorted(gone | {key for key in then.keys() & now.keys() if then[key] != now[key]})

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


def _record(row: Mapping[str, str]) -> Record:
    values: dict[str, Any] = {}
    for name, hint in get_type_hints(Record).items():
        kind = next(part for part in (*get_args(hint), hint) if part is not NoneType)
        values[name] = None if row.get(name, "") == "" else kind(row[name])  # older records have fewer columns
    return Record(**values)
