"""The actor-learner: pull, collect, gradient, push. Every backend runs this worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from a3c_exp.algorithms import MinibatchAlgorithm
from a3c_exp.common import signals
from a3c_exp.common.arrays import Floats
from a3c_exp.core import seeding
from a3c_exp.core.acting import ActingPolicy, PolicyNetwork, SarsaPolicy
from a3c_exp.core.divergence import TOO_LARGE, explain_divergence
from a3c_exp.core.episodes import LeavingRules
from a3c_exp.core.events import Event, YieldPoint
from a3c_exp.core.experiment import Experiment, RunContext
from a3c_exp.core.heartbeat import CLOSING, LEARNING, MAKING, Heartbeat
from a3c_exp.core.measuring import (
    GRADIENTS_EVERY,
    Stopwatch,
    gradient_sample,
    stopwatch,
    timed,
    timing,
)
from a3c_exp.core.memory import Priorities, RolloutMemory
from a3c_exp.core.normalization import Stats
from a3c_exp.core.rollout import Actor, Rollout
from a3c_exp.core.store import Push, Snapshot, Store, Ticket
from a3c_exp.ending import StopReason
from a3c_exp.engine.arrays import (
    BatchArrays,
    NetworkOutputs,
    action_values_of,
    count_of,
    explained_variance,
    total,
)
from a3c_exp.engine.losses import loss_gradient
from a3c_exp.envs import EnvBatch, close_within, on_progress
from a3c_exp.errors import ConfigError, RunError, one_line
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.components import construction
from a3c_exp.optimizers import clip, euclidean_norm
from a3c_exp.returns import Returns, with_learner_values
from a3c_exp.schedules import progress_of, value

# A single bad rollout passes, however many minibatches it has. So many in a row without a finite
# gradient end the run.
MAX_CONSECUTIVE_NONFINITE = 20

# The norm of all parameters, and how far the shared ones have moved from them, are measured at one
# push of so many: they change slowly, and millions of numbers are read.
PARAMETERS_EVERY = 10

# A gradient that is not finite is refused and reported: numpy need not warn as well.
_ignore_nonfinite = np.errstate(over="ignore", invalid="ignore", divide="ignore")


class Worker:
    """One actor-learner: an actor and a learner around one copy of the network.

    heartbeat: that of workers which take turns in this process; None: the worker has its own.
    """

    def __init__(
        self, context: RunContext, index: int, store: Store, heartbeat: Heartbeat | None = None
    ) -> None:
        experiment = context.experiment
        self._experiment = experiment
        self._incarnation = context.resumed
        self._index = index
        self._store = store
        self._on_rollout = context.on_rollout
        self._heartbeat = store.heartbeat(index) if heartbeat is None else heartbeat
        watch = stopwatch(context.measures)
        self._actor = make_actor(context, index, self._build_network, self._heartbeat, watch)
        self._learner = Learner(
            experiment,
            self._network,
            index,
            store,
            self._actor.policy.rng,
            f"worker {index}",
            self._heartbeat,
            watch,
            samples_gradients="gradients" in context.measures,
        )
        self._memory_file = context.memory_file(index)
        if experiment.memory is not None:
            self._learner.memory = RolloutMemory(
                experiment.memory,
                experiment.worker_count,
                experiment.envs_per_worker,
                self._memory_file if context.resumed and not context.replaces else None,
                "begins with an empty memory" if context.replaces else "",
            )

    def run(self) -> Iterator[Event | YieldPoint]:
        """Pull, collect, gradient, push, until the run has its `total_steps`, the store has been
        stopped, or a rule of `Stop` lets this worker leave.

        Yields an Event after each push, and a YieldPoint where others may go first. Raises RunError
        if too many rollouts in a row had no finite gradient.
        """
        store = self._store
        learner = self._learner
        collect = timed(learner.watch, "acting", self._actor.collect)
        experiment = self._experiment
        total_steps = experiment.total_steps
        episodes = store.start(self._index, self._actor.policy.rng, self._incarnation)
        rules = LeavingRules(experiment.stop, episodes)
        while not store.stopped:
            if rules.has_all_episodes:  # since an earlier session
                yield Event(self._index, left=StopReason.WORKER_EPISODES)
                return
            snapshot = learner.pull()
            if store.stopped or snapshot.steps >= total_steps:  # a pull may bring that
                return

            rollout = collect(snapshot, progress_of(snapshot.steps, total_steps))
            if self._on_rollout is not None:
                self._on_rollout(self._index, rollout.transitions)
            event = Event(self._index, left=rules.add(rollout.episodes))
            # V-trace learns with newer parameters than those that acted
            if experiment.pulls_again:
                yield YieldPoint.BEFORE_PULL
                acted = snapshot
                snapshot = learner.pull()
                event.add({"workers/lag": snapshot.version - acted.version})

            yield from learner.learn(rollout, snapshot, event)
            if event.left:
                return

    def close(self) -> None:
        """Leave the run: synchronous rounds go on without this worker. Close its environments."""
        self._heartbeat.begin(CLOSING)
        try:
            self._store.leave(self._index)
            if self._memory_file is not None and self._learner.memory is not None:
                self._save_memory(self._learner.memory, self._memory_file)
        finally:  # a server may be dead
            close_within(self._actor.env)

    def _save_memory(self, memory: RolloutMemory, file: Path) -> None:
        try:
            memory.save(file)
        except OSError as error:
            problem = f"{file.name} cannot be written: {one_line(error)}"
            raise ConfigError("memory.save", True, problem) from None

    def _build_network(self, env: EnvBatch) -> ActorCritic:
        # Nothing is drawn: the first pull brings the parameters.
        self._network = self._experiment.build_network(env, None)
        return self._network


@dataclass(eq=False)
class Learner:
    """The half of a worker that learns: it makes gradients of rollouts in its own network, and
    pushes them.

    experiment: its algorithm, its returns and its settings of gradients are the learner's.
    network: computes the gradients. Each pull overwrites its parameters.
    worker: index of the learner's rows in the store.
    store: holds the shared parameters.
    rng: draws minibatches.
    name: how messages call the learner.
    heartbeat: beats with each gradient and push, and while the learner waits for others.
    watch: times the learner's work, and is reported with each push; None if time is not measured.
    samples_gradients: whether the events of some pushes have numbers of the gradient.
    memory: of the rollouts, from which the learner learns again; None: it has none.
    """

    experiment: Experiment
    network: ActorCritic
    worker: int
    store: Store
    rng: np.random.Generator
    name: str
    heartbeat: Heartbeat
    watch: Stopwatch | None = None
    samples_gradients: bool = False
    memory: RolloutMemory | None = None
    _nonfinite_in_a_row: int = field(default=0, init=False)
    _prepared: int = field(default=0, init=False)
    _explanation: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._steps = getattr(self.experiment.returns, "n", None) or 1
        self._has_action_values = self.experiment.algorithm.target_every is not None
        self._pulling = timing(self.watch, "push")
        self._estimating = timing(self.watch, "returns")
        self._finishing = timing(self.watch, "waiting")
        self._loss_gradient = loss_gradient(
            self.experiment.algorithm, self.network.loss_module, self.experiment.kernels
        )

    def pull(self) -> Snapshot:
        """Copy the shared parameters into the learner's network."""
        snapshot = self._copy_parameters()
        if snapshot.normalizer is not None:
            snapshot.normalizer.scale_pixels(self.network)
        return snapshot

    def _copy_parameters(self) -> Snapshot:
        with self._pulling:
            return self.store.pull(self.worker, self.network.vector)

    def learn(
        self, rollout: Rollout, snapshot: Snapshot, event: Event | None = None
    ) -> Iterator[Event | YieldPoint]:
        """Make a gradient and push it; with a minibatch algorithm (PPO) pull, make a gradient and
        push for each minibatch. With a memory, pull, make a gradient and push for each draw, too.

        snapshot: the pull that the gradient is based on.
        event: to be reported; None for a new one.

        Yields each event after its push, and a YieldPoint where others may go first. Raises
        RunError if too many rollouts in a row had no finite gradient, or if the algorithm made no
        minibatch of transitions.
        """
        event = Event(self.worker) if event is None else event
        outputs = self._learn(rollout, snapshot, event)
        return outputs if self.watch is None else self.watch.learning(outputs)

    def _learn(
        self, rollout: Rollout, snapshot: Snapshot, event: Event
    ) -> Iterator[Event | YieldPoint]:
        self.heartbeat.begin(LEARNING)
        algorithm = self.experiment.algorithm
        minibatches = algorithm if isinstance(algorithm, MinibatchAlgorithm) else None
        event.steps = rollout.transitions
        event.episodes = rollout.episodes
        if self.memory is not None:
            draws = self._remember(rollout, event, self.memory)
            if draws and not algorithm.learns_fresh:
                yield YieldPoint.BEFORE_PULL
            pushes = self._pushes_with_memory(rollout, snapshot, event, self.memory, draws)
        elif minibatches is None:
            pushes = self._gradient(rollout, snapshot, event)
        else:
            yield YieldPoint.BEFORE_PULL
            pushes = self._minibatch_gradients(rollout, event, minibatches)

        pushed = learned = rejected = 0
        for push in pushes:
            pushed += 1
            if push.weight:
                learned += 1
                rejected += push.event.counts["rejected"]
            yield YieldPoint.BEFORE_PUSH
            yield from self._wait(self.store.push(self.worker, push))
            self.heartbeat.beat()
            yield push.event

        # the run would never end: steps are counted with the first push
        if rollout.transitions and not pushed:
            raise RunError(
                f"{self.name}: {type(algorithm).__name__}.minibatches gave none "
                f"for {event.steps} transitions"
            )
        if learned:
            self._check_divergence(all_rejected=learned == rejected)
        if minibatches is not None or self.memory is not None:
            with self._finishing:  # on a cluster it waits for the last round
                ticket = self.store.finish_rollout(self.worker)
            yield from self._wait(ticket)

    def _gradient(self, rollout: Rollout, snapshot: Snapshot, event: Event) -> Iterator[Push]:
        """Yield one push, of the gradient of the whole rollout."""
        self.network.zero_grad()
        batch = None
        if rollout.transitions:
            batch, metrics = self._add_gradient(rollout, snapshot)
            event.add(metrics | _critic_metrics(batch))
        yield self._prepare_push(snapshot, event, rollout.stats, batch)

    def _remember(self, rollout: Rollout, event: Event, memory: RolloutMemory) -> int:
        """Add a rollout to the memory, and return how many gradients from it follow."""
        memory.add(rollout)
        event.add({"workers/memory": len(memory)})
        if not self.experiment.algorithm.learns_fresh and rollout.transitions:
            event.add({"mean_value": float(rollout.values[rollout.valid].mean())})
        if memory.notice:
            event.warnings += (f"{self.name} {memory.notice}",)
            memory.notice = ""
        return memory.count_draws(self.rng)

    def _pushes_with_memory(
        self,
        rollout: Rollout,
        snapshot: Snapshot,
        event: Event,
        memory: RolloutMemory,
        draws: int,
    ) -> Iterator[Push]:
        """Yield the push of a rollout, then pull and yield a push for each draw from memory. What
        was collected is counted with the first push."""
        stats = rollout.stats
        if self.experiment.algorithm.learns_fresh:
            yield from self._gradient(rollout, snapshot, event)
        elif not draws:
            yield self._prepare_push(snapshot, event, stats, None)

        for number in range(draws):
            if number or self.experiment.algorithm.learns_fresh:
                if self.store.stopped:
                    return
                event = Event(self.worker)
                stats = None
            yield self._memory_gradient(memory, event, stats)

    def _memory_gradient(self, memory: RolloutMemory, event: Event, stats: Stats | None) -> Push:
        """Pull, draw, and return the push of what was drawn."""
        snapshot = self.pull()
        self.network.zero_grad()
        drawn, unseen = memory.draw(self.rng, snapshot.normalizer, self._steps)
        batch = None
        if drawn.transitions:
            if len(unseen.times):
                values = self.network.values(unseen.observations, unseen.states)
                drawn.next_values[unseen.times, unseen.columns] = values
            source = self._batch_of_targets(drawn) if self._has_action_values else drawn
            batch, metrics = self._add_gradient(source, snapshot, memory.priorities)
            event.add(metrics)
        return self._prepare_push(snapshot, event, stats, batch)

    @_ignore_nonfinite
    def _batch_of_targets(self, drawn: Rollout) -> BatchArrays:
        """Return the transitions of a drawn rollout, whose targets are of the target network."""
        assert self.experiment.memory is not None
        if self.experiment.memory.sample == "sequences":
            rows = drawn.observations
            values = self.network.values(rows.reshape(-1, *rows.shape[2:]))
            drawn = with_learner_values(drawn, values.reshape(drawn.rewards.shape), drawn.log_probs)
        return self._batch(drawn).without_order()

    def _minibatch_gradients(
        self, rollout: Rollout, event: Event, algorithm: MinibatchAlgorithm
    ) -> Iterator[Push]:
        """Pull and yield a push for each minibatch. What was collected is counted with the first
        push."""
        stats = rollout.stats
        batch = _ignore_nonfinite(self._batch)(rollout)
        extra = _critic_metrics(batch)
        if rollout.state is None:
            batch = batch.without_order()
        length, count = batch.shape

        for columns in algorithm.minibatches(count, length, self.rng):
            minibatch = batch.take(columns)
            # Pixels stay scaled as they were when the rollout was taken up: another scale would
            # change pi / mu.
            snapshot = self._copy_parameters()
            self.network.zero_grad()
            _, metrics = self._add_gradient(minibatch, snapshot)
            event.add(metrics | extra)
            yield self._prepare_push(snapshot, event, stats, minibatch)
            if self.store.stopped or algorithm.should_stop_early(metrics):
                return
            event = Event(self.worker)
            stats = None
            extra = {}

    @_ignore_nonfinite
    def _add_gradient(
        self,
        source: Rollout | BatchArrays,
        snapshot: Snapshot,
        priorities: Priorities | None = None,
    ) -> tuple[BatchArrays, dict[str, float]]:
        """Add the loss's gradient over a rollout, or over a batch whose advantages and targets are
        known, to `network.gradient`. Returns the loss's batch and its metrics.

        priorities: by which a batch of action values was drawn; None: all its transitions count
            alike.
        """
        outputs, backward = self.network.runtime.evaluate(
            source.observations, source.actions, source.recurrent_input
        )

        batch = self._batch(source, outputs) if isinstance(source, Rollout) else source
        progress = progress_of(snapshot.steps, self.experiment.total_steps)
        gradient, metrics = self._loss_gradient(outputs, batch, progress)

        multiplier = snapshot.multipliers.entropy
        if multiplier != 1:
            gradient = replace(gradient, entropy=gradient.entropy * multiplier)
        if priorities is not None:
            assert self.experiment.memory is not None
            beta = value(self.experiment.memory.correction, progress)
            weights = priorities.update(batch.targets - outputs.values, beta)
            gradient = replace(gradient, values=gradient.values * weights)
        backward(gradient)
        self.heartbeat.beat()
        return batch, metrics

    def _batch(self, rollout: Rollout, outputs: NetworkOutputs | None = None) -> BatchArrays:
        """Return a rollout with its advantages and targets.

        outputs: of the learner's network for the same rollout, for workers that have pulled again.
        """
        experiment = self.experiment
        with self._estimating:
            advantages, targets = self._estimate(experiment.returns, rollout, outputs)
            if experiment.critic_returns is not None:
                _, targets = self._estimate(experiment.critic_returns, rollout, outputs)

        return BatchArrays(
            observations=rollout.observations,
            actions=rollout.actions,
            log_probs=rollout.log_probs,
            values=rollout.values,
            rewards=rollout.rewards,
            advantages=advantages,
            targets=targets,
            valid=None if rollout.valid.all() else rollout.valid,
            recurrent_input=rollout.recurrent_input,
            behaviour=rollout.behaviour,
            from_memory=rollout.from_memory,
        )

    def _estimate(
        self, returns: Returns, rollout: Rollout, outputs: NetworkOutputs | None
    ) -> tuple[Floats, Floats]:
        """Return advantages and targets, float32 [T, B] each."""
        needs_new_values = returns.off_policy or self.experiment.fresh_gradients
        if outputs is not None and (needs_new_values or rollout.from_memory):
            action_values = None
            if self.experiment.algorithm.target_decay is not None:
                action_values = action_values_of(outputs, rollout.actions)
            return returns(
                with_learner_values(rollout, outputs.values, outputs.log_probs, action_values),
                self.experiment.gamma,
            )
        return returns(rollout, self.experiment.gamma)

    def _prepare_push(
        self, snapshot: Snapshot, event: Event, stats: Stats | None, batch: BatchArrays | None
    ) -> Push:
        """Return the push of the network's gradient, or one without a gradient if it is refused, or
        if it is of no transition.

        event: reports the push.
        stats: see `Push`.
        batch: the batch that the gradient is of; None if there is none.
        """
        weight = 0
        gradient = None
        parameters = None
        if batch is not None:
            weight = batch.transitions
            # A summed loss grows with its transitions already, so each worker has weight 1.
            if self.experiment.algorithm.reduction == "sum":
                weight = min(weight, 1)
            is_sampled = self._prepared % PARAMETERS_EVERY == 0
            if is_sampled or self.experiment.optimizer.needs_pulled:
                parameters = self.network.vector
            if self._clip_gradient(snapshot, event, batch, is_sampled) and weight:
                gradient = self.network.gradient
            self._prepared += 1
        # the first push of a rollout alone has its steps
        event.contributions = int(gradient is not None and event.steps > 0)

        if self.watch is not None:
            self.watch.report(event)
        return Push(
            gradient=gradient,
            snapshot=snapshot,
            event=event,
            weight=weight,
            stats=stats,
            rng=self.rng,
            parameters=parameters,
        )

    def _clip_gradient(
        self, snapshot: Snapshot, event: Event, batch: BatchArrays, measures_parameters: bool
    ) -> bool:
        """Clip and measure the network's gradient. Return whether it and its square are finite, and
        report one that is refused."""
        network = self.network
        longest = self.experiment.optimizer.max_grad_norm
        if self.samples_gradients and self._prepared % GRADIENTS_EVERY == 0:
            event.gradients = gradient_sample(network)
        norm = clip(network.gradient, longest)
        event.add({"grad_norm": norm})
        if measures_parameters:
            event.add({"parameter_norm": euclidean_norm(network.vector)})

        longest = longest or math.inf
        is_usable = math.isfinite(norm) and min(norm, longest) < TOO_LARGE
        if not is_usable:
            self._refuse(event, snapshot, batch)
        elif self.samples_gradients:
            event.add({"clipped": float(norm > longest)})
        return is_usable

    def _refuse(self, event: Event, snapshot: Snapshot, batch: BatchArrays) -> None:
        """Report a gradient that is not applied, and why, in its event."""
        event.counts["rejected"] += 1
        event.metrics.clear()
        self._explanation = explain_divergence(self.network, batch)
        event.explanation = (
            f"{self.name}, step {snapshot.steps:,}: a gradient that was not finite, or too large, "
            f"was refused. {self._explanation}"
        )

    def _wait(self, ticket: Ticket) -> Iterator[YieldPoint]:
        """Wait where a synchronous round waits for others."""
        while not ticket.done() and not self.store.stopped:
            self.heartbeat.beat()
            yield YieldPoint.WAITING

    def _check_divergence(self, *, all_rejected: bool) -> None:
        """Count a rollout. Raises RunError after too many in a row of which all gradients were
        rejected."""
        self._nonfinite_in_a_row = self._nonfinite_in_a_row + 1 if all_rejected else 0
        if self._nonfinite_in_a_row == MAX_CONSECUTIVE_NONFINITE:
            raise RunError(
                f"{self.name}: all gradients of the last {MAX_CONSECUTIVE_NONFINITE} rollouts were "
                f"not finite, or too large. {self._explanation}"
            )


