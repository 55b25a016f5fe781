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
from a3c_exp.networks import ActorCritic

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


def run_predictor(
    experiment: Experiment,
    store: SharedStore,
    buffers: SharedBuffers,
    batch: PredictionBatch,
    gathering: Gathering,
    heartbeat: Heartbeat,
) -> Iterator[Event]:
    """Answer the requests of agents until none will come any more, with the parameters that are pulled between two
    batches. Yields an Event now and then, with metrics alone.

    heartbeat: stands still while a batch is computed.
    """
    network = build_thread_network(experiment, store)
    version = -1
    event = Event(worker=0)
    due = 0.0
    while requests := _gather_requests(buffers, batch, gathering, heartbeat):
        waiting = len(requests) + len(buffers.requests)
        if version != store.version:
            snapshot = store.pull(0, network.vector)
            version = snapshot.version
            if snapshot.normalizer is not None:
                snapshot.normalizer.scale_pixels(network)
        _answer(requests, buffers, network, version)
        event.add({"ga3c/prediction_batch": len(requests) * buffers.spec.envs, "ga3c/prediction_queue": waiting})
        now = time.monotonic()
        if now >= due:
            yield event
            event = Event(worker=0)
            due = now + MERGE_SECONDS


def _gather_requests(
    buffers: SharedBuffers, batch: PredictionBatch, gathering: Gathering, heartbeat: Heartbeat
) -> list[int]:
    """Take the requests of the next batch. Empty if there will be no more."""
    most = batch.maximum // buffers.spec.envs
    taken: list[int] = []
    with gathering.turn(heartbeat):
        while not taken:
            heartbeat.beat()
            ended = buffers.agents_ended  # before the queue is read: what they sent before they ended is answered
            taken = buffers.take_requests(most, POLL_SECONDS)
            if buffers.closing or (ended and not taken):
                return []
        wanted = min(most, buffers.busy_agents // gathering.threads)
        due = time.monotonic() + batch.wait
        while len(taken) < wanted and (left := due - time.monotonic()) > 0:
            heartbeat.beat()
            taken += buffers.take_requests(most - len(taken), left)
    return taken


def _answer(requests: list[int], buffers: SharedBuffers, network: ActorCritic, version: int) -> None:
    arrays, spec = buffers.request_arrays, buffers.spec
    agents = [request % spec.agents for request in requests]
    observations = _flat(arrays["observations"][agents])
    state = _flat(arrays["state"][agents]) if spec.state_size else None
    buffers.reply(requests, Prediction(*network.act_forward(observations, state), version))


def _flat(rows: Array) -> Array:
    """Rows of agents [A, K, ...] as rows of environments [A K, ...]."""
    return rows.reshape(-1, *rows.shape[2:])


def run_trainer(
    context: RunContext,
    store: SharedStore,
    buffers: SharedBuffers,
    batch: int,
    gathering: Gathering,
    heartbeat: Heartbeat,
    index: int,
) -> Iterator[Event | YieldPoint]:
    """Learn from rollouts of agents, put side by side, until none will come any more. Yields as a worker does.

    batch: transitions to learn from at once, at least. A batch is smaller only if all agents wait for it.
    index: of this trainer. Its row of the store lies after those of the agents.
    """
    experiment = context.experiment
    row = experiment.worker_count + index
    rng = seeding.generator(experiment.seed, Role.MINIBATCHES, row, resumed=context.resumed)
    store.counters.load_rng_state(row, rng)  # not `store.start`: the agents' first step starts the clock
    network = build_thread_network(experiment, store)
    learner = Learner(experiment, network, row, store, rng, f"trainer {index}", heartbeat)
    while slots := _gather_rollouts(buffers, batch, gathering, heartbeat):
        heartbeat.beat()
        rollout = concat_rollouts([buffers.rollout(slot) for slot in slots])
        snapshot = learner.pull()
        versions = np.asarray(rollout.version)[rollout.valid]
        oldest = int(versions.min(initial=snapshot.version))
        event = Event(row)
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


def _gather_rollouts(buffers: SharedBuffers, batch: int, gathering: Gathering, heartbeat: Heartbeat) -> list[int]:
    """Take the slots of the next batch. Empty if there will be no more."""
    slots: list[int] = []
    transitions = 0
    with gathering.turn(heartbeat):
        while transitions < batch:
            heartbeat.beat()
            # Before the queue is read: what agents sent before they ended, or began to wait, is learned from.
            all_wait, ended = not buffers.busy_agents, buffers.agents_ended
            taken = buffers.finished.take(1, POLL_SECONDS)
            if taken:
                slots += taken
                transitions += buffers.rollout(taken[0]).transitions
            elif (slots and all_wait) or ended:
                break
    return [] if buffers.closing else slots
