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


class PredictorService:
    """Answers the requests of agents with the parameters that it pulls between two batches.

    heartbeat: stands still while a batch is computed.

    One that raises leaves its requests to others.
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
        self._taken: list[int] = []  # requests without a reply

    def run(self) -> Iterator[Event]:
        """Answer until no request will come any more. Yields an Event now and then, with metrics alone."""
        requests, rate = self._buffers.requests, RateMeter("ga3c/predictions_per_second", self._gathering.threads)
        event, is_first = Event(worker=0), True
        while self._gather():
            taken, left = len(self._taken), len(requests)
            self._predict()
            event.contributions += 1
            count = taken * self._buffers.spec.envs
            event.add({"ga3c/prediction_batch": count, "ga3c/prediction_queue": taken + left})
            due = rate.add(count)
            if due or is_first:  # the first shows at once that this predictor works
                event.add(due)
                yield event
                event, is_first = Event(worker=0), False

    def _gather(self) -> bool:
        """Take the requests of the next batch. False if there will be no more."""
        buffers = self._buffers
        with self._gathering.turn(self._heartbeat):
            while not self._taken:
                self._heartbeat.beat()
                ended = buffers.agents_ended  # before the queue is read: what they sent before they ended is answered
                self._taken = buffers.take_requests(self._max_requests, POLL_SECONDS)
                if buffers.closing or (ended and not self._taken):
                    return False
            wanted = min(self._max_requests, buffers.busy_agents // self._gathering.threads)
            due = time.monotonic() + self._wait
            while len(self._taken) < wanted and (left := due - time.monotonic()) > 0:
                self._heartbeat.beat()
                self._taken += buffers.take_requests(self._max_requests - len(self._taken), left)
        return True

    def _predict(self) -> None:
        """Reply to the requests that have been taken."""
        arrays, network, spec = self._buffers.request_arrays, self._network, self._buffers.spec
        agents = [request % spec.agents for request in self._taken]
        if self._version != self._store.version:
            snapshot = self._store.pull(0, network.vector)
            self._version = snapshot.version
            if snapshot.normalizer is not None:
                snapshot.normalizer.scale_pixels(network)
        observations, state = _flat(arrays["observations"][agents]), None
        if spec.state_size:
            state = _flat(arrays["state"][agents])
        self._buffers.reply(self._taken, Prediction(*network.act_forward(observations, state), self._version))
        self._taken = []

    def close(self) -> None:
        """Leave the requests that have no reply to other predictors."""
        self._buffers.requests.put_back(self._taken)


def _flat(rows: Array) -> Array:
    """Rows of agents [A, K, ...] as rows of environments [A K, ...]."""
    return rows.reshape(-1, *rows.shape[2:])


class TrainerService:
    """Learns from rollouts of agents, put side by side.

    index: of this trainer. Its row of the store lies after those of the agents.
    batch: transitions to learn from at once, at least. A batch is smaller only if all agents wait for it.

    One that raises drops the rollouts that it learns from.
    """

    def __init__(
        self,
        context: RunContext,
        store: SharedStore,
        buffers: SharedBuffers,
        batch: int,
        gathering: Gathering,
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
        self._heartbeat = store.heartbeat(row)
        self._learner = Learner(experiment, network, row, store, rng, f"trainer {index}", self._heartbeat)
        self._taken: list[int] = []  # slots that have not been released

    def run(self) -> Iterator[Event | YieldPoint]:
        """Learn until no rollout will come any more. Yields as a worker does."""
        buffers, learner = self._buffers, self._learner
        rate = RateMeter("ga3c/trainings_per_second", self._gathering.threads)
        while self._gather():
            self._heartbeat.beat()
            rollout = concat_rollouts([buffers.rollout(slot) for slot in self._taken])
            snapshot = learner.pull()
            versions = np.asarray(rollout.version)[rollout.valid]
            oldest = int(versions.min(initial=snapshot.version))
            event = Event(self._row)
            event.add(
                {
                    "ga3c/training_batch": rollout.transitions,
                    "ga3c/training_queue": len(self._taken) + len(buffers.finished),
                    "ga3c/lag": snapshot.version - float(versions.mean()) if versions.size else 0.0,
                    **rate.add(1),
                }
            )
            # Staleness counts from the oldest parameters that acted.
            for step in learner.learn([rollout], snapshot._replace(version=oldest), event):
                if buffers.closing:  # the run is being saved, or has been: nothing may be pushed any more
                    return
                yield step
            self._release()

    def close(self) -> None:
        """Release the slots of an unfinished batch."""
        self._release()

    def _release(self) -> None:
        slots, self._taken = self._taken, []
        self._buffers.release(slots)

    def _gather(self) -> bool:
        """Take the slots of the next batch. False if there will be no more."""
        buffers, slots, transitions = self._buffers, self._taken, 0
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
        return bool(slots) and not buffers.closing


class RateMeter:
    """Measures a rate per second, over MERGE_SECONDS or more. One thread reports the rate of all of its kind."""

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._threads = threads
        self._count = 0
        self._began = time.monotonic()

    def add(self, count: int) -> dict[str, float]:
        """Count, and return the rate by its name when it is due; otherwise nothing."""
        self._count += count
        seconds = time.monotonic() - self._began
        if seconds < MERGE_SECONDS:
            return {}
        rate = self._threads * self._count / seconds
        self._count = 0
        self._began = self._began + seconds
        return {self._name: rate}