@_ignore_nonfinite
def _critic_metrics(batch: BatchArrays) -> dict[str, float]:
    """Compute metrics of the values with which the actor acted."""
    values = batch.values
    valid = batch.valid
    return {
        "explained_variance": explained_variance(values, batch.targets, valid),
        "mean_value": total(values, valid) / count_of(values, valid),
    }


def make_actor(
    context: RunContext,
    worker: int,
    make_network: Callable[[EnvBatch], PolicyNetwork],
    heartbeat: Heartbeat,
    watch: Stopwatch | None = None,
) -> Actor:
    """Make a worker's actor. Its random numbers depend on the seed, the worker's index and its
    incarnation alone.

    make_network: makes the policy network for the environments, local or remote.
    watch: times the environments' steps; None if time is not measured.
    """
    experiment = context.experiment
    count = experiment.envs_per_worker
    resumed = context.resumed
    seeds = seeding.environment_seeds(
        experiment.seed, seeding.Role.ENVIRONMENT, worker, count, resumed
    )
    rng = seeding.generator(experiment.seed, seeding.Role.ACTIONS, worker, resumed=resumed)

    with construction:  # another thread may be making its network
        seeding.seed_globals(experiment.seed, worker, resumed)

    heartbeat.begin(MAKING)
    on_progress(heartbeat.beat)
    with signals.kept():
        env = experiment.env.make(count, seeds)
        try:
            acts = SarsaPolicy if experiment.algorithm.value_of_action else ActingPolicy
            return Actor(
                env=env,
                policy=acts(make_network(env), rng, experiment.epsilon),
                settings=experiment.env,
                rollout_length=experiment.rollout_length,
                gamma=experiment.gamma,
                heartbeat=heartbeat,
                watch=watch,
                remembers=experiment.memory is not None,
                keeps_behaviour=experiment.algorithm.needs_behaviour,
            )
        except BaseException:  # a reset may raise
            close_within(env)
            raise
