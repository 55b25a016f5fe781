"""`python -m evidence.study.order RUN PICTURE [--updates FIRST LAST]`: the order of a recorded run
as a picture. Needs matplotlib.

Below: a lane for each worker, with a bar from each pull to the update that it led to, coloured by
the staleness. Above: the mean return over the updates of the whole run, where the bars' part of it
is shaded.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from a3c_exp.core.order import Kind
from a3c_exp.errors import ConfigError
from a3c_exp.run.order_file import RecordedSession, read_order

INCHES = (8.0, 4.5)
DPI = 160
GRAY = "#8a8a8a"
COLOURS = "viridis"
UPDATES = (1, 200)


class Bar(NamedTuple):
    """An update. pulled, pushed: the versions of the parameters before and after it."""

    worker: int
    pulled: int
    pushed: int

    @property
    def staleness(self) -> int:
        return self.pushed - self.pulled - 1


def bars(session: RecordedSession) -> list[Bar]:
    """Return the updates of a session, in order."""
    version = session.first_version
    pulled: dict[int, int] = {}
    found = []
    for row in session.rows:
        if row.kind is Kind.PULL:
            pulled[row.worker] = version
        elif row.kind is Kind.PUSH:
            version += 1
            found.append(Bar(row.worker, pulled[row.worker], version))
    return found


def draw(folder: Path, target: Path, first: int, last: int) -> None:
    """Write the picture as PNG. Raises ImportError without matplotlib, and ConfigError for a run
    without an order."""
    import matplotlib
    from matplotlib.figure import Figure

    shown = [
        bar
        for session in read_order(folder).sessions
        for bar in bars(session)
        if first <= bar.pushed <= last
    ]
    with matplotlib.rc_context(
        {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}
    ):
        figure = Figure(figsize=INCHES, layout="constrained")
        above, below = figure.subplots(2, 1, height_ratios=(1, 2))

        updates, returns = curve(folder)
        above.plot(updates, returns, color="black", linewidth=1)
        above.axvspan(first, last, color=GRAY, alpha=0.3, linewidth=0)
        above.set_ylabel("mean return")
        above.set_xlabel("updates of the run")

        workers = sorted({bar.worker for bar in shown})
        colours = matplotlib.colormaps[COLOURS]
        most = max((bar.staleness for bar in shown), default=0)
        below.barh(
            [bar.worker for bar in shown],
            [bar.pushed - bar.pulled for bar in shown],
            left=[bar.pulled for bar in shown],
            height=0.8,
            color=[colours(bar.staleness / max(most, 1)) for bar in shown],
            edgecolor="white",
            linewidth=0.3,
        )
        below.set_yticks(workers)
        below.invert_yaxis()
        below.set_ylabel("worker")
        below.set_xlabel("updates, from a worker's pull to its push")
        scale = matplotlib.colors.Normalize(0, most)
        figure.colorbar(
            matplotlib.cm.ScalarMappable(scale, COLOURS), ax=below, label="staleness", pad=0.01
        )
        figure.savefig(target, format="png", dpi=DPI, metadata={"Software": None})


def curve(folder: Path) -> tuple[list[float], list[float]]:
    """Return the numbers of updates of a run's points, and their mean returns."""
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row.get("rollout/ep_rew_mean")]
    updates = [float(row["train/n_updates"]) for row in rows]
    return updates, [float(row["rollout/ep_rew_mean"]) for row in rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 2 for a run without an order."""
    parser = argparse.ArgumentParser(
        prog="python -m evidence.study.order", description="The order of a recorded run."
    )
    parser.add_argument("run", type=Path, help="the folder of a run with record=order")
    parser.add_argument("picture", type=Path, help="a PNG file to write")
    parser.add_argument(
        "--updates", nargs=2, type=int, default=UPDATES, metavar=("FIRST", "LAST"), help="shown"
    )
    flags = parser.parse_args(arguments)
    try:
        draw(flags.run, flags.picture, *flags.updates)
    except ConfigError as error:
        print(f"evidence.study.order: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
