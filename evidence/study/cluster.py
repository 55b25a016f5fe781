"""The section on simulated clusters, and its tables: `python -m evidence.study --cluster`.

Its runs are those of the figures `cluster` and `cluster_measured` in figures.yaml. What has no
record yet is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from a3c_exp.common.estimates import median_reached, spread
from a3c_exp.report import charts
from a3c_exp.run import markdown
from evidence.study import curves, tables
from evidence.study.figures import FIGURES, machines, points, solved, sooner
from evidence.study.records import Record
from evidence.study.text import text

if TYPE_CHECKING:  # only drawing needs it
    from matplotlib.axes import Axes

INCHES = (11.0, 4.2)
DRAWN = ("equal", "stragglers")
"""Panels of `cluster` that are drawn, side by side."""

THREADS = (1, 2, 4, 8, 16)
PAPER = {
    "one-step Q": (1.0, 3.0, 6.3, 13.3, 24.1),
    "one-step Sarsa": (1.0, 2.8, 5.9, 13.1, 22.1),
    "n-step Q": (1.0, 2.7, 5.9, 10.7, 17.2),
    "A3C": (1.0, 2.1, 3.7, 6.9, 12.5),
}
"""Mnih et al. 2016 (arXiv 1602.01783), table 2: one thread's time to a reference score over that of
THREADS threads, averaged over seven Atari games."""

Line = Mapping[int, Sequence[Record]]
"""The records of a line by their number of workers."""


def section(folder: Path) -> str:
    """Draw the figure, and return the section; "" without a record of the drawn panels. folder:
    of the records."""
    simulated = {name: _lines("cluster", name, folder) for name in DRAWN}
    if not any(simulated.values()):
        return ""
    target = folder / curves.FOLDER / "cluster.svg"
    measured = [
        _lines("cluster_measured", "equal", folder, machine)
        for machine in machines(FIGURES["cluster_measured"], folder)
    ]
    draw(simulated, measured, target)
    check = _check_grid(folder)
    records = [
        record
        for lines in simulated.values()
        for line in lines.values()
        for records in line.values()
        for record in records
    ]
    return text(
        "cluster",
        runs=len(records),
        picture=target.relative_to(folder).as_posix(),
        table=markdown.table(*_seconds_grid(simulated)),
        methods=markdown.table(*_methods_grid(folder)),
        check=markdown.table(*check) if check[1] else "Not measured yet.",
        commands="\n".join(
            f"python -m a3c_exp {panel.command}" for panel in FIGURES["cluster"].panels
        ),
    )


def grids(folder: Path) -> list[tables.Grid]:
    """Return the tables of the section. folder: of the records."""
    simulated = {name: _lines("cluster", name, folder) for name in DRAWN}
    return [_seconds_grid(simulated), _methods_grid(folder), _check_grid(folder)]


def _lines(figure: str, panel: str, folder: Path, machine: str = "") -> dict[str, Line]:
    """Return the records of a panel by series and number of workers, those without a record left
    out."""
    chosen = FIGURES[figure]
    [row] = [candidate for candidate in chosen.panels if candidate.name == panel]
    lines: dict[str, dict[int, Sequence[Record]]] = {}
    for point in points(chosen, row, folder, machine):
        if point.records:
            lines.setdefault(point.series, {})[point.value] = point.records
    return dict(lines)


def _seconds(records: Sequence[Record]) -> float:
    """Return the median time until solved, in seconds; infinity if half of the runs never were."""
    return median_reached([record.solved_seconds for record in records])


def _seconds_grid(simulated: Mapping[str, Mapping[str, Line]]) -> tables.Grid:
    panels = {panel.name: panel for panel in FIGURES["cluster"].panels}
    workers = sorted(
        {count for lines in simulated.values() for line in lines.values() for count in line}
    )
    rows = [
        [panels[name].title, series, *(_seconds_cell(line.get(count, ())) for count in workers)]
        for name, lines in simulated.items()
        for series, line in lines.items()
    ]
    return ["", "updates", *map(str, workers)], rows


def _seconds_cell(records: Sequence[Record]) -> str:
    if not records:
        return ""
    seconds = _seconds(records)
    shown = f"{seconds:.2f}" if math.isfinite(seconds) else "never"
    is_solved = all(record.solved_seconds is not None for record in records)
    return shown if is_solved else f"{shown} ({solved(records)})"


def _methods_grid(folder: Path) -> tables.Grid:
    """The speed-up of each method, simulated and measured, and that of the paper."""
    sources = {"simulated": _lines("cluster", "methods", folder)}
    for machine in machines(FIGURES["speedup"], folder):
        sources[f"measured, {machine}"] = _lines("speedup", "cartpole", folder, machine)
    rows = []
    for method, speedups in PAPER.items():
        for source, lines in sources.items():
            if method in lines:
                cells = [_speedup(lines[method], count) for count in THREADS]
                rows.append([method, source, *cells])
        rows.append([method, "paper", *(f"{speedup:.1f}" for speedup in speedups)])
    return ["", "runs", *map(str, THREADS)], rows


def _speedup(line: Line, workers: int) -> str:
    """Return how many times sooner several workers solve it than one, and nothing without a
    record."""
    if workers == 1 or 1 not in line or workers not in line:
        return "1" if workers in line else ""
    return sooner(line[workers], line[1])


CHECKED = ("lunar", "cartpole")
"""Panels that are compared with measured runs."""
CHECK_COLUMNS = (
    " | machine | workers | runs | steps/s measured | simulated | difference "
    "| seconds until solved measured | simulated"
)


def _check_grid(folder: Path) -> tables.Grid:
    """Runs as they were measured, beside the simulation. Each machine's one worker has a speed of
    its own, to which the simulation is scaled: more workers alone are predicted."""
    rows: list[list[str]] = []
    titles = {panel.name: panel.title for panel in FIGURES["cluster"].panels}
    for panel in CHECKED:
        simulated = _lines("cluster", panel, folder).get("lock-free", {})
        for figure in ("cluster_measured", "scaling"):
            for machine in machines(FIGURES[figure], folder):
                lines = _lines(figure, panel, folder, machine)
                measured = next(iter(lines.values()), {})
                if 1 in measured and 1 in simulated:
                    compared = _check_rows(machine, measured, simulated)
                    rows += [[titles[panel], *cells] for cells in compared]
    return CHECK_COLUMNS.split(" | "), rows


def _check_rows(machine: str, measured: Line, simulated: Line) -> Iterator[list[str]]:
    scale = _steps_per_second(measured[1]) / _steps_per_second(simulated[1])
    cores = re.search(r"(\d+)-cores$", machine)
    most = math.inf if cores is None else int(cores[1])
    for workers in sorted(measured.keys() & simulated.keys()):
        if workers > most:
            break
        truth = _steps_per_second(measured[workers])
        prediction = scale * _steps_per_second(simulated[workers])
        yield [
            machine,
            f"{workers}",
            f"{len(measured[workers])}, {len(simulated[workers])}",
            f"{truth:,.0f}",
            f"{prediction:,.0f}",
            "" if workers == 1 else f"{prediction / truth - 1:+.0%}",
            _spread(measured[workers], 1),
            _spread(simulated[workers], 1 / scale),
        ]


def _steps_per_second(records: Sequence[Record]) -> float:
    return median(record.steps_per_second for record in records)


def _spread(records: Sequence[Record], scale: float) -> str:
    return spread(
        [
            None if record.solved_seconds is None else scale * record.solved_seconds
            for record in records
        ],
        1,
    )


def draw(
    simulated: Mapping[str, Mapping[str, Line]],
    measured: Sequence[Mapping[str, Line]],
    target: Path,
) -> None:
    """Draw the panels side by side, as an SVG. Raises ImportError without matplotlib.

    simulated: lines of each panel. measured: lines of each machine, over the first panel.
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    titles = {panel.name: panel.title for panel in FIGURES["cluster"].panels}
    with matplotlib.rc_context(charts.LOOK | {"font.size": 10}):
        canvas = Canvas(figsize=INCHES, layout="constrained")
        grid = canvas.subplots(1, len(simulated), sharey=True)
        for axes, (name, lines) in zip(grid, simulated.items(), strict=True):
            axes.set_title(titles[name], loc="left")
            _draw_panel(axes, lines)
        for lines in measured:
            _draw_measured(grid[0], lines)
        grid[0].set_ylabel("simulated seconds until solved (x: never)")
        grid[0].legend(fontsize="small")
        curves.save(canvas, target)


