"""Records of the sources' algorithms: a line for each seed in results/sources/<name>.csv, and their table."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import mean

import numpy as np

from a3c_exp.common.estimates import average, estimate
from a3c_exp.run import markdown, provenance
from study.records import read_rows
from study.sources import a3c, dppo_cartpole, dppo_pendulum

REPOSITORY = "https://github.com/ChuaCheowHuan/reinforcement_learning/blob/master"


Run = Callable[[int, int | None], tuple[list[float], float | None]]
"""A source's algorithm, of a seed and a number of episodes other than its own: the returns of its episodes, and the
greedy return; None if its source has none."""


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


def _a3c(name: str) -> Run:
    return lambda seed, episodes: (a3c.run(name, seed, episodes or a3c.EPISODES), None)


def _pendulum(*without: str) -> Run:
    options = dppo_pendulum.Peculiarities(**dict.fromkeys(without, False))
    return lambda seed, episodes: (dppo_pendulum.run(seed, episodes or dppo_pendulum.EPISODES, options), None)


def _cartpole(seed: int, episodes: int | None) -> tuple[list[float], float | None]:
    return dppo_cartpole.run(seed, episodes or dppo_cartpole.EPISODES)


def _notebook(path: str) -> str:
    return f"[{path}]({REPOSITORY}/{path})"


SOURCES = {
    "threads_n_step_zero": Source(
        title=_notebook("A3C/A3C_disc_miss.ipynb"),
        reports="two plots: 200 from about 185 and 325 to 400 and 465",
        bar=175,
        seeds=10,
        run=_a3c("threads_n_step_zero"),
    ),
    "threads_n_step_max": Source(
        title=_notebook("A3C/A3C_disc_max.ipynb"),
        reports="two plots: 200 from about 195 and 280 on",
        bar=190,
        seeds=10,
        run=_a3c("threads_n_step_max"),
    ),
    "parameter_server_cartpole": Source(
        title=_notebook("A3C/A3C_disc_max_dist.ipynb"),
        reports="two plots: 200 from about 180 and 270 on",
        bar=190,
        seeds=10,
        run=_a3c("parameter_server_cartpole"),
    ),
    "dppo_pendulum": Source(
        title=_notebook("DPPO/DPPO_cont_GAE_dist_GPU.ipynb"),
        reports="two plots: about -410 and -290 after 500 episodes",
        bar=-410,
        seeds=10,
        run=_pendulum(),
    ),
    "dppo_cartpole": Source(
        title="[playground/PPO.py](https://github.com/Ceruleanacg/Learning-Notes/blob/bb3421b/playground/PPO.py)",
        reports="no figure",
        bar=475,
        seeds=10,
        run=_cartpole,
    ),
}
WITHOUT = (
    "local_step",
    "local_step softplus",
    "local_step adam_per_worker",
    "local_step clipped_actions",
    "local_step clipped_actions squashed_mean",
    "local_step centred_rewards",
    "local_step passes_apart",
)
"""What makes DPPO learn Pendulum: its local step does harm, so the others are left out together with it."""
for names in map(str.split, WITHOUT):
    SOURCES["dppo_pendulum_without_" + "_and_".join(names)] = Source(
        title=f"the same without {', '.join(names).replace('_', ' ')}",
        reports="-",
        bar=-410,
        seeds=10 if len(names) == 1 else 5,
        run=_pendulum(*names),
    )


def train(name: str, seed: int, episodes: int | None = None) -> Line:
    """Run a source's algorithm. episodes: instead of the source's number."""
    with np.errstate(all="ignore"):
        returns, greedy = SOURCES[name].run(seed, episodes)
    return Line(
        seed=seed,
        last_100=round(mean(returns[-100:]), 2),
        greedy_return=greedy,
        episodes=len(returns),
        command=f"python -m study.sources {name}",
        commit=provenance.commit() or "unknown",
        date=datetime.date.today().isoformat(),
        returns=" ".join(f"{value:.5g}" for value in returns),
    )


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
        lines = read_rows(folder / f"{name}.csv", Line)
        scores = [line.last_100 if line.greedy_return is None else line.greedy_return for line in lines]
        kept = [score for score in scores if isfinite(score)]
        reached = bool(kept) and mean(kept) >= source.bar and len(kept) == len(scores)
        figures = [estimate(kept, average), f"{min(kept):.1f}, {max(kept):.1f}"] if kept else ["", ""]
        verdict = ("yes" if reached else "no") if kept else ""
        seeds, lost = f"{len(lines)} of {source.seeds}", f"{len(scores) - len(kept)}"
        head = [f"`{name}`", source.title, source.reports, seeds, lost]
        rows.append([*head, *figures, f">= {source.bar:g}", verdict])
    return TEXT.format(
        table=markdown.table(COLUMNS, rows),
        greedy=dppo_cartpole.GREEDY_EPISODES,
        limit=dppo_cartpole.GREEDY_LIMIT,
        steps=dppo_cartpole.STEPS,
    )
