"""Maps of which learning rates work at which staleness, and the exponent of the border between
those that do and those that do not.

`python -m evidence.study.maps outputs/<sweep>` draws that of a sweep over
`optimizer.learning_rate` and `backend.staleness` into its folder, map.svg.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from a3c_exp.common.estimates import median_reached
from a3c_exp.errors import ConfigError
from a3c_exp.exit_codes import ExitCode, exit_code
from a3c_exp.report import charts
from a3c_exp.report.runs import find_runs
from evidence.study import curves

if TYPE_CHECKING:  # only drawing needs it
    from matplotlib.axes import Axes

INCHES = (5.4, 3.4)
"""Of one panel."""
LEAST = 2
"""Delays that a line is fitted to."""
UNSOLVED = "#bbbbbb"
DARK = 0.6
"""Share of the colours above which black text cannot be read."""
ENDS = (50, 200)
"""Thousand steps at the ends of the colours; further where runs have taken fewer, or more."""


class Run(Protocol):
    """What a map needs of a run. solved_steps: None if it was not solved."""

    @property
    def seed(self) -> int: ...

    @property
    def solved_steps(self) -> int | None: ...


class SweptRun(NamedTuple):
    """A run of a sweep: see `Run`."""

    seed: int
    solved_steps: int | None


@dataclass(frozen=True)
class Map:
    """The runs of a panel by learning rate and delay.

    rates, delays: in ascending order.
    records: the runs of each pair that has been run.
    """

    title: str
    rates: Sequence[float]
    delays: Sequence[int]
    records: Mapping[tuple[float, int], Sequence[Run]]

    def steps(self) -> NDArray[np.float64]:
        """Return the median steps until solved [rates, delays], infinite where most seeds are not
        solved, NaN where nothing has been run."""
        return np.array(
            [[self._median(rate, delay) for delay in self.delays] for rate in self.rates]
        )

    def _median(self, rate: float, delay: int) -> float:
        records = self.records.get((rate, delay))
        return np.nan if not records else median_reached([run.solved_steps for run in records])

    def borders(self) -> dict[int, float]:
        """Return the border of each delay, halfway (as a factor) between the largest rate at which
        most seeds are solved and the next one. A delay at which no rate works, or the largest one
        does, has none, and so has one with rates that have not been run."""
        borders = {}
        for delay, column in zip(self.delays, self.steps().T, strict=True):
            works = np.flatnonzero(np.isfinite(column))
            if not np.isnan(column).any() and len(works) and works[-1] + 1 < len(self.rates):
                largest = works[-1]
                borders[delay] = float(np.sqrt(self.rates[largest] * self.rates[largest + 1]))
        return borders

    def exponent(self) -> float | None:
        """Return p of the line, border = c delay^-p, that fits the borders of delays above 0 best
        on logarithmic axes; None for fewer than LEAST."""
        borders = {delay: border for delay, border in self.borders().items() if delay}
        if len(borders) < LEAST:
            return None
        slope, _ = np.polyfit(np.log([*borders]), np.log([*borders.values()]), 1)
        return round(-float(slope), 2) + 0.0  # without a minus before 0.00

    def of_seed(self, seed: int) -> Map:
        """Return the map of one seed alone."""
        records = {
            pair: [run for run in runs if run.seed == seed] for pair, runs in self.records.items()
        }
        return Map(self.title, self.rates, self.delays, records)

    def finding(self) -> str:
        """Return the exponent, and its range over seeds, as text; "-" without one."""
        exponent = self.exponent()
        if exponent is None:
            return "-"
        seeds = sorted({run.seed for runs in self.records.values() for run in runs})
        by_seed = [p for seed in seeds if (p := self.of_seed(seed).exponent()) is not None]
        fitted = sum(delay > 0 for delay in self.borders())
        return f"{exponent:.2f} ({min(by_seed):.2f} to {max(by_seed):.2f}), {fitted} delays"


COLUMNS = " | runs solved | largest rate that works, by delay | exponent of the border"


def cells(panel: Map) -> Iterator[list[str]]:
    """Yield the row of a table: see COLUMNS."""
    records = [run for runs in panel.records.values() for run in runs]
    solved = sum(run.solved_steps is not None for run in records)
    largest = [
        f"{delay}: {panel.rates[works[-1]]:g}" if len(works) else f"{delay}: none"
        for delay, column in zip(panel.delays, panel.steps().T, strict=True)
        for works in [np.flatnonzero(np.isfinite(column))]
    ]
    yield [panel.title, f"{solved} of {len(records)}", ", ".join(largest), panel.finding()]


def draw(panels: Sequence[Map], target: Path) -> None:
    """Draw maps, two in a row, as an SVG. Raises ImportError without matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    with matplotlib.rc_context(charts.LOOK | {"font.size": 9, "axes.grid": False}):
        canvas = Canvas(figsize=(INCHES[0] * columns, INCHES[1] * rows), layout="constrained")
        grid = canvas.subplots(rows, columns, squeeze=False).ravel()
        for axes, panel in zip(grid, panels, strict=False):
            _draw_panel(axes, panel)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        curves.save(canvas, target)


