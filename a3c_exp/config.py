"""The whole configuration of a run: its type, the checks that span several components, and the file that keeps it.

`load_experiment` is the one way from a plain mapping (what YAML, a run's config.yaml and child processes hold) to an
`Experiment`, and everything that can be wrong with a configuration is found there, before anything has been started or
written.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Discrete

from a3c_exp import checkpoint
from a3c_exp.algorithms import Algorithm, Reusing
from a3c_exp.backends import Backend
from a3c_exp.envs import EnvBatch, Environment
from a3c_exp.errors import ConfigError, require
from a3c_exp.networks import ActorCritic, Network, sees_pictures
from a3c_exp.normalisation import Moments, network_space
from a3c_exp.optimizers import Optimizer, check_parts
from a3c_exp.provenance import usable_cores
from a3c_exp.returns import Returns, is_off_policy
from a3c_exp.schedules import Schedule, require_throughout
from a3c_exp.schema import build, flat, import_plugins

LEAPS = (
    "RMSProp whose mean square starts at 0 begins with steps of several rates, which have left convolutions dead for "
    "good: optimizer=rmsprop_tf or optimizer=adam"
)
# Settings of a network that parameters which are there already do not depend on.
FIRST_OR_FAST = frozenset({"init", "policy_gain", "initial_std", "forget_bias", "precision", "channels_last"})
# Of workers, and of the environments of each. A larger number is taken for a typing error.
MOST = 2**16
# What a run's folder holds.
CONFIG_FILE = "config.yaml"
SUMMARY_FILE = "summary.json"
CHECKPOINTS, LATEST, BEST = "checkpoints", "latest.ckpt", "best.ckpt"


@dataclass(frozen=True, kw_only=True)
class Stop:
    """When a run ends before `total_steps`; null switches a rule off.

    max_episodes: finished training episodes of all workers.
    max_seconds: of wall-clock time, this session's.
    mean_return: of the last 100 training episodes, in unscaled rewards. Not judged before 100 episodes have ended and
        every environment has ended one, since short episodes come first.
    """

    max_episodes: int | None = None
    max_seconds: float | None = None
    mean_return: float | None = None

    def __post_init__(self) -> None:
        episodes, seconds = self.max_episodes, self.max_seconds
        require(episodes is None or episodes >= 1, "max_episodes", episodes, "a whole number >= 1, or null")
        require(seconds is None or seconds > 0, "max_seconds", seconds, "a number > 0, or null")


@dataclass(frozen=True, kw_only=True)
class Eval:
    """Greedy evaluation beside training: every so many environment steps (null: never), over so many episodes."""

    every: int | None = None
    episodes: int = 10

    def __post_init__(self) -> None:
        require(self.every is None or self.every >= 1, "every", self.every, "a whole number of steps >= 1, or null")
        require(self.episodes >= 1, "episodes", self.episodes, "a whole number >= 1")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """How often the latest state is saved, in environment steps; null: only when the run ends."""

    every: int | None = None

    def __post_init__(self) -> None:
        require(self.every is None or self.every >= 1, "every", self.every, "a whole number of steps >= 1, or null")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One run, composed: what `conf/config.yaml` and its groups say, as objects.

    env, network, returns, algorithm, optimizer, schedule, backend: the component of each group.
    critic_returns: the critic's own targets; None: those of `returns`.
    seed: of everything random in the run.
    workers: actor-learners; 'auto' is one for each core that this process may use.
    envs_per_worker: environments that one worker steps together; 1 is the setting of Mnih et al. 2016.
    rollout_length: steps of each environment between updates (the paper's t_max), or 'episode': whole episodes.
    accumulate: rollouts whose gradients are added up, not averaged, before a push.
    gamma: discount per step.
    epsilon: with this probability a worker takes any action alike instead of one of its policy. Discrete actions only.
    total_steps: environment steps of all workers together.
    goal: mean return of the last 100 training episodes that counts as solved; None: there is none.
    update: 'async', each worker pushes when it is ready, or 'sync', a step for each round of one gradient a worker.
    lock: one update at a time; without it workers write over one another (Hogwild). Synchronous rounds always lock.
    moments: the optimizer's statistics, one for all ('shared') or each worker its own ('worker').
    stop, eval, checkpoint: see their classes.
    plugins: packages of the user's own whose components and environments may be named.
    init_from: the folder of a run from whose parameters this one starts.
    """

    env: Environment
    network: Network
    returns: Returns
    critic_returns: Returns | None = None
    algorithm: Algorithm
    optimizer: Optimizer
    schedule: Schedule
    backend: Backend
    seed: int = 0
    workers: int | Literal["auto"] = "auto"
    envs_per_worker: int
    rollout_length: int | Literal["episode"]
    accumulate: int = 1
    gamma: float
    epsilon: float | Schedule = 0.0
    total_steps: int
    goal: float | None = None
    update: Literal["async", "sync"] = "async"
    lock: bool = False
    moments: Literal["shared", "worker"] = "shared"
    stop: Stop = field(default_factory=Stop)
    eval: Eval = field(default_factory=Eval)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    plugins: tuple[str, ...] = ()
    init_from: str | None = None

    def __post_init__(self) -> None:
        workers, rollout = self.workers, self.rollout_length
        require(self.seed >= 0, "seed", self.seed, "a whole number >= 0")
        count = f"a whole number from 1 to {MOST}"
        require(workers == "auto" or 1 <= workers <= MOST, "workers", workers, f"{count}, or 'auto'")
        require(1 <= self.envs_per_worker <= MOST, "envs_per_worker", self.envs_per_worker, count)
        require(rollout == "episode" or rollout >= 1, "rollout_length", rollout, "a whole number >= 1, or 'episode'")
        require(self.accumulate >= 1, "accumulate", self.accumulate, "a whole number >= 1")
        require(0 <= self.gamma <= 1, "gamma", self.gamma, "a number from 0 to 1")
        require_throughout(lambda share: 0 <= share <= 1, "epsilon", self.epsilon, "a number from 0 to 1")
        require_throughout(lambda factor: 0 <= factor < math.inf, "schedule", self.schedule, "a number >= 0")
        require(self.total_steps >= 1, "total_steps", self.total_steps, "a whole number >= 1")
        if rollout == "episode" and self.envs_per_worker != 1:
            raise ConfigError("envs_per_worker", self.envs_per_worker, "must be 1 where rollout_length=episode")
        if self.update == "sync" and self.moments == "worker":
            raise ConfigError("moments", "worker", "must be 'shared' where update=sync: a round is one step for all")
        if isinstance(self.algorithm, Reusing):
            self._check_reuse(self.algorithm)
        if self.critic_returns is not None and is_off_policy(self.critic_returns) and not is_off_policy(self.returns):
            problem = "must go with returns that correct for lag as well (vtrace): the actor would learn uncorrected"
            raise ConfigError("critic_returns", type(self.critic_returns).__name__, problem)

    def _check_reuse(self, algorithm: Reusing) -> None:
        """Refuse what cannot be done with rollouts that are learned from more than once."""
        name = type(algorithm).__name__
        if self.accumulate != 1:
            raise ConfigError("accumulate", self.accumulate, f"must be 1 with {name}: take longer rollouts instead")
        if self.epsilon != 0:
            # Before anything is learned pi / mu would be as far from 1 as blind draws are frequent: past the clip range
            # for good actions, which would teach nothing, and past any target of the divergence.
            problem = f"must be 0 with {name}, which stays close to the policy that acted: algorithm.entropy explores"
            raise ConfigError("epsilon", self.epsilon, problem)
        for key, returns in (("returns", self.returns), ("critic_returns", self.critic_returns)):
            if returns is not None and is_off_policy(returns):
                problem = f"must be one that leaves it to {name} to weigh old actions: gae, for one"
                raise ConfigError(key, type(returns).__name__, problem)
        self.check_minibatches(algorithm, whole_sequences=False)

    def check_minibatches(self, algorithm: Reusing, whole_sequences: bool) -> None:
        """Raise ConfigError where rollouts cannot be taken apart: into transitions, or into those of an environment."""
        if self.rollout_length == "episode":
            return
        count, length = self.envs_per_worker, self.rollout_length
        if getattr(self.backend, "joins_rollouts", False):
            count = 0
        try:
            algorithm.check_rollout(*((count, length) if whole_sequences else (count * length, 1)))
        except ConfigError as error:
            raise error.under("algorithm") from error

    @property
    def worker_count(self) -> int:
        """`workers`, with 'auto' told in numbers."""
        return usable_cores() if self.workers == "auto" else self.workers

    def build_network(self, env: EnvBatch, rng: np.random.Generator | None) -> ActorCritic:
        """The network for such environments, with parameters drawn from `rng`, or not drawn. Raises ConfigError."""
        space = network_space(env.observation_space, self.env.normalize_observations)
        self.network.check(space, env.action_space)
        return self.network.build(space, env.action_space, rng)

    @property
    def warnings(self) -> list[str]:
        """What runs, but is probably not meant, one line each."""
        lines = []
        for name in ("returns", "critic_returns"):
            warning = getattr(getattr(self, name), "warning", None)
            text = warning(self.rollout_length) if warning and self.rollout_length != "episode" else None
            if text:
                lines.append(f"{name}: {text}")
        if sees_pictures(self.network) and getattr(self.optimizer, "leaps", False):
            lines.append(f"optimizer: {LEAPS}")
        for name in ("env", "backend"):
            warning = getattr(getattr(self, name), "warning", None)
            text = warning(self) if warning else None
            if text:
                lines.append(f"{name}: {text}")
        return lines


