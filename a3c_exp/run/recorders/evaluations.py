"""Greedy evaluations during training, on separate environments, in a thread beside the workers."""

from __future__ import annotations

import math
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from a3c_exp.common.log import log
from a3c_exp.core import seeding
from a3c_exp.core.heartbeat import Heartbeat, StallWatch
from a3c_exp.core.run_view import EvalResult, RunView
from a3c_exp.envs import close_within, on_progress
from a3c_exp.errors import RunError, one_line
from a3c_exp.run.open_run import OpenRun
from a3c_exp.run.policy import BATCH, Policy, Recorder, evaluate_policy
from a3c_exp.run.recorders.checkpoints import Checkpoints
from a3c_exp.run.recorders.recorder import Every, RunRecorder
from a3c_exp.run.run_folder import BEST, VIDEOS

DRAWN = "rgb_array"  # gymnasium's render_mode of images

# How often a caller that waits for an evaluation checks whether it should stop.
_POLL_SECONDS = 0.1
# From asking an evaluation to end to leaving it behind.
_GRACE_SECONDS = 1.0


class Evaluations(RunRecorder):
    """Evaluates every so many steps beside the training, and at its end; keeps the best policy in a
    checkpoint.

    Every evaluation starts from the same environment seeds, so that a curve of evaluations compares
    policies, not luck. On a deterministic backend training waits for the result: the choice of the
    states that are evaluated, and with it the best checkpoint, must not depend on the clock. An
    evaluation whose environments have not stepped for `backend.stall_seconds` hangs. It is left
    behind, and no other is made.

    Once a signal has interrupted the run, an evaluation ends without a result.

    checkpoints: writes the best policy.
    on_wait: called ten times a second while the run waits for an evaluation, with a text on how far
        it is.
    asked: whether an evaluation is wanted as soon as none is under way.
    """

    def __init__(
        self, run: OpenRun, checkpoints: Checkpoints, on_wait: Callable[[str], None]
    ) -> None:
        super().__init__(run)
        self._checkpoints = checkpoints
        self._on_wait = on_wait
        self._due = Every(run.experiment.eval.every, run.steps)
        self._heartbeat = Heartbeat()
        self._watch = StallWatch(run.experiment.backend.stall_seconds)
        self._given_up = False
        self._closed = False
        self._policy: Policy | None = None
        self._videos: Path | None = None
        # the checkpoint of what was evaluated last, or is being evaluated
        self._evaluated: dict[str, Any] = {}
        # that is under way, or whose result was not taken
        self._evaluation: Future[EvalResult | None] | None = None
        self._activity = ""
        self.asked = False

    def on_tick(self, run: RunView) -> None:
        self._take()
        if self._evaluation is not None or self._run.ending.reason is not None:
            return

        if self._due(self._run.statistics.steps) or self.asked:
            self._start()
            self._take(block=self._run.experiment.backend.deterministic)

    def evaluate_final(self) -> None:
        """Evaluate the final parameters once, if there are evaluations or a callback asked for
        one."""
        self._take(block=True)
        final = {"steps": self._run.steps, "version": self._run.statistics.updates}
        is_evaluated = self._evaluated and all(
            self._evaluated["store"][name] == number for name, number in final.items()
        )
        is_wanted = self.asked or self._run.experiment.eval.every is not None
        if is_wanted and not is_evaluated:
            self._start()
            self._take(block=True)

    def record(self) -> None:
        """See `RunView.record_evaluations`."""
        experiment, folder = self._run.experiment, self._run.folder / VIDEOS
        seeds = seeding.environment_seeds(experiment.seed, seeding.Role.EVALUATION, 0, 1)
        env = experiment.eval_env.make(1, seeds, DRAWN)
        try:
            env.reset()
            Recorder(folder / "trial.mp4")(env)
        finally:
            close_within(env)
        self._videos = folder

    def end(self) -> None:
        """Take a last evaluation that has ended, and end the one that is under way.

        One that hangs in its environment is abandoned after a second.
        """
        self._take()
        self._closed = True
        if self._evaluation is not None:
            wait([self._evaluation], _GRACE_SECONDS)

    def _start(self) -> None:
        """Start an evaluation of the present parameters, unless an earlier one failed or hangs."""
        self.asked = False
        self._evaluated = self._checkpoints.content()  # as of now: the run goes on meanwhile
        if self._given_up:
            return
        self._watch.forget(0)
        self._evaluation = Future()
        arguments = (self._evaluated["store"], self._evaluation)
        try:
            threading.Thread(
                target=self._work, args=arguments, name="evaluation", daemon=True
            ).start()
        except RuntimeError as error:  # no thread is to be had
            self._evaluation.set_exception(RunError(f"the evaluation failed: {error}"))

    def _take(self, block: bool = False) -> None:
        """Take the result of an evaluation that has ended. One that failed or hangs is the last
        one.

        block: wait until it has ended or hangs, or a signal has come.
        """
        while (evaluation := self._evaluation) is not None:
            if evaluation.done():
                self._evaluation = None
                try:
                    result = evaluation.result()
                except RunError as error:
                    self._give_up(str(error))
                else:
                    if result is not None:
                        self._take_result(result)
            elif self._watch.find(lambda: {0: self._heartbeat.value}) is not None:
                self._evaluation = None
                self._give_up(self._watch.describe("the evaluation"))
            elif block and self._run.interruption.signal is None:
                wait([evaluation], _POLL_SECONDS)
                self._on_wait(self._activity)
            else:
                return

    def _give_up(self, reason: str) -> None:
        self._given_up = True
        log.warning("%s\nthere are no evaluations any more", reason)

    def _take_result(self, result: EvalResult) -> None:
        """Notify callbacks of a result, and save the parameters if they are the best so far."""
        if result.cut:
            self._count_cut(result)
        try:
            self._run.hooks.on_evaluation(result)
        finally:  # a callback may raise
            milestones = self._run.milestones
            mean = result.mean_return
            best = -math.inf if milestones.best_return is None else milestones.best_return
            if mean > best or (mean == best and BEST in self._run.output.unwritten):
                milestones.best_return = mean
                self._checkpoints.write(BEST, self._evaluated | {"best_eval_return": mean})

    def _count_cut(self, result: EvalResult) -> None:
        counts = self._run.statistics.counts
        if not counts["cut_eval_episodes"]:
            limits = self._run.experiment.eval
            text = (
                f"{result.cut} of {limits.episodes} episodes were cut after "
                f"{limits.max_steps} steps"
            )
            log.warning("evaluation at step %d: %s (eval.max_steps)", result.steps, text)
        counts["cut_eval_episodes"] += result.cut

    def _work(self, state: dict[str, Any], evaluation: Future[EvalResult | None]) -> None:
        with ExitStack() as closing:  # after the result is known: a close may hang
            try:
                evaluation.set_result(self._evaluate(state, closing))
            except RunError as error:
                evaluation.set_exception(RunError(f"the evaluation failed: {error}", error.reason))
            except BaseException:  # an environment may raise anything, KeyboardInterrupt too
                evaluation.set_exception(
                    RunError(f"the evaluation failed:\n{traceback.format_exc().rstrip()}")
                )

    def _evaluate(self, state: dict[str, Any], closing: ExitStack) -> EvalResult | None:
        experiment = self._run.experiment
        if self._policy is None:
            self._policy = Policy(experiment, state)
        else:
            self._policy.load(state)
        limits = experiment.eval
        count = min(limits.episodes, BATCH)
        on_progress(self._heartbeat.beat)
        seeds = seeding.environment_seeds(experiment.seed, seeding.Role.EVALUATION, 0, count)
        env = recorder = None
        if self._videos is not None:
            try:
                env = experiment.eval_env.make(count, seeds, DRAWN)
                recorder = Recorder(self._videos / f"{state['steps']}.mp4", strict=False)
            except Exception as error:
                log.warning("an evaluation has no video: %s", one_line(error))
        if env is None:
            env = experiment.eval_env.make(count, seeds)
        closing.callback(close_within, env)
        episodes = evaluate_policy(
            self._policy,
            env,
            limits.episodes,
            max_steps=limits.max_steps,
            go_on=self._go_on,
            on_step=recorder,
        )
        if len(episodes) < limits.episodes:
            return None
        mean_return = float(np.mean(episodes.returns))
        mean_length = float(np.mean(episodes.lengths))
        video = None if recorder is None else recorder.write()
        return EvalResult(
            state["steps"], mean_return, mean_length, episodes.cut, episodes.means(), video
        )

    def _go_on(self, ended: int, steps: int) -> bool:
        """Called before each step of an evaluation: beat, and return whether to take the step."""
        self._heartbeat.beat()
        self._activity = f"evaluation {ended}/{self._run.experiment.eval.episodes}, step {steps:,}"
        return not self._closed and self._run.interruption.signal is None
