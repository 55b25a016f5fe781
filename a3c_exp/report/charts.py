"""Learning curves of several runs as one, and the charts of a report.

matplotlib draws them, which the extra `report` installs.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart, and line styles
differ too. Letters are large enough to be read at half the size.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from a3c_exp.common.estimates import bootstrap_band, interquartile_mean
from a3c_exp.report.ranking import RecordedRuns, scores
from a3c_exp.report.runs import Axis, Curve, Doubles, group

if TYPE_CHECKING:  # only drawing needs it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CURVES = 6
"""Configurations in one chart: more could not be told apart."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
MARKERS = "os^Dvx"
UNITS: Mapping[Axis, Sequence[tuple[float, str]]] = {
    "steps": (
        (1e6, "environment steps [million]"),
        (1e3, "environment steps [thousand]"),
        (1.0, "environment steps"),
    ),
    "seconds": ((3600.0, "time [h]"), (60.0, "time [min]"), (1.0, "time [s]")),
    "episodes": ((1e6, "episodes [million]"), (1e3, "episodes [thousand]"), (1.0, "episodes")),
}
LONGEST_LABEL = 108
FAR = 0.5
"""Heights of the curves, beyond which a threshold is far from them."""

LOOK: Any = {
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 12,
    "grid.alpha": 0.4,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "pdf.fonttype": 42,
    "svg.hashsalt": "a3c_exp",
    "text.parse_math": False,
}
"""matplotlib's settings. Names of configurations may have dollar signs, which are no mathematics.
Publishers take no PDF with fonts of type 3."""