def load_experiment(config: Mapping[str, Any], check: bool = True, *, to_train: bool = True) -> Experiment:
    """The experiment that a plain configuration describes, with every check there is.

    check: False leaves out those that make an environment and a network, for processes whose parent has done them.
    to_train: False leaves out those of what only training needs, which may be gone by the time its policy is played:
    the cluster or the GPU of its backend, the run that it started from.
    Raises ConfigError.
    """
    plugins = build(config.get("plugins") or (), tuple[str, ...], "plugins")
    import_plugins(plugins)
    experiment = build(dict(config), Experiment, plugins=plugins)
    if not check:
        return experiment
    if to_train:
        _ask_backend(experiment, "check", experiment)
    network = _check_parts(experiment)
    if to_train:
        _ask_backend(experiment, "check_network", network)
        if experiment.init_from is not None:
            _check_start(experiment.init_from, config, network, experiment.env.normalize_observations)
    return experiment


def _ask_backend(experiment: Experiment, check: str, what: Experiment | ActorCritic) -> None:
    """Call the check of that name, if the backend has one."""
    method = getattr(experiment.backend, check, None)
    if method is not None:
        method(what)


def _check_parts(experiment: Experiment) -> ActorCritic:
    """Make one environment and one network, which is returned: do they exist, and do they fit all that is said about
    them?"""
    try:
        validate = getattr(experiment.env, "validate", None)
        if validate is not None:
            validate(experiment.plugins)
        env = experiment.env.make(1, [0])
    except ConfigError as error:
        raise error.under("env") from error
    if experiment.epsilon != 0 and not isinstance(env.action_space, Discrete):
        env.close()
        problem = f"must be 0 where actions are not Discrete: they are {env.action_space}"
        raise ConfigError("epsilon", experiment.epsilon, problem)
    try:
        network = experiment.build_network(env, None)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not re.search("allocate memory|calculation overflowed", str(error)):
            raise
        raise ConfigError("network", type(experiment.network).__name__, "is too large for the memory here") from error
    finally:
        env.close()
    if network.core is not None and isinstance(experiment.algorithm, Reusing):
        experiment.check_minibatches(experiment.algorithm, whole_sequences=True)
    try:
        check_parts(experiment.optimizer, network.parts)
    except ConfigError as error:
        raise error.under("optimizer") from error
    return network


