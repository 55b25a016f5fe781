"""Records of the sources' algorithms: a row for each seed in evidence/results/sources.csv, and
their table."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import mean

import numpy as np
import yaml

from a3c_exp.common.estimates import estimate
from a3c_exp.run import markdown, provenance
from evidence.study.records import average, read_rows
from evidence.study.sources import a3c, dppo_cartpole, dppo_pendulum
from evidence.study.text import text


@dataclass(frozen=True)
class Source:
    """A row of sources.yaml, which says what the fields are."""

    title: str
    reports: str
    bar: float
    seeds: int
    program: Sequence[float] = ()
    without: Sequence[str] = ()


@dataclass(frozen=True)
class Line:
    """A finished run. last_100: the mean return of the last hundred episodes, nan if a parameter
    became nan before."""

    seed: int
    last_100: float
    greedy_return: float | None
    episodes: int
    command: str
    commit: str
    date: str
    returns: str


TABLE = "sources.csv"
_ROWS = yaml.safe_load(Path(__file__).with_name("sources.yaml").read_text(encoding="utf-8"))
SOURCES = {name: Source(**row) for name, row in _ROWS.items()}


def train(name: str, seed: int, episodes: int | None = None) -> Line:
    """Run a source's algorithm. episodes: instead of the source's number."""
    greedy = None
    with np.errstate(all="ignore"):
        if name in a3c.NOTEBOOKS:
            returns = a3c.run(name, seed, episodes or a3c.EPISODES)
        elif name == "dppo_cartpole":
            returns, greedy = dppo_cartpole.run(seed, episodes or dppo_cartpole.EPISODES)
        else:
            options = dppo_pendulum.Peculiarities(**dict.fromkeys(SOURCES[name].without, False))
            returns = dppo_pendulum.run(seed, episodes or dppo_pendulum.EPISODES, options)

    return Line(
        seed=seed,
        last_100=round(mean(returns[-100:]), 2),
        greedy_return=greedy,
        episodes=len(returns),
        command=f"python -m evidence.study.sources {name}",
        commit=provenance.commit() or "unknown",
        date=datetime.date.today().isoformat(),
        returns=" ".join(f"{value:.5g}" for value in returns),
    )


COLUMNS = (
    "name",
    "source",
    "what it reports",
    "its own program",
    "seeds",
    "lost",
    "return [95 %]",
    "worst, best seed",
    "bar",
    "reached",
)


def _own(scores: Sequence[float]) -> str:
    """What runs of the source's own program have reached."""
    if not scores:
        return "not run"
    return f"{estimate(scores, average)}, {min(scores):g} to {max(scores):g}, {len(scores)} runs"


def section(table: Path) -> str:
    """Return the section of presets.md. table: the file of the records."""
    rows = []
    for name, source in SOURCES.items():
        lines = read_rows(table, Line, name)
        scores = [
            line.last_100 if line.greedy_return is None else line.greedy_return for line in lines
        ]
        finite = [score for score in scores if isfinite(score)]
        lost = len(scores) - len(finite)
        row = [f"`{name}`", source.title, source.reports, _own(source.program)]
        are_all = len(lines) == source.seeds
        row += [f"{len(lines)}" if are_all else f"{len(lines)} of {source.seeds}", f"{lost}"]

        if finite:
            reached = mean(finite) >= source.bar and not lost
            row += [estimate(finite, average), f"{min(finite):.1f}, {max(finite):.1f}"]
            row += [f">= {source.bar:g}", "yes" if reached else "no"]
        else:
            row += ["", "", f">= {source.bar:g}", ""]

        rows.append(row)

    return text(
        "sources",
        table=markdown.table(COLUMNS, rows),
        greedy=dppo_cartpole.GREEDY_EPISODES,
        limit=dppo_cartpole.GREEDY_LIMIT,
        steps=dppo_cartpole.STEPS,
    )
