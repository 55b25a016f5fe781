"""The rules of `stop`, and the mark of a solved run."""

from __future__ import annotations

from a3c_exp.core.events import Event
from a3c_exp.core.run_view import RunView
from a3c_exp.ending import StopReason
from a3c_exp.run.recorders.recorder import RunRecorder


class StopRules(RunRecorder):
    """Ends a run by the rules of `stop`."""

    def on_tick(self, run: RunView) -> None:
        stop = self._run.experiment.stop
        statistics = self._run.statistics
        if stop.mean_return is not None and statistics.reached(stop.mean_return, stop.window):
            if not run.stopping:
                self._run.milestones.goal_return = statistics.recent_mean(stop.window)
            run.stop(StopReason.MEAN_RETURN)
        if stop.max_episodes is not None and statistics.episodes >= stop.max_episodes:
            run.stop(StopReason.MAX_EPISODES)
        if stop.max_seconds is not None:
            seconds = self._run.milestones.session_seconds
            if seconds >= stop.max_seconds:
                run.stop(StopReason.MAX_SECONDS)

    def leaving_rule(self) -> StopReason:
        """Return the rule by which all workers have stopped before the total steps: the one that
        most of them gave.

        On Ray a worker that had finished all its episodes in an earlier session gives none.
        """
        most_common = self._run.statistics.left.most_common(1)
        if most_common:
            rule, _ = most_common[0]
            return StopReason(rule)
        if self._run.experiment.stop.worker_episodes is None:
            return StopReason.TOTAL_STEPS
        return StopReason.WORKER_EPISODES


class SolvedMark(RunRecorder):
    """Notes when the mean return of the last 100 episodes first reaches `reward_threshold`."""

    def on_event(self, run: RunView, event: Event) -> None:
        milestones = self._run.milestones
        if milestones.solved is not None:
            return

        threshold = self._run.experiment.reward_threshold
        if threshold is not None and self._run.statistics.reached(threshold):
            milestones.solved = (run.steps, run.seconds)
