"""The section on corrections of staleness: `python -m evidence.study --corrections`.

Its runs are those of the figure `corrections` in figures.yaml. Each seed has one recorded run,
whose order all corrections follow. Two of them differ by the correction alone. The first series has
none, and the others are compared with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from a3c_exp.common.estimates import BOUNDS, DRAWS, Scores, bootstrap_interval
from a3c_exp.report import charts
from a3c_exp.run import markdown
from evidence.study import curves, tables
from evidence.study.figures import FIGURES, Panel, points, score, solved
from evidence.study.records import Record, average
from evidence.study.text import text

if TYPE_CHECKING:  # only drawing needs it
    from matplotlib.axes import Axes

INCHES = (5.2, 2.6)
"""Of one panel."""
MEASURES = {
    "last_100": "mean return of the last 100 episodes",
    "solved_steps": "steps until solved",
}
LEAST = 2
"""Seeds without which there is no interval."""
COLUMNS = (
    " | correction | seeds | solved | mean return of the last 100 episodes | difference, of pairs "
    "| unpaired | variance, unpaired / paired | steps until solved | difference, of pairs "
    "| unpaired | variance, unpaired / paired"
)

Line = Sequence[Record]
"""The records of a correction, by seed."""
Panels = Sequence[tuple[Panel, Mapping[str, Line]]]
"""Panels with the records of each correction."""


@dataclass(frozen=True)
class Comparison:
    """A measure of runs with a correction, and of runs without one.

    corrected, plain: the measure, [n] each. Those at the same index are of one seed, and have
        followed the same order.
    """

    corrected: Scores
    plain: Scores

    @property
    def differences(self) -> Scores:
        """Return what the correction changes, by seed [n]."""
        return self.corrected - self.plain

    def paired(self) -> tuple[float, float]:
        """Return the 95 % interval of the mean difference, over pairs."""
        return bootstrap_interval(self.differences, average)

    def unpaired(self) -> tuple[float, float]:
        """Return the interval that the same runs have if nobody knows which are pairs."""
        rng = np.random.default_rng(0)
        shape = (DRAWS, len(self.plain))
        corrected = average(rng.choice(self.corrected, shape))
        plain = average(rng.choice(self.plain, shape))
        low, high = np.quantile(corrected - plain, BOUNDS)
        return float(low), float(high)

    def variance_ratio(self) -> float:
        """Return the variance of an unpaired difference over that of a paired one: as many times as
        many seeds an unpaired comparison needs. NaN if pairs do not differ in their difference."""
        return float(self._ratios(np.arange(len(self.plain))))

    def variance_ratio_interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the ratio, over pairs. Draws of one pair alone are left
        out."""
        pairs = np.random.default_rng(0).integers(len(self.plain), size=(DRAWS, len(self.plain)))
        low, high = np.nanquantile(self._ratios(pairs), BOUNDS)
        return float(low), float(high)

    def _ratios(self, pairs: NDArray[np.int64]) -> Scores:
        """Return the ratio of each draw of pairs [..., n]."""
        unpaired = self.corrected[pairs].var(axis=-1) + self.plain[pairs].var(axis=-1)
        paired = self.differences[pairs].var(axis=-1)
        ratios = np.full(np.shape(paired), np.nan)
        np.divide(unpaired, paired, out=ratios, where=paired > 0)
        return ratios


def section(folder: Path) -> str:
    """Draw the figure, and return the section; "" without two seeds of a panel. folder: of the
    records."""
    recorded = _recorded(folder)
    if not recorded:
        return ""

    target = folder / curves.FOLDER / "corrections.svg"
    draw(recorded, target)
    records = [record for _, lines in recorded for line in lines.values() for record in line]
    plain = [record for _, lines in recorded for record in next(iter(lines.values()))]
    return text(
        "corrections",
        picture=target.relative_to(folder).as_posix(),
        table=markdown.table(*_grid(recorded)),
        commands="\n".join(f"python -m a3c_exp {panel.command} seed=0" for panel, _ in recorded),
        replays="\n".join(line[0].command for line in recorded[0][1].values()),
        runs=len(records),
        minutes=f"{sum(record.seconds for record in records) / 60:.0f}",
        staleness=_staleness(plain),
        ratios=_range_of_ratios([lines for _, lines in recorded]),
        machines="; ".join(sorted({record.machine for record in records})),
    )


def grids(folder: Path) -> list[tables.Grid]:
    """Return the table of the section. folder: of the records."""
    return [_grid(_recorded(folder))]


def _recorded(folder: Path) -> Panels:
    """Return the panels with two seeds or more, and the records of their corrections."""
    panels = [(panel, _lines(panel, folder)) for panel in FIGURES["corrections"].panels]
    return [(panel, lines) for panel, lines in panels if len(next(iter(lines.values()))) >= LEAST]


