"""Numbers for sentences: what `{lunar:seconds}` in a text of this study stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from a3c_exp.common.estimates import estimate, spread
from evidence.study import figures
from evidence.study.entries import SECTIONS
from evidence.study.records import Record, average

EMPTY = "(not run yet)"
"""What a text says in place of a number without runs."""
MACHINES = ("amd-epyc-2-cores", "intel-r-xeon-r-processor-16-cores")
"""Machines that texts name: `{scaling_amd-epyc-2-cores[lunar][A3C][2]:speed}`."""


@dataclass(frozen=True)
class Runs:
    """The runs of an entry or of a figure's line. In a text, `{name:quantity}` is a number of them:
    see QUANTITIES.

    seeds: how many are planned. first: runs that these are compared with.
    """

    records: Sequence[Record]
    seeds: int
    first: Sequence[Record] = ()

    def __format__(self, quantity: str) -> str:
        return QUANTITIES[quantity](self) if self.records else EMPTY


def _seeds(runs: Runs) -> str:
    count = len(runs.records)
    return f"{count}" if count == runs.seeds else f"{count} of {runs.seeds}"


def _greedy(runs: Runs) -> list[float]:
    return [run.greedy_return for run in runs.records if run.greedy_return is not None]


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _sampled(runs: Runs) -> str:
    returns = [run.drawn_return for run in runs.records if run.drawn_return is not None]
    return estimate(returns, average)


def _steps(runs: Runs) -> str:
    return spread([run.solved_steps for run in runs.records], 0)


def _seconds(runs: Runs) -> str:
    return spread([run.solved_seconds for run in runs.records], 1)


def _length(runs: Runs) -> str:
    return f"{median(run.seconds for run in runs.records) / 60:,.0f}"


def _staleness(runs: Runs) -> str:
    found = [run.staleness_mean for run in runs.records if run.staleness_mean is not None]
    return f"{mean(found):.2f}"


def _ratio(column: int) -> Callable[[Runs], str]:
    return lambda runs: list(figures.ratios(runs.records, runs.first))[column]


QUANTITIES: Mapping[str, Callable[[Runs], str]] = {
    "seeds": _seeds,
    "return": lambda runs: estimate(_greedy(runs)),
    "each": lambda runs: ", ".join(_shown(value) for value in _greedy(runs)),
    "sampled": _sampled,
    "trained": lambda runs: figures.trained(runs.records),
    "solved": lambda runs: figures.solved(runs.records, runs.seeds),
    "steps": _steps,
    "seconds": _seconds,
    "minutes": _length,
    "staleness": _staleness,
    "speed": _ratio(0),
    "fewer": _ratio(1),
    "sooner": lambda runs: figures.sooner(runs.records, runs.first),
}
"""seeds: how many there are, "3 of 10" where more are planned. return: the interquartile mean of
greedy returns with its interval; each: all of them, by seed. sampled, trained: the mean return of
sampled actions after training, and in it, with the interval. solved: how many runs were; steps,
seconds: until then, the median with the range. minutes: of training, the median. speed, fewer,
sooner: ratios with the first runs in steps a second, in steps and in seconds until solved, with
their intervals, above 1 if better."""


def names(folder: Path) -> Mapping[str, Any]:
    """Return what a text may name: each entry, and for each figure `{figure[panel][line]:...}`, or
    `[line][value]` for one value of its axis. folder: of the records."""
    entries = {entry.name: entry for section in SECTIONS.values() for entry in section}
    found: dict[str, Any] = {
        name: Runs(entry.records(folder), entry.seeds) for name, entry in entries.items()
    }
    for figure in figures.FIGURES.values():
        for machine in MACHINES if figure.timed else [""]:
            name = f"{figure.name}_{machine}".removesuffix("_")
            found[name] = {
                panel.name: _lines(figures.points(figure, panel, folder, machine))
                for panel in figure.panels
            }
    return found


class Line(dict[Any, Runs]):
    """The runs of a line by the value of the axis. In a text, `{...[line]:quantity}` is a number of
    all of them, `range` the values at which every run was solved, and `highest` the highest mean
    return of training with its value."""

    def __format__(self, quantity: str) -> str:
        if quantity == "range":
            return self._range()
        if quantity == "highest":
            return self._highest()
        records = [record for runs in self.values() for record in runs.records]
        return format(Runs(records, sum(runs.seeds for runs in self.values())), quantity)

    def _range(self) -> str:
        """Return the values at which every run was solved, from the lowest to the highest."""
        if not any(runs.records for runs in self.values()):
            return EMPTY
        works = [
            value
            for value, runs in self.items()
            if runs.records and all(run.solved_steps is not None for run in runs.records)
        ]
        return f"{works[0]:g} to {works[-1]:g}" if works else "none"

    def _highest(self) -> str:
        """Return the highest mean return of training, and the value that has it."""
        trained = {value: runs.records for value, runs in self.items() if runs.records}
        if not trained:
            return EMPTY
        value = max(trained, key=lambda value: figures.mean_trained(trained[value]))
        return f"{figures.trained(trained[value])} at {value:g}"


def _lines(points: Sequence[figures.Point]) -> Mapping[Any, Line]:
    lines: dict[Any, Line] = {}
    for point in points:
        line = lines.setdefault(point.series, Line())
        first = next(iter(line.values())).records if line else point.records
        line[point.value] = Runs(point.records, point.entry.seeds, first)
    return lines
