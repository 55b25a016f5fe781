"""Learning curves: results/curves/<entry>_s<seed>.csv, thinned from metrics.csv, and one figure of all."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from a3c_exp.run import files

POINTS = 100
COLUMNS = ("step", "wall_seconds", "rollout/ep_rew_mean")


def keep(run: Path, target: Path) -> None:
    """Write at most POINTS rows of the run in `run`, evenly spaced: steps, seconds since its start, and the mean return
    of the last 100 training episodes."""
    with open(run / "metrics.csv", newline="", encoding="utf-8") as file:
        rows = [[row[name] for name in COLUMNS] for row in csv.DictReader(file) if row[COLUMNS[-1]]]
    chosen = np.unique(np.linspace(0, len(rows) - 1, POINTS).round().astype(int))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *(rows[index] for index in chosen if rows)])
    target.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(target, text.getvalue())


def draw(curves: Mapping[str, Sequence[Path]], target: Path) -> None:
    """Draw the curves of each title in one colour, as an SVG. Raises ImportError without matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="million steps", ylabel="mean return of 100 training episodes")
    for number, (title, paths) in enumerate(curves.items()):
        for index, path in enumerate(paths):
            steps, _, returns = read_curve(path).T
            axes.plot(steps / 1e6, returns, color=f"C{number}", label=None if index else title.replace("`", ""))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    with matplotlib.rc_context({"svg.hashsalt": "curves"}):  # the same curves are the same file
        figure.savefig(target, format="svg", metadata={"Date": None})


def read_curve(path: Path) -> NDArray[np.float64]:
    """The rows of a curve, float64 [N, 3]: COLUMNS."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    return np.array(rows, np.float64).reshape(-1, len(COLUMNS))  # a run may end before any episode has
