"""Shared buffers between agents and the threads that serve them, and the queues that say whose turn a buffer is.

Every slot has one writer at any moment, and the queues pass it on. What an agent has queued is void once another one
has its place. Its slots are its successor's; one that is being learned from comes to it as it would to the agent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from a3c_exp.backends.ga3c.queues import IndexQueue, bytes_in
from a3c_exp.backends.processes.resources import shared_block
from a3c_exp.common.arrays import Array, ArraySpecs, Floats, arrays_in, block_size
from a3c_exp.core.events import Episodes
from a3c_exp.core.experiment import Experiment
from a3c_exp.core.normalization import NormalizedObservations, RunningStats
from a3c_exp.core.rollout import STEP_FIELDS, Rollout
from a3c_exp.envs import EnvBatch
from a3c_exp.networks import ActorCritic

# The longest wait for a queue, before the waiting thread checks whether anybody can still write to it.
POLL_SECONDS = 0.02

# What an agent is doing, in its element of `status`. WAITING: for a free slot. STARTING: the successor of one that has
# died, for which nobody waits yet.
WORKING, WAITING, ENDED, STARTING = range(4)

# A notification byte to an agent: its request has been answered. A smaller byte n: its rollout slot n is free.
REPLIED = 255


class BufferSpec(NamedTuple):
    """Shapes and types of all buffers.

    agents: A. envs: K, environments of each agent. slots_per_agent: rollouts that it may have open.
    state_size: S, of one recurrent state; 0 for a network without one.
    requests: each agent's request (observations, state) and the reply to it (distributions, values, next_state,
        version), which starts with [A, K]; and its status.
    rollouts: those in all slots: columns, which start with [slots, T, K]; and what a rollout has once.
    """

    agents: int
    envs: int
    slots_per_agent: int
    state_size: int
    requests: ArraySpecs
    rollouts: ArraySpecs

    @classmethod
    def of(cls, experiment: Experiment, slots_per_agent: int, network: ActorCritic, env: EnvBatch) -> BufferSpec:
        """The sizes that an experiment needs, measured with one pass through its network."""
        settings, space = experiment.env, env.observation_space
        agents, envs, length = experiment.worker_count, experiment.envs_per_worker, experiment.rollout_length
        assert isinstance(length, int)
        normalized = NormalizedObservations.of(settings.normalize_observations, space)
        dtype = np.dtype(normalized.network_space(space).dtype)
        distribution, _, state = network.act_forward(np.zeros((1, *space.shape), dtype), network.initial_state(1))
        actions, _ = network.distribution.sample(distribution, np.random.default_rng(0))
        state_size = 0 if state is None else state.shape[1]
        stats_width = RunningStats.width(normalized.shape, normalized.measured, settings.normalize_rewards)
        floats, integers = np.dtype(np.float32), np.dtype(np.int64)
        requests: ArraySpecs = {
            "status": ((agents,), np.dtype(np.int8)),
            "observations": ((agents, envs, *space.shape), dtype),
            "state": ((agents, envs, state_size), floats),
            "distributions": ((agents, envs, distribution.shape[1]), floats),
            "values": ((agents, envs), floats),
            "next_state": ((agents, envs, state_size), floats),
            "version": ((agents,), integers),
        }
        slots = agents * slots_per_agent
        rows = slots, length, envs
        rollouts: ArraySpecs = {
            **dict.fromkeys(STEP_FIELDS, (rows, floats)),
            **dict.fromkeys(("terminated", "truncated", "valid"), (rows, np.dtype(np.bool_))),
            "observations": ((*rows, *space.shape), dtype),
            "actions": ((*rows, *actions.shape[1:]), actions.dtype),
            "version": (rows, integers),
            "length": ((slots,), integers),
            "state": ((slots, envs, state_size), floats),
            "stats": ((slots, stats_width), np.dtype(np.float64)),
        }
        return cls(agents, envs, slots_per_agent, state_size, requests, rollouts)


class SharedBuffers:
    """All buffers and queues, as predictors and trainers see them.

    requests: agents that wait for a reply. finished: slots whose rollout waits for a trainer. To each index in these
        queues their number, of all agents or slots, is added for each agent that had the place before.
    closing: set when the run ends; nothing that is still in the queues will be used.
    """

    def __init__(self, spec: BufferSpec) -> None:
        self.spec = spec
        self._blocks = shared_block(block_size(spec.requests)), shared_block(block_size(spec.rollouts))
        self.request_arrays = arrays_in(self._blocks[0], spec.requests)
        self.rollout_arrays = arrays_in(self._blocks[1], spec.rollouts)
        self.requests = IndexQueue()
        self.finished = IndexQueue()
        self._notifications = [Pipe(duplex=False) for _ in range(spec.agents)]
        self._incarnations = [0] * spec.agents
        self._learned_from = set[int]()  # slots
        # Held to write to an agent's pipe or reply, to take its slots, and to replace them.
        self._lock = threading.Lock()
        self.closing = False
        for _, writer in self._notifications:
            os.write(writer.fileno(), bytes(range(spec.slots_per_agent)))

    def channel(self, agent: int) -> AgentChannel:
        """One agent's way to these buffers."""
        pipes = self._notifications[agent][0], self.requests.writer, self.finished.writer
        return AgentChannel(self.spec, agent, self._incarnations[agent], self._blocks, pipes)

    def renew(self, agent: int) -> None:
        """Prepare for the successor of an agent whose process is gone.

        Its pipe is a new one, with the slots that are free now; the others come when they are released.
        """
        with self._lock:
            self._incarnations[agent] += 1
            self.request_arrays["status"][agent] = STARTING
            for end in self._notifications[agent]:
                end.close()
            self._notifications[agent] = Pipe(duplex=False)
            slots = self.spec.slots_per_agent
            free = bytes(slot for slot in range(slots) if agent * slots + slot not in self._learned_from)
            os.write(self._notifications[agent][1].fileno(), free)

    def leave(self, agent: int) -> None:
        """Say that nothing more will come from an agent, whose process is gone."""
        self.request_arrays["status"][agent] = ENDED

    @property
    def busy_agents(self) -> int:
        """Number of agents that are not blocked on a free slot.

        An agent that waits for a free slot may have an unread notification: the system may keep it from its core for
        long. It counts as busy.
        """
        status = self.request_arrays["status"]
        with self._lock:
            waiting = np.flatnonzero(status == WAITING)
            notified = sum(bytes_in(self._notifications[agent][0]) > 0 for agent in waiting)
        return int(np.count_nonzero(status == WORKING)) + notified

    @property
    def agents_ended(self) -> bool:
        """Return whether no agent will write to the queues any more, or nobody is to read what they write."""
        return self.closing or bool((self.request_arrays["status"] == ENDED).all())

    def take_requests(self, count: int, seconds: float) -> list[int]:
        """Take up to `count` requests, see `IndexQueue.take`. Those of agents that have been replaced are left out."""
        return [request for request in self.requests.take(count, seconds) if self._is_valid(request, 1)]

    def take_rollouts(self, count: int, seconds: float) -> list[int]:
        """Take up to `count` slots with finished rollouts, until they are released."""
        queued, per_agent = self.finished.take(count, seconds), self.spec.slots_per_agent
        with self._lock:
            slots = [each % (self.spec.agents * per_agent) for each in queued if self._is_valid(each, per_agent)]
            self._learned_from.update(slots)
        return slots

    def _is_valid(self, queued: int, per_agent: int) -> bool:
        """Return whether an index of a queue is that of a current agent, not of a predecessor."""
        incarnation, place = divmod(queued, self.spec.agents * per_agent)
        return incarnation == self._incarnations[place // per_agent]

    def observations(self, requests: Sequence[int]) -> tuple[Array, Array | None]:
        """The observations of requests [N, ...], of each with all its environments, and the recurrent state before."""
        agents = [request % self.spec.agents for request in requests]

        def flat(name: str) -> Array:
            rows = self.request_arrays[name][agents]
            return rows.reshape(-1, *rows.shape[2:])

        return flat("observations"), flat("state") if self.spec.state_size else None

    def reply(
        self, requests: Sequence[int], version: int, distributions: Floats, values: Floats, next_state: Floats | None
    ) -> None:
        """Write the replies to requests, and tell their agents. An agent that has been replaced gets none.

        distributions [N, P], values [N], next_state [N, S]: as a forward pass has them, of all observations of the
            requests. version: of the parameters.
        """
        shape = len(requests), self.spec.envs
        with self._lock:
            valid = [row for row, request in enumerate(requests) if self._is_valid(request, 1)]
            arrays, agents = self.request_arrays, [requests[row] % self.spec.agents for row in valid]
            rows = slice(None) if len(valid) == len(requests) else valid
            arrays["distributions"][agents] = distributions.reshape(*shape, -1)[rows]
            arrays["values"][agents] = values.reshape(shape)[rows]
            if next_state is not None:
                arrays["next_state"][agents] = next_state.reshape(*shape, -1)[rows]
            arrays["version"][agents] = version
            for agent in agents:
                self._notify(agent, REPLIED)

    def release(self, slots: Sequence[int]) -> None:
        """Give rollout slots back to the agents that they belong to, or to their successors."""
        with self._lock:
            self._learned_from.difference_update(slots)
            for slot in slots:
                self._notify(slot // self.spec.slots_per_agent, slot % self.spec.slots_per_agent)

    def _notify(self, agent: int, number: int) -> None:
        os.write(self._notifications[agent][1].fileno(), bytes((number,)))

    def rollout(self, slot: int) -> Rollout:
        """The rollout in a slot, as views, which hold until the slot is released."""
        arrays = self.rollout_arrays
        length = int(arrays["length"][slot])
        columns = {name: arrays[name][slot, :length] for name in STEP_FIELDS}
        return Rollout(
            **columns,
            state=arrays["state"][slot] if self.spec.state_size else None,
            episodes=Episodes(),  # the agent reports them
            transitions=int(np.count_nonzero(columns["valid"])),
            stats=RunningStats(arrays["stats"][slot].copy()) if arrays["stats"].size else None,
        )

    def close(self) -> None:
        """Close all pipes, which ends agents that wait. Call it after the threads have ended."""
        for ends in self._notifications:
            for end in ends:
                end.close()
        self.requests.close()
        self.finished.close()


class AgentChannel(NamedTuple):
    """One agent's way to the shared buffers, to be sent to its process.

    incarnation: number of agents that had its place before it.
    blocks: the memory of requests and that of rollouts.
    pipes: the reading end of its own one, and the writing ends of the queues of requests and of finished rollouts.
    """

    spec: BufferSpec
    agent: int
    incarnation: int
    blocks: tuple[Any, Any]
    pipes: tuple[Connection, Connection, Connection]
