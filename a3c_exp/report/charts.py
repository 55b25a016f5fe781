"""The pictures of a report, drawn by matplotlib, which the extra `report` installs.

Each is drawn on a light and on a dark background. Colours are those of Okabe and Ito, which colour-blind readers can
tell apart, and line styles differ too. Letters are large enough to be read at half the size.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from a3c_exp.report.bands import Axis, Profile, band, by_seconds, by_steps
from a3c_exp.report.episodes import Episodes, running_mean
from a3c_exp.report.ranking import Ranked

if TYPE_CHECKING:  # only drawing needs it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 160
MOST_CURVES = 6
"""Configurations in one picture: more could not be told apart."""
MOST_DOTS = 4000
MEAN_OF_ALL, MEAN_OF_WORKER = 100, 10
"""Episodes of the running means: of all workers, and of one."""
STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
STEP_UNITS = ((1e6, "environment steps [million]"), (1e3, "environment steps [thousand]"), (1.0, "environment steps"))
TIME_UNITS = ((3600.0, "time [h]"), (60.0, "time [min]"), (1.0, "time [s]"))


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a background."""

    suffix: str
    paper: str
    ink: str
    faint: str
    colours: tuple[str, ...]

    def rc(self) -> Any:
        """matplotlib's settings."""
        ink = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), self.ink)
        return ink | {
            "figure.facecolor": self.paper, "axes.facecolor": self.paper, "savefig.facecolor": self.paper,
            "legend.frameon": False, "grid.color": self.faint, "grid.linewidth": 0.6, "axes.grid": True,
            "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False, "font.size": 12,
            "axes.titlesize": 13, "lines.linewidth": 2.0, "text.parse_math": False, "font.family": "DejaVu Sans",
            "svg.fonttype": "none",
        }  # fmt: skip


