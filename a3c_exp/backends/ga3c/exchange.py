"""What agents share with predictors and trainers: slots in one block of memory, and queues of their numbers.

Every slot has one writer at any moment, and a queue says whose turn it is. A queue is a pipe: a number goes into it
whole or not at all, also from a process that is killed at that moment, and the system wakes who waits at its end. There
is no lock that could be left held.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from a3c_exp.backends.processes.backend import UnheardError, shared_block
from a3c_exp.common.arrays import Shapes, arrays_in, block_size
from a3c_exp.core.events import Episodes
from a3c_exp.core.experiment import Experiment
from a3c_exp.core.normalization import RunningStats
from a3c_exp.core.rollout import COLUMNS, Rollout
from a3c_exp.envs import EnvBatch
from a3c_exp.networks import ActorCritic

Array = NDArray[Any]

# How long who waits for a queue does so before it looks whether there is still somebody to wait for.
POLL_SECONDS = 0.02

# What an agent is about, in its place of `status`: WAITING for a slot, or RESTING since it is not to act.
WORKING, WAITING, RESTING, ENDED = range(4)

# In an agent's mail: its request has been answered. Smaller numbers: that slot of its rollouts is free.
ANSWERED = 255


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the block must hold. A agents of K environments, L steps a rollout.

    rollouts: slots of each agent. observation, action: shape and type of one. parameters: of an action's distribution.
    state: numbers of a recurrent state, 0 without one. observed: of a row of moments for normalisation, 0 without one.
    """

    agents: int
    environments: int
    length: int
    rollouts: int
    observation: tuple[tuple[int, ...], np.dtype[Any]]
    action: tuple[tuple[int, ...], np.dtype[Any]]
    parameters: int
    state: int
    observed: int

    @classmethod
    def of(cls, experiment: Experiment, rollouts: int, network: ActorCritic, env: EnvBatch) -> Plan:
        """For an experiment, whose network and environment tell what they say and take."""
        settings, space = experiment.env, env.observation_space
        count, length = experiment.envs_per_worker, experiment.rollout_length
        assert isinstance(length, int)
        seen = np.dtype(np.float32) if settings.normalize_observations else np.dtype(space.dtype)
        parameters, _, state = network.infer(np.zeros((1, *space.shape), seen), network.initial_state(1))
        actions, _ = network.head.sample(parameters, np.random.default_rng(0))
        return cls(
            agents=experiment.worker_count, environments=count, length=length, rollouts=rollouts,
            observation=(space.shape, seen), action=(actions.shape[1:], actions.dtype),
            parameters=parameters.shape[1], state=0 if state is None else state.shape[1],
            observed=RunningStats.width(space.shape, settings.normalize_observations, settings.normalize_rewards),
        )  # fmt: skip

    def asked(self) -> Shapes:
        """Of each agent: what it asks about, and what it is answered. `after` is the recurrent state behind `state`."""
        rows = self.agents, self.environments
        real, (shape, seen) = np.dtype(np.float32), self.observation
        return {
            "status": ((self.agents,), np.dtype(np.int8)),
            "active": ((1,), np.dtype(np.int64)),
            "observations": ((*rows, *shape), seen),
            "state": ((*rows, self.state), real),
            "parameters": ((*rows, self.parameters), real),
            "values": (rows, real),
            "after": ((*rows, self.state), real),
            "version": ((self.agents,), np.dtype(np.int64)),
        }

    def told(self) -> Shapes:
        """Of each rollout: a row of every column for each step, and what there is once."""
        slots = self.agents * self.rollouts
        rows = slots, self.length, self.environments
        (seen_shape, seen), (action_shape, action) = self.observation, self.action
        flags, real = dict.fromkeys(("terminated", "truncated", "valid"), np.dtype(np.bool_)), np.dtype(np.float32)
        types = {"observations": seen, "actions": action, "version": np.dtype(np.int64), **flags}
        shapes = {"observations": seen_shape, "actions": action_shape}
        columns = {name: ((*rows, *shapes.get(name, ())), types.get(name, real)) for name in COLUMNS}
        return columns | {
            "length": ((slots,), np.dtype(np.int64)),
            "state": ((slots, self.environments, self.state), real),
            "observed": ((slots, self.observed), np.dtype(np.float64)),
        }


