"""From a rollout to a gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from a3c_exp.algorithms import Batch, Evaluation, explained_variance
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.recurrent import Memory
from a3c_exp.returns import Floats, Returns, Trajectory, is_off_policy
from a3c_exp.rollout import Rollout

if TYPE_CHECKING:
    from a3c_exp.config import Experiment


class Samples(NamedTuple):
    """What minibatches are taken from, otherwise as in a rollout and its batch: transitions without their order,
    [1, N, ...], or, for a network with a memory, the N environments of the rollout, [T, N, ...]."""

    observations: NDArray[Any]
    actions: NDArray[Any]
    batch: Batch
    memory: Memory | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """T and N."""
        length, count = self.batch.targets.shape
        return length, count

    @property
    def transitions(self) -> int:
        """How many rows count."""
        return self.batch.targets.size if self.batch.mask is None else int(self.batch.mask.sum())

    def take(self, columns: NDArray[np.intp]) -> Samples:
        """Some of the N."""
        batch = self.batch

        def part(array: NDArray[Any]) -> NDArray[Any]:
            return array.take(columns, axis=1)  # faster than [:, columns]

        told = (batch.log_probs, batch.values, batch.advantages, batch.targets)
        log_probs, values, advantages, targets = map(part, told)
        mask = None if batch.mask is None else part(batch.mask)
        memory = None if self.memory is None else self.memory.take(columns)
        taken = Batch(log_probs, values, advantages, targets, mask)
        return Samples(part(self.observations), part(self.actions), taken, memory)


# A gradient that is not finite is refused and told of by whoever was to push it: numpy need not say so as well.
_in_silence = np.errstate(over="ignore", invalid="ignore", divide="ignore")


class Learner:
    """From a rollout to a gradient, in a worker's own network."""

    def __init__(self, experiment: Experiment, network: ActorCritic) -> None:
        self._experiment, self._network = experiment, network

    @_in_silence
    def add_gradient(self, rollout: Rollout, progress: float) -> dict[str, float]:
        """Add the loss's gradient over one rollout to `network.gradient`; returns what the loss has to report."""
        seen = rollout.observations, rollout.actions, rollout.memory
        evaluation, add_gradient = self._network.evaluate(*seen)
        batch, explained = self._batch(rollout, evaluation)
        by, metrics = self._experiment.algorithm.gradient(evaluation, batch, progress)
        add_gradient(by)
        metrics["explained_variance"] = explained
        return metrics

    def samples(self, rollout: Rollout) -> tuple[Samples, dict[str, float]]:
        """A rollout with its advantages and targets, once for all passes over it; and what there is to report of it."""
        batch, explained = self._batch(rollout)
        report = {"explained_variance": explained}
        if rollout.memory is not None:
            return Samples(rollout.observations, rollout.actions, batch, rollout.memory), report
        valid = None if batch.mask is None else np.flatnonzero(rollout.valid)

        def in_a_row(array: NDArray[Any]) -> NDArray[Any]:
            rows = array.reshape(-1, *array.shape[2:])
            return (rows if valid is None else rows.take(valid, axis=0))[None]

        columns = (batch.log_probs, batch.values, batch.advantages, batch.targets)
        samples = Samples(in_a_row(rollout.observations), in_a_row(rollout.actions), Batch(*map(in_a_row, columns)))
        return samples, report

    @_in_silence
    def add_gradient_of(self, samples: Samples, progress: float) -> dict[str, float]:
        """The same as `add_gradient`, for a part of one."""
        evaluation, add_gradient = self._network.evaluate(samples.observations, samples.actions, samples.memory)
        by, metrics = self._experiment.algorithm.gradient(evaluation, samples.batch, progress)
        add_gradient(by)
        return metrics

    def _batch(self, rollout: Rollout, evaluation: Evaluation | None = None) -> tuple[Batch, float]:
        """What the returns make of a rollout, and how much of that its critic explains.

        evaluation: of the same rollout by the learner, for returns that correct for the lag between the two.
        """
        experiment = self._experiment
        trajectory = Trajectory(
            rewards=rollout.rewards, values=rollout.values, next_values=rollout.next_values,
            terminated=rollout.terminated, truncated=rollout.truncated, log_probs=rollout.log_probs,
        )  # fmt: skip
        advantages, targets = self._estimates(experiment.returns, trajectory, evaluation)
        if experiment.critic_returns is not None:
            _, targets = self._estimates(experiment.critic_returns, trajectory, evaluation)
        mask = None if rollout.valid.all() else rollout.valid.astype(np.float32)
        batch = Batch(
            log_probs=rollout.log_probs, values=rollout.values, advantages=advantages, targets=targets, mask=mask
        )
        return batch, explained_variance(rollout.values, targets, mask)

    def _estimates(
        self, returns: Returns, trajectory: Trajectory, evaluation: Evaluation | None
    ) -> tuple[Floats, Floats]:
        if evaluation is not None and is_off_policy(returns):
            trajectory = _retold(trajectory, evaluation)
        return returns(trajectory, self._experiment.gamma)


def _retold(trajectory: Trajectory, evaluation: Evaluation) -> Trajectory:
    """A trajectory with the learner's values and log-probabilities. Behind the last row, and behind a time limit, stay
    the values that the rollout came with: those states are not in it."""
    values = evaluation.values
    next_values, goes_on = trajectory.next_values.copy(), ~trajectory.ended[:-1]
    next_values[:-1][goes_on] = values[1:][goes_on]
    return replace(trajectory, values=values, next_values=next_values, target_log_probs=evaluation.log_probs)
