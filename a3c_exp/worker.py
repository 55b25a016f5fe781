"""The actor-learner: pull, collect, gradient, push. Every backend runs this one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from a3c_exp import seeding
from a3c_exp.algorithms import Reusing
from a3c_exp.envs import EnvBatch
from a3c_exp.errors import RunError
from a3c_exp.events import Event
from a3c_exp.learner import Learner
from a3c_exp.networks import ActorCritic
from a3c_exp.normalisation import Moments
from a3c_exp.optimizers import clip
from a3c_exp.parameters import Layout, Pulled, Pushed
from a3c_exp.returns import is_off_policy
from a3c_exp.rollout import Acting, Collector, LocalActor, RewardShaping, Rollout
from a3c_exp.schedules import value
from a3c_exp.seeding import Role

if TYPE_CHECKING:
    from a3c_exp.config import Experiment

# A single bad batch passes; so many gradients in a row that are not finite are a network that has diverged.
REJECTIONS_IN_A_ROW = 20


class Pause(Enum):
    """Why a worker let go: it is about to pull again behind a rollout, or to push, or a synchronous round waits for
    others."""

    BEFORE_PULL = auto()
    BEFORE_PUSH = auto()
    WAITING = auto()


class Store(Protocol):
    """The shared parameters as a worker sees them, wherever they live: `SharedParameters` itself, or the way to it.

    worker: the index of a worker, which is that of its row.
    """

    @property
    def stopped(self) -> bool:
        """Whether workers are to end."""

    def restore_random_state(self, worker: int, rng: np.random.Generator) -> None:
        """Set a worker's generator to the state that was kept last, if one was: at the latest when it has started."""

    def keep_random_state(self, worker: int, rng: np.random.Generator) -> None:
        """Keep the state of a worker's generator, with its last push."""

    def start(self) -> None:
        """A worker is about to take its first step."""

    def progress(self, steps: int) -> float:
        """The share of the run that is done after so many steps."""

    def pull(self, worker: int, into: NDArray[np.float32]) -> Pulled:
        """Copy the parameters into a vector [P], and tell what belongs to them."""

    def push(
        self,
        worker: int,
        gradient: NDArray[np.float32] | None,
        pulled: Pulled,
        transitions: int,
        observed: Moments | None = None,
        weight: int | None = None,
    ) -> Pushed | None:
        """Update the parameters with a gradient [P]; None while that waits for others: then `poll`.

        transitions: environment steps to count. observed: moments to join to the run's. weight: of the gradient in the
        average of a synchronous round; None: its transitions.
        """

    def poll(self, worker: int, pulled: Pulled) -> Pushed | None:
        """What has become of a push that waited; None while it still does."""

    def finish(self, worker: int) -> None:
        """The worker makes no more gradients of its rollout: rounds go on without it."""

    def others_learn(self, worker: int) -> bool:
        """Whether a worker that has finished must wait before it pulls again."""

    def leave(self, worker: int) -> None:
        """The worker has ended: nobody waits for it any more."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What every worker of a run is built from. resumed: how often the run has been resumed."""

    experiment: Experiment
    resumed: int = 0


def build_network(experiment: Experiment, *, draw: bool = True) -> tuple[ActorCritic, EnvBatch]:
    """The network with the parameters that the run's seed draws; and the environment it was built for, closed, which
    still tells its spaces. draw: False for a network whose parameters are about to be overwritten."""
    env = experiment.env.make(1, [0])
    try:
        rng = seeding.generator(experiment.seed, Role.PARAMETERS) if draw else None
        network = experiment.build_network(env, rng)
        return network, env
    finally:
        env.close()


def layout(experiment: Experiment, network: ActorCritic, observation_shape: tuple[int, ...]) -> Layout:
    """What the shared block of this experiment must hold."""
    env = experiment.env
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
        observation_shape=observation_shape,
        normalize_observations=env.normalize_observations,
        normalize_rewards=env.normalize_rewards,
    )


@dataclass(slots=True)
class Update:
    """A push in the making: the pull it goes back to, and what is to be told of it.

    observed: for normalisation. weight: of the gradient in a synchronous round; 0: there is none.
    """

    pulled: Pulled
    event: Event
    observed: Moments | None = None
    weight: int = 0

    def add(self, rollout: Rollout) -> None:
        """The gradient is also of this rollout."""
        self.event.steps += rollout.transitions
        self.observed = rollout.observed if self.observed is None else self.observed.merge(rollout.observed)


