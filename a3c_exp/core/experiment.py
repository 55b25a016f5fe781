"""The record of a whole experiment, and what runs it: every setting of a run, and the base class of
backends."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
from gymnasium.spaces import Box

from a3c_exp.algorithms import A3C, Algorithm
from a3c_exp.common.ranges import Checked, Count, Positive, Range, Share, Whole, whole
from a3c_exp.core import seeding
from a3c_exp.core.cpu import usable_cores
from a3c_exp.core.events import Event
from a3c_exp.core.normalization import NormalizedObservations, has_large_numbers
from a3c_exp.core.parameters import StoreSpec, UpdateSettings
from a3c_exp.core.run_view import Callback, Measure
from a3c_exp.core.store import SharedStore
from a3c_exp.engine.check_loss import loss_builder
from a3c_exp.engine.runtime import make_runtime
from a3c_exp.envs import EnvBatch, Environment, close_within
from a3c_exp.errors import ConfigError, one_line, require
from a3c_exp.networks import ActorCritic, Network
from a3c_exp.networks.action_values import QNetwork
from a3c_exp.networks.inputs import IMAGE, observation_form, stacked_frames
from a3c_exp.optimizers import RMSProp, TorchOptimizer
from a3c_exp.returns import Returns, crosses_episodes
from a3c_exp.schedules import Schedule, value

RMSPROP_WARNING = (
    "RMSProp from a mean square of 0 may kill convolutions in its first steps: "
    "take rmsprop_tf or adam"
)
LARGE_WARNING = (
    "env.normalize_observations: numbers of up to 255 or more reach the network as they are: "
    "true scales them"
)
TORCH_WARNING = (
    "has no guard against workers that write over one another, which may cost the run: "
    "lock=true has one"
)
CROSSING = (
    "results of {} before the end of an episode change with rewards after it (meant? "
    "across_episodes = True)"
)
SMALL_FACTOR = 0.01
MOST_WORKERS = 32
"""Workers for each core, more of which are a warning."""
Multiple = Annotated[int, whole(1, 2**16)]
"""A number of workers, or of the environments of each. A larger one is taken for a typing error: it
would fill the memory."""
MAX_LENGTH = 2**20
"""Most steps of a rollout, which are in memory."""
MAX_EPISODES = 1_000_000
"""Most episodes of an evaluation. More would have no end."""
MAX_WINDOW = 100_000
"""Most episodes of a mean return: they are kept in memory, and in each checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Stop(Checked):
    """Rules that end a run before `total_steps`; null switches a rule off.

    max_episodes: finished training episodes of all workers.
    max_seconds: of training, from this session's first step.
    mean_return: of the last `window` training episodes, in unscaled rewards. The rule waits until
        so many episodes have ended and every environment has ended one, since short episodes end
        first.
    worker_episodes, worker_return: a worker leaves the run after so many finished episodes of its
        own, or once the last `window` of them have this mean return. The others go on; the run ends
        when all have left.
    window: episodes of a mean return.
    """

    max_episodes: Count | None = None
    max_seconds: Positive | None = None
    mean_return: float | None = None
    worker_episodes: Count | None = None
    worker_return: float | None = None
    window: Annotated[int, whole(1, MAX_WINDOW)] = 100


ROW_BYTES = 11
"""Bytes of a reward, a log-probability and three flags in a memory."""


@dataclass(frozen=True, kw_only=True)
class Memory(Checked):
    """Each worker keeps its last rollouts, and learns from them again.

    capacity: transitions in the memories of all workers together.
    ratio: gradients from memory after each rollout, a mean. It may be less than 1.
    draw: how many follow a rollout: 'fixed', so that the mean holds at every moment, or 'poisson',
        a random number (Wang et al. 2017).
    sample: 'sequences', whole rollouts of one environment each, or 'transitions', each with the
        rows after it that its n-step return needs.
    batch_size: sequences or transitions in a gradient; None: as many as a rollout has.
    priority: the exponent alpha by which transitions with a larger last error are drawn more often:
        see `core.memory.Priorities`. 0: all are drawn alike.
    correction: the exponent beta of the weights that make up for it: a number, or a schedule.
    min_size: transitions in all memories together before anything is learned from them.
    save: workers write their memories into the run's folder when they end, and those of a resumed
        run read them.
    """

    capacity: Count = 100_000
    ratio: Annotated[float, Range("a number from 0 to 1,000,000", 0, 1e6)] = 4.0
    draw: Literal["fixed", "poisson"] = "fixed"
    sample: Literal["sequences", "transitions"] = "sequences"
    batch_size: Count | None = None
    priority: Share = 0.0
    correction: Share | Schedule = 1.0
    min_size: Whole = 0
    save: bool = False

    def nbytes(self, space: Box, network: ActorCritic, has_behaviour: bool = False) -> int:
        """Return the bytes of all memories together once they are full, recurrent states left out.

        space: of the environment's observations.
        network: gives the size of an action.
        has_behaviour: whether the parameters of the distributions that acted are kept.
        """
        observation = math.prod(space.shape) * space.dtype.itemsize // stacked_frames(space)
        parameters = np.zeros((1, network.distribution.size), np.float32)
        actions, _ = network.distribution.sample(parameters, np.random.default_rng(0))
        behaviour = parameters.nbytes * has_behaviour
        priority = 8 if self.priority else 0
        return self.capacity * (observation + actions.nbytes + behaviour + priority + ROW_BYTES)


