"""What the package itself records of a run, or decides about it: one recorder for each task."""

from __future__ import annotations

from a3c_exp.run.console import LiveLineHandler
from a3c_exp.run.open_run import OpenRun
from a3c_exp.run.recorders.checkpoints import Checkpoints
from a3c_exp.run.recorders.curves import Curves
from a3c_exp.run.recorders.episode_table import EpisodeTable
from a3c_exp.run.recorders.evaluations import Evaluations
from a3c_exp.run.recorders.order import OrderFile
from a3c_exp.run.recorders.progress_line import ProgressLine
from a3c_exp.run.recorders.recorder import RunRecorder
from a3c_exp.run.recorders.stop_rules import SolvedMark, StopRules
from a3c_exp.run.recorders.warnings import CollapseWarning, EventWarnings


class Recorders:
    """The recorders of a run. `everyone` has them in the order in which they are notified.

    terminal: where the progress line is.
    """

    def __init__(self, run: OpenRun, terminal: LiveLineHandler) -> None:
        progress_line = ProgressLine(run, terminal)
        self.stop_rules = StopRules(run)
        self.checkpoints = Checkpoints(run)
        self.evaluations = Evaluations(run, self.checkpoints, progress_line.update)
        self.curves = Curves(run)
        self.everyone: list[RunRecorder] = [
            EventWarnings(run),
            self.stop_rules,
            CollapseWarning(run),
            self.evaluations,
            self.checkpoints,
            self.curves,
            progress_line,
        ]
        if run.experiment.reward_threshold is not None:
            self.everyone.append(SolvedMark(run))
        if run.experiment.record_episodes:
            episode_table = EpisodeTable(run)
            self.checkpoints.before_writing.append(lambda state: episode_table.flush())
            self.everyone.append(episode_table)
        if run.store.order is not None:
            order_file = OrderFile(run, run.store.order)
            self.checkpoints.before_writing.append(order_file.save)
            self.everyone.append(order_file)

    def close(self, finished: bool) -> None:
        """Write the last of each. finished: whether the run has neither failed nor been
        interrupted."""
        for recorder in self.everyone:
            recorder.close(finished)
