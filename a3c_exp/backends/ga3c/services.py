"""Services for agents, in threads of the run: predictors answer requests, trainers learn from
rollouts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from a3c_exp.backends.ga3c.buffers import AgentBuffers, SharedBuffers
from a3c_exp.backends.ga3c.device import build_thread_network
from a3c_exp.common.ranges import Checked, whole, within
from a3c_exp.core import seeding
from a3c_exp.core.events import Event, YieldPoint
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.heartbeat import PAUSE_SECONDS, SERVING, Heartbeat
from a3c_exp.core.measuring import stopwatch
from a3c_exp.core.rollout import concat_rollouts
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import Learner
from a3c_exp.envs import EnvBatch

# The longest wait for a queue, before the waiting thread checks whether anybody can still write to
# it.
QUEUE_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class PredictionBatch(Checked):
    """Observations of one forward pass.

    maximum: most observations of a pass.
    wait: seconds that a predictor waits for more, while there are agents that may still send some.
    """

    maximum: Annotated[int, whole(1, 2**16)] = 128
    wait: Annotated[float, within(0, 1)] = 0.01


@dataclass(frozen=True)
class Services:
    """The work of predictors and trainers, and what all of them share.

    env: closed, but with its spaces: threads make none, since only a main thread may have made it.
    predictors, prediction_batch, training_batch: see `Ga3c`.
    """

    context: RunContext
    store: SharedStore
    buffers: SharedBuffers
    env: EnvBatch
    predictors: int
    prediction_batch: PredictionBatch
    training_batch: int
    # Held by the predictor, or trainer, that gathers a batch: if two waited, neither would have a
    # full one.
    _predicting: threading.Lock = field(default_factory=threading.Lock)
    _training: threading.Lock = field(default_factory=threading.Lock)

    def predict(self, row: int, attempt: int = 0) -> Iterator[Event]:
        """Answer the requests of agents until none will come any more, with the parameters that are
        pulled between two batches. Yields an Event for each batch, with metrics alone.

        row: of this predictor's heartbeat, which stands still while a batch is computed.
        attempt: always 0.
        """
        heartbeat = self.store.heartbeat(row)
        heartbeat.begin(SERVING)
        store = self.store
        buffers = self.buffers
        network = build_thread_network(self.context.experiment, store, self.env)
        envs = buffers.spec.envs
        version = -1
        while requests := self._gather_requests(heartbeat):
            waiting = len(requests) + len(buffers.requests)
            if version != store.version:
                snapshot = store.pull(0, network.vector)
                version = snapshot.version
                if snapshot.normalizer is not None:
                    snapshot.normalizer.scale_pixels(network)

            observations = np.concatenate([agent.request["observations"] for agent in requests])
            state = None
            if buffers.spec.state_size:
                state = np.concatenate([agent.request["state"] for agent in requests])

            distributions, values, next_state = network.act_forward(observations, state)
            for index, agent in enumerate(requests):
                rows = slice(index * envs, (index + 1) * envs)
                next_rows = None if next_state is None else next_state[rows]
                agent.reply(version, distributions[rows], values[rows], next_rows)

            event = Event(worker=0)
            event.add(
                {
                    "workers/prediction_batch": len(requests) * envs,
                    "workers/prediction_queue": waiting,
                }
            )
            yield event

    def _gather_requests(self, heartbeat: Heartbeat) -> list[AgentBuffers]:
        """Take the agents whose requests are the next batch. Empty if there will be no more."""
        buffers = self.buffers
        most = self.prediction_batch.maximum // buffers.spec.envs
        taken: list[tuple[AgentBuffers, int]] = []
        with _held(self._predicting, heartbeat):
            while not taken:
                heartbeat.beat()
                # before the queue is read: what they sent before they ended is answered
                ended = buffers.agents_ended
                taken = buffers.take(buffers.requests, most, QUEUE_SECONDS)
                if buffers.closing or (ended and not taken):
                    return []

            wanted = min(most, buffers.busy_agents // self.predictors)
            due = time.monotonic() + self.prediction_batch.wait
            while len(taken) < wanted and (left := due - time.monotonic()) > 0:
                heartbeat.beat()
                taken += buffers.take(buffers.requests, most - len(taken), left)

        return [agent for agent, _ in taken]

    def train(self, row: int, attempt: int = 0) -> Iterator[Event | YieldPoint]:
        """Learn from rollouts of agents, put side by side, until none will come any more. Yields as
        a worker does.

        row: of this trainer, after those of the agents.
        attempt: always 0.
        """
        heartbeat = self.store.heartbeat(row)
        heartbeat.begin(SERVING)
        buffers = self.buffers
        learner = self._build_learner(row, heartbeat)
        while slots := self._gather_rollouts(heartbeat):
            heartbeat.beat()
            rollout = concat_rollouts([agent.rollout(slot) for agent, slot in slots])
            snapshot = learner.pull()

            versions = np.asarray(rollout.version)[rollout.valid]
            oldest = int(versions.min(initial=snapshot.version))
            lag = snapshot.version - float(versions.mean()) if versions.size else 0.0
            waiting = len(slots) + len(buffers.finished)
            event = Event(row)
            event.add(
                {
                    "workers/training_batch": rollout.transitions,
                    "workers/training_queue": waiting,
                    "workers/lag": lag,
                }
            )

            # Staleness counts from the oldest parameters that acted. PPO counts from each
            # minibatch's pull: its ratio corrects for the lag.
            for step in learner.learn(rollout, snapshot._replace(version=oldest), event):
                # the run is being saved, or has been: nothing may be pushed any more
                if buffers.closing:
                    return
                yield step

            for agent, slot in slots:
                agent.notify(slot)  # it is free

    def _build_learner(self, row: int, heartbeat: Heartbeat) -> Learner:
        experiment = self.context.experiment
        measures = self.context.measures
        rng = seeding.generator(
            experiment.seed, seeding.Role.MINIBATCHES, row, resumed=self.context.resumed
        )
        return Learner(
            experiment,
            build_thread_network(experiment, self.store, self.env),
            row,
            self.store,
            rng,
            f"trainer {row - experiment.worker_count}",
            heartbeat,
            stopwatch(measures),
            samples_gradients="gradients" in measures,
        )

    def _gather_rollouts(self, heartbeat: Heartbeat) -> list[tuple[AgentBuffers, int]]:
        """Take the slots of the next batch, smaller than `training_batch` only if all agents wait
        for it. Empty if there will be no more."""
        buffers = self.buffers
        slots: list[tuple[AgentBuffers, int]] = []
        transitions = 0
        with _held(self._training, heartbeat):
            while transitions < self.training_batch:
                heartbeat.beat()
                # Before the queue is read: what agents sent before they ended, or began to wait, is
                # learned from.
                all_wait = not buffers.busy_agents
                ended = buffers.agents_ended
                taken = buffers.take(buffers.finished, 1, QUEUE_SECONDS)
                if not taken and ((slots and all_wait) or ended):
                    break

                slots += taken
                transitions += sum(agent.rollout(slot).transitions for agent, slot in taken)

        return [] if buffers.closing else slots


@contextmanager
def _held(lock: threading.Lock, heartbeat: Heartbeat) -> Iterator[None]:
    """Hold a lock. Beat while others hold it."""
    while not lock.acquire(timeout=PAUSE_SECONDS):
        heartbeat.beat()
    try:
        yield
    finally:
        lock.release()