@dataclass(frozen=True, kw_only=True)
class Eval(Checked):
    """Greedy evaluation beside training.

    every: interval between evaluations, in environment steps; null: never.
    episodes: of each evaluation.
    max_steps: an episode of so many steps is cut, and counts as it is: a policy that is stuck would
        never end it. The default is the length of the longest time limit here, of an Atari game.
    env: settings of the environment that evaluations have in place of those of training ({kwargs:
        {level: 9}});
        other kwargs, rewards and normalization are those of training.
    """

    every: Count | None = None
    episodes: Annotated[int, whole(1, MAX_EPISODES)] = 10
    max_steps: Count = 27_000
    env: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Checked):
    """Checkpoints of a run.

    every: interval between saves of the latest state, in environment steps; null: only when the run
        ends.
    last: number of numbered checkpoints, of the last saves.
    keep: which of the latest and the best are left by a run that has finished; numbered ones are
        left with the latest. A run that was interrupted or failed leaves all.
    """

    every: Count | None = None
    last: Whole = 0
    keep: Literal["both", "latest", "best", "none"] = "both"


@dataclass(frozen=True, kw_only=True)
class Log(Checked):
    """Points of the curves.

    every: environment steps between two; null: by time. `auto` is by steps on a deterministic
        backend, so that equal runs have equal curves, and by time on others. A final configuration
        has one of these two.
    """

    every: Count | Literal["auto"] | None = "auto"


