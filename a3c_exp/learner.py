"""From a rollout to a gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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

    observations: Tensor
    actions: Tensor
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
        return self.batch.targets.numel() if self.batch.mask is None else int(self.batch.mask.sum())

    def take(self, columns: NDArray[np.intp]) -> Samples:
        """Some of the N."""
        index, batch = torch.from_numpy(columns), self.batch

        def part(array: Tensor) -> Tensor:
            return array.index_select(1, index)  # [:, index] would move pictures byte by byte

        told = (batch.log_probs, batch.values, batch.advantages, batch.targets)
        log_probs, values, advantages, targets = map(part, told)
        mask = None if batch.mask is None else part(batch.mask)
        memory = None if self.memory is None else self.memory.take(columns)
        taken = Batch(log_probs, values, advantages, targets, mask)
        return Samples(part(self.observations), part(self.actions), taken, memory)


class Learner:
    """From a rollout to a gradient, in a worker's own network."""

    def __init__(self, experiment: Experiment, network: ActorCritic) -> None:
        self._experiment, self._network = experiment, network

    def add_gradient(self, rollout: Rollout, progress: float) -> dict[str, float]:
        """Add the loss's gradient over one rollout to `network.gradient`; returns what the loss has to report."""
        evaluation = self._network.evaluate(
            torch.from_numpy(rollout.observations), torch.from_numpy(rollout.actions), rollout.memory
        )
        batch, explained = self._batch(rollout, evaluation)
        metrics = self._backward(evaluation, batch, progress)
        metrics["explained_variance"] = explained
        return metrics

    def samples(self, rollout: Rollout) -> tuple[Samples, dict[str, float]]:
        """A rollout with its advantages and targets, once for all passes over it; and what there is to report of it."""
        batch, explained = self._batch(rollout)
        report = {"explained_variance": explained}
        if rollout.memory is not None:
            seen = torch.from_numpy(rollout.observations), torch.from_numpy(rollout.actions)
            return Samples(*seen, batch, rollout.memory), report
        valid = torch.from_numpy(np.flatnonzero(rollout.valid))

        def in_a_row(array: NDArray[Any] | Tensor) -> Tensor:
            return torch.as_tensor(array).flatten(0, 1).index_select(0, valid).unsqueeze(0)

        columns = (batch.log_probs, batch.values, batch.advantages, batch.targets)
        samples = Samples(in_a_row(rollout.observations), in_a_row(rollout.actions), Batch(*map(in_a_row, columns)))
        return samples, report

    def add_gradient_of(self, samples: Samples, progress: float) -> dict[str, float]:
        """The same as `add_gradient`, for a part of one."""
        evaluation = self._network.evaluate(samples.observations, samples.actions, samples.memory)
        return self._backward(evaluation, samples.batch, progress)

    def _backward(self, evaluation: Evaluation, batch: Batch, progress: float) -> dict[str, float]:
        loss, reported = self._experiment.algorithm.loss(evaluation, batch, progress)
        loss.backward()  # type: ignore[no-untyped-call]
        return {name: metric.item() for name, metric in reported.items()}

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
            log_probs=torch.from_numpy(rollout.log_probs),
            values=torch.from_numpy(rollout.values),
            advantages=torch.from_numpy(advantages),
            targets=torch.from_numpy(targets),
            mask=None if mask is None else torch.from_numpy(mask),
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
    values = evaluation.values.detach().numpy()
    next_values, goes_on = trajectory.next_values.copy(), ~trajectory.ended[:-1]
    next_values[:-1][goes_on] = values[1:][goes_on]
    log_probs = evaluation.log_probs.detach().numpy()
    return replace(trajectory, values=values, next_values=next_values, target_log_probs=log_probs)
