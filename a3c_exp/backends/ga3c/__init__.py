"""GA3C: agents that only act, and predictors and trainers that batch, beside one network."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import Pipe, connection
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from a3c_exp.backends import GRACE_SECONDS, batch_events
from a3c_exp.backends.processes import Processes
from a3c_exp.backends.processes.backend import Child, allow_files, drain, end, report, start
from a3c_exp.errors import ConfigError, require

if TYPE_CHECKING:  # imports torch, and the server of processes must be started before that
    from a3c_exp.backends.ga3c.exchange import Exchange
    from a3c_exp.backends.ga3c.service_threads import Crew
    from a3c_exp.core.events import Event
    from a3c_exp.core.experiment import Experiment
    from a3c_exp.core.store import SharedStore, StoreSpec
    from a3c_exp.core.worker import RunContext, YieldPoint
    from a3c_exp.networks import ActorCritic

log = logging.getLogger("a3c_exp")


@dataclass(frozen=True, kw_only=True)
class PredictionBatch:
    """Observations that are answered together.

    maximum: of them. wait: seconds that a predictor waits for more, while agents are at work who may still ask.
    """

    maximum: int = 128
    wait: float = 0.01

    def __post_init__(self) -> None:
        require(self.maximum >= 1, "maximum", self.maximum, "a whole number >= 1")
        require(0 <= self.wait <= 1, "wait", self.wait, "seconds, from 0 to 1")


class _Runs(Protocol):
    def run(self) -> Iterator[Event | YieldPoint]: ...


def _run(crew: Crew, number: int, make: Callable[[], _Runs]) -> Iterator[Event]:
    """All of it is done by the thread that takes the first event; nothing is made before it is to work."""
    crew.rest(number)
    yield from batch_events(make().run())


@dataclass(frozen=True, slots=True)
class _Thread:
    """One of the crews, as a member of the run."""

    thread: threading.Thread
    reader: connection.Connection
    sentinel: None = None

    @classmethod
    def start(cls, name: str, job: Iterator[Event]) -> _Thread:
        reader, writer = Pipe(duplex=False)
        arguments = name, writer, job, (BaseException,)
        thread = threading.Thread(target=report, args=arguments, name=name, daemon=True)
        thread.start()
        return cls(thread, reader)

    def ended(self) -> None: ...

    def exit_reason(self) -> str:
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
    device: where the network computes; auto: on a GPU that torch can use, else the CPU.
    tune: let the three counts move while training goes on, one at a time, and keep what makes it faster: predictors and
        trainers up to one for each core, or as many as are set; of the agents, at most `workers` act.
    rollouts: of each agent, under way: the one that it collects, those in the queue and those that are learned from. At
        1 an agent waits until its rollout has been learned from, and acts with what came of it.
    """

    deterministic: ClassVar[bool] = False
    joins_rollouts: ClassVar[bool] = True

    predictors: int = 1
    trainers: int = 1
    prediction_batch: PredictionBatch = field(default_factory=PredictionBatch)
    training_batch: int = 64
    device: Literal["auto", "cpu", "cuda"] = "auto"
    tune: bool = False
    rollouts: int = 2

    def __post_init__(self) -> None:
        for name in ("predictors", "trainers", "training_batch"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "a whole number >= 1")
        require(1 <= self.rollouts <= 100, "rollouts", self.rollouts, "a whole number from 1 to 100")

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError for what cannot be done with agents that are trained for by others."""
        from a3c_exp.backends.ga3c.device import check_device

        Processes().check(experiment)
        allow_files(experiment.worker_count, each=6)
        check_device(self.device)
        refused = {
            "update": ("sync", "async: agents have no gradients that rounds could be made of"),
            "optimizer_state": ("per_worker", "shared: there is one network"),
            "rollout_length": ("episode", "a whole number: the room for a rollout is set aside beforehand"),
        }
        for key, (value, allowed) in refused.items():
            require(getattr(experiment, key) != value, key, value, f"{allowed} (backend=ga3c)")
        most, asked = self.prediction_batch.maximum, experiment.envs_per_worker
        allowed = f"at least envs_per_worker={asked}: an agent asks about all its environments at once"
        require(most >= asked, "backend.prediction_batch.maximum", most, allowed)
        if experiment.accumulate_rollouts != 1:
            problem = "must be 1 with backend=ga3c: backend.training_batch is how much is learned from at once"
            raise ConfigError("accumulate_rollouts", experiment.accumulate_rollouts, problem)

    def warning(self, experiment: Experiment) -> str | None:
        """What is probably not meant, or None."""
        assert isinstance(experiment.rollout_length, int)
        room = experiment.worker_count * self.rollouts * experiment.rollout_length * experiment.envs_per_worker
        if self.rollouts == 1 or room >= self.training_batch:
            return None
        return f"training_batch={self.training_batch} is more than agents have room for: they all wait for each update"

    def check_network(self, network: ActorCritic) -> None:
        """Raise ConfigError for a network that cannot compute on the device."""
        from a3c_exp.backends.ga3c.device import check_network

        check_network(network, self.device)

    def prepare(self) -> None:
        Processes().prepare()

    def store(self, layout: StoreSpec) -> SharedStore:
        """With a row for each agent, and behind them one for each trainer."""
        return Processes().store(replace(layout, workers=layout.workers + self._most(self.trainers)))

    def _most(self, count: int) -> int:
        """How many threads there are of a kind of which so many are set."""
        from a3c_exp.core.cpu import usable_cores

        return max(count, usable_cores()) if self.tune else count

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        from a3c_exp.backends.ga3c.agent import Agent
        from a3c_exp.backends.ga3c.device import on_gpu
        from a3c_exp.backends.ga3c.exchange import Exchange, Plan
        from a3c_exp.backends.ga3c.service_threads import Crew
        from a3c_exp.core.experiment import build_network

        self.prepare()
        experiment = context.experiment
        network, env = build_network(experiment, draw=False)
        log.info("the network computes on the %s", "GPU" if on_gpu(network, self.device) else "CPU")
        exchange = Exchange(Plan.of(experiment, self.rollouts, network, env))
        threads: list[_Thread] = []
        agents: list[Child] = []
        try:
            crews = {name: Crew(getattr(self, name), exchange) for name in ("predictors", "trainers")}
            threads += self._threads(context, store, exchange, crews)
            head, count = network.head.distribution(), experiment.worker_count
            jobs = [partial(Agent, context, agent, store, exchange.port(agent), head) for agent in range(count)]
            start(agents, context, store, jobs)
            events = drain([*agents, *threads])
            yield from self._tuned(events, context, store, exchange, crews) if self.tune else events
        finally:
            store.stop()
            exchange.closing = True
            if _ended(threads):
                exchange.close()
            end(agents)

    def _threads(
        self, context: RunContext, store: SharedStore, exchange: Exchange, crews: dict[str, Crew]
    ) -> Iterator[_Thread]:
        """Start them."""
        from a3c_exp.backends.ga3c.service_threads import Predictor, Trainer

        batch = self.prediction_batch
        kinds: dict[str, tuple[Callable[..., _Runs], tuple[Any, ...]]] = {
            "predictors": (Predictor, (batch.maximum, batch.wait)),
            "trainers": (Trainer, (self.training_batch,)),
        }
        for name, (kind, settings) in kinds.items():
            make = partial(kind, context, store, exchange, crews[name], self.device, *settings)
            for number in range(self._most(getattr(self, name))):
                job = _run(crews[name], number, partial(make, number))
                yield _Thread.start(f"{name.removesuffix('s')} {number}", job)

    def _tuned(
        self, events: Iterator[Event | None], context: RunContext, store: SharedStore, exchange: Exchange,
        crews: dict[str, Crew],
    ) -> Iterator[Event | None]:  # fmt: skip
        """The events of the run, while the counts move."""
        from a3c_exp.backends.ga3c.tune import Count, Tuner
        from a3c_exp.core import seeding
        from a3c_exp.core.events import Event
        from a3c_exp.core.seeding import Role

        agents = context.experiment.worker_count
        counts = [Count("agents", agents, agents, exchange.let_act)]
        counts += [Count(name, crew.count, self._most(crew.count), crew.be) for name, crew in crews.items()]
        rng = seeding.generator(context.experiment.seed, Role.SCHEDULER, resumed=context.resumed)
        tuner = Tuner(counts, rng, lambda: store.steps, time.monotonic)
        for event in events:
            yield event
            found = tuner.look()
            if found:
                told = Event(worker=0)
                told.add(found)
                yield told


def _ended(threads: Sequence[_Thread]) -> bool:
    """Whether all of them have ended by themselves, given a moment."""
    deadline = time.monotonic() + GRACE_SECONDS
    for member in threads:
        member.reader.close()
        member.thread.join(max(0.0, deadline - time.monotonic()))
    return not any(member.thread.is_alive() for member in threads)