FILE_FORMATS: Mapping[str, Mapping[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
"""Formats of a chart's file, with the metadata that would make equal charts different files."""


BAND_POINTS = 200
"""Points of a curve at which runs are compared."""


@dataclass(frozen=True, slots=True)
class Band:
    """The interquartile mean over runs, and its 95 % interval, float64 [points] each.

    x: environment steps, or seconds.
    runs: how many runs the mean is of.
    """

    x: Doubles
    middle: Doubles
    low: Doubles
    high: Doubles
    runs: int


def band(runs: RecordedRuns, axis: Axis) -> Band | None:
    """Return the band of the runs that have ended, as far as the longest of them goes: the others
    keep their last return.

    While none has ended: of all of them, as far as the shortest goes. None if there is nothing to
    draw yet.
    """
    ended = curves_along([run for run in runs if run.ended], axis)
    curves = ended or curves_along(runs, axis)
    if not curves:
        return None

    start = max(curve.along(axis)[0] for curve in curves)
    ends = [curve.along(axis)[-1] for curve in curves]
    end = max(ends) if ended else min(ends)
    x = np.linspace(start, max(start, end), BAND_POINTS)
    values = np.stack([np.interp(x, curve.along(axis), curve.returns) for curve in curves])
    low, high = bootstrap_band(values) if len(curves) > 1 else (values[0], values[0])
    return Band(x, interquartile_mean(values.T), low, high, len(curves))


def curves_along(runs: RecordedRuns, axis: Axis) -> list[Curve]:
    """Return the curves that have points, and say where these lie on the axis."""
    curves = [run.curve for run in runs if run.curve.returns.size]
    return [curve for curve in curves if np.isfinite(curve.along(axis)).all()]


def learning_curves(ranked: Mapping[str, RecordedRuns], axis: Axis = "steps") -> Figure:
    """Plot the returns of the first configurations over steps, or over episodes, and over seconds.

    Raises ImportError without matplotlib.
    """
    import matplotlib
    from matplotlib.figure import Figure

    scored = [(name, runs) for name, runs in ranked.items() if scores(runs, None)]
    plotted = scored[:MOST_CURVES]
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(11.0, 4.4 + 0.28 * len(plotted)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        draw_bands(left, plotted, axis)
        draw_bands(right, plotted, "seconds")

        left.set_ylabel("mean return of 100 episodes")
        if left.lines:
            figure.legend(*left.get_legend_handles_labels(), loc="outside lower center")
    return figure


def scatter(
    runs: RecordedRuns, key: str, values: Mapping[Path, float], curve: str | None
) -> Figure:
    """Plot the score of each run over a setting on a logarithmic axis, as in figure 2 of Mnih et
    al. 2016.

    Runs that differ otherwise have other colours, as long as there are enough.

    values: of the setting `key`, by folder of the run.
    curve: see `RecordedRun.score`.
    Raises ImportError without matplotlib.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

    plotted = [
        replace(run, settings={name: x for name, x in run.settings.items() if name != key})
        for run in runs
        if run.folder in values
    ]
    (groups,) = group(plotted).values()
    if len(groups) > MOST_CURVES:
        groups = {"": plotted}

    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(7.0, 4.4 + 0.28 * len(groups)), layout="constrained")
        axes = figure.subplots()
        for (name, alike), colour, marker in zip(groups.items(), COLOURS, MARKERS, strict=False):
            settings = [values[run.folder] for run in alike]
            scores = np.array([run.score(curve) for run in alike])
            axes.scatter(
                settings, scores, color=colour, marker=marker, alpha=0.7, label=_label(name)
            )

        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")  # not in powers, which would be mathematics
        axes.xaxis.set_minor_formatter(LogFormatter())  # of a range of less than a decade
        axes.set_xlabel(key)
        axes.set_ylabel(curve or "final return")

        if len(groups) > 1:
            figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center")
    return figure


def _label(name: str) -> str:
    return name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 4]} ..."


def rendered(figure: Figure, file_format: str) -> bytes:
    """Return the content of a chart's file. file_format: see FILE_FORMATS."""
    import matplotlib

    file = io.BytesIO()
    metadata = dict(FILE_FORMATS[file_format])
    with matplotlib.rc_context(LOOK):
        figure.savefig(file, format=file_format, dpi=160, metadata=metadata)

    return file.getvalue()


def draw_bands(axes: Axes, plotted: Sequence[tuple[str, RecordedRuns]], axis: Axis) -> None:
    """Draw the learning curves of each configuration as a line with a band, and the threshold."""
    all_runs = [run for _, runs in plotted for run in runs]
    ends = [curve.along(axis)[-1] for curve in curves_along(all_runs, axis)]
    longest = max(ends, default=1.0)
    units = UNITS[axis]
    scale, label = next((unit for unit in units if longest >= 2 * unit[0]), units[-1])

    for (name, runs), colour, style in zip(plotted, COLOURS, STYLES, strict=False):
        for curve in curves_along([run for run in runs if not run.ended], axis):
            x = curve.along(axis) / scale
            axes.plot(x, curve.returns, color=colour, linewidth=0.7, alpha=0.7)

        mean = band(runs, axis)
        if mean is not None:
            x = mean.x / scale
            axes.plot(x, mean.middle, color=colour, linestyle=style, label=_label(name))
            axes.fill_between(x, mean.low, mean.high, color=colour, alpha=0.2, linewidth=0)

    _draw_thresholds(axes, {run.threshold for run in all_runs if run.threshold is not None})
    axes.set_xlabel(label)
    axes.set_xlim(left=0)


def _draw_thresholds(axes: Axes, thresholds: Collection[float]) -> None:
    """Draw returns that count as solved as lines. One that is far from all curves is named at the
    edge instead: its line would leave them a small part of the chart."""
    low, high = axes.get_ylim()
    margin = FAR * (high - low)
    for threshold in thresholds:
        if low - margin <= threshold <= high + margin:
            axes.axhline(threshold, color="black", linewidth=1.0, linestyle=":", alpha=0.7)
        else:
            arrow, edge = ("↑", "top") if threshold > high else ("↓", "bottom")
            axes.text(
                0.98,
                float(edge == "top"),
                f"solved at {threshold:g} {arrow}",
                horizontalalignment="right",
                verticalalignment=edge,
                transform=axes.transAxes,
            )
