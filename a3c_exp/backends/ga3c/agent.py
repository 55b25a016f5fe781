"""Agents: processes that act without a network of their own, and learn nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np

from a3c_exp.backends.ga3c.buffers import ENDED, REPLIED, WAITING, WORKING, AgentBuffers, polling
from a3c_exp.backends.messages import ReceiverClosedError
from a3c_exp.backends.supervision import incarnation
from a3c_exp.common.arrays import Array, Floats
from a3c_exp.common.trust import import_plugins
from a3c_exp.core.episodes import LeavingRules
from a3c_exp.core.events import Event, YieldPoint
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.heartbeat import PAUSE_SECONDS, Heartbeat
from a3c_exp.core.measuring import Stopwatch, stopwatch, timed, timing
from a3c_exp.core.rollout import STEP_FIELDS, Rollout
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import make_actor
from a3c_exp.ending import StopReason
from a3c_exp.envs import close_within
from a3c_exp.networks.distributions import Distribution
from a3c_exp.schedules import progress_of

# Agents leave the cores to predictors and trainers when all want them. If those are late, all
# agents wait for them, and then send their requests one by one instead of together.
NICENESS = 10


class RemoteNetwork:
    """A `PolicyNetwork` whose forward passes are made by a predictor, and the slots of its agent's
    rollouts.

    Only actions are sampled here.

    buffers: the agent's memory and pipe.
    distribution: samples the actions.
    heartbeat: beats while the agent waits.
    watch: times the waits for a predictor; None if time is not measured.
    waited: seconds that the agent has spent waiting; the agent resets it.
    """

    def __init__(
        self,
        buffers: AgentBuffers,
        distribution: Distribution,
        heartbeat: Heartbeat,
        watch: Stopwatch | None = None,
    ) -> None:
        self.distribution = distribution
        self._buffers = buffers
        self._request = buffers.request
        self._heartbeat = heartbeat
        self._asking = timing(watch, "waiting")
        self._poll = polling(buffers.notifications)
        self._free_slots: list[int] = []
        self._versions: list[int] = []  # of the parameters of each `policy_forward` of a rollout
        self.waited = 0.0

    def initial_state(self, count: int) -> Floats | None:
        size = self._buffers.spec.state_size
        return np.zeros((count, size), np.float32) if size else None

    def policy_forward(
        self, observations: Array, state: Array | None
    ) -> tuple[Floats, Floats, Floats | None]:
        """The distributions are a view, which holds until the next request."""
        self._ask(observations, state)
        count = len(observations)
        reply = self._request
        self._versions.append(int(reply["version"][0]))
        next_state = None if state is None else reply["next_state"][:count].copy()
        return reply["distributions"][:count], reply["values"][:count].copy(), next_state

    def values(self, observations: Array, state: Array | None) -> Floats:
        """Compute V(s) for any number of observations, by requests that have room for those of K
        environments."""
        values = []
        envs = self._buffers.spec.envs
        for start in range(0, len(observations), envs):
            rows = slice(start, start + envs)
            self._ask(observations[rows], None if state is None else state[rows])
            values.append(self._request["values"][: len(observations[rows])].copy())
        return values[0] if len(values) == 1 else np.concatenate(values)

    def _ask(self, observations: Array, state: Array | None) -> None:
        """Send observations [N, ...], N at most K, and the recurrent state before them [N, S]; wait
        for the reply."""
        count = len(observations)
        with self._asking:
            self._request["observations"][:count] = observations
            if state is not None:
                self._request["state"][:count] = state
            self._buffers.send(self._buffers.requests)
            while (number := self._read_notification()) != REPLIED:
                self._free_slots.append(number)

    def acquire_slot(self) -> int:
        """Wait until one of the agent's rollout slots is free, and take it."""
        if not self._free_slots:
            self._buffers.status[0] = WAITING
            self._wait_for_notification()
            self._buffers.status[0] = WORKING  # before it is read: see `AgentBuffers.is_busy`
            self._free_slots.append(self._read_notification())
        return self._free_slots.pop(0)

    def put_rollout(self, slot: int, rollout: Rollout) -> None:
        """Write a rollout into a slot, and queue it for trainers. Each step has the version that
        acted in it."""
        arrays = self._buffers.rollouts
        length = len(rollout.rewards)
        for name in STEP_FIELDS:
            if name == "version":
                arrays[name][slot, :length] = np.array(self._versions[:length])[:, None]
            else:
                arrays[name][slot, :length] = getattr(rollout, name)

        del self._versions[:length]  # one may be left, of the action that is chosen already

        arrays["length"][slot] = length
        if rollout.state is not None:
            arrays["state"][slot] = rollout.state
        if rollout.stats is not None:
            arrays["stats"][slot] = rollout.stats
        self._buffers.send(self._buffers.finished, slot)

    def _wait_for_notification(self) -> None:
        began = time.perf_counter()
        while not self._poll.poll(1000 * PAUSE_SECONDS):
            self._heartbeat.beat()
        self.waited += time.perf_counter() - began

    def _read_notification(self) -> int:
        self._wait_for_notification()
        notification = os.read(self._buffers.notifications.fileno(), 1)
        if not notification:
            raise ReceiverClosedError
        return notification[0]


def run_agent(
    context: RunContext,
    index: int,
    store: SharedStore,
    distribution: Distribution,
    attempt: int,
    buffers: AgentBuffers,
) -> Iterator[Event | YieldPoint]:
    """Collect rollouts and hand them to the trainers, until the run has its `total_steps`, the
    store has been stopped, or a rule of `Stop` lets this agent leave. Yields an Event a rollout.

    distribution: samples the actions.
    attempt: number of the agent's predecessors.
    """
    experiment = context.experiment
    import_plugins(experiment.plugins)  # they may register environments
    heartbeat = store.heartbeat(index)
    watch = stopwatch(context.measures)
    network = RemoteNetwork(buffers, distribution, heartbeat, watch)
    actor = make_actor(incarnation(context, attempt), index, lambda env: network, heartbeat, watch)
    collect = timed(watch, "acting", actor.collect)

    try:
        os.nice(NICENESS)
        rules = LeavingRules(experiment.stop, store.start(index, actor.policy.rng))
        buffers.status[0] = WORKING  # predictors and trainers wait for this agent from now on
        began = time.perf_counter()
        while True:
            slot = network.acquire_slot()
            snapshot = store.peek()
            if store.stopped or snapshot.steps >= experiment.total_steps:
                break
            if rules.has_all_episodes:  # since an earlier session
                yield Event(index, left=StopReason.WORKER_EPISODES)
                break

            rollout = collect(snapshot, progress_of(snapshot.steps, experiment.total_steps))
            store.counters.save_rng_state(index, actor.policy.rng)
            store.counters.episodes[index] += len(rollout.episodes)
            network.put_rollout(slot, rollout)

            # a trainer reports the steps
            event = Event(index, episodes=rollout.episodes, contributions=1)
            event.left = rules.add(rollout.episodes)

            now = time.perf_counter()
            event.add({"workers/agent_wait": network.waited / (now - began)})
            began = now
            network.waited = 0.0
            if watch is not None:
                watch.report(event)
            yield event
            if event.left:
                break

        buffers.status[0] = ENDED  # not if this raises: then another agent may take its place
    finally:
        close_within(actor.env)
