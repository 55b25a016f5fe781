"""Agents: processes that act without a network of their own, and learn nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np

from a3c_exp.backends.ga3c.buffers import AgentChannel
from a3c_exp.backends.supervision import incarnation
from a3c_exp.common.arrays import Array, Floats
from a3c_exp.common.trust import import_plugins
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.leaving import LeavingRules
from a3c_exp.core.measuring import measure_actor
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import YieldPoint, make_actor
from a3c_exp.envs import close_within
from a3c_exp.networks.distributions import Distribution
from a3c_exp.schedules import progress_of

# Agents leave the cores to predictors and trainers when all want them. If those are late, all agents wait for them, and
# then send their requests one by one instead of together.
NICENESS = 10


class RemoteNetwork:
    """A `PolicyNetwork` whose forward passes are made by a predictor. Only actions are drawn here.

    versions: of the parameters of each `act_forward`, since the list was last cleared.
    """

    def __init__(self, channel: AgentChannel, distribution: Distribution) -> None:
        self._channel = channel
        self.distribution = distribution
        self.versions: list[int] = []

    def initial_state(self, count: int) -> Floats | None:
        size = self._channel.spec.state_size
        return np.zeros((count, size), np.float32) if size else None

    def act_forward(self, observations: Array, state: Array | None) -> tuple[Floats, Floats, Floats | None]:
        reply = self._channel.predict(observations, state)
        self.versions.append(reply.version)
        return reply.distributions, reply.values, reply.next_state

    def values(self, observations: Array, state: Array | None) -> Floats:
        """V(s) for any number of observations: a request has room for those of K environments."""
        count = self._channel.spec.envs
        values = []
        for start in range(0, len(observations), count):
            rows = slice(start, start + count)
            values.append(self._channel.predict(observations[rows], None if state is None else state[rows]).values)
        return values[0] if len(values) == 1 else np.concatenate(values)


def run_agent(
    context: RunContext, index: int, store: SharedStore, distribution: Distribution, attempt: int, channel: AgentChannel
) -> Iterator[Event | YieldPoint]:
    """Collect rollouts and hand them to the trainers, until the run has its `total_steps`, the store has been stopped,
    or a rule of `Stop` lets this agent leave. Yields an Event a rollout.

    distribution: draws the actions. attempt: number of its predecessors.
    """
    experiment = context.experiment
    import_plugins(experiment.plugins)  # they may register environments
    channel.heartbeat = store.heartbeat(index)
    network = RemoteNetwork(channel, distribution)
    actor = make_actor(incarnation(context, attempt), index, lambda env: network, channel.heartbeat)
    if (watch := measure_actor(context.measures, actor)) is not None:
        watch.time(network, "act_forward", "waiting")  # for a predictor
    try:
        os.nice(NICENESS)
        rules = LeavingRules(experiment.stop, store.start(index, actor.rng))
        channel.begin()
        began = time.perf_counter()
        while True:
            slot = channel.acquire_slot()
            snapshot = store.peek()
            if store.stopped or snapshot.steps >= experiment.total_steps or rules.has_all_episodes:
                break
            rollout = actor.collect(snapshot, progress_of(snapshot.steps, experiment.total_steps))
            store.counters.save_rng_state(index, actor.rng)
            store.counters.episodes[index] += len(rollout.episodes)
            channel.put_rollout(slot, rollout, network.versions[-len(rollout.rewards) :])
            network.versions.clear()
            event = Event(index, episodes=rollout.episodes, contributions=1)  # a trainer reports the steps
            event.left = rules.add(rollout.episodes)
            now = time.perf_counter()
            event.add({"ga3c/agent_wait": channel.waited / (now - began)})
            began, channel.waited = now, 0.0
            if watch is not None:
                watch.report(event)
            yield event
            if event.left:
                break
        channel.leave()  # not if this raises: then another agent may take its place
    finally:
        close_within(actor.env)