def _check_start(folder: str, config: Mapping[str, Any], network: ActorCritic, normalized: bool) -> None:
    """Do the parameters of the run in that folder mean the same here: in the same network, with observations that are
    seen in the same way?"""
    from omegaconf import OmegaConf

    theirs = read_config(folder, key="init_from")
    state = checkpoint.load(best_checkpoint(Path(folder)), key="init_from")
    try:
        start, statistics = state["store"]["parameters"], state["store"]["statistics"]
    except (KeyError, TypeError):
        raise ConfigError("init_from", folder, "its checkpoint is not that of a run") from None
    ours: Any = OmegaConf.to_container(OmegaConf.create(dict(config)))  # as it will be saved: with lists for tuples
    if start.shape != network.vector.shape:
        problem = f"must be a run of the same network: it has {start.size} parameters, not {network.vector.size}"
        place, here = ((each.get("env") or {}).get("id") for each in (theirs, ours))
        raise ConfigError("init_from", folder, problem + (f"; it was of {place}, not {here}" if place != here else ""))
    network_there, network_here = (dict(flat(each.get("network") or {})) for each in (theirs, ours))
    for key in network_there.keys() & network_here.keys():
        it_has, needed = network_there[key], network_here[key]
        if it_has != needed and key.rpartition(".")[2] not in FIRST_OR_FAST:
            problem = f"must be a run of the same network: it has network.{key}={it_has}, not {needed}"
            raise ConfigError("init_from", folder, problem)
    if Moments.has_observations(statistics) != normalized:
        problem = f"must be a run with env.normalize_observations={str(normalized).lower()}, as this one has"
        raise ConfigError("init_from", folder, problem)


