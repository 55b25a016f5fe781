"""Entries of the study, one for each row of its tables: they stand in entries.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from evidence.study.curves import Curves
from evidence.study.peers import StableBaselines3
from evidence.study.records import Record, Results
from evidence.study.runs import EPISODES, Training

Recipe = Training | StableBaselines3
"""A configuration that can be trained with a seed: `command` without the seed, `settings()` that
its results depend on, and `run(seed, folder)`, which may raise RunFailedError."""


@dataclass(frozen=True)
class Goals:
    """Goals of an entry. greedy_return: for the mean over seeds. worst_seed: for each seed.
    seconds: for the median training time until the environment's reward threshold."""

    greedy_return: float
    worst_seed: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Source:
    """Source of a preset, in Markdown. reports: the result that is published there. full: the
    command of a run of full length, if the study trains for fewer steps."""

    name: str
    reports: str
    full: str | None = None


@dataclass(frozen=True)
class Entry:
    """A row of a table, or a point of a figure.

    name: of its run folders and, without `table`, of its records. kind: names the files of its
        records.
    title: its first column.
    published: results of rl-baselines3-zoo's A2C and PPO, one run each, with their deviation.
    source: of a preset.
    curve: whether to keep the learning curves and plot them.
    table: name of its records, if several entries share it.
    """

    name: str
    kind: str
    env: str
    title: str
    recipe: Recipe
    seeds: int
    goals: Goals | None = None
    published: tuple[str, str] | None = None
    source: Source | None = None
    curve: bool = False
    table: str | None = None

    def results(self, folder: Path) -> Results:
        return Results(folder, self.kind, self.table or self.name)

    def curves(self, folder: Path) -> Curves:
        return Curves(folder, self.kind, self.name)

    def seeds_of(self, records: Sequence[Record]) -> str:
        """Return how many seeds have been run: "5", or "2 of 5" of those that are planned."""
        return (
            f"{len(records)}" if len(records) == self.seeds else f"{len(records)} of {self.seeds}"
        )

    def records(self, folder: Path) -> list[Record]:
        """Return its records. Those that share a table are told apart by their commands, which end
        with the seed."""
        return [
            record
            for record in self.results(folder).read()
            if self.table is None or record.command.rpartition(" ")[0] == self.recipe.command
        ]


@dataclass(frozen=True)
class Recorded:
    """An entry with its records, and the settings with which they were made."""

    entry: Entry
    records: Sequence[Record]
    settings: Mapping[str, Any]


def _entry(row: Mapping[str, Any]) -> Entry:
    recipe: Recipe
    if "peer" in row:
        recipe = StableBaselines3(**row["peer"])
    else:
        overrides = tuple(row["command"].split())
        recipe = Training(overrides, row.get("drawn", EPISODES), row.get("max_episode_steps"))

    return Entry(
        row["name"],
        "presets" if "source" in row else "environments",
        row["env"],
        row["title"],
        recipe,
        row["seeds"],
        Goals(**row["goals"]) if "goals" in row else None,
        tuple(row["published"]) if "published" in row else None,
        Source(**row["source"]) if "source" in row else None,
        row.get("curve", False),
    )


def _sections() -> dict[str, list[Entry]]:
    text = Path(__file__).with_name("entries.yaml").read_text(encoding="utf-8")
    return {
        heading: [_entry(row) for row in rows] for heading, rows in yaml.safe_load(text).items()
    }


SECTIONS = _sections()
"""All entries by the headings of their tables. One with several numbers of workers may be in more
than one of them."""