@dataclass(frozen=True, kw_only=True)
class Experiment(UpdateSettings):
    """All settings of a run: those of `conf/config.yaml`, and a component for each of its groups.

    Those of its updates are in `UpdateSettings`.

    env, network, returns, algorithm, backend: the component of each group.
    critic_returns: the critic's own targets; None: those of `returns`.
    memory: of each worker's own rollouts, from which it learns again; None: it has none.
    seed: of everything random in the run.
    workers: actor-learners; 'auto' is one for each core that this process may use, divided by the
        runs of a sweep that run at once.
    envs_per_worker: environments that one worker steps together; 1 is the setting of Mnih et al.
        2016.
    rollout_length: steps of each environment between updates (the paper's t_max), or 'episode':
        whole episodes.
    gamma: discount per step.
    fresh_gradients: workers pull again between a rollout and its gradient, which is then of old
        data and new parameters, and of the values of these. Nothing is corrected. Returns that
        correct (V-trace) pull again in any case.
    epsilon: probability of a uniformly random action in place of the policy's. Discrete actions
        only. May be a schedule, also one that workers sample from: `EpsilonByWorker`.
    reward_threshold: mean return of the last 100 training episodes that counts as solved; None: no
        threshold.
    kernels: whether what the package `engine` has computes, where it can, in place of torch.
    stop, eval, checkpoint, log: see their classes.
    record_episodes: most rows of episodes.csv, which has one for each training episode; 0: no such
        file.
    callbacks: what watches the run besides the package's own: see `Callback`. No two of one class.
    vars: variables of the user's own, which other settings may refer to while they are composed.
    plugins: packages of the user's own whose components and environments may be named.
    init_from: the folder of a run; this one starts from its parameters.
    """

    env: Environment
    network: Network
    returns: Returns
    critic_returns: Returns | None = None
    algorithm: Algorithm
    memory: Memory | None = None
    backend: Backend
    seed: Whole = 0
    workers: Multiple | Literal["auto"] = "auto"
    envs_per_worker: Multiple
    rollout_length: Annotated[int, whole(1, MAX_LENGTH)] | Literal["episode"]
    gamma: Share
    fresh_gradients: bool = False
    epsilon: Share | Schedule = 0.0
    reward_threshold: float | None = None
    kernels: bool = True
    stop: Stop = field(default_factory=Stop)
    eval: Eval = field(default_factory=Eval)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    log: Log = field(default_factory=Log)
    record_episodes: Whole = 1_000_000
    callbacks: tuple[Callback, ...] = ()
    vars: dict[str, Any] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    init_from: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [type(callback).__name__ for callback in self.callbacks]
        require(len(set(names)) == len(names), "callbacks", names, "callbacks of different classes")

    @property
    def worker_count(self) -> int:
        """Number of workers. Raises ValueError if the configuration is not final."""
        if self.workers == "auto":
            raise ValueError("workers='auto': config.builder.resolve has the number")
        return self.workers

    @property
    def pulls_again(self) -> bool:
        """Return whether a worker pulls again between a rollout and its gradient."""
        return self.fresh_gradients or self.returns.off_policy

    @property
    def eval_env(self) -> Environment:
        """The environment of evaluations."""
        return replace(cast(Any, self.env), **self.eval.env) if self.eval.env else self.env

    def parameter_rng(self) -> np.random.Generator:
        """Return a new generator, which draws the parameters that the run begins with."""
        return seeding.generator(self.seed, seeding.Role.PARAMETERS)

    def normalized(self, space: Box) -> NormalizedObservations:
        """Return how observations of the environment's space are normalized."""
        return NormalizedObservations.of(self.env.normalize_observations, space)

    def build_network(self, env: EnvBatch, rng: np.random.Generator | None) -> ActorCritic:
        """Build a network for these environments, with the runtime that computes it.

        rng: draws its parameters; None: they are about to be overwritten.
        Raises ConfigError.
        """
        normalized = self.normalized(env.observation_space)
        space = normalized.network_space(env.observation_space)
        try:
            network = self.network.build(
                space,
                env.action_space,
                rng,
                seed=seeding.integer(self.seed, seeding.Role.MODULES),
                build_loss=loss_builder(self.algorithm),
                action_values=self.algorithm.target_every is not None,
                averaged=self.algorithm.target_decay is not None,
            )
        except MemoryError as error:
            name = self.network.module_class.__name__
            problem = f"is too large for the memory, with observations {space.shape}"
            raise ConfigError("network", name, f"{problem}: {one_line(error)}") from error
        normalized.prepare(network)
        if has_large_numbers(env.observation_space) and not normalized.measured:
            network.warnings += (LARGE_WARNING,)
        if isinstance(network, QNetwork):
            network.is_double = getattr(self.algorithm, "double", False)
        network.runtime = make_runtime(network, self.kernels, self.algorithm)
        return network

    def _memory_warning(self) -> str | None:
        if self.memory is None:
            return None
        if self.memory.min_size >= self.total_steps:
            size = f"memory.min_size={self.memory.min_size:,}"
            return f"nothing is learned from it: {size}, and total_steps={self.total_steps:,}"

        if self.memory.sample == "transitions" and not hasattr(self.returns, "n"):
            name = type(self.returns).__name__
            return f"{name} has one step of each transition: memory.sample=sequences has more"

        if self.returns.off_policy or type(self.algorithm) is not A3C:
            return None
        return "nothing corrects for the policies that acted: returns=vtrace does"

    @property
    def warnings(self) -> list[str]:
        """Settings that run but are probably not meant, one line each."""
        problems = {
            "env": self.env.warning(),
            "backend": self.backend.warning(self),
            "memory": self._memory_warning(),
        }
        cores = usable_cores()
        is_local = getattr(self.backend, "address", "local") == "local"
        if is_local and self.worker_count > MOST_WORKERS * cores:
            problems["workers"] = (
                f"{self.worker_count:,} take turns on {cores} cores, and each needs memory of its "
                "own: envs_per_worker adds environments at less cost"
            )
        for name, returns in (("returns", self.returns), ("critic_returns", self.critic_returns)):
            if returns is not None and self.rollout_length != "episode":
                problems[name] = returns.warning(self.rollout_length)
            if returns is not None and not returns.across_episodes and crosses_episodes(returns):
                problems[name] = CROSSING.format(type(returns).__name__)
        problems |= self._update_problems()
        entropy = getattr(self.algorithm, "entropy_coefficient", 0.0)
        form = getattr(self.network, "distribution", "")
        if form in ("squashed_gaussian", "beta") and value(entropy, 1.0) < 0:
            problems["algorithm.entropy_coefficient"] = (
                f"below 0 at the end: it drives actions of {form} into bounds"
            )
        if (
            self.stop.window != Stop.window
            and self.stop.mean_return is None
            and self.stop.worker_return is None
        ):
            problems["stop.window"] = "has no effect without stop.mean_return or stop.worker_return"
        return [f"{name}: {text}" for name, text in problems.items() if text]

    def _update_problems(self) -> dict[str, str]:
        """Return the warnings about how a gradient becomes an update, by their settings."""
        problems: dict[str, str] = {}
        if (most := max(self.schedule(tenths / 10) for tenths in range(11))) < SMALL_FACTOR:
            problems["schedule"] = (
                f"the learning rate is multiplied by at most {most:.1g}: progress goes from 0 to 1"
            )
        optimizer = self.optimizer
        # Then its first steps are of several rates, however small the gradients are.
        large = (
            isinstance(optimizer, RMSProp)
            and optimizer.initial_mean_square == 0
            and optimizer.epsilon < 1e-3
        )
        if large and observation_form(self.network.module_class) == IMAGE:
            problems["optimizer"] = RMSPROP_WARNING
        if isinstance(optimizer, TorchOptimizer) and self.update == "async" and not self.lock:
            problems["optimizer"] = TORCH_WARNING
        if self.update == "sync" and optimizer.staleness_power:
            problems["optimizer.staleness_power"] = (
                "has no effect with update=sync: no gradient of a round is stale"
            )
        if self.optimizer_state == "per_worker" and not optimizer.state_rows:
            problems["optimizer_state"] = (
                "per_worker has no effect: this optimizer keeps no statistics"
            )
        return problems


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Everything that workers of a run are built from.

    resumed: how often the run has been resumed. measures: see `Callback.measures`.
    on_rollout: is called with a worker's index and the number of transitions whenever the worker
        has collected a rollout; None: nobody asks.
    replaces: whether a worker takes the place of one that has failed.
    folder: where workers save their memories; None: they do not.
    """

    experiment: Experiment
    resumed: int = 0
    measures: frozenset[Measure] = frozenset()
    on_rollout: Callable[[int, int], None] | None = None
    replaces: bool = False
    folder: Path | None = None

    def memory_file(self, worker: int) -> Path | None:
        """Return the file of a worker's memory; None if memories are not saved."""
        return None if self.folder is None else self.folder / f"memory_{worker}.npz"


