"""Learning curves: evidence/results/curves/<entry>_s<seed>.csv, thinned from metrics.csv, and one
figure of all presets."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from a3c_exp.report import charts
from a3c_exp.report import runs as run_curves
from a3c_exp.report.ranking import Runs, comparison, rank
from a3c_exp.report.runs import RecordedRun, dotted_settings
from a3c_exp.run import files
from a3c_exp.run.metrics import SECONDS, STEP
from evidence.study.text import text

if TYPE_CHECKING:  # only drawing needs it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 100
COLUMNS = (STEP, SECONDS, run_curves.RETURN)


def keep(run: Path, target: Path) -> None:
    """Write at most POINTS rows of the run in `run`, evenly spaced: steps, seconds of training, and
    the mean return
    of the last 100 training episodes."""
    with open(run / "metrics.csv", newline="", encoding="utf-8") as file:
        rows = [[row[name] for name in COLUMNS] for row in csv.DictReader(file) if row[COLUMNS[-1]]]
    chosen = np.unique(np.linspace(0, len(rows) - 1, POINTS).round().astype(int))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [COLUMNS, *(rows[index] for index in chosen if rows)]
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(target, text.getvalue())


AXES = ((0, 1e6, "million steps"), (1, 60.0, "minutes of training"))
"""Columns of the figure: which of COLUMNS, its unit, and the label."""
PANEL_INCHES = (5.5, 4.2)


def draw(curves: Mapping[str, Mapping[str, Sequence[Path]]], target: Path) -> None:
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


def save(figure: Figure, target: Path) -> None:
    """Write a figure as an SVG: the same curves are the same file."""
    import matplotlib

    target.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "curves"}):
        figure.savefig(target, format="svg", metadata={"Date": None})


def _draw_panel(axes: Axes, curves: Mapping[str, Sequence[Path]], column: int, unit: float) -> None:
    """Draw each title's runs in one colour. column: of a curve, for the horizontal axis."""
    for number, (title, paths) in enumerate(curves.items()):
        for index, path in enumerate(paths):
            curve = read_curve(path)
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
"""Records whose report is in RESULTS.md, by environment: the entries of its configurations. They
were trained to their last step (`stop.mean_return=null`)."""


def reports(folder: Path, configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Draw the reports on REPORTED, and return their sections of RESULTS.md. Raises ImportError
    without matplotlib.

    folder: of the curves, three levels below that of RESULTS.md. configs: the settings of the
        entries.
    """
    sections = []
    for env, entries in REPORTED.items():
        runs = {
            label: [as_run(path, configs[name]) for path in sorted(folder.glob(f"{name}_s*.csv"))]
            for label, name in entries.items()
        }
        if not all(runs.values()):
            continue
        ranked = rank(runs)
        target = folder / f"{env}.png"
        draw_report(ranked, target)
        root = folder.parents[2]
        places = {
            "folder": folder.relative_to(root).as_posix(),
            "picture": target.relative_to(root).as_posix(),
        }
        sections.append(text("report", env=env, comparison="\n".join(comparison(ranked)), **places))
    return sections


def draw_report(ranked: Mapping[str, Runs], target: Path) -> None:
    """Draw the learning curves of configurations as `python -m a3c_exp.report` does, as PNG."""
    target.write_bytes(charts.learning_curves(ranked))


def as_run(path: Path, config: Mapping[str, Any]) -> RecordedRun:
    return RecordedRun(
        path.parent,
        dotted_settings(config),
        {"stop_reason": "total_steps"},
        run_curves.read_curve(path),
    )


def read_curve(path: Path) -> NDArray[np.float64]:
    """The rows of a curve, float64 [N, 3]: COLUMNS."""
    curve = run_curves.read_curve(path)
    return np.column_stack([curve.steps, curve.seconds, curve.returns])
