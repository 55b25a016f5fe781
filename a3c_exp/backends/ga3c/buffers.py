"""Memory that agents share with the threads that serve them, and the pipes that say whose turn it
is.

Every agent has memory and a pipe of its own, and so has each that takes the place of one that has
died: nothing that the dead one has written or asked for can reach it. Each part of the memory has
one writer at any moment.

The queues from all agents are pipes of numbers. The system writes a number whole or not at all,
even if the writing process is killed at that moment, and wakes whoever waits for it. There is no
lock between processes that could be left held.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import termios
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from a3c_exp.backends.messages import ReceiverClosedError
from a3c_exp.backends.processes.resources import shared_block
from a3c_exp.common.arrays import ArraySpecs, Floats, arrays_in, block_size
from a3c_exp.core.events import Episodes
from a3c_exp.core.experiment import Experiment
from a3c_exp.core.normalization import stats_width
from a3c_exp.core.rollout import STEP_FIELDS, Rollout
from a3c_exp.envs import EnvBatch
from a3c_exp.networks import ActorCritic

# What an agent is doing, in its `status`. WAITING: for a free slot. SUCCESSOR: it takes the place
# of one that has died, and nobody waits for it yet.
WORKING, WAITING, ENDED, SUCCESSOR = range(4)

# A notification byte to an agent: its request has been answered. A smaller byte n: its rollout slot
# n is free.
REPLIED = 255

_WIDTH = np.dtype(np.int64).itemsize


class IndexQueue:
    """Numbers (int64) from all agents through one pipe, for threads of this process to take."""

    def __init__(self) -> None:
        self._reader, self.writer = Pipe(duplex=False)
        self._poll = polling(self._reader)

    def take(self, count: int, seconds: float) -> list[int]:
        """Wait until there is a number; then take up to `count` of them. Empty if none comes within
        `seconds`."""
        if not self._poll.poll(1000 * seconds):
            return []
        data = os.read(self._reader.fileno(), _WIDTH * count)
        return array.array("q", data).tolist()

    def __len__(self) -> int:
        return bytes_in(self._reader) // _WIDTH

    def close(self) -> None:
        self._reader.close()
        self.writer.close()


def polling(pipe: Connection) -> select.poll:
    """Return what waits for a pipe to be read, in a fraction of the time that `Connection.poll`
    takes."""
    poll = select.poll()
    poll.register(pipe.fileno(), select.POLLIN)
    return poll


def bytes_in(pipe: Connection) -> int:
    """Return the number of bytes that wait to be read from a pipe."""
    waiting = array.array("i", [0])
    fcntl.ioctl(pipe.fileno(), termios.FIONREAD, waiting)
    return waiting[0]


class BufferSpec(NamedTuple):
    """Shapes and types of one agent's memory.

    envs: K, its environments. slots: rollouts that it may have open.
    state_size: S, of one recurrent state; 0 for a network without one.
    requests: its request (observations, state) and the reply to it (distributions, values,
        next_state, version), which start with [K]; and its status.
    rollouts: those in all slots: columns, which start with [slots, T, K]; and what a rollout has
        once.
    """

    envs: int
    slots: int
    state_size: int
    requests: ArraySpecs
    rollouts: ArraySpecs

    @classmethod
    def of(
        cls, experiment: Experiment, slots: int, network: ActorCritic, env: EnvBatch
    ) -> BufferSpec:
        """Return the sizes that an experiment needs, measured with one pass through its network."""
        space = env.observation_space
        envs = experiment.envs_per_worker
        length = experiment.rollout_length
        assert isinstance(length, int)
        normalized = experiment.normalized(space)
        dtype = np.dtype(normalized.network_space(space).dtype)

        distribution, _, state = network.act_forward(
            np.zeros((1, *space.shape), dtype), network.initial_state(1)
        )
        actions, _ = network.distribution.sample(distribution, np.random.default_rng(0))
        state_size = 0 if state is None else state.shape[1]
        width = stats_width(normalized.shape, normalized.measured, experiment.env.normalize_rewards)

        floats = np.dtype(np.float32)
        integers = np.dtype(np.int64)
        requests: ArraySpecs = {
            "status": ((1,), np.dtype(np.int8)),
            "observations": ((envs, *space.shape), dtype),
            "state": ((envs, state_size), floats),
            "distributions": ((envs, distribution.shape[1]), floats),
            "values": ((envs,), floats),
            "next_state": ((envs, state_size), floats),
            "version": ((1,), integers),
        }
        rows = slots, length, envs
        rollouts: ArraySpecs = {
            **dict.fromkeys(STEP_FIELDS, (rows, floats)),
            **dict.fromkeys(("terminated", "truncated", "valid"), (rows, np.dtype(np.bool_))),
            "observations": ((*rows, *space.shape), dtype),
            "actions": ((*rows, *actions.shape[1:]), actions.dtype),
            "version": (rows, integers),
            "length": ((slots,), integers),
            "state": ((slots, envs, state_size), floats),
            "stats": ((slots, width), np.dtype(np.float64)),
        }

        return cls(envs, slots, state_size, requests, rollouts)


@dataclass(eq=False)
class AgentBuffers:
    """What one agent's process shares with the threads. It can be sent to that process.

    spec: shapes and types of the memory.
    number: the agent's number in the queues.
    block: its memory.
    notifications, notifier: reading and writing end of the agent's pipe. The threads alone have the
        writing end.
    requests, finished: writing ends of the queues.
    status: int8 [1], what the agent is doing.
    """

    spec: BufferSpec
    number: int
    block: Any
    notifications: Connection
    requests: Connection
    finished: Connection
    notifier: Any = None

    def __post_init__(self) -> None:
        self.request = arrays_in(self.block, self.spec.requests)
        self.rollouts = arrays_in(
            memoryview(self.block)[block_size(self.spec.requests) :], self.spec.rollouts
        )
        self.status = self.request["status"].data

    def __reduce__(self) -> tuple[Any, ...]:
        return AgentBuffers, (
            self.spec,
            self.number,
            self.block,
            self.notifications,
            self.requests,
            self.finished,
        )

    @property
    def is_busy(self) -> bool:
        """Return whether the agent is not blocked on a free slot.

        One that waits for a slot may have an unread notification: the system may keep it from its
        core for long. It counts as busy.
        """
        notified = self.status[0] == WAITING and bytes_in(self.notifications) > 0
        # looked at last: the agent sets it before it reads
        return notified or self.status[0] == WORKING

    def send(self, queue: Connection, slot: int = 0) -> None:
        """Put the agent's request into the queue of requests, or a rollout's slot into that of
        finished ones."""
        entry = np.int64(self.number * self.spec.slots + slot)
        try:
            os.write(queue.fileno(), entry.tobytes())
        except BrokenPipeError:
            raise ReceiverClosedError from None

    def reply(
        self, version: int, distributions: Floats, values: Floats, next_state: Floats | None
    ) -> None:
        """Write the reply to the agent's request, and tell it.

        distributions [K, P], values [K], next_state [K, S]: as a forward pass has them. version: of
        the parameters.
        """
        self.request["distributions"][:] = distributions
        self.request["values"][:] = values
        if next_state is not None:
            self.request["next_state"][:] = next_state
        self.request["version"][0] = version
        self.notify(REPLIED)

    def notify(self, byte: int) -> None:
        """Write a notification. That a slot is free gives it back to the agent."""
        os.write(self.notifier.fileno(), bytes((byte,)))

    def rollout(self, slot: int) -> Rollout:
        """Return the rollout in a slot, as views, which hold until the agent has the slot back."""
        length = int(self.rollouts["length"][slot])
        columns: dict[str, Any] = {name: self.rollouts[name][slot, :length] for name in STEP_FIELDS}
        stats = self.rollouts["stats"]
        return Rollout(
            **columns,
            state=self.rollouts["state"][slot] if self.spec.state_size else None,
            episodes=Episodes(),  # the agent reports them
            transitions=int(np.count_nonzero(columns["valid"])),
            stats=stats[slot].copy() if stats.size else None,
        )


class SharedBuffers:
    """The memory of all agents and the queues, as predictors and trainers see them.

    agents: those that are there now, by worker. An agent's number is its worker's index. The number
        of all workers is added for each agent that it succeeds.
    requests: agents that wait for a reply.
    finished: slots whose rollout waits for a trainer.
    closing: set when the run ends; nothing that is still in the queues will be used.
    """

    def __init__(self, spec: BufferSpec, count: int) -> None:
        self.spec = spec
        self.requests = IndexQueue()
        self.finished = IndexQueue()
        self.closing = False
        self._count = count
        self.agents = [self._new(number) for number in range(count)]

    def _new(self, number: int) -> AgentBuffers:
        size = block_size(self.spec.requests) + block_size(self.spec.rollouts)
        block = shared_block(size, self._count)
        reader, writer = Pipe(duplex=False)
        os.write(writer.fileno(), bytes(range(self.spec.slots)))
        return AgentBuffers(
            self.spec, number, block, reader, self.requests.writer, self.finished.writer, writer
        )

    def renew(self, worker: int) -> None:
        """Prepare for the successor of an agent whose process is gone. What that has queued is
        void.

        A thread that still has the memory of the dead one keeps it as long as it needs it.
        """
        successor = self._new(self.agents[worker].number + self._count)
        successor.status[0] = SUCCESSOR
        self.agents[worker] = successor

    @property
    def busy_agents(self) -> int:
        """Number of agents that are not blocked on a free slot."""
        return sum(agent.is_busy for agent in self.agents)

    @property
    def agents_ended(self) -> bool:
        """Return whether no agent will write to the queues any more, or nobody is to read what they
        write."""
        return self.closing or all(agent.status[0] == ENDED for agent in self.agents)

    def take(self, queue: IndexQueue, count: int, seconds: float) -> list[tuple[AgentBuffers, int]]:
        """Take up to `count` requests or rollouts, see `IndexQueue.take`: whose they are, and the
        slot of a rollout.

        Those of agents that have been replaced are left out.
        """
        taken = []
        for entry in queue.take(count, seconds):
            number, slot = divmod(entry, self.spec.slots)
            agent = self.agents[number % self._count]
            if agent.number == number:
                taken.append((agent, slot))
        return taken

    def close(self) -> None:
        """Close all pipes, which ends agents that wait. Call it after the threads have ended."""
        for agent in self.agents:
            agent.notifications.close()
            agent.notifier.close()
        self.requests.close()
        self.finished.close()
