"""Greedy evaluations during training, on separate environments, in a thread beside the workers."""

from __future__ import annotations

import logging
import math
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from a3c_exp.core import seeding
from a3c_exp.core.callback import EvalResult, RunView, Video
from a3c_exp.core.experiment import Experiment
from a3c_exp.core.heartbeat import Heartbeat, StallWatch
from a3c_exp.core.seeding import Role
from a3c_exp.envs import close_within, on_progress
from a3c_exp.errors import ConfigError, RunError
from a3c_exp.run.callback_list import Every, Own
from a3c_exp.run.files import RunOutput
from a3c_exp.run.interruption import Interruption
from a3c_exp.run.policy import BATCH, Policy, evaluate_policy
from a3c_exp.run.recorder import Recorder
from a3c_exp.run.run_folder import BEST, VIDEOS
from a3c_exp.run.statistics import RunStatistics

log = logging.getLogger("a3c_exp")

DRAWN = "rgb_array"  # gymnasium's render_mode of images

# How often a caller that waits for an evaluation checks whether it should stop.
_POLL_SECONDS = 0.1
# From asking an evaluation to end to leaving it behind.
_GRACE_SECONDS = 1.0


class Owner(Protocol):
    """The trainer, as evaluations need it."""

    def checkpoint(self) -> dict[str, Any]:
        """The content of a checkpoint, as of now."""

    def write(self, name: str, state: Mapping[str, Any]) -> None:
        """Write a checkpoint."""

    def tell(self, moment: str, *arguments: object) -> None:
        """Call the method of that name of all callbacks that have one."""


