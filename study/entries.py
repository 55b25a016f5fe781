"""What the study trains: a line of its tables each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from study.records import Record


class Recipe(Protocol):
    """Something that can be trained with a seed."""

    @property
    def command(self) -> str:
        """What a reader types for one run."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """All that tells its results from those of another recipe."""
        ...

    def run(self, seed: int, folder: Path) -> Record:
        """Train, and evaluate what comes of it. Raises RunFailedError."""
        ...


class RunFailedError(Exception):
    """A training run that did not come to its end; the message says where to look. code: that it exited with."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Goals:
    """What an entry is to reach: greedy_return by the mean over seeds, worst_seed by each, seconds by the median time
    of training until the environment's goal, a mean of 100 training episodes."""

    greedy_return: float
    worst_seed: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Source:
    """Where a preset comes from, in Markdown. reports: what is said there of what it reaches. full: the command of the
    whole run, where the study makes do with a part of it."""

    name: str
    reports: str
    full: str | None = None


@dataclass(frozen=True)
class Entry:
    """title: its line in the table. published: of rl-baselines3-zoo's A2C and PPO, mean and deviation of one run.
    source: of a preset. curve: whether to keep how its runs learned, and draw it."""

    name: str
    env: str
    title: str
    recipe: Recipe
    seeds: int
    goals: Goals | None = None
    published: tuple[str, str] | None = None
    source: Source | None = None
    curve: bool = False