def _draw_panel(axes: Axes, panel: Map) -> None:
    steps = panel.steps() / 1000
    finite = np.where(np.isfinite(steps), steps, np.nan)
    ends = [*ENDS, *finite[np.isfinite(steps)]]
    least, most = min(ends), max(ends)
    image = axes.imshow(
        finite, origin="lower", aspect="auto", cmap="viridis_r", vmin=least, vmax=most
    )
    axes.set_facecolor(UNSOLVED)
    axes.figure.colorbar(image, ax=axes, label="thousand steps until solved")

    for row, rate in enumerate(panel.rates):
        for column, delay in enumerate(panel.delays):
            if records := panel.records.get((rate, delay)):
                is_dark = finite[row, column] > least + DARK * (most - least)
                color = "white" if is_dark else "black"
                text = _cell(records)
                axes.text(column, row, text, color=color, ha="center", va="center", size="small")

    borders = panel.borders()
    for column, delay in enumerate(panel.delays):
        if delay in borders:
            height = float(
                np.interp(np.log(borders[delay]), np.log(panel.rates), range(len(steps)))
            )
            axes.plot([column - 0.5, column + 0.5], [height] * 2, color="#D55E00")

    axes.set_xticks(range(len(panel.delays)), [f"{delay}" for delay in panel.delays])
    axes.set_yticks(range(len(panel.rates)), [f"{rate:g}" for rate in panel.rates])
    axes.set_xlabel("staleness [updates]")
    axes.set_ylabel("learning rate")
    axes.set_title(panel.title, loc="left")


def _cell(records: Sequence[Run]) -> str:
    """Return how many thousand steps it took; of how many seeds, where some are not solved."""
    steps = [run.solved_steps for run in records]
    solved = sum(step is not None for step in steps)
    median = median_reached(steps)
    thousands = "" if median == inf else f"{median / 1000:.0f}"
    return thousands if solved == len(records) else f"{thousands}\n{solved}/{len(records)}".strip()


def of_sweep(folder: Path) -> Map:
    """Return the map of the runs in a folder that have ended. Raises ConfigError."""
    runs, _ = find_runs([folder])
    records: dict[tuple[float, int], list[Run]] = defaultdict(list)
    for run in runs:
        delay = run.settings.get("backend.staleness")
        if not isinstance(delay, int):
            problem = "must be a number in each run of the sweep: backend=serial has it"
            raise ConfigError("backend.staleness", delay, problem)
        if run.ended:
            rate = float(run.settings["optimizer.learning_rate"])
            solved = run.summary.get("solved_at_steps")
            records[rate, delay].append(SweptRun(int(run.settings["seed"]), solved))
    if not records:
        raise ConfigError("folder", str(folder), "must have a run that has ended")

    rates = sorted({rate for rate, _ in records})
    delays = sorted({delay for _, delay in records})
    return Map(runs[0].environment, rates, delays, records)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the map of a sweep's folder. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m evidence.study.maps",
        description="Draw the map of a sweep over optimizer.learning_rate and backend.staleness.",
    )
    parser.add_argument("folder", type=Path, help="the sweep's")
    folder = parser.parse_args(arguments).folder
    return exit_code(lambda: _draw_sweep(folder))


def _draw_sweep(folder: Path) -> int:
    swept = of_sweep(folder)
    target = folder / "map.svg"
    draw([swept], target)
    for cell, column in zip(next(cells(swept)), COLUMNS.split(" | "), strict=True):
        print(f"{column or 'environment'}: {cell}")
    print(target)
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