LIGHT = Theme("", "#ffffff", "#1a1a1a", "#d9d9d9", ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"))
DARK = Theme(
    "_dark", "#14171a", "#e8e8e8", "#3a3f44", ("#56B4E9", "#E69F00", "#2ECC9A", "#CC79A7", "#F0E442", "#E8743B")
)

Draw = Callable[["Figure", Theme], None]


def pictures(size: tuple[float, float], draw: Draw) -> dict[str, bytes]:
    """The picture as PNG on each background, by the suffix of its file. size: in inches.

    Raises ImportError without matplotlib.
    """
    import matplotlib
    from matplotlib.figure import Figure

    by_background = {}
    for theme in (LIGHT, DARK):
        with matplotlib.rc_context(theme.rc()):
            figure = Figure(figsize=size, layout="constrained")
            draw(figure, theme)
            file = io.BytesIO()
            figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
            by_background[theme.suffix] = file.getvalue()
    return by_background


def learning_curves(ranked: Sequence[Ranked], names: Sequence[str] = ()) -> dict[str, bytes]:
    """Returns of the first configurations over steps and over seconds.

    names: of all configurations in all environments, for equal colours.
    """
    shown = [each for each in ranked if each.final_returns][:MOST_CURVES]
    labels = [each.name for each in shown]
    looks = _looks(labels, names)

    def draw(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        _draw_bands(left, shown, looks, theme, by_steps, STEP_UNITS)
        _draw_bands(right, shown, looks, theme, by_seconds, TIME_UNITS)
        left.set_ylabel("mean return of 100 episodes")
        _legend(figure, left, labels, 54)

    return pictures((11.0, 4.4 + _legend_inches(labels, 54)), draw)


def _looks(labels: Sequence[str], names: Sequence[str]) -> list[int]:
    """Indices of colours and styles: where there are few names, a name has the same in every picture."""
    few = len(names) <= MOST_CURVES and set(labels) <= set(names)
    return [names.index(label) for label in labels] if few else list(range(len(labels)))


def _draw_bands(
    axes: Axes, shown: Sequence[Ranked], looks: Sequence[int], theme: Theme, axis: Axis,
    units: Sequence[tuple[float, str]],
) -> None:  # fmt: skip
    bands = [band(each.runs, axis) for each in shown]
    longest = max((axis(run.curve)[-1] for each in shown for run in each.runs if len(run.curve.steps)), default=1.0)
    scale, label = _unit(longest, units)
    for number, (each, mean) in enumerate(zip(shown, bands, strict=True)):
        colour, style = theme.colours[looks[number]], STYLES[looks[number]]
        for run in each.runs:
            if not run.ended and len(run.curve.steps):
                axes.plot(axis(run.curve) / scale, run.curve.returns, color=colour, linewidth=0.7, alpha=0.7)
        if mean is not None:
            axes.plot(mean.x / scale, mean.middle, color=colour, linestyle=style, label=str(number))
            axes.fill_between(mean.x / scale, mean.low, mean.high, color=colour, alpha=0.2, linewidth=0)
    for threshold in {run.threshold for each in shown for run in each.runs if run.threshold is not None}:
        axes.axhline(threshold, color=theme.ink, linewidth=1.0, linestyle=":", alpha=0.7)
    axes.set_xlabel(label)
    axes.set_xlim(left=0)


def performance_profiles(by_name: Mapping[str, Profile], names: Sequence[str] = ()) -> dict[str, bytes]:
    """The share of runs above each normalised return. names: see `learning_curves`."""
    labels = list(by_name)[:MOST_CURVES]
    looks = _looks(labels, names)

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for number, (label, look) in enumerate(zip(labels, looks, strict=True)):
            profile, colour = by_name[label], theme.colours[look]
            x = profile.thresholds
            axes.plot(x, 100 * profile.share, color=colour, linestyle=STYLES[look], label=str(number))
            axes.fill_between(x, 100 * profile.low, 100 * profile.high, color=colour, alpha=0.12, linewidth=0)
        axes.set(xlabel="normalised return (0: lowest here, 1: highest)", ylabel="runs above it [%]", ylim=(-3, 103))
        _legend(figure, axes, labels, 38)

    return pictures((8.0, 4.6 + _legend_inches(labels, 38)), draw)


def episode_plots(runs: Sequence[tuple[str, Episodes]]) -> dict[str, bytes]:
    """Training episodes of some runs, a row each: all of them, those of each worker, and their lengths.

    runs: with their names.
    """

    def draw(figure: Figure, theme: Theme) -> None:
        rows = figure.subplots(len(runs), 3, squeeze=False)
        for axes, (name, episodes) in zip(rows, runs, strict=True):
            _draw_episodes(axes, episodes, theme)
            axes[0].set_title(_short(name, 100), loc="left")

    return pictures((12.5, 3.6 * len(runs)), draw)


def _draw_episodes(axes: Sequence[Axes], episodes: Episodes, theme: Theme) -> None:
    number = np.arange(1, len(episodes.returns) + 1)
    chosen = np.unique(np.linspace(0, len(number) - 1, MOST_DOTS).astype(int))
    dots: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": 3, "alpha": 0.5, "mew": 0}
    for place, values, label in ((0, episodes.returns, "return"), (2, episodes.lengths, "length [steps]")):
        axes[place].plot(number[chosen], values[chosen], color=theme.colours[0], **dots)
        mean = running_mean(values, MEAN_OF_ALL)
        axes[place].plot(number[chosen], mean[chosen], color=theme.ink, label=f"mean of {MEAN_OF_ALL}")
        axes[place].set(xlabel="episodes of all workers", ylabel=label)
    workers = np.unique(episodes.workers)
    for index, worker in enumerate(workers[: len(theme.colours)]):
        own = running_mean(episodes.returns[episodes.workers == worker], MEAN_OF_WORKER)
        axes[1].plot(*_thinned(own), color=theme.colours[index], linewidth=1.2, alpha=0.8, label=f"worker {worker:.0f}")
    axes[1].set(xlabel="episodes of the worker", ylabel=f"return, mean of {MEAN_OF_WORKER}")
    for each in (axes[0], axes[1]):
        each.legend(fontsize=10, loc="best", handlelength=1.2)


def _thinned(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    chosen = np.unique(np.linspace(0, len(values) - 1, MOST_DOTS).astype(np.int64))
    return chosen + 1, values[chosen]


def _unit(longest: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The largest unit of which there are at least two, or the smallest."""
    return next((unit for unit in units if longest >= 2 * unit[0]), units[-1])


def _legend(figure: Figure, axes: Axes, names: Sequence[str], width: int) -> None:
    """A legend below the axes, in the order of the ranking. See `_legend_columns`.

    names: by the number that a line has as its label.
    """
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        columns = _legend_columns(names, width)
        texts = [_short(names[int(label)], 2 * width // columns) for label in labels]
        figure.legend(handles, texts, loc="outside lower center", ncols=columns)


def _legend_columns(names: Sequence[str], width: int) -> int:
    """Two, unless a name is longer than `width` characters, or alone."""
    return 2 if len(names) > 1 and max(map(len, names)) <= width else 1


def _legend_inches(names: Sequence[str], width: int) -> float:
    return 0.28 * -(-len(names) // _legend_columns(names, width))


def _short(name: str, width: int) -> str:
    """A name in one line of at most so many characters."""
    return textwrap.shorten(name, width, placeholder=" ...") if " " in name else name[:width]
