"""Greedy evaluations during training, on separate environments, in a thread beside the workers."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from a3c_exp.core import seeding
from a3c_exp.core.experiment import Experiment
from a3c_exp.core.heartbeat import Heartbeat, StallWatch
from a3c_exp.core.seeding import Role
from a3c_exp.envs import close_within
from a3c_exp.errors import RunError
from a3c_exp.run.policy import BATCH, Policy, evaluate_policy, make_normalizer, make_policy

log = logging.getLogger("a3c_exp")

# How often a caller that waits for an evaluation checks whether it should stop.
_POLL_SECONDS = 0.1
# From asking an evaluation to end to leaving it behind.
_GRACE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The result of an evaluation. steps: the run's steps at the time of its parameters. cut: see `PlayedEpisodes`."""

    steps: int
    mean_return: float
    mean_length: float
    cut: int = 0


class Evaluator:
    """Evaluates one state of the parameters at a time.

    Every evaluation starts from the same environment seeds, so that a curve of evaluations compares policies, not luck.

    background: False on a deterministic backend, where `submit` waits for the result: the choice of the states that
        are evaluated, and with it the best checkpoint, must not depend on the clock.
    stopped: called at each step of an evaluation; once it returns True, the evaluation ends without a result.
    on_wait: called ten times a second while somebody waits for an evaluation.
    stall_seconds: an evaluation whose environments have not stepped for so long hangs. It is left behind, and no other
        is made. None: nobody looks.
    busy: whether an evaluation is under way, or its result has not been fetched.
    last_steps: steps of the state that was submitted last; None before the first.
    activity: text about the evaluation that is under way, for the progress line.
    """

    def __init__(
        self,
        experiment: Experiment,
        background: bool,
        stopped: Callable[[], bool] = lambda: False,
        stall_seconds: float | None = None,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._experiment = experiment
        self._background = background
        self._stopped = stopped
        self._on_wait = on_wait
        self.activity = ""
        self._heartbeat = Heartbeat()
        self._watch = StallWatch(stall_seconds)
        self._hangs = False
        self._count = min(experiment.eval.episodes, BATCH)
        self._policy: Policy | None = None
        self._thread: threading.Thread | None = None
        self._result: EvalResult | None = None
        self._failure: RunError | None = None
        self._closed = False
        self.last_steps: int | None = None
        self.busy = False

    def submit(self, state: dict[str, Any]) -> None:
        """Start the evaluation of `SharedStore.state()`, unless an earlier one hangs. Only while not busy."""
        assert not self.busy
        self.last_steps = state["steps"]
        if self._hangs:
            return
        self.busy = True
        self._watch.forget("evaluation")
        self._thread = threading.Thread(target=self._work, args=(state,), name="evaluation", daemon=True)
        self._thread.start()
        if not self._background:
            self._wait()

    def result(self, wait: bool = False) -> EvalResult | None:
        """The result of the evaluation, once; None while there is none. Raises RunError if the evaluation failed.

        wait: block until the evaluation has ended or `stopped` returns True.
        """
        if wait:
            self._wait()
        if self._thread is not None and self._thread.is_alive() and self._has_stalled():
            self._thread = None
            self.busy = False
            log.warning("%s: there are no evaluations any more", self._watch.describe("the evaluation"))
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        self.busy = False
        failure, result = self._failure, self._result
        self._failure = self._result = None
        if failure is not None:
            raise failure
        return result

    def _wait(self) -> None:
        """Wait for the evaluation; but after `stopped`, not for one that hangs in its environment."""
        while self._thread is not None and self._thread.is_alive() and not self._stopped():
            self._thread.join(_POLL_SECONDS)
            self._on_wait()
            if self._has_stalled():
                return

    def _has_stalled(self) -> bool:
        elapsed = self._watch.due()
        if elapsed is not None and self._watch.is_stalled("evaluation", self._heartbeat.value, elapsed):
            self._hangs = True
        return self._hangs

    def _stopped_now(self) -> bool:
        """Called at each step of an evaluation: beat, and return whether to end it."""
        self._heartbeat.beat()
        return self._closed or self._stopped()

    def _watch_episodes(self, ended: int, steps: int) -> None:
        self.activity = f"evaluation: {ended} of {self._experiment.eval.episodes} episodes, step {steps:,}"

    def close(self) -> None:
        """End the evaluation without a result. One that hangs in its environment is abandoned after a second."""
        self._closed = True
        if self._thread is not None:
            self._thread.join(_GRACE_SECONDS)

    def _work(self, state: dict[str, Any]) -> None:
        try:
            self._result = self._evaluate(state)
        except RunError as error:
            self._failure = RunError(f"the evaluation failed: {error}", error.reason)
        except BaseException:  # an environment may raise anything, KeyboardInterrupt too
            self._failure = RunError(f"the evaluation failed:\n{traceback.format_exc().rstrip()}")

    def _evaluate(self, state: dict[str, Any]) -> EvalResult | None:
        experiment = self._experiment
        if self._policy is None:
            self._policy = make_policy(experiment, state)
        policy = self._policy
        policy.load(state)
        seeds = seeding.environment_seeds(experiment.seed, Role.EVALUATION, 0, self._count)
        env = experiment.env.make(self._count, seeds)
        try:
            policy.normalizer = make_normalizer(experiment, env.observation_space, state["stats"])
            episodes = evaluate_policy(
                policy,
                env,
                experiment.eval.episodes,
                stopped=self._stopped_now,
                max_steps=experiment.eval.max_steps,
                watch=self._watch_episodes,
            )
        finally:
            close_within(env)
        if len(episodes) < experiment.eval.episodes:
            return None
        mean_return, mean_length = float(np.mean(episodes.returns)), float(np.mean(episodes.lengths))
        return EvalResult(state["steps"], mean_return, mean_length, episodes.cut)
