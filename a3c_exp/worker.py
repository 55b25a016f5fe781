"""The actor-learner: pull, collect, gradient, push. Every backend runs this one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from a3c_exp import seeding
from a3c_exp.algorithms import Batch, explained_variance
from a3c_exp.envs import EnvBatch
from a3c_exp.errors import RunError
from a3c_exp.events import Event
from a3c_exp.networks import ActorCritic
from a3c_exp.normalisation import Moments
from a3c_exp.optimizers import clip
from a3c_exp.parameters import Layout, Pulled, SharedParameters
from a3c_exp.returns import Trajectory
from a3c_exp.rollout import Collector, LocalActor, RewardShaping, Rollout
from a3c_exp.seeding import Role

if TYPE_CHECKING:
    from a3c_exp.config import Experiment

# A single bad batch passes; so many gradients in a row that are not finite are a network that has diverged.
REJECTIONS_IN_A_ROW = 20


class Pause(Enum):
    """Why a worker let go: it is about to push, or a synchronous round waits for others."""

    BEFORE_PUSH = auto()
    WAITING = auto()


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What every worker of a run is built from. resumed: how often the run has been resumed."""

    experiment: Experiment
    resumed: int = 0


def build_network(experiment: Experiment) -> tuple[ActorCritic, EnvBatch]:
    """The network with the parameters that the run's seed draws; and the environment it was built for, closed, which
    still tells its spaces."""
    env = experiment.env.make(1, [0])
    try:
        rng = seeding.generator(experiment.seed, Role.PARAMETERS)
        network = experiment.network.build(env.observation_space, env.action_space, rng)
        return network, env
    finally:
        env.close()


def layout(experiment: Experiment, network: ActorCritic, observation_shape: tuple[int, ...]) -> Layout:
    """What the shared block of this experiment must hold."""
    env = experiment.env
    normalised = env.normalize_observations or env.normalize_rewards
    return Layout(
        size=len(network.vector),
        parts=network.parts,
        workers=experiment.worker_count,
        optimizer=experiment.optimizer,
        schedule=experiment.schedule,
        total_steps=experiment.total_steps,
        synchronous=experiment.update == "sync",
        locked=experiment.lock,
        moments_per_worker=experiment.moments == "worker",
        observation_shape=observation_shape if normalised else None,
        normalize_observations=env.normalize_observations,
        normalize_rewards=env.normalize_rewards,
    )


class Learner:
    """From a rollout to a gradient, in a worker's own network."""

    def __init__(self, experiment: Experiment, network: ActorCritic) -> None:
        self._experiment, self._network = experiment, network

    def add_gradient(self, rollout: Rollout, progress: float) -> dict[str, float]:
        """Add the loss's gradient over one rollout to `network.gradient`; returns what the loss has to report."""
        experiment = self._experiment
        trajectory = Trajectory(
            rewards=rollout.rewards, values=rollout.values, next_values=rollout.next_values,
            terminated=rollout.terminated, truncated=rollout.truncated,
        )  # fmt: skip
        advantages, targets = experiment.returns(trajectory, experiment.gamma)
        if experiment.critic_returns is not None:
            _, targets = experiment.critic_returns(trajectory, experiment.gamma)
        mask = None if rollout.valid.all() else rollout.valid.astype(np.float32)
        batch = Batch(
            log_probs=torch.from_numpy(rollout.log_probs),
            values=torch.from_numpy(rollout.values),
            advantages=torch.from_numpy(advantages),
            targets=torch.from_numpy(targets),
            mask=None if mask is None else torch.from_numpy(mask),
        )
        evaluation = self._network.evaluate(
            torch.from_numpy(rollout.observations), torch.from_numpy(rollout.actions), rollout.memory
        )
        loss, reported = experiment.algorithm.loss(evaluation, batch, progress)
        loss.backward()  # type: ignore[no-untyped-call]
        metrics = {name: value.item() for name, value in reported.items()}
        metrics["explained_variance"] = explained_variance(rollout.values, targets, mask)
        return metrics