def read_config(folder: str | Path, plugins: Sequence[str] = (), key: str = "resume") -> dict[str, Any]:
    """The configuration that a run's folder keeps, with `plugins` in place of those that it names.

    A folder may come from anyone, so it cannot itself allow code: the user names the plugins again.
    key: the setting that errors are put down to. Raises ConfigError.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    path = Path(folder).expanduser() / CONFIG_FILE
    try:
        config = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (OSError, UnicodeDecodeError):
        raise ConfigError(key, str(folder), f"must be the folder of a run: it has no readable {CONFIG_FILE}") from None
    except (YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(key, str(folder), f"its {CONFIG_FILE} is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict) or not config:
        raise ConfigError(key, str(folder), f"its {CONFIG_FILE} is damaged: it holds no settings")
    named = plugins if isinstance(plugins, str) else list(plugins)  # a text is refused as such, not by its letters
    return {str(name): value for name, value in config.items()} | {"plugins": named}


def config_text(config: Mapping[str, Any]) -> str:
    """A plain configuration as YAML, which `read_config` reads back unchanged."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(dict(config)))


def best_checkpoint(folder: Path) -> Path:
    """A run's best checkpoint, or the latest where no evaluation has been made. It may not exist."""
    checkpoints = folder.expanduser() / CHECKPOINTS
    return checkpoints / (BEST if (checkpoints / BEST).exists() else LATEST)


def latest_checkpoint(folder: Path) -> Path:
    """A run's latest checkpoint, or the best where it was killed before it had saved another. It may not exist."""
    checkpoints = folder.expanduser() / CHECKPOINTS
    killed_early = (checkpoints / BEST).exists() and not (checkpoints / LATEST).exists()
    return checkpoints / (BEST if killed_early else LATEST)


def check_folder(folder: Path, key: str = "folder") -> Path:
    """`folder` as an absolute path that a new run may write to; nothing is made yet.

    key: the setting that errors are put down to. Raises ConfigError.
    """
    folder = folder.expanduser().absolute()
    if (folder / CONFIG_FILE).exists():
        raise ConfigError(key, str(folder), "must be without a run: go on with that one by resume=<folder>")
    place = folder
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(key, str(folder), f"cannot be written: {place} is no folder that this user may write to")
    return folder
