"""GA3C: agents that only act, and threads around one network that predict and train for them in batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

from a3c_exp.backends import forkserver
from a3c_exp.backends.ga3c.agent import run_agent
from a3c_exp.backends.ga3c.buffers import BufferSpec, SharedBuffers
from a3c_exp.backends.ga3c.device import DeviceName, check_device, find_device, parameters_on
from a3c_exp.backends.ga3c.services import Gathering, PredictionBatch, run_predictor, run_trainer
from a3c_exp.backends.processes.children import Child, Run, end
from a3c_exp.backends.processes.resources import check_processes, shared_store
from a3c_exp.backends.supervision import PipeSource, PipeSupervisor, RestartSettings
from a3c_exp.backends.threads import ThreadSource, join_all
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Backend, Experiment, RunContext, build_network
from a3c_exp.core.heartbeat import Heartbeat
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import YieldPoint
from a3c_exp.errors import ConfigError, require
from a3c_exp.networks.distributions import Distribution

log = logging.getLogger("a3c_exp")

MAX_THREADS = 1024
"""Of a kind."""


@dataclass(frozen=True, kw_only=True)
class Ga3c(RestartSettings, Backend):
    """Babaeizadeh et al. 2017 (arXiv 1611.06256), on a GPU or on the cores of a CPU.

    `workers` agents are processes with environments and without a network. An agent puts its observations into a
    prediction queue. Predictors, threads of this process, answer all requests that wait there with one forward pass of
    a copy of the network. The agent draws its actions from the distributions in the reply. Finished rollouts go into a
    training queue, from which trainers, threads too, learn as workers do. Observations, replies and rollouts lie in
    shared memory; the queues carry indices of slots.

    Unlike the original, the last transitions of an episode are used for training, agents draw their actions themselves,
    and a predictor's parameters change only between two batches.

    An agent that dies is replaced; its finished rollouts are learned from, and its other slots are its successor's. A
    predictor or trainer that raises or hangs ends the run.

    predictors, trainers: threads of each kind.
    prediction_batch: see `PredictionBatch`.
    training_batch: transitions that a trainer learns from at once, at least, unless all agents wait for it.
    device: where network and optimizer compute; auto: on a GPU if torch can use one and the network is not recurrent,
        otherwise on the CPU.
    rollouts: that each agent may have open: the one being collected, those in the queue and those being learned from.
        With 1 an agent waits until its rollout has been learned from, and then acts with the result.
    """

    joins_rollouts: ClassVar[bool] = True

    predictors: int = 1
    trainers: int = 1
    prediction_batch: PredictionBatch = field(default_factory=PredictionBatch)
    training_batch: int = 64
    device: DeviceName = "auto"
    rollouts: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("predictors", "trainers"):
            number = getattr(self, name)
            require(1 <= number <= MAX_THREADS, name, number, f"a whole number from 1 to {MAX_THREADS}")
        require(self.training_batch >= 1, "training_batch", self.training_batch, "a whole number >= 1")
        require(1 <= self.rollouts <= 100, "rollouts", self.rollouts, "a whole number from 1 to 100")

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError for settings that agents without a network of their own cannot have."""
        check_processes(experiment, files_each=6)
        check_device(self.device)
        refused = {
            "update": ("sync", "async: agents have no gradients that rounds could be made of"),
            "optimizer_state": ("per_worker", "shared: there is one network"),
            "rollout_length": ("episode", "a whole number: the buffers of rollouts are allocated beforehand"),
        }
        for key, (value, allowed) in refused.items():
            require(getattr(experiment, key) != value, key, value, f"{allowed} (backend=ga3c)")
        maximum, envs = self.prediction_batch.maximum, experiment.envs_per_worker
        allowed = f"at least envs_per_worker={envs}: a request holds the observations of all of an agent's environments"
        require(maximum >= envs, "backend.prediction_batch.maximum", maximum, allowed)
        if experiment.accumulate_rollouts != 1:
            problem = "must be 1 with backend=ga3c: backend.training_batch is how much is learned from at once"
            raise ConfigError("accumulate_rollouts", experiment.accumulate_rollouts, problem)

    def warning(self, experiment: Experiment) -> str | None:
        """A warning if agents cannot fill a training batch without waiting for each update."""
        assert isinstance(experiment.rollout_length, int)
        room = experiment.worker_count * self.rollouts * experiment.rollout_length * experiment.envs_per_worker
        if self.rollouts == 1 or room >= self.training_batch:
            return None
        return f"training_batch={self.training_batch} is more than agents have room for: they all wait for each update"

    def store(self, spec: StoreSpec) -> SharedStore:
        """A store with a row for each agent, and after them one for each trainer."""
        return shared_store(replace(spec, workers=spec.workers + self.trainers))

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        forkserver.ensure_running()
        network, env = build_network(context.experiment, draw=False)
        device = find_device(network, self.device)
        log.info("the network and the optimizer compute on %s", "the CPU" if device is None else f"device {device}")
        with nullcontext() if device is None else parameters_on(device, store):
            buffers = SharedBuffers(BufferSpec.of(context.experiment, self.rollouts, network, env))
            starting = self._start(context, store, buffers, network.distribution)
            supervisor = PipeSupervisor(starting, self, store)
            try:
                yield from supervisor.run()
            finally:
                store.stop()
                buffers.closing = True
                if join_all(supervisor.sources):
                    buffers.close()
                end(supervisor.sources)

    def _start(
        self, context: RunContext, store: SharedStore, buffers: SharedBuffers, distribution: Distribution
    ) -> Iterator[PipeSource]:
        """Start predictors, trainers and agents."""
        experiment = context.experiment
        gathering = Gathering(self.predictors)
        for index in range(self.predictors):
            heart = Heartbeat()
            predictor = partial(run_predictor, experiment, store, buffers, self.prediction_batch, gathering, heart)
            yield Service(store, 0, f"predictor {index}", predictor, heart)
        gathering = Gathering(self.trainers)
        for index in range(self.trainers):
            row = experiment.worker_count + index
            heart = store.heartbeat(row)
            trainer = partial(run_trainer, context, store, buffers, self.training_batch, gathering, heart, index)
            yield Service(store, row, f"trainer {index}", trainer, heart)
        for index in range(experiment.worker_count):
            agent = partial(run_agent, context, index, store, distribution)
            yield AgentProcess(store, index, agent, buffers)


class Service(ThreadSource):
    """The thread of a predictor or a trainer. heart: the heartbeat of what it runs."""

    serves_others = True

    def __init__(
        self, store: SharedStore, row: int, name: str, run: Callable[[], Iterator[Event | YieldPoint]], heart: Heartbeat
    ) -> None:
        self._heart = heart
        super().__init__(store, row, lambda attempt: run(), name)

    @property
    def beat(self) -> int:
        return self._heart.value

    def inactivity(self, beat: int) -> str:
        return "it had not finished a batch"


class AgentProcess(Child):
    """The process of an agent."""

    def __init__(
        self, store: SharedStore, index: int, run: Callable[..., Iterator[Event | YieldPoint]], buffers: SharedBuffers
    ) -> None:
        self._buffers = buffers
        super().__init__(store, index, run)

    def prepare(self, attempt: int) -> Run:
        if attempt:
            self._buffers.renew(self.worker)
        return partial(self._run, attempt, self._buffers.channel(self.worker))

    def on_exit(self, *, replaced: bool) -> None:
        end([self])
        if not replaced:
            self._buffers.leave(self.worker)
