"""Figures that ask what Mnih et al. 2016 (arXiv 1602.01783) ask: they stand in
figures.yaml.

A figure has a row for each of its panels, there a line for each of its series, and on it a point
for each value of a setting. A point is an entry of the study, whose runs are trained and recorded
like those of any other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from a3c_exp.common.estimates import (
    BOUNDS,
    DRAWS,
    bootstrap_interval,
    estimate,
    interquartile_mean,
    median_reached,
    spread,
)
from a3c_exp.core.cpu import usable_cores
from a3c_exp.report import charts
from a3c_exp.report.runs import Axis, RecordedRun
from a3c_exp.run import markdown, provenance
from evidence.study import curves, maps, tables
from evidence.study.entries import Entry
from evidence.study.records import Record, average
from evidence.study.runs import Replayed, Trial, describe
from evidence.study.text import text, wrapped

if TYPE_CHECKING:  # only drawing needs it
    from matplotlib.axes import Axes

INCHES = (5.2, 3.9)
"""Of one panel."""
MOST_TICKS = 8
"""Values of the axis that have a tick each; more would run into one another."""
LABELS = {
    "last_100": "mean return of the last 100 episodes",
    "solved_steps": "steps until solved (x: never)",
    "solved_seconds": "seconds until solved (x: never)",
    "backend.staleness": "staleness [updates]",
    "optimizer.learning_rate": "learning rate",
    "returns.n": "n",
}
MOST = 0.9
"""Share of the workers that `{most}` stands for in a line of figures.yaml."""
UNSOLVED = {"solved_steps": "steps", "solved_seconds": "seconds"}
"""What is plotted for a run that was not solved: where it ended."""


@dataclass(frozen=True)
class Panel:
    """A row of a figure; see figures.yaml."""

    name: str
    title: str
    env: str
    seeds: int
    command: str
    on_request: bool = False
    values: Sequence[Any] | None = None
    series: Mapping[str, str] | None = None
    table: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure; see figures.yaml."""

    name: str
    panels: Sequence[Panel]
    series: Mapping[Any, str]
    measures: Sequence[str] = ()
    axis: str | None = None
    values: Sequence[Any] = (None,)
    x: str | None = None
    timed: bool = False
    curves: bool = False
    generic: bool = True
    map: bool = False
    replayed: bool = False
    page: str = "methods"


@dataclass(frozen=True)
class Point:
    """A point of a line with the records of its runs. value: of the figure's axis, if it has
    one."""

    series: Any
    value: Any
    entry: Entry
    records: Sequence[Record]

    def place(self, figure: Figure) -> float:
        """Return where it is on the horizontal axis."""
        return float(
            self.value
            if figure.x is None
            else np.mean([getattr(run, figure.x) for run in self.records])
        )

    def label(self, figure: Figure) -> str:
        """Return the label of its learning curves."""
        parts = [self.series] * (len(figure.series) > 1) + [f"{figure.axis}={self.value}"] * (
            figure.axis is not None
        )
        return ", ".join(parts)


Rows = Sequence[tuple[Panel, Sequence[Point]]]


def _figures() -> dict[str, Figure]:
    rows = yaml.safe_load(Path(__file__).with_name("figures.yaml").read_text(encoding="utf-8"))
    return {
        name: Figure(name, [Panel(**panel) for panel in row.pop("panels")], **row)
        for name, row in rows.items()
    }


FIGURES = _figures()


def points(figure: Figure, panel: Panel, folder: Path, machine: str = "") -> list[Point]:
    """Return all points of a panel. machine: of a figure that is timed."""
    name_parts = [part for part in (figure.name, machine, panel.name) if part]
    table = panel.table or "_".join(name_parts)
    common = tuple(panel.command.split())

    row = []
    for series, overrides in (panel.series or figure.series).items():
        for value in panel.values or figure.values:
            most = 1 if value is None else max(1, math.floor(MOST * value))
            differing = overrides.format(most=most).split()
            if value is not None:
                differing.append(f"{figure.axis}={value}")
            name = "_".join([*name_parts, *map(_file_name, differing)])
            recipe = Trial((*common, *differing), common=common)
            if figure.replayed:
                name = "_".join([*name_parts, _file_name(series)])
                recipe = Replayed(
                    recipe.overrides,
                    common=common,
                    recorded="_".join([*name_parts, "recorded"]),
                    changed=tuple(differing),
                )
            entry = Entry(
                name,
                table.partition("_")[0] if panel.table else figure.name,
                panel.env,
                panel.title,
                recipe,
                panel.seeds,
                curve=figure.curves,
                table=None if figure.replayed else table,
            )
            row.append(Point(series, value, entry, entry.records(folder)))

    return row