class Evaluations(Own):
    """Evaluates every so many steps beside the training, and at its end; keeps the best policy in a checkpoint.

    Every evaluation starts from the same environment seeds, so that a curve of evaluations compares policies, not luck.
    On a deterministic backend training waits for the result: the choice of the states that are evaluated, and with it
    the best checkpoint, must not depend on the clock. An evaluation whose environments have not stepped for
    `backend.stall_seconds` hangs. It is left behind, and no other is made.

    interruption: once there is one, an evaluation ends without a result.
    on_wait: called ten times a second while the run waits for an evaluation.

    asked: whether an evaluation is wanted as soon as none is under way.
    best_return: of all evaluations; None before the first.
    activity: text about the evaluation that is under way, for the progress line.
    """

    def __init__(
        self,
        trainer: Owner,
        experiment: Experiment,
        output: RunOutput,
        statistics: RunStatistics,
        interruption: Interruption,
        on_wait: Callable[[], None],
    ) -> None:
        self._trainer = trainer
        self._experiment = experiment
        self._output = output
        self._statistics = statistics
        self._interruption = interruption
        self._on_wait = on_wait
        self._due = Every(experiment.eval.every, statistics.steps)
        self._heartbeat = Heartbeat()
        self._watch = StallWatch(experiment.backend.stall_seconds)
        self._given_up = False
        self._closed = False
        self._policy: Policy | None = None
        self._videos: Path | None = None
        self._evaluated: dict[str, Any] = {}  # the checkpoint of what is being evaluated
        self._last_steps: int | None = None  # of the parameters that were submitted last
        self._evaluation: Future[EvalResult | None] | None = None  # that is under way, or whose result was not taken
        self.asked = False
        self.best_return: float | None = None
        self.activity = ""

    def on_tick(self, run: RunView) -> None:
        self._take()
        if self._evaluation is None and not run.stopping and (self._due(run.steps) or self.asked):
            self._submit()
            self._take()

    def on_trained(self, run: RunView) -> None:
        """Evaluate the final parameters, unless they have been evaluated."""
        if self._experiment.eval.every is None:
            return
        self._take(block=True)
        if self._last_steps != run.steps:
            self._submit()
            self._take(block=True)

    def record(self) -> None:
        """See `RunView.record_evaluations`."""
        folder = self._output.folder / VIDEOS
        seeds = seeding.environment_seeds(self._experiment.seed, Role.EVALUATION, 0, 1)
        env = self._experiment.eval_env.make(1, seeds, DRAWN)
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

    def _submit(self) -> None:
        """Start an evaluation of the present parameters, unless an earlier one failed or hangs."""
        self.asked = False
        self._evaluated = self._trainer.checkpoint()  # as of now: the run goes on meanwhile
        self._last_steps = self._evaluated["store"]["steps"]
        if self._given_up:
            return
        self._watch.forget(0)
        self._evaluation = Future()
        arguments = (self._evaluated["store"], self._evaluation)
        try:
            threading.Thread(target=self._work, args=arguments, name="evaluation", daemon=True).start()
        except RuntimeError as error:  # no thread is to be had
            self._evaluation.set_exception(RunError(f"the evaluation failed: {error}"))
        if self._experiment.backend.deterministic:
            self._wait(self._evaluation)

    def _take(self, block: bool = False) -> None:
        """Tell of an evaluation that has ended; save its parameters if they are the best so far.

        block: wait until it has ended, or a signal has come.
        """
        result = self._result(block)
        if result is None:
            return
        if result.cut:
            if not self._statistics.counts["cut_eval_episodes"]:
                limits = self._experiment.eval
                cut = f"{result.cut} of {limits.episodes} episodes were cut after {limits.max_steps} steps"
                log.warning("evaluation at step %d: %s (eval.max_steps)", result.steps, cut)
            self._statistics.counts["cut_eval_episodes"] += result.cut
        self._trainer.tell("on_evaluation", result)
        mean, best = result.mean_return, -math.inf if self.best_return is None else self.best_return
        if mean > best or (mean == best and BEST in self._output.unwritten):
            self.best_return = mean
            self._trainer.write(BEST, self._evaluated | {"best_eval_return": mean})
        self._evaluated = {}

    def _result(self, block: bool) -> EvalResult | None:
        """The result of the evaluation, once; None while there is none. A failed one is a warning, and the last one."""
        evaluation = self._evaluation
        if evaluation is None:
            return None
        if block:
            self._wait(evaluation)
        if not evaluation.done():
            if self._has_stalled():
                self._evaluation = None
                log.warning("%s: there are no evaluations any more", self._watch.describe("the evaluation"))
            return None
        self._evaluation = None
        try:
            return evaluation.result()
        except RunError as error:
            self._given_up = True
            log.warning("%s\nthere are no evaluations any more", error)
            return None

    def _wait(self, evaluation: Future[EvalResult | None]) -> None:
        """Wait for the evaluation; but after a signal, not for one that hangs in its environment."""
        while not (evaluation.done() or self._interruption.signal is not None or self._has_stalled()):
            wait([evaluation], _POLL_SECONDS)
            self._on_wait()

    def _has_stalled(self) -> bool:
        if self._watch.find(lambda: {0: self._heartbeat.value}) is not None:
            self._given_up = True
        return self._given_up

    def _work(self, state: dict[str, Any], evaluation: Future[EvalResult | None]) -> None:
        with ExitStack() as closing:  # after the result is known: a close may hang
            try:
                evaluation.set_result(self._evaluate(state, closing))
            except RunError as error:
                evaluation.set_exception(RunError(f"the evaluation failed: {error}", error.reason))
            except BaseException:  # an environment may raise anything, KeyboardInterrupt too
                evaluation.set_exception(RunError(f"the evaluation failed:\n{traceback.format_exc().rstrip()}"))

    def _evaluate(self, state: dict[str, Any], closing: ExitStack) -> EvalResult | None:
        experiment = self._experiment
        if self._policy is None:
            self._policy = Policy(experiment, state)
        else:
            self._policy.load(state)
        limits = experiment.eval
        count = min(limits.episodes, BATCH)
        on_progress(self._heartbeat.beat)
        seeds = seeding.environment_seeds(experiment.seed, Role.EVALUATION, 0, count)
        recorder = None if self._videos is None else Recorder(self._videos / f"{state['steps']}.mp4")
        env = experiment.eval_env.make(count, seeds, None if recorder is None else DRAWN)
        closing.callback(close_within, env)
        episodes = evaluate_policy(
            self._policy, env, limits.episodes, max_steps=limits.max_steps, go_on=self._go_on,
            on_step=recorder or (lambda env: None),
        )  # fmt: skip
        if len(episodes) < limits.episodes:
            return None
        mean_return, mean_length = float(np.mean(episodes.returns)), float(np.mean(episodes.lengths))
        video = None if recorder is None else _written(recorder)
        return EvalResult(state["steps"], mean_return, mean_length, episodes.cut, episodes.means(), video)

    def _go_on(self, ended: int, steps: int) -> bool:
        """Called before each step of an evaluation: beat, and return whether to take the step."""
        self._heartbeat.beat()
        self.activity = f"evaluation {ended}/{self._experiment.eval.episodes}, step {steps:,}"
        return not self._closed and self._interruption.signal is None


def _written(recorder: Recorder) -> Video | None:
    """The video of an evaluation, which counts without one too: a full disk is a warning."""
    try:
        return recorder.write()
    except ConfigError as error:
        log.warning("%s", error)
        return None
