"""Trainers: threads that learn from the rollouts of agents, several of them at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np

from a3c_exp.backends.ga3c.buffers import POLL_SECONDS, SharedBuffers
from a3c_exp.backends.ga3c.device import DeviceName, on_device
from a3c_exp.backends.ga3c.service_thread import RateMeter
from a3c_exp.core import seeding
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import RunContext, build_network
from a3c_exp.core.rollout import concat_rollouts
from a3c_exp.core.seeding import Role
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import Learner, YieldPoint


class Trainer:
    """Learns from rollouts of agents, put side by side.

    index: of this trainer, of `count`. Its row of the store lies after those of the agents.
    batch: transitions to learn from at once, at least. A batch is smaller only if all agents wait for it.
    gathering: held by the one trainer that gathers a batch. If two waited for the same rollouts, neither would have a
        full batch.
    """

    def __init__(
        self, context: RunContext, store: SharedStore, buffers: SharedBuffers, index: int, *, device: DeviceName,
        batch: int, count: int, gathering: threading.Lock,
    ) -> None:  # fmt: skip
        experiment = context.experiment
        self._row = row = experiment.worker_count + index
        self._buffers, self._batch, self._count, self._gathering = buffers, batch, count, gathering
        rng = seeding.generator(experiment.seed, Role.MINIBATCHES, row, resumed=context.resumed)
        store.counters.load_rng_state(row, rng)  # not `store.start`: the agents' first step starts the clock
        network = on_device(build_network(experiment, draw=False)[0], device)
        self._learner = Learner(experiment, network, row, store, rng, f"trainer {index}")

    def run(self) -> Iterator[Event | YieldPoint]:
        """Learn until no rollout will come any more. Yields as a worker does."""
        buffers, learner, rate = self._buffers, self._learner, RateMeter("ga3c/trainings_per_second", self._count)
        while slots := self._gather():
            rollout = concat_rollouts([buffers.rollout(slot) for slot in slots])
            snapshot = learner.pull()
            versions = np.asarray(rollout.version)[rollout.valid]
            oldest = int(versions.min(initial=snapshot.version))
            event = Event(self._row)
            event.add({
                "ga3c/training_batch": rollout.transitions,
                "ga3c/training_queue": len(slots) + len(buffers.finished),
                "ga3c/lag": snapshot.version - float(versions.mean()) if versions.size else 0.0,
                **rate.add(1),
            })  # fmt: skip
            # Staleness counts from the oldest parameters that acted.
            for step in learner.learn([rollout], snapshot._replace(version=oldest), event):
                if buffers.closing:  # the run is being saved, or has been: nothing may be pushed any more
                    return
                yield step
            buffers.release(slots)

    def _gather(self) -> list[int]:
        """The slots of the next batch; none if there will be no more."""
        buffers, slots, transitions = self._buffers, list[int](), 0
        with self._gathering:
            while transitions < self._batch:
                # Before the queue is read: what agents sent before they ended, or began to wait, is learned from.
                all_wait, ended = not buffers.busy_agents, buffers.agents_ended
                taken = buffers.finished.take(1, POLL_SECONDS)
                if taken:
                    slots += taken
                    transitions += buffers.rollout(taken[0]).transitions
                elif (slots and all_wait) or ended:
                    break
        return [] if buffers.closing else slots
