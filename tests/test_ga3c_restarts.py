"""GA3C goes on without the dead: agents are replaced, and nothing that they had is used twice or
left behind."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import backend_runs
import numpy as np
import pytest
from backend_runs import nobody_works, running, totals, worker_processes
from gymnasium.spaces import Discrete
from killing import killed_at_line
from runs import CORRIDOR, SCRIPTED, drain, train_config, wait_until

from a3c_exp.backends.ga3c import buffers as buffers_module
from a3c_exp.backends.ga3c import services
from a3c_exp.backends.ga3c.agent import RemoteNetwork
from a3c_exp.backends.ga3c.buffers import (
    SUCCESSOR,
    WORKING,
    AgentBuffers,
    BufferSpec,
    IndexQueue,
    SharedBuffers,
)
from a3c_exp.backends.ga3c.device import build_thread_network
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.events import Episodes, Event
from a3c_exp.core.experiment import build_network
from a3c_exp.core.heartbeat import Heartbeat
from a3c_exp.core.rollout import STEP_FIELDS, Rollout
from a3c_exp.networks.distributions import Categorical

AGENTS = 2
ENVS = 4
LENGTH = 4
SLOTS = 2
OBSERVATION_SIZE = 4
MOST_LINES = 1000


def ga3c(*arguments: Any, **settings: Any) -> dict[str, Any]:
    """A configuration of GA3C whose agents are replaced."""
    return backend_runs.ga3c(*arguments, **{"backend__max_restarts": 3} | settings)


# -- one agent that is killed at each line
# ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spec() -> BufferSpec:
    experiment = load_experiment(
        ga3c(SCRIPTED, workers=AGENTS, envs_per_worker=ENVS, rollout_length=LENGTH)
    )
    return BufferSpec.of(experiment, SLOTS, *build_network(experiment))


def scripted_rollout(mark: int) -> Rollout:
    """A rollout with a mark in all its columns."""
    rows = LENGTH, ENVS
    columns: dict[str, Any] = dict.fromkeys(STEP_FIELDS, np.full(rows, mark, np.float32))
    columns["observations"] = np.full((*rows, OBSERVATION_SIZE), mark, np.float32)
    columns["actions"] = np.full(rows, mark)
    columns |= dict.fromkeys(("terminated", "truncated", "valid"), np.ones(rows, np.bool_))
    return Rollout(
        **columns, state=None, episodes=Episodes(), transitions=LENGTH * ENVS, stats=None
    )


def live(agent: AgentBuffers) -> None:
    """The life of an agent: two rollouts, each after a request of its parameters' version."""
    network = RemoteNetwork(agent, Categorical(Discrete(2)), Heartbeat())
    agent.status[0] = WORKING
    for mark in (1, 2):
        slot = network.acquire_slot()
        agent.request["version"][0] = mark
        network.policy_forward(np.full((ENVS, OBSERVATION_SIZE), mark, np.float32), None)
        network.put_rollout(slot, scripted_rollout(mark))


def reply(agent: AgentBuffers, value: float) -> None:
    agent.reply(9, np.full((ENVS, 2), value, np.float32), np.full(ENVS, value, np.float32), None)


class Case:
    """The buffers that an agent leaves which was killed at a line.

    taken: a trainer holds the rollouts and a predictor the requests when the agent is replaced.
    """

    def __init__(self, spec: BufferSpec, line: int, taken: bool) -> None:
        self.buffers = buffers = SharedBuffers(spec, AGENTS)
        agent = buffers.agents[0]
        for _ in range(2):
            agent.notify(buffers_module.REPLIED)  # the replies are there before the requests
        self.killed = killed_at_line(
            line, os.path.dirname(buffers_module.__file__), lambda: live(agent)
        )
        self.queued = len(buffers.finished)
        self.rollouts = self.take(buffers.finished) if taken else []
        self.requests = self.take(buffers.requests) if taken else []
        buffers.renew(0)
        self.successor = buffers.agents[0]

    def take(self, queue: IndexQueue) -> list[tuple[AgentBuffers, int]]:
        return self.buffers.take(queue, 9, 0.0)

    def check(self) -> None:
        buffers, successor = self.buffers, self.successor
        assert successor.status[0] == SUCCESSOR
        assert buffers.busy_agents == AGENTS - 1, "nobody waits for an agent that starts"
        assert self.take(buffers.finished) == self.take(buffers.requests) == [], (
            "what was queued is void"
        )
        for agent, _ in self.requests:
            reply(agent, 5.0)  # whatever the predecessor wanted to know
        for (agent, slot), mark in zip(self.rollouts, (1, 2), strict=False):
            assert_whole(agent.rollout(slot), mark)
            agent.notify(slot)
        for agent in buffers.agents:
            assert os.read(agent.notifications.fileno(), 99) == bytes(range(SLOTS)), (
                "each has its own slots, and no more"
            )
        self.check_reply()
        buffers.close()

    def check_reply(self) -> None:
        """The successor gets the reply to its own request, and its rollout is queued as its own."""
        network = RemoteNetwork(self.successor, Categorical(Discrete(2)), Heartbeat())
        reply(self.successor, 8.0)
        distributions, values, _ = network.policy_forward(
            np.zeros((ENVS, OBSERVATION_SIZE), np.float32), None
        )
        np.testing.assert_array_equal(values, np.full(ENVS, 8.0))
        np.testing.assert_array_equal(distributions, np.full((ENVS, 2), 8.0))
        assert self.take(self.buffers.requests) == [(self.successor, 0)]
        network.put_rollout(1, scripted_rollout(9))
        assert self.take(self.buffers.finished) == [(self.successor, 1)]


