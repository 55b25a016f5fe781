"""Records of the sources' algorithms: a line for each seed in results/sources/<name>.csv, and their table."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from math import isfinite
from pathlib import Path
from statistics import mean
from typing import Protocol

import numpy as np

from a3c_exp.common.estimates import average, estimate
from a3c_exp.run import files, markdown, provenance
from study.sources import a3c, dppo_cartpole, dppo_pendulum

REPOSITORY = "https://github.com/ChuaCheowHuan/reinforcement_learning/blob/master"


class Run(Protocol):
    """A source's algorithm: the returns of its episodes, and the greedy return; None if its source has none."""

    def __call__(self, seed: int, episodes: int | None) -> tuple[list[float], float | None]: ...


@dataclass(frozen=True)
class Source:
    """title: in Markdown. reports: read off its plots. bar: for the mean over seeds of the last hundred episodes, or of
    the greedy return if there is one."""

    title: str
    reports: str
    bar: float
    seeds: int
    run: Run


@dataclass(frozen=True)
class Line:
    """A finished run. last_100: the mean return of the last hundred episodes, nan if a parameter became nan before."""

    seed: int
    last_100: float
    greedy_return: float | None
    episodes: int
    command: str
    commit: str
    date: str
    returns: str


def _a3c(seed: int, episodes: int | None, name: str) -> tuple[list[float], None]:
    return a3c.run(name, seed, episodes or a3c.EPISODES), None


def _pendulum(seed: int, episodes: int | None, without: Sequence[str] = ()) -> tuple[list[float], None]:
    options = dppo_pendulum.Peculiarities(**dict.fromkeys(without, False))
    return dppo_pendulum.run(seed, episodes or dppo_pendulum.EPISODES, options), None


def _cartpole(seed: int, episodes: int | None) -> tuple[list[float], float]:
    return dppo_cartpole.run(seed, episodes or dppo_cartpole.EPISODES)


def _notebook(path: str) -> str:
    return f"[{path}]({REPOSITORY}/{path})"


SOURCES = {
    "threads_n_step_zero": Source(
        _notebook("A3C/A3C_disc_miss.ipynb"), "two plots: 200 from about 185 and 325 to 400 and 465", 175, 10,
        partial(_a3c, name="threads_n_step_zero"),
    ),
    "threads_n_step_max": Source(
        _notebook("A3C/A3C_disc_max.ipynb"), "two plots: 200 from about 195 and 280 on", 190, 10,
        partial(_a3c, name="threads_n_step_max"),
    ),
    "parameter_server_cartpole": Source(
        _notebook("A3C/A3C_disc_max_dist.ipynb"), "two plots: 200 from about 180 and 270 on", 190, 10,
        partial(_a3c, name="parameter_server_cartpole"),
    ),
    "dppo_pendulum": Source(
        _notebook("DPPO/DPPO_cont_GAE_dist_GPU.ipynb"), "two plots: about -410 and -290 after 500 episodes", -410, 10,
        _pendulum,
    ),
    "dppo_cartpole": Source(
        "[playground/PPO.py](https://github.com/Ceruleanacg/Learning-Notes/blob/bb3421b/playground/PPO.py)",
        "no figure", 475, 10, _cartpole,
    ),
}  # fmt: skip
# What makes DPPO learn Pendulum: its local step does harm, so the others are left out together with it.
SOURCES |= {
    "dppo_pendulum_without_" + "_and_".join(without): Source(
        f"the same without {', '.join(without).replace('_', ' ')}", "-", -410, 10 if len(without) == 1 else 5,
        partial(_pendulum, without=without),
    )
    for without in (
        ("local_step",), ("local_step", "softplus"), ("local_step", "adam_per_worker"),
        ("local_step", "clipped_actions"), ("local_step", "clipped_actions", "squashed_mean"),
        ("local_step", "centred_rewards"), ("local_step", "passes_apart"),
    )
}  # fmt: skip


def train(name: str, seed: int, episodes: int | None = None) -> Line:
    """Run a source's algorithm. episodes: instead of the source's number."""
    with np.errstate(all="ignore"):
        returns, greedy = SOURCES[name].run(seed, episodes)
    return Line(
        seed=seed, last_100=round(mean(returns[-100:]), 2), greedy_return=greedy, episodes=len(returns),
        command=f"python -m study.sources {name}", commit=provenance.commit() or "unknown",
        date=datetime.date.today().isoformat(), returns=" ".join(f"{value:.5g}" for value in returns),
    )  # fmt: skip


def read(folder: Path, name: str) -> list[Line]:
    """The records, by seed."""
    path = folder / f"{name}.csv"
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return [_line(row) for row in csv.DictReader(file)]


def write(folder: Path, name: str, lines: Sequence[Line]) -> None:
    """Replace the records."""
    folder.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Line)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(line) for line in sorted(lines, key=lambda line: line.seed))
    files.write_text(folder / f"{name}.csv", text.getvalue())


def _line(row: dict[str, str]) -> Line:
    greedy = float(row["greedy_return"]) if row["greedy_return"] else None
    return Line(
        seed=int(row["seed"]), last_100=float(row["last_100"]), greedy_return=greedy, episodes=int(row["episodes"]),
        command=row["command"], commit=row["commit"], date=row["date"], returns=row["returns"],
    )  # fmt: skip


TEXT = """\
## The sources, run literally

Written by `python -m study.sources NAME` and `python -m study --table`: the algorithm of each source with its own
settings and peculiarities, anew in numpy ([study/sources/](study/sources/) names them), workers in an order drawn from
the seed. Missing terms as zero and maximum terms are the same algorithm where every episode ends with the value 0.
Return: the mean of the last hundred episodes, of DPPO on CartPole of {greedy} greedy ones, cut at {limit} steps; mean
over seeds with its 95 % bootstrap interval. Lost: runs whose parameters became NaN, as 0 / 0 is a ratio of
probabilities there; they are left out of the mean. DPPO on CartPole, whose episodes have no time limit, ends after
{steps:,} steps, before its 3 x 1000 episodes.

{table}
"""
COLUMNS = ("name", "source", "what it reports", "seeds", "lost", "return [95 %]", "worst, best seed", "bar", "reached")


def section(folder: Path) -> str:
    """The part of RESULTS.md."""
    rows = []
    for name, source in SOURCES.items():
        lines = read(folder, name)
        scores = [line.last_100 if line.greedy_return is None else line.greedy_return for line in lines]
        kept = [score for score in scores if isfinite(score)]
        head = (
            f"`{name}`",
            source.title,
            source.reports,
            f"{len(lines)} of {source.seeds}",
            f"{len(scores) - len(kept)}",
        )
        if not kept:
            rows.append([*head, "", "", f">= {source.bar:g}", ""])
            continue
        reached = mean(kept) >= source.bar and len(kept) == len(scores)
        rows.append(
            [*head, estimate(kept, average), f"{min(kept):.1f}, {max(kept):.1f}",
             f">= {source.bar:g}", "yes" if reached else "no"]
        )  # fmt: skip
    table = markdown.table(COLUMNS, rows)
    return TEXT.format(
        table=table, greedy=dppo_cartpole.GREEDY_EPISODES, limit=dppo_cartpole.GREEDY_LIMIT, steps=dppo_cartpole.STEPS
    )
