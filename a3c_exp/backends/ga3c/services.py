"""Services for agents, in threads of the run: predictors answer requests, trainers learn from rollouts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from a3c_exp.backends.ga3c.buffers import POLL_SECONDS, Prediction, SharedBuffers
from a3c_exp.backends.ga3c.device import build_thread_network
from a3c_exp.backends.messages import MERGE_SECONDS
from a3c_exp.common.arrays import Array
from a3c_exp.core import seeding
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Experiment, RunContext
from a3c_exp.core.heartbeat import PAUSE_SECONDS, Heartbeat
from a3c_exp.core.rollout import concat_rollouts
from a3c_exp.core.seeding import Role
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import Learner, YieldPoint
from a3c_exp.errors import require

MAX_BATCH = 2**16
"""Observations of one forward pass."""


@dataclass(frozen=True, kw_only=True)
class PredictionBatch:
    """Observations of one forward pass.

    maximum: of them. wait: seconds that a predictor waits for more, while there are agents that may still send some.
    """

    maximum: int = 128
    wait: float = 0.01

    def __post_init__(self) -> None:
        require(1 <= self.maximum <= MAX_BATCH, "maximum", self.maximum, f"a whole number from 1 to {MAX_BATCH}")
        require(0 <= self.wait <= 1, "wait", self.wait, "seconds, from 0 to 1")


class Gathering:
    """The turns in which threads of a kind gather their batches. If two waited for the same, neither would have a full
    batch. threads: how many there are."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._lock = threading.Lock()

    @contextmanager
    def turn(self, heartbeat: Heartbeat) -> Iterator[None]:
        """Hold the turn. Beat while others hold it."""
        while not self._lock.acquire(timeout=PAUSE_SECONDS):
            heartbeat.beat()
        try:
            yield
        finally:
            self._lock.release()


class Predictor:
    """Answers the requests of agents with the parameters that it pulls between two batches.

    heartbeat: stands still while a batch is computed.
    """

    def __init__(
        self,
        experiment: Experiment,
        store: SharedStore,
        buffers: SharedBuffers,
        batch: PredictionBatch,
        gathering: Gathering,
        heartbeat: Heartbeat,
    ) -> None:
        self._network = build_thread_network(experiment, store)
        self._store = store
        self._buffers = buffers
        self._gathering = gathering
        self._heartbeat = heartbeat
        self._max_requests = batch.maximum // buffers.spec.envs
        self._wait = batch.wait
        self._version = -1

    def run(self) -> Iterator[Event]:
        """Answer until no request will come any more. Yields an Event now and then, with metrics alone."""
        event = Event(worker=0)
        due = 0.0
        while requests := self._gather():
            waiting = len(requests) + len(self._buffers.requests)
            self._predict(requests)
            count = len(requests) * self._buffers.spec.envs
            event.add({"ga3c/prediction_batch": count, "ga3c/prediction_queue": waiting})
            now = time.monotonic()
            if now >= due:
                yield event
                event = Event(worker=0)
                due = now + MERGE_SECONDS

    def _gather(self) -> list[int]:
        """Take the requests of the next batch. Empty if there will be no more."""
        buffers = self._buffers
        taken: list[int] = []
        with self._gathering.turn(self._heartbeat):
            while not taken:
                self._heartbeat.beat()
                ended = buffers.agents_ended  # before the queue is read: what they sent before they ended is answered
                taken = buffers.take_requests(self._max_requests, POLL_SECONDS)
                if buffers.closing or (ended and not taken):
                    return []
            wanted = min(self._max_requests, buffers.busy_agents // self._gathering.threads)
            due = time.monotonic() + self._wait
            while len(taken) < wanted and (left := due - time.monotonic()) > 0:
                self._heartbeat.beat()
                taken += buffers.take_requests(self._max_requests - len(taken), left)
        return taken

    def _predict(self, requests: list[int]) -> None:
        arrays, network, spec = self._buffers.request_arrays, self._network, self._buffers.spec
        agents = [request % spec.agents for request in requests]
        if self._version != self._store.version:
            snapshot = self._store.pull(0, network.vector)
            self._version = snapshot.version
            if snapshot.normalizer is not None:
                snapshot.normalizer.scale_pixels(network)
        observations, state = _flat(arrays["observations"][agents]), None
        if spec.state_size:
            state = _flat(arrays["state"][agents])
        self._buffers.reply(requests, Prediction(*network.act_forward(observations, state), self._version))


def _flat(rows: Array) -> Array:
    """Rows of agents [A, K, ...] as rows of environments [A K, ...]."""
    return rows.reshape(-1, *rows.shape[2:])


class Trainer:
    """Learns from rollouts of agents, put side by side.

    batch: transitions to learn from at once, at least. A batch is smaller only if all agents wait for it.
    index: of this trainer. Its row of the store lies after those of the agents.
    """

    def __init__(
        self,
        context: RunContext,
        store: SharedStore,
        buffers: SharedBuffers,
        batch: int,
        gathering: Gathering,
        heartbeat: Heartbeat,
        index: int,
    ) -> None:
        experiment = context.experiment
        self._row = row = experiment.worker_count + index
        self._buffers = buffers
        self._batch = batch
        self._gathering = gathering
        rng = seeding.generator(experiment.seed, Role.MINIBATCHES, row, resumed=context.resumed)
        store.counters.load_rng_state(row, rng)  # not `store.start`: the agents' first step starts the clock
        network = build_thread_network(experiment, store)
        self._heartbeat = heartbeat
        self._learner = Learner(experiment, network, row, store, rng, f"trainer {index}", heartbeat)

    def run(self) -> Iterator[Event | YieldPoint]:
        """Learn until no rollout will come any more. Yields as a worker does."""
        buffers, learner = self._buffers, self._learner
        while slots := self._gather():
            self._heartbeat.beat()
            rollout = concat_rollouts([buffers.rollout(slot) for slot in slots])
            snapshot = learner.pull()
            versions = np.asarray(rollout.version)[rollout.valid]
            oldest = int(versions.min(initial=snapshot.version))
            event = Event(self._row)
            event.add(
                {
                    "ga3c/training_batch": rollout.transitions,
                    "ga3c/training_queue": len(slots) + len(buffers.finished),
                    "ga3c/lag": snapshot.version - float(versions.mean()) if versions.size else 0.0,
                }
            )
            # Staleness counts from the oldest parameters that acted.
            for step in learner.learn([rollout], snapshot._replace(version=oldest), event):
                if buffers.closing:  # the run is being saved, or has been: nothing may be pushed any more
                    return
                yield step
            buffers.release(slots)

    def _gather(self) -> list[int]:
        """Take the slots of the next batch. Empty if there will be no more."""
        buffers = self._buffers
        slots: list[int] = []
        transitions = 0
        with self._gathering.turn(self._heartbeat):
            while transitions < self._batch:
                self._heartbeat.beat()
                # Before the queue is read: what agents sent before they ended, or began to wait, is learned from.
                all_wait, ended = not buffers.busy_agents, buffers.agents_ended
                taken = buffers.finished.take(1, POLL_SECONDS)
                if taken:
                    slots += taken
                    transitions += buffers.rollout(taken[0]).transitions
                elif (slots and all_wait) or ended:
                    break
        return [] if buffers.closing else slots
