"""GA3C: agents that only act, and threads around one network that predict and train for them in
batches."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Annotated, ClassVar, Literal

from a3c_exp.algorithms import MinibatchAlgorithm
from a3c_exp.backends.ga3c.agent import run_agent
from a3c_exp.backends.ga3c.buffers import ENDED, BufferSpec, SharedBuffers
from a3c_exp.backends.ga3c.device import DeviceName, check_device, find_device, parameters_on
from a3c_exp.backends.ga3c.services import PredictionBatch, Services
from a3c_exp.backends.processes.children import Child, end_children
from a3c_exp.backends.processes.resources import check_processes, shared_store
from a3c_exp.backends.supervision import (
    PipeSource,
    PipeSupervisor,
    RestartSettings,
    WorkerRun,
    end_all,
)
from a3c_exp.backends.threads import ThreadSource
from a3c_exp.common.log import log
from a3c_exp.common.ranges import Count, whole
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Backend, Experiment, RunContext, build_network
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import SharedStore
from a3c_exp.envs import EnvBatch
from a3c_exp.errors import ConfigError
from a3c_exp.networks.distributions import Distribution

ThreadCount = Annotated[int, whole(1, 1024)]
"""Number of threads of a kind."""


@dataclass(frozen=True, kw_only=True)
class Ga3c(RestartSettings, Backend):
    """Babaeizadeh et al. 2017 (arXiv 1611.06256), on a GPU or on the cores of a CPU.

    `workers` agents are processes with environments and without a network. An agent puts its
    observations into a prediction queue. Predictors, threads of this process, answer all requests
    that wait there with one forward pass of a copy of the network. The agent draws its actions from
    the distributions in the reply. Finished rollouts go into a training queue, from which trainers,
    threads too, learn as workers do. Observations, replies and rollouts lie in shared memory; the
    queues carry indices of slots.

    Unlike the original, the last transitions of an episode are used for training, agents draw their
    actions themselves, and a predictor's parameters change only between two batches.

    An agent that dies is replaced: a rollout of its own that no trainer has taken up is lost. A
    predictor or trainer that raises or hangs ends the run.

    predictors, trainers: threads of each kind.
    prediction_batch: see `PredictionBatch`.
    training_batch: transitions that a trainer learns from at once, at least, unless all agents wait
        for it.
    device: where network and optimizer compute; auto: on a GPU if torch can use one and the network
        is not recurrent, otherwise on the CPU.
    rollouts: that each agent may have open: the one being collected, those in the queue and those
        being learned from. With 1 an agent waits until its rollout has been learned from, and then
        acts with the result.
    lag: 'warn' of returns that do not correct for the lag between acting and learning: with a
        learning rate that stays high the policy may collapse. 'accept' it, as the paper does.
    """

    joins_rollouts: ClassVar[bool] = True
    pushes_pulled: ClassVar[bool] = False

    predictors: ThreadCount = 1
    trainers: ThreadCount = 1
    prediction_batch: PredictionBatch = field(default_factory=PredictionBatch)
    training_batch: Count = 64
    device: DeviceName = "auto"
    rollouts: Annotated[int, whole(1, 100)] = 2
    lag: Literal["warn", "accept"] = "warn"

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError for settings that agents without a network of their own cannot have."""
        check_processes(experiment, files_each=7)
        check_device(self.device)
        refused = {
            "update": ("sync", "async: agents have no gradients that rounds could be made of"),
            "optimizer_state": ("per_worker", "shared: there is one network"),
            "rollout_length": (
                "episode",
                "a whole number: the buffers of rollouts are allocated beforehand",
            ),
        }
        for key, (value, allowed) in refused.items():
            if getattr(experiment, key) == value:
                raise ConfigError(key, value, f"must be {allowed} (backend=ga3c)")

        if self.prediction_batch.maximum < experiment.envs_per_worker:
            raise ConfigError(
                "backend.prediction_batch.maximum",
                self.prediction_batch.maximum,
                f"must be at least envs_per_worker={experiment.envs_per_worker}: a request holds "
                "the observations of all of an agent's environments",
            )

    def warning(self, experiment: Experiment) -> str | None:
        """Return a warning if agents cannot fill a training batch without waiting for each update,
        or if nothing corrects for the lag of their rollouts."""
        assert isinstance(experiment.rollout_length, int)
        transitions = experiment.rollout_length * experiment.envs_per_worker
        room = experiment.worker_count * self.rollouts * transitions
        warnings = []
        if self.rollouts > 1 and room < self.training_batch:
            warnings.append(
                f"training_batch={self.training_batch} is more than agents have room for: "
                "they all wait for each update"
            )

        algorithm = experiment.algorithm
        # Ratios of PPO correct for the lag; action values are of a policy that nobody follows.
        corrects = isinstance(algorithm, MinibatchAlgorithm) or algorithm.target_every is not None
        if self.lag == "warn" and not (corrects or experiment.returns.off_policy):
            warnings.append(
                "returns without a correction for the lag between acting and learning may let the "
                "policy collapse in a long run: returns=vtrace corrects (backend.lag=accept: no "
                "warning)"
            )

        return "; ".join(warnings) or None

    def store(self, spec: StoreSpec) -> SharedStore:
        """Make a store with a row for each agent, and after them one for each trainer and each
        predictor."""
        services = self.trainers + self.predictors
        return shared_store(replace(spec, workers=spec.workers + services, services=services))

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        network, env = build_network(context.experiment, draw=False)
        device = find_device(network, self.device)
        log.info(
            "the network and the optimizer compute on %s",
            "the CPU" if device is None else f"device {device}",
        )
        with nullcontext() if device is None else parameters_on(device, store):
            spec = BufferSpec.of(context.experiment, self.rollouts, network, env)
            buffers = SharedBuffers(spec, context.experiment.worker_count)
            workers = self._workers(context, store, buffers, network.distribution, env)
            environments = context.experiment.envs_per_worker
            supervisor = PipeSupervisor(workers, self, store, environments)
            yield from supervisor.run(partial(_end, buffers))

    def _workers(
        self,
        context: RunContext,
        store: SharedStore,
        buffers: SharedBuffers,
        distribution: Distribution,
        env: EnvBatch,
    ) -> Iterator[PipeSource]:
        """Make the trainers, the predictors and the agents, in the order in which they start."""
        agents = context.experiment.worker_count
        services = Services(
            context,
            store,
            buffers,
            env,
            self.predictors,
            self.prediction_batch,
            self.training_batch,
        )
        threads = [(f"trainer {index}", services.train) for index in range(self.trainers)]
        threads += [(f"predictor {index}", services.predict) for index in range(self.predictors)]
        for row, (name, serve) in enumerate(threads, agents):
            yield ThreadSource(
                store=store, worker=row, name=name, run=partial(serve, row), serves_others=True
            )

        for index in range(agents):
            agent = partial(run_agent, context, index, store, distribution)
            yield AgentProcess(store=store, worker=index, run=agent, buffers=buffers)


def _end(buffers: SharedBuffers, sources: Sequence[PipeSource]) -> None:
    """End all threads and agents. Agents that wait for a thread end with its pipes."""
    buffers.closing = True
    if end_all([source for source in sources if isinstance(source, ThreadSource)]):
        buffers.close()
    end_children(sources)


@dataclass(kw_only=True, eq=False)
class AgentProcess(Child):
    """The process of an agent. run: is given its buffers, too."""

    buffers: SharedBuffers

    def begin(self, run: WorkerRun, writer: Connection) -> None:
        super().begin(partial(run, self.buffers.agents[self.worker]), writer)

    def on_exit(self, *, replaced: bool) -> None:
        super().on_exit(replaced=replaced)
        if replaced:
            self.buffers.renew(self.worker)
        else:
            self.buffers.agents[self.worker].status[0] = ENDED
