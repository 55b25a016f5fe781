"""`python -m evidence.study.picture`: the picture in README.md, drawn from evidence/results/.
Needs matplotlib.

Left and middle: mean returns over steps, from evidence/results/curves. Right: seconds until solved,
from the records of one machine. The curves of LunarLander are of runs that were trained to their
last step, `env=lunar stop.mean_return=null eval.every=null checkpoint.every=null`, and the same
with workers=16.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from evidence.study.entries import SECTIONS
from evidence.study.runs import ROOT

if TYPE_CHECKING:  # only drawing needs it
    from matplotlib.axes import Axes

RESULTS = ROOT / "evidence" / "results"
ENTRIES = {entry.name: entry for section in SECTIONS.values() for entry in section}
PICTURE = ROOT / "docs" / "curves.png"
MACHINE = "Intel(R) Xeon(R) Processor @ 2.10GHz, 2 cores"
GRID = 200
"""Points at which the curves of several seeds are compared."""
INCHES = (8.0, 3.2)
DPI = 160
BLUE, ORANGE, GREY = "#1f6fb4", "#d9651a", "#8a8a8a"

Curves = dict[str, tuple[str, tuple[float, float], str]]
"""By entry, of which evidence/results/curves has the runs: label, its place in data coordinates,
colour."""
LUNAR: Curves = {
    "lunar": ("2 workers", (0.55, -130), BLUE),
    "lunar_workers_16": ("16 workers", (0.55, -170), ORANGE),
}
PONG: Curves = {
    "preset_ppo_pong_solved": ("PPO", (0.75, -12), BLUE),
    "pong_a3c": ("A3C", (0.75, -15), ORANGE),
}
TIMES = {
    "CartPole": {
        "cartpole": ("a3c_exp, A3C", BLUE),
        "sb3_a2c_cartpole": ("sb3, A2C", GREY),
        "sb3_ppo_cartpole": ("sb3, PPO", GREY),
    },
    "LunarLander": {
        "lunar": ("a3c_exp, A3C", BLUE),
        "sb3_ppo_lunar": ("sb3, PPO", GREY),
    },
}
"""By environment, the entries with their labels and colours: a point for each seed."""


def draw(target: Path) -> None:
    """Write the picture as PNG. Raises ImportError without matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(
        {"font.size": 8, "axes.titlesize": 9, "axes.spines.top": False, "axes.spines.right": False}
    ):
        figure = Figure(figsize=INCHES, layout="constrained")
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.1, 1.1, 1))
        _draw_curves(left, "LunarLander, A3C", 200, LUNAR)
        _draw_curves(middle, "Pong from its images", 18, PONG)
        _draw_times(right)
        figure.savefig(target, format="png", dpi=DPI, metadata={"Software": None})


def _draw_curves(axes: Axes, title: str, threshold: float, curves: Curves) -> None:
    """Draw the runs of one environment. threshold: at which a run may have ended."""
    for name, (label, position, colour) in curves.items():
        runs = list(ENTRIES[name].curves(RESULTS).read().values())
        for run in runs:
            axes.plot(run[:, 0] / 1e6, run[:, -1], color=colour, linewidth=0.5, alpha=0.4)
        steps, returns = _on_one_grid(runs)
        axes.fill_between(
            steps / 1e6, returns.min(0), returns.max(0), color=colour, alpha=0.22, linewidth=0
        )
        axes.plot(steps / 1e6, returns.mean(0), color=colour, linewidth=1.4)
        axes.text(*position, f"{label}, {len(runs)} seeds", color=colour)

    axes.axhline(threshold, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_title(title)
    axes.set_xlabel("environment steps [million]")
    axes.set_ylabel("mean return of 100 episodes")
    axes.grid(alpha=0.25)


def _on_one_grid(
    runs: Sequence[NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return steps [GRID] and returns [runs, GRID], as far as the longest run goes. The others keep
    their last return."""
    steps = np.linspace(max(run[0, 0] for run in runs), max(run[-1, 0] for run in runs), GRID)
    return steps, np.stack([np.interp(steps, run[:, 0], run[:, -1]) for run in runs])


def _draw_times(axes: Axes) -> None:
    row = 0.0
    ticks = dict[float, str]()
    for environment, entries in TIMES.items():
        axes.text(0.75, row, environment, va="center", fontweight="bold")
        for name, (label, colour) in entries.items():
            row += 1
            ticks[row] = label
            seconds = _seconds_to_threshold(name)
            axes.plot(
                seconds, [row] * len(seconds), "o", color=colour, alpha=0.45, markersize=4, mew=0
            )
            median = float(np.median(seconds))
            axes.plot([median], [row], "|", color=colour, markersize=13, mew=1.8)
            axes.text(max(seconds) * 1.25, row, f"{median:,.1f} s", va="center", color=colour)

        row += 1

    axes.set_xscale("log")
    axes.set_xlim(0.6, 1500)
    axes.set_xticks([1, 10, 100], ["1", "10", "100"])
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.set_ylim(row - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_title("Time to solve, two cores")
    axes.set_xlabel("seconds (bar: median)")
    axes.grid(alpha=0.25, axis="x")


def _seconds_to_threshold(name: str) -> list[float]:
    """Return the seconds of every seed of an entry. Raises ValueError for a record of another
    machine, or of a seed that never got there: the figure would mislead."""
    records = ENTRIES[name].records(RESULTS)
    seconds = [
        record.solved_seconds
        for record in records
        if record.solved_seconds and record.machine == MACHINE
    ]
    if len(seconds) < len(records):
        raise ValueError(f"{name}: must be solved by every seed, on {MACHINE}")
    return seconds


if __name__ == "__main__":
    draw(PICTURE)