def entries(figure: Figure, folder: Path, env: str | None) -> list[Entry]:
    """Return what this machine has to train. env: of its panels; None: all but those that are to be
    asked for."""
    machine = _file_name(describe(provenance.machine())) if figure.timed else ""
    return [
        point.entry
        for panel in figure.panels
        if env == panel.env or (env is None and not panel.on_request)
        for point in points(figure, panel, folder, machine)
        if not figure.timed or point.value is None or point.value <= 2 * usable_cores()
    ]


def _file_name(words: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-")


def sections(folder: Path, page: str) -> list[str]:
    """Draw the figures of a page of which there are records in `folder`, and return their
    sections."""
    texts = []
    for figure in FIGURES.values():
        if not figure.generic or figure.page != page:
            continue
        for machine in machines(figure, folder):
            rows = recorded(figure, folder, machine)
            if rows:
                name = f"{figure.name}_{machine}".removesuffix("_")
                target = folder / curves.FOLDER / f"{name}.svg"
                if figure.map:
                    maps.draw([as_map(panel, row) for panel, row in rows], target)
                else:
                    draw(figure, rows, folder, target)
                texts.append(_section(figure, rows, target.relative_to(folder).as_posix()))

    return texts


def recorded(figure: Figure, folder: Path, machine: str = "") -> Rows:
    """Return the panels and the points of which there are records. machine: see `points`."""
    every = [(panel, points(figure, panel, folder, machine)) for panel in figure.panels]
    present = [(panel, [point for point in row if point.records]) for panel, row in every]
    return [(panel, row) for panel, row in present if row]


def grids(figure: Figure, folder: Path) -> list[tables.Grid]:
    """Return the table of a figure for each machine of which there are records."""
    rows = [recorded(figure, folder, machine) for machine in machines(figure, folder)]
    return [_grid(figure, panels) for panels in rows if panels]


def as_map(panel: Panel, row: Sequence[Point]) -> maps.Map:
    """Return the map of a panel's points."""
    rates = sorted({float(point.series) for point in row})
    values = sorted({point.value for point in row})
    records = {(float(point.series), point.value): point.records for point in row}
    return maps.Map(panel.title, rates, values, records)


def machines(figure: Figure, folder: Path) -> list[str]:
    """Return the machines of which there are records, <figure>_<machine>_<panel>."""
    if not figure.timed:
        return [""]
    rows = tables.read(folder / f"{figure.name}.csv")
    return sorted({row[tables.RECORD].split("_")[-2] for row in rows})


def _section(figure: Figure, rows: Rows, picture: str) -> str:
    records = [record for _, row in rows for point in row for record in point.records]
    return text(
        figure.name,
        picture=picture,
        table=markdown.table(*_grid(figure, rows)),
        study="\n".join(dict.fromkeys(_study(figure, panel) for panel, _ in rows)),
        commands="\n".join(f"python -m a3c_exp {panel.command}" for panel, _ in rows),
        notes=wrapped(" ".join(panel.note for panel, _ in rows if panel.note)),
        runs=len(records),
        planned=sum(
            _planned(figure, panel)
            for panel in figure.panels
            if not panel.on_request or any(panel is present for present, _ in rows)
        ),
        minutes=f"{sum(record.seconds for record in records) / 60:.0f}",
        machines="; ".join(sorted({record.machine for record in records})),
    )


def _planned(figure: Figure, panel: Panel) -> int:
    """Return how many runs a panel is to have."""
    lines = panel.series or figure.series
    return panel.seeds * len(lines) * len(panel.values or figure.values)


def _study(figure: Figure, panel: Panel) -> str:
    """Return the command that trains a panel."""
    command = f"python -m evidence.study --{figure.name.replace('_', '-')}"
    return f"{command} --env {panel.env}" if panel.on_request else command


def _grid(figure: Figure, rows: Rows) -> tables.Grid:
    columns, cells = (SPEED_COLUMNS, _speeds) if figure.timed else (RANGE_COLUMNS, _ranges)
    if figure.map:
        columns, cells = maps.COLUMNS, _map_cells
    lines = [line for panel, row in rows for line in cells(figure, panel, row)]
    return columns.split(" | "), lines


def _lines(row: Sequence[Point]) -> dict[str, list[Point]]:
    """Return the points of a panel by series."""
    return {series: list(line) for series, line in groupby(row, key=lambda point: point.series)}


SPEED_COLUMNS = (
    " | runs | seeds | solved | steps/s | steps to it | seconds to it | against the first: "
    "steps/s | steps | seconds"
)
RANGE_COLUMNS = (
    " | line | runs solved | every seed solved at | soonest at | steps there "
    "| highest return of training | at"
)


def _speeds(figure: Figure, panel: Panel, row: Sequence[Point]) -> Iterator[list[str]]:
    """Yield speeds of each point against the first of its line, or of the panel where a line is one
    point."""
    for line in _lines(row).values():
        first = line[0] if figure.axis else row[0]
        for point in line:
            yield [
                panel.title,
                point.label(figure),
                point.entry.seeds_of(point.records),
                solved(point.records),
                f"{median(record.steps_per_second for record in point.records):,.0f}",
                spread([record.solved_steps for record in point.records], 0),
                spread([record.solved_seconds for record in point.records], 1),
                *([""] * 3 if point is first else ratios(point.records, first.records)),
            ]


def ratios(records: Sequence[Record], first: Sequence[Record]) -> Iterator[str]:
    """Yield ratios of medians with their bootstrap intervals, above 1 if better than the first
    runs: in steps a second, in steps and in seconds until solved; "-" where too few runs were
    solved."""
    rng = np.random.default_rng(0)
    for name in ("steps_per_second", "solved_steps", "solved_seconds"):
        columns = [
            np.array([getattr(run, name) or np.inf for run in runs]) for runs in (records, first)
        ]
        over, under = columns if name == "steps_per_second" else columns[::-1]

        draws = [
            np.median(rng.choice(values, (DRAWS, len(values))), axis=1) for values in (over, under)
        ]
        if np.isfinite(draws).all():
            ratio = f"{np.median(over) / np.median(under):.2f}"
            low, high = np.quantile(draws[0] / draws[1], BOUNDS)
            yield ratio if len(over) == len(under) == 1 else f"{ratio} [{low:.2f}, {high:.2f}]"
        else:
            yield "-"


def sooner(records: Sequence[Record], first: Sequence[Record]) -> str:
    """Return how many times sooner runs are solved than the first: the ratio of medians with its
    bootstrap interval, or with the runs that are solved where some are not; "-" where half of one
    side never are."""
    *_, seconds = ratios(records, first)
    if seconds != "-":
        return seconds

    medians = [median_reached([run.solved_seconds for run in runs]) for runs in (first, records)]
    if not all(0 < seconds < math.inf for seconds in medians):
        return "-"
    worse = max(records, first, key=lambda runs: [run.solved_seconds for run in runs].count(None))
    return f"{medians[0] / medians[1]:.2f} ({solved(worse)} solved)"


def solved(records: Sequence[Record], planned: int = 0) -> str:
    """Return how many runs are solved: "3 of 5", or "3 of 5 (9 planned)" where more are."""
    count = sum(record.solved_steps is not None for record in records)
    text = f"{count} of {len(records)}"
    return f"{text} ({planned} planned)" if planned > len(records) else text


def trained(records: Sequence[Record]) -> str:
    """Return the mean over runs of the return of training, each of its last 100 episodes, with its
    interval."""
    return estimate(_returns(records), average)


def mean_trained(records: Sequence[Record]) -> float:
    """Return the number of `trained`; minus infinity if no run has so many episodes."""
    returns = _returns(records)
    return float(np.mean(returns)) if returns else -math.inf


def _returns(records: Sequence[Record]) -> list[float]:
    return [record.last_100 for record in records if record.last_100 is not None]


def _ranges(figure: Figure, panel: Panel, row: Sequence[Point]) -> Iterator[list[str]]:
    """Yield where each line is solved."""
    planned = panel.seeds * len(panel.values or figure.values)
    for series, line in _lines(row).items():
        works = [
            point
            for point in line
            if all(record.solved_steps is not None for record in point.records)
        ]
        medians = [
            median_reached([record.solved_steps for record in point.records]) for point in line
        ]
        best = line[medians.index(min(medians))]
        best_place = f"{best.place(figure):.3g}" if math.isfinite(min(medians)) else "-"
        highest = max(line, key=lambda point: mean_trained(point.records))
        places = [f"{point.place(figure):.3g}" for point in works]
        yield [
            panel.title,
            series,
            solved([record for point in line for record in point.records], planned),
            f"{places[0]} to {places[-1]}: {len(works)} of {len(line)}" if works else "none",
            best_place,
            spread([record.solved_steps for record in best.records], 0),
            trained(highest.records),
            f"{highest.place(figure):.3g}",
        ]


def _map_cells(figure: Figure, panel: Panel, row: Sequence[Point]) -> Iterator[list[str]]:
    records = [record for point in row for record in point.records]
    for title, _, *cells in maps.cells(as_map(panel, row)):
        yield [title, solved(records, _planned(figure, panel)), *cells]


def draw(figure: Figure, rows: Rows, folder: Path, target: Path) -> None:
    """Draw a figure as an SVG. folder: of the records. Raises ImportError without matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    curve_axes: Sequence[Axis] = ("steps", "seconds") if figure.curves else ()
    columns = len(curve_axes) + len(figure.measures)

    with matplotlib.rc_context(charts.LOOK | {"font.size": 10}):
        canvas = Canvas(figsize=(INCHES[0] * columns, INCHES[1] * len(rows)), layout="constrained")
        grid = canvas.subplots(len(rows), columns, squeeze=False)
        for panels, (panel, row) in zip(grid, rows, strict=True):
            settings = row[0].entry.results(folder).settings()
            panels[0].set_title(panel.title, loc="left")

            for axes, axis in zip(panels, curve_axes, strict=False):
                charts.draw_bands(
                    axes, [_curves(figure, point, settings, folder) for point in row], axis
                )
                axes.set_ylabel("mean return of 100 episodes")

            for axes, measure in zip(panels[len(curve_axes) :], figure.measures, strict=True):
                _draw_scores(axes, figure, row, measure)
                if measure == "last_100":
                    axes.axhline(
                        settings["reward_threshold"], color="black", linewidth=1.0, linestyle=":"
                    )

            panels[0].legend(fontsize="small")

        curves.save(canvas, target)


def _curves(
    figure: Figure, point: Point, settings: Mapping[str, Any], folder: Path
) -> tuple[str, list[RecordedRun]]:
    by_seed = point.entry.curves(folder).read()
    plotted = [by_seed[record.seed] for record in point.records if record.seed in by_seed]
    return point.label(figure), [curves.as_run(curve, settings) for curve in plotted]


def _draw_scores(axes: Axes, figure: Figure, row: Sequence[Point], measure: str) -> None:
    """Draw a mark for each run, and for each series a line through the interquartile means with a
    95 % band."""
    for (series, line), colour, style in zip(
        _lines(row).items(), charts.COLOURS, charts.STYLES, strict=False
    ):
        places = [point.place(figure) for point in line]

        middle = []
        bounds = []
        for x, point in zip(places, line, strict=True):
            scores = [score(record, measure) for record in point.records]
            for record, height in zip(point.records, scores, strict=True):
                never = measure in UNSOLVED and record.solved_steps is None
                axes.plot(x, height, "x" if never else ".", color=colour, alpha=0.6, markersize=5)
            middle.append(interquartile_mean(np.array(scores)))
            bounds.append(bootstrap_interval(scores))

        axes.plot(places, middle, color=colour, linestyle=style, label=series)
        axes.fill_between(places, *np.transpose(bounds), color=colour, alpha=0.15, linewidth=0)

        if figure.timed:  # N workers N times as fast
            axes.plot(
                places,
                middle[0] * places[0] / np.array(places),
                color="black",
                linestyle=":",
                linewidth=1.0,
            )

    # which has a 0
    axes.set_xscale("symlog", linthresh=next(x for x in places if x > 0))
    axes.xaxis.set_major_formatter("{x:g}")
    if len(places) <= MOST_TICKS:
        axes.set_xticks(places, [f"{x:.3g}" for x in places])
    if measure in UNSOLVED:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xlabel(LABELS.get(figure.x or str(figure.axis), str(figure.axis)))
    axes.set_ylabel(LABELS[measure])


def score(record: Record, measure: str) -> float:
    """Return what is plotted of a run: of one that was not solved, where it ended."""
    value = getattr(record, measure)
    return float(getattr(record, UNSOLVED[measure]) if value is None else value)
