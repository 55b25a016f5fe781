"""GA3C: agents that only act, and predictors and trainers that batch, beside one network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import Pipe, connection
from typing import TYPE_CHECKING, ClassVar, Protocol

from a3c_exp.backends import GRACE_SECONDS, merged
from a3c_exp.backends.processes import Child, Processes, drain, end, report, start
from a3c_exp.errors import ConfigError, require

if TYPE_CHECKING:  # imports torch, and the server of processes must be started before that
    from a3c_exp.backends.ga3c.exchange import Exchange
    from a3c_exp.config import Experiment
    from a3c_exp.events import Event
    from a3c_exp.parameters import Layout, SharedParameters
    from a3c_exp.worker import Pause, Setup


@dataclass(frozen=True, kw_only=True)
class PredictionBatch:
    """Observations that are answered together.

    maximum: of them. wait: seconds that a predictor waits for more, while agents are at work who may still ask.
    """

    maximum: int = 128
    wait: float = 0.002

    def __post_init__(self) -> None:
        require(self.maximum >= 1, "maximum", self.maximum, "a whole number >= 1")
        require(0 <= self.wait <= 1, "wait", self.wait, "seconds, from 0 to 1")


class _Runs(Protocol):
    def run(self) -> Iterator[Event | Pause]: ...


def _run(make: Callable[[], _Runs]) -> Iterator[Event]:
    """Both are done by the thread that takes the first event."""
    yield from merged(make().run())


@dataclass(frozen=True, slots=True)
class _Thread:
    """One of the crews, as a member of the run."""

    thread: threading.Thread
    reader: connection.Connection
    sentinel: None = None

    @classmethod
    def start(cls, name: str, make: Callable[[], _Runs]) -> _Thread:
        reader, writer = Pipe(duplex=False)
        arguments = name, writer, _run(make), (BaseException,)
        thread = threading.Thread(target=report, args=arguments, name=name, daemon=True)
        thread.start()
        return cls(thread, reader)

    def ended(self) -> None: ...

    def fate(self) -> str:
        return f"{self.thread.name} ended without a word"


@dataclass(frozen=True, kw_only=True)
class Ga3c:
    """Babaeizadeh et al. 2017 (arXiv 1611.06256), on a GPU or on the cores of a CPU.

    Agents are processes with environments and without a network: `workers` of them. What they see goes into a
    prediction queue. Predictors, threads of this process, answer all that waits there with one pass through a copy of
    the network; agents draw their actions from the distributions that come back. Finished rollouts go into a training
    queue, from which trainers, threads too, learn as workers do. Observations, answers and rollouts lie in shared
    memory; the queues carry numbers of slots.

    Otherwise than there, what an episode brings last is learned from, agents draw their actions themselves, and the
    parameters with which a predictor acts change between its batches only.

    predictors, trainers: threads of each kind.
    prediction_batch: see there.
    training_batch: transitions that a trainer learns from at once, at least, unless all agents wait for it.
    rollouts: of each agent, under way: the one that it collects, those in the queue and those that are learned from. At
        1 an agent waits until its rollout has been learned from, and acts with what came of it.
    """

    deterministic: ClassVar[bool] = False

    predictors: int = 1
    trainers: int = 1
    prediction_batch: PredictionBatch = field(default_factory=PredictionBatch)
    training_batch: int = 64
    rollouts: int = 2

    def __post_init__(self) -> None:
        for name in ("predictors", "trainers", "training_batch"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "a whole number >= 1")
        require(1 <= self.rollouts <= 100, "rollouts", self.rollouts, "a whole number from 1 to 100")

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError for what cannot be done with agents that are trained for by others."""
        refused = {
            "update": ("sync", "async: agents have no gradients that rounds could be made of"),
            "moments": ("worker", "shared: there is one network"),
            "rollout_length": ("episode", "a whole number: the room for a rollout is set aside beforehand"),
        }
        for key, (value, allowed) in refused.items():
            require(getattr(experiment, key) != value, key, value, f"{allowed} (backend=ga3c)")
        if experiment.accumulate != 1:
            problem = "must be 1 with backend=ga3c: backend.training_batch is how much is learned from at once"
            raise ConfigError("accumulate", experiment.accumulate, problem)

    def prepare(self, modules: Iterable[str]) -> None:
        Processes().prepare(modules)

    def store(self, layout: Layout) -> SharedParameters:
        """With a row for each agent, and behind them one for each trainer."""
        return Processes().store(replace(layout, workers=layout.workers + self.trainers))

    def run(self, setup: Setup, store: SharedParameters) -> Generator[Event | None, None, None]:
        from a3c_exp.backends.ga3c.agent import Agent
        from a3c_exp.backends.ga3c.exchange import Exchange, Plan
        from a3c_exp.worker import build_network

        self.prepare(())
        experiment = setup.experiment
        network, env = build_network(experiment)
        exchange = Exchange(Plan.of(experiment, self.rollouts, network, env))
        threads: list[_Thread] = []
        agents: list[Child] = []
        try:
            threads += self._threads(setup, store, exchange)
            head, count = network.head.distribution(), experiment.worker_count
            jobs = [partial(Agent, setup, agent, store, exchange.port(agent), head) for agent in range(count)]
            start(agents, setup, store, jobs)
            yield from drain([*agents, *threads])
        finally:
            store.stop()
            exchange.closing = True
            if _ended(threads):
                exchange.close()
            end(agents)

    def _threads(self, setup: Setup, store: SharedParameters, exchange: Exchange) -> Iterator[_Thread]:
        """Start them."""
        from a3c_exp.backends.ga3c.threads import Crew, Predictor, Trainer

        crew, batch = Crew(self.predictors), self.prediction_batch
        for number in range(self.predictors):
            make = partial(Predictor, setup, store, exchange, crew, batch.maximum, batch.wait)
            yield _Thread.start(f"predictor {number}", make)
        crew, agents = Crew(self.trainers), setup.experiment.worker_count
        for number in range(self.trainers):
            trainer = partial(Trainer, setup, agents + number, store, exchange, crew, self.training_batch)
            yield _Thread.start(f"trainer {number}", trainer)


def _ended(threads: Sequence[_Thread]) -> bool:
    """Whether all of them have ended by themselves, given a moment."""
    deadline = time.monotonic() + GRACE_SECONDS
    for member in threads:
        member.reader.close()
        member.thread.join(max(0.0, deadline - time.monotonic()))
    return not any(member.thread.is_alive() for member in threads)