class Gatherer:
    """The half of a worker that acts: its environments, its generator, the rollouts that it collects.

    Random numbers depend on the seed and the worker's index alone; a restored generator goes on where it stood.

    make: what acts, for the environments: the worker's own network, or the way to one elsewhere.
    """

    def __init__(self, setup: Setup, index: int, store: Store, make: Callable[[EnvBatch], Acting]) -> None:
        self._experiment, self._store = setup.experiment, store
        experiment = setup.experiment
        seeds = seeding.environment_seeds(
            experiment.seed, Role.ENVIRONMENT, index, experiment.envs_per_worker, setup.resumed
        )
        self.rng = seeding.generator(experiment.seed, Role.ACTIONS, index, resumed=setup.resumed)
        store.restore_random_state(index, self.rng)
        self.env = experiment.env.make(experiment.envs_per_worker, seeds)
        network = make(self.env)
        state = network.initial_state(experiment.envs_per_worker)
        self._collector = Collector(self.env, experiment.rollout_length, RewardShaping(), experiment.gamma, state)
        self._actor = LocalActor(network, self.rng)
        self._explores = experiment.epsilon != 0

    @property
    def envs_ended(self) -> int:
        """How many of the environments have ended at least one episode."""
        return self._collector.envs_ended

    def rollouts(self, pulled: Pulled, count: int) -> Iterator[Rollout]:
        """Collect so many with what was pulled."""
        progress, env = self._store.progress(pulled.steps), self._experiment.env
        if self._explores:
            self._actor.epsilon = value(self._experiment.epsilon, progress)
        clip = None if env.reward_clip is None else value(env.reward_clip, progress)
        self._collector.shaping = RewardShaping(env.reward_scale, clip)
        steps = pulled.steps
        for _ in range(count):
            rollout = self._collector.collect(self._actor, pulled.version, steps, pulled.normalisation)
            steps += rollout.transitions
            yield rollout


class Pusher:
    """The half of a worker that learns: rollouts become gradients in its own network, and gradients pushes.

    index: of its row in the store. rng: what minibatches are drawn from. name: who it is, in words.
    """

    def __init__(
        self, experiment: Experiment, network: ActorCritic, index: int, store: Store,
        rng: np.random.Generator, name: str,
    ) -> None:  # fmt: skip
        self._experiment, self._network, self._index, self._store = experiment, network, index, store
        self._rng, self._learner, self._name = rng, Learner(experiment, network), name
        self._reusing = experiment.algorithm if isinstance(experiment.algorithm, Reusing) else None
        # A loss that is a sum has the weight of its transitions in it already.
        self._is_sum = getattr(experiment.algorithm, "reduction", "mean") == "sum"
        self._rejected_in_a_row = 0

    def pull(self) -> Pulled:
        """Take the shared parameters over into the worker's network."""
        pulled = self._store.pull(self._index, self._network.vector)
        self._network.load()
        return pulled

    def learn(self, update: Update, rollouts: Iterable[Rollout]) -> Iterator[Event | Pause]:
        """Add up the gradients of rollouts and push; with an algorithm that reuses them, of one, in minibatches."""
        if self._reusing is not None:
            (rollout,) = rollouts
            yield from self._learn_in_minibatches(update, rollout, self._reusing)
            return
        progress = self._store.progress(update.pulled.steps)
        self._network.gradient.fill(0)
        for rollout in rollouts:
            if rollout.transitions:
                update.event.add(self._learner.add_gradient(rollout, progress))
        update.weight = min(update.event.steps, 1) if self._is_sum else update.event.steps
        yield from self._push(update, progress)

    def _learn_in_minibatches(self, update: Update, rollout: Rollout, reusing: Reusing) -> Iterator[Event | Pause]:
        """Pull, make a gradient and push for each minibatch of a rollout. Where updates come in rounds, wait then for
        those who have more of them."""
        store, learner = self._store, self._learner
        yield Pause.BEFORE_PULL
        pulled = update.pulled
        samples, report = learner.samples(rollout)
        length, count = samples.shape
        for columns in reusing.minibatches(count, length, self._rng):
            minibatch = samples.take(columns)
            update.pulled, update.weight = self.pull(), minibatch.transitions
            progress = store.progress(update.pulled.steps)
            self._network.gradient.fill(0)
            metrics = learner.add_gradient_of(minibatch, progress)
            update.event.add(metrics | report)
            yield from self._push(update, progress)
            if store.stopped or reusing.enough(metrics):
                break
            later = Event(self._index, envs_ended=update.event.envs_ended)
            update, report = Update(pulled, later), {}
        store.finish(self._index)
        while store.others_learn(self._index) and not store.stopped:
            yield Pause.WAITING

    def _push(self, update: Update, progress: float) -> Iterator[Event | Pause]:
        """Clip the gradient and push it, or nothing if it is not finite or of no transition; then yield the event."""
        experiment, network, store, event = self._experiment, self._network, self._store, update.event
        network.fetch_gradient()
        norm = clip(network.gradient, experiment.optimizer, network.parts)
        rate = experiment.optimizer.learning_rate * experiment.schedule(progress)
        event.add({"grad_norm": norm, "learning_rate": rate})
        rejected = not math.isfinite(norm)
        gradient = None if rejected or not update.weight else network.gradient
        yield Pause.BEFORE_PUSH
        pushed = store.push(self._index, gradient, update.pulled, event.steps, update.observed, update.weight)
        store.keep_random_state(self._index, self._rng)
        while pushed is None and not store.stopped:
            yield Pause.WAITING
            pushed = store.poll(self._index, update.pulled)
        if pushed is not None:
            event.updates = pushed.applied
            if pushed.accepted:
                event.staleness[pushed.staleness] += 1
        if rejected:
            event.rejected = 1
            event.metrics.clear()
        self._rejected_in_a_row = self._rejected_in_a_row + 1 if rejected else 0
        yield event
        if self._rejected_in_a_row == REJECTIONS_IN_A_ROW:
            raise RunError(
                f"the last {REJECTIONS_IN_A_ROW} gradients of {self._name} were not finite: "
                "training has diverged (a smaller learning rate or gradient clipping may help)"
            )