def assert_whole(rollout: Rollout, mark: int) -> None:
    expected = scripted_rollout(mark)
    for name in STEP_FIELDS:
        np.testing.assert_array_equal(getattr(rollout, name), getattr(expected, name), err_msg=name)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_nothing_of_an_agent_reaches_its_successor_at_whichever_line_it_is_killed(
    spec: BufferSpec,
) -> None:
    queued = set()
    for line in range(1, MOST_LINES, 4):
        case = Case(spec, line, taken=line % 8 == 1)
        queued.add(case.queued)
        case.check()
        if not case.killed:
            break
    assert line > 60
    assert queued == {0, 1, 2}, "killed before, between and after its rollouts"


# -- whole runs
# --------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    wait_until(nobody_works)


def restarts_of(events: Sequence[Event]) -> tuple[int, str]:
    """Number of restarts, and all warnings."""
    warnings = "\n".join(line for event in events for line in event.warnings)
    return sum(event.counts.get("restarts", 0) for event in events), warnings


def kill(victims: Sequence[int]) -> None:
    for process in worker_processes():
        if int(process.name.removeprefix("worker ")) in victims and process.pid is not None:
            with suppress(ProcessLookupError):  # it was killed a moment ago
                os.kill(process.pid, signal.SIGKILL)


Break = Callable[[str, Callable[[int], object]], None]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Lets the networks of predictors or trainers do something else before each pass, given the
    number of the pass."""
    build = build_thread_network

    def install(kind: str, action: Callable[[int], object]) -> None:
        numbers = itertools.count(1)
        name = "evaluate" if kind == "trainer" else "act_forward"

        def building(*arguments: Any) -> Any:
            network = build(*arguments)
            if threading.current_thread().name.startswith(kind):
                owner = network.runtime if kind == "trainer" else network
                method = getattr(owner, name)

                def failing(*arguments: Any) -> Any:
                    action(next(numbers))
                    return method(*arguments)

                setattr(owner, name, failing)
            return network

        monkeypatch.setattr(services, "build_thread_network", building)

    return install


class TestKilledAgents:
    """Real processes, killed by SIGKILL."""

    def test_are_replaced_and_the_run_ends_at_its_steps(self) -> None:
        """Predictors and trainers do not take the death of all for the end."""
        received: list[Event] = []
        victims = [0, 1, 2]
        one_slot = {"backend__rollouts": 1, "backend__training_batch": 16}
        with running(ga3c(CORRIDOR, workers=3, total_steps=3000, **one_slot)) as (events, store):
            for event in events:
                received += filter(None, [event])
                # one may learn before all are forked
                if received and len(worker_processes()) == len(victims) > 0:
                    kill(victims)
                    victims = []
            state = store.state()
        restarts, warnings = restarts_of(received)
        assert restarts == 3 == warnings.count("was killed by SIGKILL: another one takes its place")
        updates, steps, measured, _ = totals(received)
        assert updates == measured == state["version"], "trainers report what the store counts"
        assert 3000 <= steps == state["steps"] < 3000 + 3 * 16 * 2

    def test_are_not_replaced_once_the_run_is_over(self, broken: Break) -> None:
        """They die in their last rollouts, which are lost. Nobody waits for them."""
        broken("predictor", lambda number: time.sleep(0.02))
        received: list[Event] = []
        settings = {
            "env__kwargs": {"lengths": (0,)},
            "rollout_length": 64,
            "workers": 2,
            "total_steps": 10**9,
        }
        with running(ga3c(SCRIPTED, **settings)) as (events, store):
            for event in events:
                received += filter(None, [event])
                if received and not store.stopped:
                    kill([0, 1])
                    store.stop()
        restarts, warnings = restarts_of(received)
        assert restarts == 0
        assert warnings.count("at its end: worker") == 2


class TestServices:
    def test_one_that_raises_ends_the_run(self, broken: Break) -> None:
        def break_down(number: int) -> None:
            if number == 7:
                raise RuntimeError("scripted to break")

        broken("trainer", break_down)
        events, _, error = drain(ga3c(workers=2, total_steps=10**9))
        assert str(error).startswith("trainer 0 failed:\nTraceback")
        assert restarts_of(events)[0] == 0

    @pytest.mark.parametrize("kind", ["predictor", "trainer"])
    def test_one_that_hangs_ends_the_run_with_the_reason(
        self, kind: str, broken: Break, tmp_path: Path
    ) -> None:
        release = threading.Event()
        broken(kind, lambda number: number < 5 or release.wait())
        try:
            done = train_config(
                ga3c(workers=2, total_steps=10**9, backend__stall_seconds=1.5), tmp_path
            )
            assert done.summary["stop_reason"] == "stalled"
            assert done.summary["error"].startswith(f"{kind} 0 hung: it had not finished")
            assert not worker_processes()
        finally:
            release.set()

    def test_waiting_is_no_stall(self, broken: Break) -> None:
        """Agents wait for the predictor, and the trainer for agents, longer than
        `stall_seconds`."""
        slow = iter([0.4] * 5)
        broken("predictor", lambda number: time.sleep(next(slow, 0.0) if number > 3 else 0.0))
        events, _, error = drain(ga3c(workers=2, total_steps=160, backend__stall_seconds=1.2))
        assert error is None
        assert restarts_of(events) == (0, "")