class Worker:
    """One actor-learner: its environments, its own copy of the network, its generator.

    Random numbers depend on the seed and the worker's index alone; a restored generator goes on where it stood.
    """

    def __init__(self, setup: Setup, index: int, store: SharedParameters) -> None:
        self._experiment, self._index, self._store = setup.experiment, index, store
        experiment = setup.experiment
        seeds = seeding.environment_seeds(
            experiment.seed, Role.ENVIRONMENT, index, experiment.envs_per_worker, setup.resumed
        )
        self._rng = seeding.generator(experiment.seed, Role.ACTIONS, index, resumed=setup.resumed)
        store.restore_random_state(index, self._rng)
        self._env = experiment.env.make(experiment.envs_per_worker, seeds)
        # Whatever it draws is overwritten by the first pull.
        self._network = experiment.network.build(
            self._env.observation_space, self._env.action_space, np.random.default_rng(0)
        )
        shaping = RewardShaping(experiment.env.reward_scale, experiment.env.reward_clip)
        state = self._network.initial_state(experiment.envs_per_worker)
        self._collector = Collector(self._env, experiment.rollout_length, shaping, experiment.gamma, state)
        self._actor = LocalActor(self._network, self._rng)
        self._learner = Learner(experiment, self._network)

    def run(self) -> Iterator[Event | Pause]:
        """Pull, collect, gradient, push, until the run has its `total_steps` or the store has been stopped.

        Yields an Event after each push, and a Pause where others may go first. Raises RunError when too many gradients
        in a row were not finite.
        """
        store, rejected_in_a_row = self._store, 0
        store.start()
        while not store.stopped:
            pulled = store.pull(self._index, self._network.vector)
            if pulled.steps >= self._experiment.total_steps:
                return
            event, gradient, observed = self._learn(pulled)
            yield Pause.BEFORE_PUSH
            pushed = store.push(self._index, gradient, pulled, event.steps, observed)
            store.keep_random_state(self._index, self._rng)
            while pushed is None and not store.stopped:
                yield Pause.WAITING
                pushed = store.poll(self._index, pulled)
            if pushed is not None:
                event.updates = pushed.applied
                if pushed.accepted:
                    event.staleness[pushed.staleness] += 1
            if gradient is None:
                event.rejected = 1
                event.metrics.clear()
            rejected_in_a_row = rejected_in_a_row + 1 if gradient is None else 0
            yield event
            if rejected_in_a_row == REJECTIONS_IN_A_ROW:
                raise RunError(
                    f"the last {rejected_in_a_row} gradients of worker {self._index} were not finite: "
                    "training has diverged (a smaller learning rate or gradient clipping may help)"
                )

    def _learn(self, pulled: Pulled) -> tuple[Event, NDArray[np.float32] | None, Moments | None]:
        """Collect `accumulate` rollouts and add up their gradients, clipped; None for one that is not finite."""
        experiment, network = self._experiment, self._network
        event, observed = Event(self._index), None
        progress = self._store.progress(pulled.steps)
        network.gradient.fill(0)
        for _ in range(experiment.accumulate):
            rollout = self._collector.collect(
                self._actor, pulled.version, pulled.steps + event.steps, pulled.normalisation
            )
            event.steps += rollout.transitions
            event.episodes = event.episodes.merge(rollout.episodes)
            observed = rollout.observed if observed is None else observed.merge(rollout.observed)
            if rollout.transitions:
                metrics = self._learner.add_gradient(rollout, progress)
                event.add(metrics)
        norm = clip(network.gradient, experiment.optimizer, network.parts)
        rate = experiment.optimizer.learning_rate * experiment.schedule(progress)
        event.add({"grad_norm": norm, "learning_rate": rate})
        event.envs_ended = self._collector.envs_ended
        if observed is not None and not np.isfinite(observed.row).all():
            observed = None  # one of these would spoil the shared statistics for good
        return event, network.gradient if math.isfinite(norm) else None, observed

    def close(self) -> None:
        """Leave the run: synchronous rounds go on without this worker, its environments are closed."""
        self._store.leave(self._index)
        self._env.close()