class Backend(ABC):
    """Runs the workers of an experiment. Every backend derives from this class.

    deterministic: the same seed gives the same run, bit for bit. Then nothing that happens beside
        the training may depend on the clock either.
    joins_rollouts: it learns from rollouts of several workers together, so minibatches need not
        divide one rollout.
    has_order: workers pull from its store and push to it by themselves, so that `record=order` has
        all that a run depends on.
    pushes_pulled: its store gets the parameters that a gradient is based on, for an optimizer that
        needs them.
    resumable: a run that was cut may go on.
    clock: whose seconds `training_seconds` are.
    """

    deterministic: ClassVar[bool] = False
    joins_rollouts: ClassVar[bool] = False
    has_order: ClassVar[bool] = False
    pushes_pulled: ClassVar[bool] = True
    resumable: ClassVar[bool] = True
    clock: ClassVar[Literal["real", "simulated"]] = "real"

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError for an experiment that this backend cannot run, or not on this
        machine."""

    @property
    def stall_seconds(self) -> float | None:
        """Seconds after which an environment that does not step hangs, in evaluations too; None:
        nobody looks."""
        return None

    def warning(self, experiment: Experiment) -> str | None:
        """Return a sentence about settings that are probably not meant; None if there are none."""
        return None

    def store(self, spec: StoreSpec) -> SharedStore:
        """Make a store where this backend's workers can reach it, by default in the memory of this
        process.

        spec: sizes and settings of the store.
        """
        return SharedStore(spec)

    @abstractmethod
    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        """Start the workers and yield their events; None when a tenth of a second has brought
        nothing.

        context: what workers are built from.
        store: as `store` has made it, with the parameters to begin with.

        Ends when all workers have: after `total_steps`, or after `store.stop()`. Raises RunError if
        a worker failed. Everything it started is gone when the iterator is closed or exhausted,
        whatever the reason.
        """


class Built(NamedTuple):
    """A network, and the space of the observations that it was built for, as the environment has
    it."""

    network: ActorCritic
    observation_space: Box


def build_network(experiment: Experiment, *, draw: bool = True) -> tuple[ActorCritic, EnvBatch]:
    """The network with the parameters that the run's seed draws, and the environment that it was
    built for.

    The environment is closed, but still has its spaces. draw: False for parameters that are about
    to be overwritten.
    """
    env = experiment.env.make(1, [0])
    try:
        return experiment.build_network(env, experiment.parameter_rng() if draw else None), env
    finally:
        close_within(env)


def store_spec(experiment: Experiment, network: ActorCritic, observation_space: Box) -> StoreSpec:
    """The spec of this experiment's shared block."""
    names = [setting.name for setting in fields(UpdateSettings)]
    updates = {name: getattr(experiment, name) for name in names}
    return StoreSpec(
        **updates,
        size=len(network.vector),
        param_slices=network.param_slices,
        workers=experiment.worker_count,
        target_every=experiment.algorithm.target_every,
        target_decay=experiment.algorithm.target_decay,
        observations=experiment.normalized(observation_space),
        normalize_rewards=experiment.env.normalize_rewards,
    )
