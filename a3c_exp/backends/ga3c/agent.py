"""The agents: workers that act, with a network that is elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from a3c_exp.backends.ga3c.exchange import Port
from a3c_exp.core.events import Event
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import Gatherer, RunContext, YieldPoint
from a3c_exp.envs import EnvBatch
from a3c_exp.networks.heads import Head

Array = NDArray[Any]

# Agents leave the cores to predictors and trainers where all want them: where those come late all agents wait, and then
# ask one by one.
NICENESS = 10

# How long an agent that is not to act rests between looks.
PARKED_SECONDS = 0.05


class Distant:
    """The network as an agent has it: it knows how actions are drawn, and asks for all else.

    versions: of the network that answered each `infer` since the list was last emptied.
    """

    def __init__(self, port: Port, head: Head) -> None:
        self._port, self.head = port, head
        self.versions: list[int] = []

    def initial_state(self, count: int) -> Array | None:
        size = self._port.plan.state
        return np.zeros((count, size), np.float32) if size else None

    def infer(self, observations: Array, state: Array | None) -> tuple[Array, Array, Array | None]:
        parameters, values, state, version = self._port.ask(observations, state)
        self.versions.append(version)
        return parameters, values, state

    def values(self, observations: Array, state: Array | None) -> Array:
        """So many at a time as there is room for."""
        count = self._port.plan.environments
        parts = [slice(start, start + count) for start in range(0, len(observations), count)]
        found = [self._port.ask(observations[part], None if state is None else state[part])[1] for part in parts]
        return found[0] if len(found) == 1 else np.concatenate(found)


class Agent:
    """Collects rollouts and hands them over."""

    def __init__(self, context: RunContext, index: int, store: SharedStore, port: Port, head: Head) -> None:
        self._total_steps, self._index, self._store, self._port = context.experiment.total_steps, index, store, port
        self._network = Distant(port, head)
        self._gatherer = Gatherer(context, index, store, self._network_for)

    def _network_for(self, env: EnvBatch) -> Distant:
        return self._network

    def run(self) -> Iterator[Event | YieldPoint]:
        """Collect until the run has its `total_steps` or the store has been stopped. Yields an Event a rollout."""
        store, port, gatherer = self._store, self._port, self._gatherer
        os.nice(NICENESS)
        store.start()
        began = time.perf_counter()
        while True:
            slot = port.free_slot()
            if not self._may_go_on():
                return
            (rollout,) = gatherer.rollouts(store.look(), 1)
            store.save_rng_state(self._index, gatherer.rng)
            port.hand_over(slot, rollout, self._network.versions)
            self._network.versions.clear()
            event = Event(
                self._index, episodes=rollout.episodes, envs_with_finished_episode=gatherer.envs_with_finished_episode
            )
            now = time.perf_counter()
            event.add({"ga3c/agent_wait": port.waited / (now - began)})
            began, port.waited = now, 0.0
            yield event

    def _may_go_on(self) -> bool:
        """Whether the run does; told once this is an agent that is to act. Its environments have to have ended
        an episode before it rests, since a goal is judged by all of them.
        """
        store, port = self._store, self._port
        while not store.stopped and store.steps < self._total_steps:
            if port.active or self._gatherer.envs_with_finished_episode < port.plan.environments:
                return True
            port.park(PARKED_SECONDS)
        return False

    def close(self) -> None:
        """Leave the run, and close the environments."""
        self._port.leave()
        self._gatherer.env.close()
