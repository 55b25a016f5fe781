"""From a rollout to what a loss is given: V-trace where the policy that learns is not the one that acted any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from runs import SCRIPTED, config
from scripted import vector

from a3c_exp.algorithms import A3C, Batch, Evaluation
from a3c_exp.config.builder import load_experiment
from a3c_exp.envs import EnvBatch, Gym, VectorEnvBatch
from a3c_exp.core.learner import Learner
from a3c_exp.networks import ActorCritic, Lstm, Mlp
from a3c_exp.returns import VTrace
from a3c_exp.core.rollout import Collector, LocalActor, RewardTransform, Rollout

GAMMA, LENGTH, ENVS = 0.9, 12, 3
ENDS: dict[str, Any] = {"lengths": (4, 3, 5, 2), "ends": ("terminated", "truncated")}
ENVIRONMENTS: dict[str, Callable[[], EnvBatch]] = {
    "one by one": lambda: Gym(id=SCRIPTED, kwargs=ENDS).make(ENVS, range(ENVS)),
    "with reset rows": lambda: VectorEnvBatch(vector(ENVS, **ENDS), range(ENVS)),
}
NETWORKS = {"mlp": Mlp(sizes=(8,)), "lstm": Lstm(encoder=Mlp(sizes=(8,)), cells=4)}


class Noting(A3C):
    """The loss, and what it was given."""

    given: list[Batch]

    def gradient(self, evaluation: Evaluation, batch: Batch, progress: float) -> tuple[Evaluation, dict[str, float]]:
        self.given.append(batch)
        return super().gradient(evaluation, batch, progress)


def lagging(env: Callable[[], EnvBatch], kind: Any, epsilon: float) -> tuple[Rollout, ActorCritic]:
    """A rollout, and the network that acted, far from what it was."""
    batch = env()
    network = kind.build(batch.observation_space, batch.action_space, np.random.default_rng(0))
    actor = LocalActor(network, np.random.default_rng(1))
    actor.epsilon = epsilon
    shaping = RewardTransform(scale=0.01)
    collector = Collector(batch, LENGTH, shaping, GAMMA, network.initial_state(ENVS))
    collector.collect(actor, 0, 0, None)  # so that the next one begins within episodes
    rollout = collector.collect(actor, 0, 0, None)
    network.vector += np.random.default_rng(2).normal(0, 1.0, network.vector.size).astype(np.float32)
    return rollout, network


def seen_again(rollout: Rollout, network: ActorCritic) -> tuple[np.ndarray, np.ndarray]:
    """V(s_t) and log pi(a_t | s_t) of a network, [T, B], by acting step by step with the rollout's own actions."""
    values, log_probs = np.empty((2, LENGTH, ENVS))
    state = rollout.state
    for t in range(LENGTH):
        logits, values[t], state = network.infer(rollout.observations[t], state)
        every = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        log_probs[t] = np.take_along_axis(every, rollout.actions[t].reshape(-1, 1), 1)[:, 0]
        if state is not None:
            state = state.copy()
            state[rollout.terminated[t] | rollout.truncated[t] | ~rollout.valid[t]] = 0
    return values, log_probs


def by_definition(rollout: Rollout, network: ActorCritic, vtrace: VTrace) -> tuple[np.ndarray, np.ndarray]:
    """Espeholt et al. 2018, equation 1 and section 4.2, a sum for each row: advantages and targets, [T, B]."""
    values, log_probs = seen_again(rollout, network)
    ratios = np.exp(log_probs - rollout.log_probs)
    rho, c = np.minimum(ratios, vtrace.rho_clip), vtrace.lambda_ * np.minimum(ratios, vtrace.c_clip)
    ended = rollout.terminated | rollout.truncated
    advantages, targets = np.empty((2, LENGTH, ENVS))
    for b in range(ENVS):

        def next_value(t: int, b: int = b) -> float:
            if rollout.terminated[t, b]:
                return 0.0
            told = rollout.truncated[t, b] or t == LENGTH - 1  # states that only the actor has valued
            return float(rollout.next_values[t, b] if told else values[t + 1, b])

        def target(t: int, b: int = b) -> float:
            total, weight = values[t, b], 1.0
            for k in range(t, LENGTH):
                total += weight * rho[k, b] * (rollout.rewards[k, b] + GAMMA * next_value(k, b) - values[k, b])
                weight *= GAMMA * c[k, b]
                if ended[k, b]:
                    break
            return float(total)

        for t in range(LENGTH):
            following, goes_on = next_value(t), not ended[t, b] and t < LENGTH - 1
            if goes_on:
                following += vtrace.lambda_ * (target(t + 1) - following)
            advantages[t, b] = rho[t, b] * (rollout.rewards[t, b] + GAMMA * following - values[t, b])
            targets[t, b] = target(t)
    return advantages, targets


@pytest.mark.parametrize("env", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
@pytest.mark.parametrize("kind", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("epsilon", [0.0, 0.3])
@pytest.mark.parametrize("vtrace", [VTrace(), VTrace(lambda_=0.8, rho_clip=1.4, c_clip=0.9)], ids=["paper", "lambda"])
def test_v_trace_is_given_the_learners_own_values_and_ratios(
    env: Callable[[], EnvBatch], kind: Any, epsilon: float, vtrace: VTrace
) -> None:
    rollout, network = lagging(env, kind, epsilon)
    algorithm = Noting()
    object.__setattr__(algorithm, "given", [])
    experiment = replace(load_experiment(config(SCRIPTED)), algorithm=algorithm, returns=vtrace, gamma=GAMMA)
    Learner(experiment, network).add_gradient(rollout, 0.0)
    (batch,) = algorithm.given

    advantages, targets = by_definition(rollout, network, vtrace)
    counts = rollout.valid
    np.testing.assert_allclose(batch.advantages[counts], advantages[counts], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(batch.targets[counts], targets[counts], rtol=1e-4, atol=1e-4)

    # The rollout is one that tells: ends of both kinds inside, ratios on both sides of the bounds, and a critic that
    # says something else than when it acted.
    assert rollout.terminated[:-1].any() and rollout.truncated[:-1].any()
    values, log_probs = seen_again(rollout, network)
    ratios = np.exp(log_probs - rollout.log_probs)[counts]
    assert ratios.min() < 0.8 and ratios.max() > 1.1
    assert np.abs(values - rollout.values)[counts].max() > 0.1


@pytest.mark.parametrize("kind", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("name", ["A3C", "PPO"])
def test_a_network_that_has_diverged_has_a_gradient_that_is_not_finite_and_no_more_is_said(
    kind: Any, name: str
) -> None:
    """Whoever was to push it refuses it, and tells."""
    rollout, network = lagging(ENVIRONMENTS["one by one"], kind, 0.0)
    algorithm = {"_target_": f"a3c_exp.algorithms.{name}"} | ({"minibatch_size": None} if name == "PPO" else {})
    learner = Learner(replace(load_experiment(config(SCRIPTED, algorithm=algorithm)), gamma=GAMMA), network)
    network.vector *= 1e30
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        if name == "PPO":
            learner.add_gradient_of(learner.samples(rollout)[0], 0.0)
        else:
            learner.add_gradient(rollout, 0.0)
    assert not np.isfinite(network.gradient).all()