class Queue:
    """Slot numbers from all agents, through a pipe; for one thread of this process to take from at a time."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self._poll = select.poll()
        self._poll.register(self.reader, select.POLLIN)

    def take(self, count: int, seconds: float) -> bytes:
        """Up to `count` numbers, 4 bytes each, once there is one; none if there is none for so long."""
        return os.read(self.reader, 4 * count) if self._poll.poll(seconds * 1000) else b""

    @property
    def depth(self) -> int:
        """How many numbers wait."""
        return _bytes_in(self.reader) // 4

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


class Exchange:
    """The side of predictors and trainers."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._blocks = shared_block(block_size(plan.asked())), shared_block(block_size(plan.told()))
        self.asked, self.told = (
            arrays_in(block, shapes) for block, shapes in zip(self._blocks, (plan.asked(), plan.told()), strict=True)
        )
        self.let_act(plan.agents)
        self.requests, self.finished = Queue(), Queue()
        self._mail = [os.pipe() for _ in range(plan.agents)]
        self.closing = False
        for _, writer in self._mail:
            os.write(writer, bytes(range(plan.rollouts)))

    def port(self, agent: int) -> Port:
        """The way to here for one agent, to be sent to its process."""
        mail = self._mail[agent][0]
        return Port(self.plan, agent, self._blocks, mail, self.requests.writer, self.finished.writer)

    def let_act(self, agents: int) -> None:
        """So many of the agents are to act from now on."""
        self.asked["active"][0] = agents

    @property
    def working(self) -> int:
        """How many agents do something of which a request will come. Who waits for a slot, and has mail, has it only
        not seen yet: an agent may be kept from its core for long."""
        status = self.asked["status"]
        found = sum(_bytes_in(self._mail[agent][0]) > 0 for agent in np.flatnonzero(status == WAITING))
        return int(np.count_nonzero(status == WORKING)) + found

    @property
    def over(self) -> bool:
        """Whether nothing more will come that is not in the queues already."""
        return self.closing or bool((self.asked["status"] == ENDED).all())

    def answer(self, agents: Sequence[int]) -> None:
        """Tell agents that the answers to their requests are in their slots."""
        for agent in agents:
            self._send(agent, ANSWERED)

    def free(self, slots: Sequence[int]) -> None:
        """Give slots for rollouts back to the agents that they belong to."""
        for slot in slots:
            self._send(slot // self.plan.rollouts, slot % self.plan.rollouts)

    def _send(self, agent: int, number: int) -> None:
        with suppress(BrokenPipeError):  # it is gone; others tell so
            os.write(self._mail[agent][1], bytes((number,)))

    def rollout(self, slot: int) -> Rollout:
        """The rollout in a slot, as views: until the slot is free."""
        length, told = int(self.told["length"][slot]), self.told
        columns = {name: told[name][slot, :length] for name in COLUMNS}
        return Rollout(
            **columns,
            state=told["state"][slot] if self.plan.state else None,
            episodes=Episodes(),  # the agent has told of them
            transitions=int(np.count_nonzero(columns["valid"])),
            observed=RunningStats(told["observed"][slot].copy()) if self.plan.observed else None,
        )

    def close(self) -> None:
        """Who waits here, or is an agent, waits no longer. Not before the threads have ended."""
        for reader, writer in self._mail:
            os.close(reader)
            os.close(writer)
        self.requests.close()
        self.finished.close()


class Port:
    """The side of one agent. waited: seconds that it has spent waiting."""

    def __init__(
        self, plan: Plan, agent: int, blocks: tuple[Any, Any], mail: int, requests: int, finished: int
    ) -> None:
        """mail: the pipe of its own, to read from; requests, finished: the queues' pipes, to write to."""
        self.plan, self.agent, self._blocks = plan, agent, blocks
        self._mail, self._requests, self._finished = mail, requests, finished
        asked = arrays_in(blocks[0], plan.asked())
        self._status, self._active, self._version = asked["status"], asked["active"], asked["version"]
        self._observations, self._state = asked["observations"][agent], asked["state"][agent]
        self._parameters, self._values = asked["parameters"][agent], asked["values"][agent]
        self._after = asked["after"][agent]
        self._told = arrays_in(blocks[1], plan.told())
        self._number = np.int32(agent).tobytes()
        self._poll = select.poll()
        self._poll.register(mail, select.POLLIN)
        self._free: list[int] = []
        self.waited = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to the agent's process, it leads to the same memory and the same pipes."""
        pipes = [reduction.DupFd(fd) for fd in (self._mail, self._requests, self._finished)]
        return _attach, (self.plan, self.agent, self._blocks, *pipes)

    def ask(self, observations: Array, state: Array | None) -> tuple[Array, Array, Array | None, int]:
        """Observations [N, ...] and the state before them, N at most K -> parameters of distributions [N, P], values
        [N], the state after, and the version of the network that says so. Only the parameters are views, until the next
        question."""
        count = len(observations)
        self._observations[:count] = observations
        if state is not None:
            self._state[:count] = state
        _write(self._requests, self._number)
        while (number := self._receive()) != ANSWERED:
            self._free.append(number)
        after = None if state is None else self._after[:count].copy()
        return self._parameters[:count], self._values[:count].copy(), after, int(self._version[self.agent])

    def free_slot(self) -> int:
        """One of the agent's slots for rollouts, once there is one."""
        if not self._free:
            self._status[self.agent] = WAITING
            self._await_mail()
            self._status[self.agent] = WORKING  # before the mail is taken: see `Exchange.working`
            self._free.append(self._receive())
        return self._free.pop(0)

    def hand_over(self, slot: int, rollout: Rollout, versions: Sequence[int]) -> None:
        """Write a rollout into a slot, and its number into the queue. versions: of the network, at each step."""
        number, told, length = self.agent * self.plan.rollouts + slot, self._told, len(rollout.rewards)
        for name in COLUMNS[:-1]:
            told[name][number, :length] = getattr(rollout, name)
        told["version"][number, :length] = np.array(versions)[:, None]
        told["length"][number] = length
        if rollout.state is not None:
            told["state"][number] = rollout.state
        if rollout.observed is not None:
            told["observed"][number] = rollout.observed.row
        _write(self._finished, np.int32(number).tobytes())

    @property
    def active(self) -> bool:
        """Whether this agent is one of those that are to act."""
        return self.agent < int(self._active[0])

    def park(self, seconds: float) -> None:
        """Do nothing for so long."""
        self._status[self.agent] = RESTING
        time.sleep(seconds)
        self.waited += seconds
        self._status[self.agent] = WORKING

    def leave(self) -> None:
        """Nothing will come from here any more."""
        self._status[self.agent] = ENDED

    def _await_mail(self) -> None:
        began = time.perf_counter()
        self._poll.poll()
        self.waited += time.perf_counter() - began

    def _receive(self) -> int:
        began = time.perf_counter()
        mail = os.read(self._mail, 1)
        self.waited += time.perf_counter() - began
        if not mail:
            raise UnheardError
        return mail[0]


def _bytes_in(pipe: int) -> int:
    """How much waits to be read from it."""
    waiting = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, waiting)
    return waiting[0]


def _write(pipe: int, number: bytes) -> None:
    try:
        os.write(pipe, number)
    except BrokenPipeError:
        raise UnheardError from None


def _attach(plan: Plan, agent: int, blocks: tuple[Any, Any], *pipes: Any) -> Port:
    mail, requests, finished = (pipe.detach() for pipe in pipes)
    return Port(plan, agent, blocks, mail, requests, finished)
