"""Greedy evaluations during a run, on environments of their own, beside the workers."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from a3c_exp import seeding
from a3c_exp.config import Experiment
from a3c_exp.evaluate import BATCH, make_normalisation, make_policy, play
from a3c_exp.seeding import Role


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluation found. state: that of the shared parameters that were evaluated. steps: when that was."""

    steps: int
    mean_return: float
    mean_length: float
    state: dict[str, Any]


class Evaluator:
    """Evaluates one state of the parameters at a time, in a thread beside the run or, on a deterministic backend, at
    once: there what is evaluated, and with it the best checkpoint, must not depend on the clock.

    Every evaluation starts from the same environment seeds, so that a curve of evaluations compares policies, not luck.
    """

    def __init__(self, experiment: Experiment, background: bool) -> None:
        self._experiment, self._background = experiment, background
        self._count = min(experiment.eval.episodes, BATCH)
        self._policy: Any = None
        self._thread: threading.Thread | None = None
        self._result: Evaluation | None = None
        self._error: Exception | None = None
        self._stopped = False

    @property
    def busy(self) -> bool:
        return self._thread is not None

    def submit(self, state: dict[str, Any]) -> None:
        """Evaluate the state that `SharedParameters.state` gave. Only while not busy."""
        assert not self.busy
        self._thread = threading.Thread(target=self._evaluate, args=(state,), name="evaluation", daemon=True)
        self._thread.start()
        if not self._background:
            self._thread.join()

    def result(self, wait: bool = False) -> Evaluation | None:
        """What the evaluation under way has found, once; None while it has not. Raises what it raised."""
        if self._thread is None or (self._thread.is_alive() and not wait):
            return None
        self._thread.join()
        self._thread = None
        error, result = self._error, self._result
        self._error = self._result = None
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the evaluation under way, without a result."""
        self._stopped = True
        if self._thread is not None:
            self._thread.join()

    def _evaluate(self, state: dict[str, Any]) -> None:
        try:
            experiment = self._experiment
            if self._policy is None:
                self._policy = make_policy(experiment, state)
            policy = self._policy
            policy.network.vector[:] = state["parameters"]
            seeds = seeding.environment_seeds(experiment.seed, Role.EVALUATION, 0, self._count)
            env = experiment.env.make(self._count, seeds)
            try:
                shape = env.observation_space.shape
                policy.normalisation = make_normalisation(experiment, shape, state["statistics"])
                episodes = play(policy, env, experiment.eval.episodes, stopped=lambda: self._stopped)
            finally:
                env.close()
            if len(episodes) == experiment.eval.episodes:
                self._result = Evaluation(
                    state["steps"], float(np.mean(episodes.returns)), float(np.mean(episodes.lengths)), state
                )
        except Exception as error:  # noqa: BLE001 - raised again where the result is asked for
            self._error = error
