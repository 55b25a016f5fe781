"""Learning curves: evidence/results/curves/<kind>.csv, thinned from metrics.csv, and one figure of
all presets."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from a3c_exp.report import charts
from a3c_exp.report import runs as run_curves
from a3c_exp.report.ranking import RecordedRuns, comparison, rank
from a3c_exp.report.runs import RecordedRun, dotted_settings
from a3c_exp.run.metrics import SECONDS, STEP
from a3c_exp.run.run_folder import METRICS_FILE
from evidence.study import tables
from evidence.study.text import text

if TYPE_CHECKING:  # only drawing needs it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from evidence.study.entries import Recorded

FOLDER = "curves"
POINTS = 100
COLUMNS = (STEP, SECONDS, run_curves.RETURN)
"""Steps, seconds of training, and the mean return of the last 100 training episodes."""

Curve = NDArray[np.float64]


class Curves:
    """The learning curves of an entry, by seed. A curve is float64 [N, 3]: COLUMNS.

    folder: of all records. kind: names the file of the curves there. name: of the entry.
    """

    def __init__(self, folder: Path, kind: str, name: str) -> None:
        self._table = folder / FOLDER / f"{kind}.csv"
        self._name = name

    def read(self) -> dict[int, Curve]:
        """Return the curves by seed."""
        points = dict[int, list[list[float]]]()
        for row in tables.read(self._table):
            if row[tables.RECORD] == self._name:
                point = [float(row[column]) for column in COLUMNS]
                points.setdefault(int(row[tables.SEED]), []).append(point)
        return {seed: np.array(curve) for seed, curve in points.items()}

    def add(self, seed: int, run: Path) -> None:
        """Add at most POINTS rows of the run in the folder `run`, evenly spaced."""
        with open(run / METRICS_FILE, newline="", encoding="utf-8") as file:
            points = [point for point in csv.DictReader(file) if point[run_curves.RETURN]]
        if points:
            chosen = np.unique(np.linspace(0, len(points) - 1, POINTS).round().astype(int))
            origin = {tables.RECORD: self._name, tables.SEED: seed}
            rows = [origin | {name: points[index][name] for name in COLUMNS} for index in chosen]
            tables.put(self._table, rows, key=tuple(origin))


AXES = ((0, 1e6, "million steps"), (1, 60.0, "minutes of training"))
"""Columns of the figure: which of COLUMNS, its unit, and the label."""
PANEL_INCHES = (5.5, 4.2)


def draw(curves: Mapping[str, Mapping[str, Sequence[Curve]]], target: Path) -> None:
    """Draw the curves over steps and over minutes, as an SVG. Raises ImportError without
    matplotlib.

    curves: of each environment, a row of the figure, and there of each title, a colour.
    """
    from matplotlib.figure import Figure

    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * len(AXES), height * len(curves)), layout="constrained")

    rows = figure.subplots(len(curves), len(AXES), squeeze=False, sharey="row")
    for panels, (env, by_title) in zip(rows, curves.items(), strict=True):
        for axes, (column, unit, label) in zip(panels, AXES, strict=True):
            axes.set_xlabel(label)
            _draw_panel(axes, by_title, column, unit)
        panels[0].set_ylabel(f"{env}: mean return of 100 episodes")
        panels[0].legend(frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0, 1))

    save(figure, target)


def section(folder: Path, recorded: Mapping[str, Recorded]) -> str:
    """Draw the curves of the entries that keep them, and return their section; "" without one.
    folder: of all records. recorded: the entries by name."""
    by_env = dict[str, dict[str, Sequence[Curve]]]()
    for line in recorded.values():
        if line.entry.curve and line.records:
            by_seed = line.entry.curves(folder).read()
            plotted = [by_seed[record.seed] for record in line.records if record.seed in by_seed]
            by_env.setdefault(line.entry.env, {})[line.entry.title] = plotted

    if not by_env:
        return ""
    target = folder / FOLDER / "curves.svg"
    draw(by_env, target)
    return text("curves", picture=target.relative_to(folder).as_posix())


def save(figure: Figure, target: Path) -> None:
    """Write a figure as an SVG: the same curves are the same file."""
    import matplotlib

    target.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "curves"}):
        figure.savefig(target, format="svg", metadata={"Date": None})


def _draw_panel(
    axes: Axes, curves: Mapping[str, Sequence[Curve]], column: int, unit: float
) -> None:
    """Draw each title's runs in one colour. column: of a curve, for the horizontal axis."""
    for number, (title, runs) in enumerate(curves.items()):
        for index, curve in enumerate(runs):
            label = None if index else title.replace("`", "")
            axes.plot(
                curve[:, column] / unit,
                curve[:, -1],
                color=f"C{number}",
                label=label,
                linewidth=1.1,
            )

    axes.grid(alpha=0.3)


REPORTED = {"LunarLander-v3": {"2 workers": "lunar", "16 workers": "lunar_workers_16"}}
"""Records whose report is in learning.md, by environment: the entries of its configurations. They
were trained to their last step (`stop.mean_return=null`)."""


def reports(folder: Path, recorded: Mapping[str, Recorded]) -> list[str]:
    """Draw the reports on REPORTED, and return their sections. Raises ImportError without
    matplotlib.

    folder: of all records. recorded: the entries by name.
    """
    sections = []
    for env, entries in REPORTED.items():
        if not recorded.keys() >= set(entries.values()):
            continue

        runs = {}
        for label, name in entries.items():
            curves = recorded[name].entry.curves(folder).read()
            runs[label] = [as_run(curve, recorded[name].settings) for curve in curves.values()]

        if not all(runs.values()):
            continue
        ranked = rank(runs)
        target = folder / FOLDER / f"{env}.png"
        draw_report(ranked, target)
        sections.append(
            text(
                "report",
                env=env,
                comparison="\n".join(comparison(ranked)),
                picture=target.relative_to(folder).as_posix(),
            )
        )

    return sections


def draw_report(ranked: Mapping[str, RecordedRuns], target: Path) -> None:
    """Draw the learning curves of configurations as `python -m a3c_exp.report` does, as PNG."""
    target.write_bytes(charts.rendered(charts.learning_curves(ranked), "png"))


def as_run(curve: Curve, config: Mapping[str, Any]) -> RecordedRun:
    """Return a run to its last step with this curve, as a report sees it."""
    steps, seconds, returns = curve.T
    last = dict(zip(COLUMNS, curve[-1].tolist(), strict=True))
    episodes = np.full(len(curve), np.inf)  # the table does not say
    return RecordedRun(
        Path(),
        dotted_settings(config),
        {"stop_reason": "total_steps"},
        run_curves.Curve(steps, seconds, episodes, returns, last, evaluations=np.array([])),
    )
