"""Greedy evaluations during training, on separate environments, in a thread beside the workers."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from a3c_exp.core import seeding
from a3c_exp.core.callback import EvalResult, Video
from a3c_exp.core.experiment import Experiment
from a3c_exp.core.heartbeat import Heartbeat, StallWatch
from a3c_exp.core.seeding import Role
from a3c_exp.envs import close_within, on_progress
from a3c_exp.errors import ConfigError, RunError
from a3c_exp.run.policy import BATCH, Policy, evaluate_policy, make_policy
from a3c_exp.run.recorder import Recorder

log = logging.getLogger("a3c_exp")

DRAWN = "rgb_array"  # gymnasium's render_mode of images

# How often a caller that waits for an evaluation checks whether it should stop.
_POLL_SECONDS = 0.1
# From asking an evaluation to end to leaving it behind.
_GRACE_SECONDS = 1.0


class Evaluator:
    """Evaluates one state of the parameters at a time.

    Every evaluation starts from the same environment seeds, so that a curve of evaluations compares policies, not luck.
    On a deterministic backend `submit` waits for the result: the choice of the states that are evaluated, and with it
    the best checkpoint, must not depend on the clock. An evaluation whose environments have not stepped for
    `backend.stall_seconds` hangs. It is left behind, and no other is made.

    stopped: called at each step of an evaluation; once it returns True, the evaluation ends without a result.
    on_wait: called ten times a second while somebody waits for an evaluation.
    last_steps: steps of the state that was submitted last; None before the first.
    activity: text about the evaluation that is under way, for the progress line.
    """

    def __init__(self, experiment: Experiment, stopped: Callable[[], bool], on_wait: Callable[[], None]) -> None:
        self._experiment = experiment
        self._stopped = stopped
        self._on_wait = on_wait
        self._heartbeat = Heartbeat()
        self._watch = StallWatch(experiment.backend.stall_seconds)
        self._given_up = False
        self._policy: Policy | None = None
        self._evaluation: Future[EvalResult | None] | None = None
        self._closed = False
        self.last_steps: int | None = None
        self.activity = ""
        self._videos: Path | None = None

    def record(self, folder: Path) -> None:
        """Make a video of the first episode of each evaluation from now on, in `folder`.

        Raises ConfigError without the extra `video`, and for an environment that cannot be drawn.
        """
        seeds = seeding.environment_seeds(self._experiment.seed, Role.EVALUATION, 0, 1)
        env = self._experiment.eval_env.make(1, seeds, DRAWN)
        try:
            env.reset()
            Recorder(folder / "trial.mp4")(env)
        finally:
            close_within(env)
        self._videos = folder

    @property
    def busy(self) -> bool:
        """Return whether an evaluation is under way, or its result has not been fetched."""
        return self._evaluation is not None

    def submit(self, state: dict[str, Any]) -> None:
        """Start the evaluation of `SharedStore.state()`, unless an earlier one failed or hangs. Only while not busy."""
        assert not self.busy
        self.last_steps = state["steps"]
        if self._given_up:
            return
        self._watch.forget("evaluation")
        self._evaluation = Future()
        arguments = (state, self._evaluation)
        try:
            threading.Thread(target=self._work, args=arguments, name="evaluation", daemon=True).start()
        except RuntimeError as error:  # no thread is to be had
            self._evaluation.set_exception(RunError(f"the evaluation failed: {error}"))
        if self._experiment.backend.deterministic:
            self._wait(self._evaluation)

    def result(self, block: bool = False) -> EvalResult | None:
        """The result of the evaluation, once; None while there is none. One that failed is a warning, and the last one.

        block: wait until the evaluation has ended or `stopped` returns True.
        """
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
        """Wait for the evaluation; but after `stopped`, not for one that hangs in its environment."""
        while not (evaluation.done() or self._stopped() or self._has_stalled()):
            wait([evaluation], _POLL_SECONDS)
            self._on_wait()

    def _has_stalled(self) -> bool:
        elapsed = self._watch.due()
        if elapsed is not None and self._watch.is_stalled("evaluation", self._heartbeat.value, elapsed):
            self._given_up = True
        return self._given_up

    def close(self) -> None:
        """End the evaluation without a result. One that hangs in its environment is abandoned after a second."""
        self._closed = True
        if self._evaluation is not None:
            wait([self._evaluation], _GRACE_SECONDS)

    def _work(self, state: dict[str, Any], evaluation: Future[EvalResult | None]) -> None:
        with ExitStack() as closing:  # after the result is known: a close may hang
            self._try(state, evaluation, closing)

    def _try(self, state: dict[str, Any], evaluation: Future[EvalResult | None], closing: ExitStack) -> None:
        try:
            evaluation.set_result(self._evaluate(state, closing))
        except RunError as error:
            evaluation.set_exception(RunError(f"the evaluation failed: {error}", error.reason))
        except BaseException:  # an environment may raise anything, KeyboardInterrupt too
            evaluation.set_exception(RunError(f"the evaluation failed:\n{traceback.format_exc().rstrip()}"))

    def _evaluate(self, state: dict[str, Any], closing: ExitStack) -> EvalResult | None:
        experiment = self._experiment
        if self._policy is None:
            self._policy = make_policy(experiment, state)
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
        self.activity = f"evaluation: {ended} of {self._experiment.eval.episodes} episodes, step {steps:,}"
        return not (self._closed or self._stopped())


def _written(recorder: Recorder) -> Video | None:
    """The video of an evaluation, which counts without one too: a full disk is a warning."""
    try:
        return recorder.write()
    except ConfigError as error:
        log.warning("%s", error)
        return None