def _colour(series: str) -> str:
    return charts.COLOURS[list(FIGURES["cluster"].series).index(series)]


def _draw_panel(axes: Axes, lines: Mapping[str, Line]) -> None:
    """Draw a mark for each run, and a line through the medians that were reached. Runs that were
    never solved are marked at the top."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for number, (series, line) in enumerate(lines.items()):
        colour = _colour(series)
        for workers, records in line.items():
            for record in records:
                if record.solved_seconds is not None:
                    axes.plot(workers, record.solved_seconds, ".", color=colour, alpha=0.6)
        never = [count for count, records in line.items() if not math.isfinite(_seconds(records))]
        heights = [0.97 - 0.04 * number] * len(never)
        axes.plot(never, heights, "x", color=colour, transform=axes.get_xaxis_transform())
        reached = [count for count in line if count not in never]
        medians = [_seconds(line[count]) for count in reached]
        axes.plot(reached, medians, color=colour, linestyle=charts.STYLES[number], label=series)
    if 1 in next(iter(lines.values()), {}):
        first = _seconds(next(iter(lines.values()))[1])
        most = max(
            count
            for line in lines.values()
            for count, records in line.items()
            if math.isfinite(_seconds(records))
        )
        ideal = [first, first / most]
        axes.plot(
            [1, most], ideal, color="black", linestyle=":", linewidth=1.0, label="N times as fast"
        )
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("workers")


def _draw_measured(axes: Axes, lines: Mapping[str, Line]) -> None:
    """Draw the median of each measured point."""
    for number, (series, line) in enumerate(lines.items()):
        reached = {count: _seconds(records) for count, records in line.items()}
        finite = {count: value for count, value in reached.items() if math.isfinite(value)}
        label = None if number else "measured"
        axes.plot(
            list(finite),
            list(finite.values()),
            "*",
            color=_colour(series),
            markersize=11,
            markeredgecolor="black",
            label=label,
        )