def _grid(recorded: Panels) -> tables.Grid:
    rows = [cells for panel, lines in recorded for cells in _rows(panel, lines)]
    return COLUMNS.split(" | "), rows


def _lines(panel: Panel, folder: Path) -> Mapping[str, Line]:
    """Return the records of each correction, of those seeds that all corrections have."""
    lines = {
        point.series: {record.seed: record for record in point.records}
        for point in points(FIGURES["corrections"], panel, folder)
    }
    seeds = set.intersection(*(set(line) for line in lines.values()))
    return {name: [line[seed] for seed in sorted(seeds)] for name, line in lines.items()}


def _scores(line: Line, measure: str) -> Scores:
    return np.array([score(record, measure) for record in line])


def comparison(lines: Mapping[str, Line], correction: str, measure: str) -> Comparison:
    """Compare a correction with the first line, which has none."""
    plain = next(iter(lines.values()))
    return Comparison(_scores(lines[correction], measure), _scores(plain, measure))


def _staleness(records: Line) -> str:
    means = [record.staleness_mean or 0 for record in records]
    largest = max(record.staleness_max or 0 for record in records)
    return f"{min(means):.1f} to {max(means):.1f} on average, and at most {largest}"


def _range_of_ratios(panels: Sequence[Mapping[str, Line]]) -> str:
    """Return the median of the variance ratios of all comparisons, and their range."""
    ratios = [
        comparison(lines, correction, measure).variance_ratio()
        for lines in panels
        for correction in [*lines][1:]
        for measure in MEASURES
    ]
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    return f"{median(finite):.1f} ({min(finite):.1f} to {max(finite):.1f})" if finite else "-"


def _rows(panel: Panel, lines: Mapping[str, Line]) -> Iterator[list[str]]:
    """Yield the row of each correction: see COLUMNS."""
    plain, *_ = lines
    for correction, line in lines.items():
        cells = [panel.title, correction, f"{len(line)}", solved(line)]
        for measure in MEASURES:
            digits = 0 if measure == "solved_steps" else 1
            cells.append(f"{average(_scores(line, measure)):,.{digits}f}")
            if correction == plain:
                cells += [""] * 3
            else:
                cells += _difference_cells(comparison(lines, correction, measure), digits)
        yield cells


def _difference_cells(compared: Comparison, digits: int) -> Iterator[str]:
    low, high = compared.paired()
    difference = average(compared.differences)
    yield f"{difference:+,.{digits}f} [{low:+,.{digits}f}, {high:+,.{digits}f}]"

    low, high = compared.unpaired()
    yield f"[{low:+,.{digits}f}, {high:+,.{digits}f}]"

    ratio = compared.variance_ratio()
    if math.isnan(ratio):
        yield "-"
    else:
        low, high = compared.variance_ratio_interval()
        yield f"{ratio:.1f} [{low:.1f}, {high:.1f}]"


def draw(rows: Panels, target: Path) -> None:
    """Draw a row for each panel and a column for each measure, as an SVG. Raises ImportError
    without matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(charts.LOOK | {"font.size": 10}):
        size = (INCHES[0] * len(MEASURES), INCHES[1] * len(rows))
        canvas = Canvas(figsize=size, layout="constrained")
        grid = canvas.subplots(len(rows), len(MEASURES), squeeze=False, sharey=True)
        for panels, (panel, lines) in zip(grid, rows, strict=True):
            panels[0].set_title(panel.title, loc="left")
            for axes, measure in zip(panels, MEASURES, strict=True):
                _draw_differences(axes, lines, measure)
        grid[0, 0].legend(fontsize="small")
        curves.save(canvas, target)


def _draw_differences(axes: Axes, lines: Mapping[str, Line], measure: str) -> None:
    """Draw a mark for the difference of each pair, and the intervals of the mean."""
    plain, *corrections = lines
    for height, correction in enumerate(corrections):
        compared = comparison(lines, correction, measure)
        colour = charts.COLOURS[height]
        heights = [height] * len(compared.plain)
        axes.plot(compared.differences, heights, ".", color=colour, alpha=0.6)
        intervals = {"paired": (compared.paired(), 0.2), "unpaired": (compared.unpaired(), 0.35)}
        for label, (interval, offset) in intervals.items():
            axes.plot(
                interval,
                [height + offset] * 2,
                color=colour if label == "paired" else "gray",
                linewidth=3.0 if label == "paired" else 1.5,
                label=f"{label}, 95 %" if height == 0 else None,
            )
    axes.axvline(0, color="black", linewidth=1.0, linestyle=":")
    axes.set_yticks(range(len(corrections)), corrections)
    axes.set_ylim(len(corrections) - 0.4, -0.5)
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_xlabel(f"{MEASURES[measure]}: difference to {plain}")