class Worker:
    """One actor-learner: both halves, around one copy of the network."""

    def __init__(self, setup: Setup, index: int, store: Store) -> None:
        self._experiment, self._index, self._store = setup.experiment, index, store
        self._gatherer = Gatherer(setup, index, store, self._build)
        self._pusher = Pusher(setup.experiment, self._network, index, store, self._gatherer.rng, f"worker {index}")
        self._pulls_again = is_off_policy(setup.experiment.returns)

    def _build(self, env: EnvBatch) -> ActorCritic:
        # Nothing is drawn: the first pull brings the parameters.
        self._network = self._experiment.build_network(env, None)
        return self._network

    def run(self) -> Iterator[Event | Pause]:
        """Pull, collect, gradient, push, until the run has its `total_steps` or the store has been stopped: an Event
        after each push, a Pause where others may go first. RunError: too many gradients were not finite."""
        store = self._store
        store.start()
        while not store.stopped:
            pulled = self._pusher.pull()
            if store.stopped or pulled.steps >= self._experiment.total_steps:  # a pull may bring that
                return
            yield from self._learn(pulled)

    def _learn(self, pulled: Pulled) -> Iterator[Event | Pause]:
        """Collect `accumulate` rollouts and learn from them."""
        update = Update(pulled, Event(self._index))
        rollouts = self._rollouts(update)
        if self._pulls_again:
            rollouts = iter(list(rollouts))  # all of them are collected before the parameters change
            yield Pause.BEFORE_PULL
            update.pulled = self._pusher.pull()
        yield from self._pusher.learn(update, rollouts)

    def _rollouts(self, update: Update) -> Iterator[Rollout]:
        """Collect with what was pulled; the update notes what there is to tell of it."""
        event = update.event
        for rollout in self._gatherer.rollouts(update.pulled, self._experiment.accumulate):
            update.add(rollout)
            event.episodes = event.episodes.merge(rollout.episodes)
            event.envs_ended = self._gatherer.envs_ended
            yield rollout

    def close(self) -> None:
        """Leave the run: synchronous rounds go on without this worker, its environments are closed."""
        self._store.leave(self._index)
        self._gatherer.env.close()
