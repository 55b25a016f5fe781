"""Checks that span several components. Each component checks its own settings itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from torch import nn

from a3c_exp.algorithms import MinibatchAlgorithm, NStepQ
from a3c_exp.common.settings import comparable
from a3c_exp.config.saved import NORMALIZATION, read_config
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.experiment import Built, Experiment, Memory
from a3c_exp.core.memory import machine_bytes
from a3c_exp.core.normalization import has_observations
from a3c_exp.engine.check_loss import check_loss
from a3c_exp.engine.check_network import verify
from a3c_exp.envs.batch import EnvBatch, Environment, opened
from a3c_exp.envs.parts import sample_action
from a3c_exp.errors import ConfigError, FolderError, RunError, refused, require, under
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.inputs import parameters_of
from a3c_exp.optimizers import check_param_groups
from a3c_exp.returns import NStep, NStepZero, Returns, Trajectory, example_trajectory
from a3c_exp.run.checkpoint import load_state
from a3c_exp.run.run_folder import best_checkpoint, environment_of

INIT_OR_SPEED_KEYS = ("init", "init_std", "policy_gain", "initial_std", "forget_bias", "precision")
"""Settings of a network that do not change what given parameters mean."""


def check_combination(experiment: Experiment) -> None:
    """Raise ConfigError for components that do not fit together. Makes no environment and no
    network."""
    envs = experiment.envs_per_worker
    if experiment.rollout_length == "episode" and envs > 1:
        raise ConfigError("envs_per_worker", envs, "must be 1 where rollout_length=episode")

    state = experiment.optimizer_state
    if experiment.update == "sync" and state != "shared":
        problem = "must be 'shared' where update=sync: a round is one step for all"
        raise ConfigError("optimizer_state", state, problem)

    is_lock_free = experiment.update == "async" and not experiment.lock
    if experiment.count_overlaps and not is_lock_free:
        problem = "must be false with a lock or update=sync: no updates overlap"
        raise ConfigError("count_overlaps", True, problem)

    if experiment.record is not None:
        _check_record(experiment)
    critic_returns = experiment.critic_returns
    estimators = {"returns": experiment.returns}
    if critic_returns is not None:
        estimators["critic_returns"] = critic_returns

    _check_memory(experiment, estimators)
    if experiment.optimizer.needs_pulled:
        _check_pulled(experiment)

    quorum = experiment.quorum
    if quorum != "all":
        is_sync = experiment.update == "sync"
        require(is_sync, "quorum", quorum, "all without update=sync: there are no rounds")
        most = experiment.worker_count
        require(quorum <= most, "quorum", quorum, f"at most the number of workers, which is {most}")

    for key, returns in estimators.items():
        check_returns(key, returns)

    _check_fresh_gradients(experiment)
    _check_behaviour(experiment, estimators)
    if isinstance(experiment.algorithm, MinibatchAlgorithm):
        _check_reuse(experiment, experiment.algorithm, estimators)

    if isinstance(experiment.algorithm, NStepQ):
        _check_action_values(experiment, experiment.algorithm)

    if critic_returns is not None and critic_returns.off_policy:
        allowed = "one that fits `returns`, which must correct for lag as well (vtrace)"
        fits = experiment.returns.off_policy
        require(fits, "critic_returns", type(critic_returns).__name__, allowed)


def _check_record(experiment: Experiment) -> None:
    """Raise ConfigError for a run whose order would not be all that it depends on."""
    backend = experiment.backend
    reasons = {
        f"backend={type(backend).__name__.lower()}": (
            not backend.has_order,
            "its workers do not pull and push one after the other",
        ),
        "update=sync": (experiment.update == "sync", "a round is of several workers"),
        "lock=false": (
            not experiment.lock,
            "an update that others see half done is not repeatable",
        ),
    }
    for setting, (applies, reason) in reasons.items():
        require(not applies, "record", experiment.record, f"null with {setting}: {reason}")


def _check_memory(experiment: Experiment, estimators: Mapping[str, Returns]) -> None:
    """Raise ConfigError for a memory that does not fit the other components. estimators: by their
    keys."""
    memory = experiment.memory
    if memory is None:
        name = type(experiment.algorithm).__name__
        allowed = f"transitions with {name}, which learns from nothing else"
        require(experiment.algorithm.learns_fresh, "memory", None, allowed)
        return
    algorithm = experiment.algorithm
    name = type(algorithm).__name__
    reasons = {
        f"algorithm={name}": (
            isinstance(algorithm, MinibatchAlgorithm) or algorithm.value_of_action,
            "it learns from the policy that acted last",
        ),
        f"backend={type(experiment.backend).__name__.lower()}": (
            experiment.backend.joins_rollouts,
            "its workers do not learn",
        ),
    }
    for setting, (applies, reason) in reasons.items():
        require(not applies, "memory", memory.sample, f"null with {setting}: {reason}")

    learns = algorithm.learns_fresh or memory.ratio > 0
    allowed = f"above 0 with {name}, which learns from nothing else"
    require(learns, "memory.ratio", memory.ratio, allowed)

    capacity = memory.capacity
    if experiment.rollout_length != "episode":
        rollouts = experiment.rollout_length * experiment.envs_per_worker * experiment.worker_count
        allowed = f"at least {rollouts:,}, a rollout of each worker"
        require(capacity >= rollouts, "memory.capacity", capacity, allowed)
    allowed = f"at most memory.capacity={capacity:,}"
    require(memory.min_size <= capacity, "memory.min_size", memory.min_size, allowed)
    is_recorded = memory.save and experiment.record is not None
    allowed = "false with record=order, which has no memories of earlier sessions"
    require(not is_recorded, "memory.save", memory.save, allowed)

    draws_values = memory.sample == "transitions" and algorithm.target_every is not None
    allowed = "0, but for transitions of an algorithm that learns action values"
    require(draws_values or not memory.priority, "memory.priority", memory.priority, allowed)

    if memory.sample == "transitions":
        _check_transitions(experiment, estimators)


def _check_transitions(experiment: Experiment, estimators: Mapping[str, Returns]) -> None:
    """Raise ConfigError for estimators that need more rows than a memory draws of a transition."""
    allowed = "another one with memory=transitions: their rewards end before a bootstrap"
    for key, returns in estimators.items():
        require(not isinstance(returns, NStepZero), key, type(returns).__name__, allowed)

    steps = getattr(experiment.returns, "n", 1)
    require(steps is not None, "returns.n", steps, "a whole number with memory=transitions")
    n = getattr(experiment.critic_returns, "n", steps)
    allowed = f"{steps} with memory=transitions, the number of steps of `returns`"
    require(n == steps, "critic_returns.n", n, allowed)


def _check_memory_size(memory: Memory, built: Built, has_behaviour: bool) -> None:
    """Raise ConfigError for a memory that is larger than the machine's, or that has no sequences
    for a recurrent network."""
    allowed = "sequences with a recurrent network"
    is_usable = memory.sample == "sequences" or not built.network.recurrent
    require(is_usable, "memory.sample", memory.sample, allowed)

    size = memory.nbytes(built.observation_space, built.network, has_behaviour)
    available = machine_bytes()
    allowed = f"smaller: it takes {size:,} bytes, and this machine has {available:,}"
    require(size < available, "memory.capacity", memory.capacity, allowed)


def _check_pulled(experiment: Experiment) -> None:
    """Raise ConfigError for an optimizer that needs the pulled parameters where no push has
    them."""
    has_pulled = experiment.backend.pushes_pulled and experiment.update == "async"
    name = type(experiment.optimizer).__name__
    allowed = "one that does without the pulled parameters on ga3c, on ray and with update=sync"
    require(has_pulled, "optimizer", name, allowed)


def _check_fresh_gradients(experiment: Experiment) -> None:
    """Raise ConfigError for gradients of a second pull with an algorithm that cannot use it."""
    algorithm = experiment.algorithm
    reasons = {
        MinibatchAlgorithm: "which pulls for each minibatch",
        NStepQ: "whose targets are values of the target network",
    }
    for kind, reason in reasons.items():
        fits = not (experiment.fresh_gradients and isinstance(algorithm, kind))
        allowed = f"false with {type(algorithm).__name__}, {reason}"
        require(fits, "fresh_gradients", True, allowed)


def check_returns(key: str, returns: Returns) -> None:
    """Raise ConfigError for an estimator that fails for a small trajectory, or returns what cannot
    be used.

    key: of the estimator.
    """
    name = type(returns).__name__
    trajectory = example_trajectory(returns)
    # Without off_policy there are no target_log_probs.
    trial = f"it fails for a small trajectory, with off_policy = {returns.off_policy}"
    with refused(key, name, trial):
        answer: Any = returns(trajectory, 0.9)

    pair = answer if isinstance(answer, tuple) else (answer,)
    forms = [
        f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        for array in pair
    ]
    shape = trajectory.rewards.shape
    if forms != [f"float32 {shape}"] * 2:
        problem = f"must return (advantages, targets), each float32 [T, B], here {shape}, not"
        raise ConfigError(key, name, f"{problem} {' and '.join(forms)}")

    if not all(np.isfinite(array).all() for array in pair):
        raise ConfigError(key, name, "returns numbers that are not finite for a small trajectory")

    before = example_trajectory(returns)
    for field in fields(Trajectory):
        if not np.array_equal(getattr(trajectory, field.name), getattr(before, field.name)):
            problem = f"writes into the trajectory's {field.name}, which others read"
            raise ConfigError(key, name, problem)


def _check_reuse(
    experiment: Experiment, algorithm: MinibatchAlgorithm, estimators: Mapping[str, Returns]
) -> None:
    """Raise ConfigError for settings that do not fit several passes over a rollout. estimators: by
    their keys."""
    name = type(algorithm).__name__
    # Before the first update pi / mu would differ from 1 by the share of uniform actions. Good
    # actions would be beyond the clip range, where they teach nothing, and the divergence would be
    # beyond any target.
    allowed = (
        f"0 with {name}, which stays close to the policy that acted: "
        "algorithm.entropy_coefficient explores"
    )
    require(experiment.epsilon == 0, "epsilon", experiment.epsilon, allowed)
    for key, returns in estimators.items():
        allowed = f"one that leaves it to {name} to weigh old actions: gae, for one"
        require(not returns.off_policy, key, type(returns).__name__, allowed)


def _check_behaviour(experiment: Experiment, estimators: Mapping[str, Returns]) -> None:
    """Raise ConfigError for settings that do not fit an average policy or the parameters of those
    that acted, and for returns that need action values without any. estimators: by their
    keys."""
    algorithm = experiment.algorithm
    name = type(algorithm).__name__
    is_averaged = algorithm.target_decay is not None
    for key, returns in estimators.items():
        allowed = "another one: only acer has its values"
        if is_averaged:
            allowed = f"retrace with {name} (experiment=acer sets all settings)"
        fits = returns.needs_action_values == is_averaged
        require(fits, key, type(returns).__name__, allowed)

    if algorithm.needs_behaviour:
        allowed = f"0 with {name}: algorithm.entropy_coefficient explores"
        require(experiment.epsilon == 0, "epsilon", experiment.epsilon, allowed)
        allowed = f"another one with {name}: it does not keep the distributions that acted"
        backend = type(experiment.backend).__name__
        require(not experiment.backend.joins_rollouts, "backend", backend, allowed)


def _check_action_values(experiment: Experiment, algorithm: NStepQ) -> None:
    """Raise ConfigError for settings with which an algorithm would learn other action values than
    its own."""
    returns = experiment.returns
    name = type(algorithm).__name__
    preset = "n_step_q" if algorithm.learns_fresh else "dqn"
    if not isinstance(returns, NStep):
        problem = (
            f"must be n_step with {name}, which has targets of its own "
            f"(experiment={preset} sets all settings)"
        )
        raise ConfigError("returns", type(returns).__name__, problem)

    critic = experiment.critic_returns
    require(critic is None, "critic_returns", type(critic).__name__, "null")
    if algorithm.one_step:
        require(returns.n == 1, "returns.n", returns.n, f"1 with {name}")

    allowed = f"above 0 with {name}: nothing else explores (experiment={preset} has a schedule)"
    require(experiment.epsilon != 0, "epsilon", experiment.epsilon, allowed)


def check_environment_and_network(
    experiment: Experiment, *, to_train: bool = True, draw: bool = False
) -> Built:
    """Make one environment and one network, and return the network.

    to_train: take a step of the environment too.
    draw: give the network the parameters that the run's seed draws.
    Raises ConfigError if they cannot be made, if the
    step fails, or if they do not fit one another, the loss or `epsilon`.
    """
    algorithm = experiment.algorithm
    with opened(experiment.env, experiment.plugins) as env:
        discrete = isinstance(env.action_space, Discrete)
        where = f"where actions are not Discrete: they are {env.action_space}"
        if not discrete and algorithm.has_target:
            problem = f"must be one with a policy (a3c, ppo) {where}"
            raise ConfigError("algorithm", type(algorithm).__name__, problem)

        if not discrete and experiment.epsilon != 0:
            raise ConfigError("epsilon", experiment.epsilon, f"must be 0 {where}")

        if experiment.eval.env:
            _check_eval_env(env, experiment)

        with one_thread():  # for a few observations the start of more threads takes longest
            network = experiment.build_network(env, experiment.parameter_rng() if draw else None)
            tried = network
            if network.constants():  # a forward pass may change a buffer: another network is tried
                tried = experiment.build_network(env, None)
                differing = tried.differing_constants(network.constants())
                allowed = "constants that are the same each time: draw them with torch"
                require(not differing, "network", differing, allowed)

            if to_train:  # with a mask of actions that fits them
                _take_a_step(env, experiment.env)

            space = env.observation_space
            space = experiment.normalized(space).network_space(space)
            verify(tried, space)
            check_loss(algorithm, tried, space, experiment.kernels)

    return Built(network, env.observation_space)


def _check_eval_env(env: EnvBatch, experiment: Experiment) -> None:
    """Raise ConfigError unless evaluations have the observations and actions of training."""
    with opened(experiment.eval_env, experiment.plugins, "eval.env") as other:
        spaces = other.observation_space, other.action_space
    if (env.observation_space, env.action_space) != spaces:
        problem = f"must leave observations and actions as they are: {spaces[0]}, {spaces[1]}"
        raise ConfigError("eval.env", dict(experiment.eval.env), problem)


def _take_a_step(batch: EnvBatch, env: Environment) -> None:
    """Raise ConfigError for an environment whose first observation or first step is of no use."""
    batch.action_space.seed(0)
    try:
        [observation] = batch.reset()
        action = sample_action(batch.action_space, batch.observation_space, observation)
        batch.step(np.stack([action]))
    except RunError as error:
        raise ConfigError("env", type(env).__name__, str(error).splitlines()[0]) from error


def check_fit(experiment: Experiment, built: Built) -> None:
    """Raise ConfigError for settings of the algorithm, the optimizer and the memory that do not fit
    a network."""
    network = built.network
    if experiment.memory is not None:
        _check_memory_size(experiment.memory, built, experiment.algorithm.needs_behaviour)

    algorithm = experiment.algorithm
    length = experiment.rollout_length
    if isinstance(algorithm, MinibatchAlgorithm) and length != "episode":
        count = 0 if experiment.backend.joins_rollouts else experiment.envs_per_worker
        with under("algorithm"):
            if network.recurrent:  # minibatches are of whole sequences
                algorithm.check_rollout(count, length)
            else:
                algorithm.check_rollout(count * length, 1)

    with under("optimizer"):
        check_param_groups(experiment.optimizer, network.param_slices.keys() - {"target"})


def check_init_from(
    folder: str, final: Mapping[str, Any], network: ActorCritic, module_class: type[nn.Module]
) -> None:
    """Raise FolderError unless the parameters of the run in `folder` have the same meaning here.

    They do for the same network and the same normalization of observations. final: the
    configuration here. module_class: of the network, whose defaults a configuration may leave out.
    """
    config = read_config(folder)
    parameters_by_name = parameters_of(module_class)
    defaults = {name: parameter.default for name, parameter in parameters_by_name.items()}
    plain = json.loads(json.dumps(defaults, default=repr))  # a default may be any object
    theirs = comparable({**config, "network": {**plain, **config["network"]}})
    ours = comparable({**final, "network": {**plain, **final["network"]}})
    state = load_state(best_checkpoint(Path(folder)))
    parameters = state["store"]["parameters"]
    stats = state["store"]["stats"]
    keys = [
        key
        for key in sorted(theirs.keys() & ours.keys())
        if theirs[key] != ours[key] and key.startswith("network.")
    ]
    if parameters.shape != network.vector.shape:
        sizes = f"{parameters.size} parameters, for {environment_of(config)}"
        problem = f"must be a run of the same network: it has {sizes}, not {network.vector.size}"
        raise FolderError(folder, problem)

    for key in keys:
        if key.rpartition(".")[2] not in INIT_OR_SPEED_KEYS:
            problem = f"it has {key}={theirs[key]}, not {ours[key]}"
            raise FolderError(folder, f"must be a run of the same network: {problem}")

    network.check_constants(state["store"], folder)
    wanted = ours.get(NORMALIZATION) or False
    measured = wanted is True or wanted == "shared"
    if (theirs.get(NORMALIZATION) or False) != wanted or has_observations(stats) != measured:
        problem = f"must be a run with {NORMALIZATION}={str(wanted).lower()}, as this one has"
        raise FolderError(folder, problem)
