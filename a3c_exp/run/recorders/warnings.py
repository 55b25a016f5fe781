"""Warnings while a run goes on."""

from __future__ import annotations

from a3c_exp.common.log import log
from a3c_exp.core.events import Episodes, Event
from a3c_exp.core.run_view import RunView
from a3c_exp.ending import MANY_FAILURES
from a3c_exp.run import outcome
from a3c_exp.run.open_run import OpenRun
from a3c_exp.run.recorders.recorder import RunRecorder


class EventWarnings(RunRecorder):
    """Logs the warnings that workers report, and what is wrong with many reports together.

    What would be said again and again is said once a session, whatever was said in earlier ones.
    """

    def __init__(self, run: OpenRun) -> None:
        super().__init__(run)
        self._warned: set[str] = set()

    def on_event(self, run: RunView, event: Event) -> None:
        if event.explanation is not None:
            self._warn_once("rejected", event.explanation)
        for warning in event.warnings:
            log.warning("%s", warning)
        if event.replaced:
            self._check_failures()

    def on_episodes(self, run: RunView, worker: int, episodes: Episodes) -> None:
        guard = self._run.experiment.env.max_steps_guard
        if guard is not None and episodes.lengths.max() >= guard:
            text = f"an episode reached the {guard:,} steps of env.max_steps_guard"
            self._warn_once("guard", f"worker {worker}: {text}")

        for warning in episodes.warnings:
            kind = warning.partition(":")[0]  # what it tells of another worker is no news
            self._warn_once(kind, f"worker {worker}: {warning}")

    def _check_failures(self) -> None:
        """Warn if most episodes end in a failure, which is one of all environments of a worker."""
        failures = self._run.statistics.counts["restarts"]
        episodes = self._run.statistics.episodes
        envs = self._run.experiment.envs_per_worker
        if failures >= MANY_FAILURES and failures * envs > episodes:
            text = (
                f"most episodes end in a failure: {failures:,} failures of workers, each with "
                f"{envs} episode{'s' * (envs > 1)} under way, and {episodes:,} ended episodes"
            )
            self._warn_once("failures", text)

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("%s", text)


class CollapseWarning(RunRecorder):
    """Says once that training returns have fallen far below what the run had reached."""

    _is_said = False

    def on_tick(self, run: RunView) -> None:
        statistics = self._run.statistics
        total_steps = self._run.experiment.total_steps
        if self._is_said or not statistics.peak.has_collapsed(statistics.steps, total_steps):
            return

        self._is_said = True
        mean = statistics.mean_return
        highest = statistics.peak.highest
        assert mean is not None
        assert highest is not None
        evaluation = self._run.milestones.best_return
        log.warning("%s", outcome.collapse(run.folder, mean, highest, evaluation))
