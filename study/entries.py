"""Entries of the study: one for each row of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from study.records import Record


class Recipe(Protocol):
    """A training configuration that can be run with a seed."""

    @property
    def command(self) -> str:
        """The command of a run, without its seed."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """All settings that its results depend on, but the seed."""
        ...

    def run(self, seed: int, folder: Path) -> Record:
        """Train in `folder` and evaluate. Raises RunFailedError."""
        ...


class RunFailedError(Exception):
    """A training run that failed; the message names its log. code: its exit code."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Goals:
    """Goals of an entry. greedy_return: for the mean over seeds. worst_seed: for each seed. seconds: for the median
    training time until the environment's reward threshold."""

    greedy_return: float
    worst_seed: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Source:
    """Source of a preset, in Markdown. reports: the result that is published there. full: the command of a run of full
    length, if the study trains for fewer steps."""

    name: str
    reports: str
    full: str | None = None


@dataclass(frozen=True)
class Entry:
    """title: its row in the table. published: results of rl-baselines3-zoo's A2C and PPO, one run each, with their
    deviation. source: of a preset. curve: whether to keep the learning curves and draw them."""

    name: str
    env: str
    title: str
    recipe: Recipe
    seeds: int
    goals: Goals | None = None
    published: tuple[str, str] | None = None
    source: Source | None = None
    curve: bool = False
