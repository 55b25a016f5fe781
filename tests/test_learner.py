"""From a rollout to a gradient: V-trace with a policy that is not the one that acted, and gradients
that diverge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from gymnasium.spaces import Box
from nets import with_runtime
from runs import SCRIPTED, config
from scripted import vector
from workers import next_event

from a3c_exp.algorithms import A3C, PPO
from a3c_exp.common.arrays import Array
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.acting import ActingPolicy
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Experiment, store_spec
from a3c_exp.core.heartbeat import Heartbeat
from a3c_exp.core.rollout import Actor, Rollout
from a3c_exp.core.store import SharedStore, Snapshot
from a3c_exp.core.worker import PARAMETERS_EVERY, Learner
from a3c_exp.engine.losses import LOSSES
from a3c_exp.envs import EnvBatch, Gym, VectorEnvBatch
from a3c_exp.networks import ActorCritic, EncoderNetwork, Lstm, Mlp, ModuleSpec, Network
from a3c_exp.returns import GAE, Trajectory, VTrace

GAMMA = 0.9
LENGTH = 12
ENVS = 3
START = Snapshot(version=0, steps=0, normalizer=None)
ENDS: dict[str, Any] = {"lengths": (4, 3, 5, 2), "ends": ("terminated", "truncated")}
ENVIRONMENTS: dict[str, Callable[[], EnvBatch]] = {
    "one by one": lambda: Gym(id=SCRIPTED, kwargs=ENDS).make(ENVS, range(ENVS)),
    "with reset rows": lambda: VectorEnvBatch(vector(ENVS, **ENDS), range(ENVS)),
}
ENCODER = EncoderNetwork(encoder=ModuleSpec(Mlp, {"hidden_sizes": (8,)}), init="orthogonal")
NETWORKS: dict[str, Network] = {"mlp": ENCODER, "lstm": Lstm(encoder=ENCODER, hidden_size=4)}


def lagging(
    env: Callable[[], EnvBatch], kind: Network, epsilon: float
) -> tuple[Rollout, ActorCritic]:
    """A rollout, and the network that acted, its parameters far from what they were."""
    batch = env()
    network = with_runtime(
        kind.build(batch.observation_space, batch.action_space, np.random.default_rng(0))
    )
    policy = ActingPolicy(network, np.random.default_rng(1), epsilon)
    small = Gym(id=SCRIPTED, reward_scale=0.01)
    actor = Actor(batch, policy, small, rollout_length=LENGTH, gamma=GAMMA)
    actor.collect(START)  # so that the next one begins within episodes
    rollout = actor.collect(START)
    network.vector += (
        np.random.default_rng(2).normal(0, 1.0, network.vector.size).astype(np.float32)
    )
    return rollout, network


def make_learner(
    experiment: Experiment, network: ActorCritic, rollout: Rollout
) -> tuple[Learner, SharedStore]:
    """A learner with a store whose parameters are those of the network."""
    store = SharedStore(
        store_spec(experiment, network, Box(-np.inf, np.inf, rollout.observations.shape[2:]))
    )
    store.initialize(network.vector)
    return Learner(
        experiment, network, 0, store, np.random.default_rng(0), "worker 0", Heartbeat()
    ), store


def experiment_of(algorithm: str = "A3C") -> Experiment:
    """A3C, or PPO with whole rollouts in one epoch."""
    settings = {"minibatch_size": None, "epochs": 1} if algorithm == "PPO" else {}
    run_config = config(
        SCRIPTED, algorithm={"_target_": f"a3c_exp.algorithms.{algorithm}", **settings}
    )
    return replace(load_experiment(run_config), gamma=GAMMA)


def learn(experiment: Experiment, network: ActorCritic, rollout: Rollout) -> Event:
    """Learn once from a rollout."""
    learner, _ = make_learner(experiment, network, rollout)
    return next_event(learner.learn(rollout, START))


def evaluate_by_acting(rollout: Rollout, network: ActorCritic) -> tuple[Array, Array]:
    """V(s_t) and log pi(a_t | s_t) of a network, [T, B], by acting step by step with the rollout's
    own actions."""
    values, log_probs = np.empty((2, LENGTH, ENVS))
    state = rollout.state
    for t in range(LENGTH):
        logits, values[t], state = network.act_forward(rollout.observations[t], state)
        every = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        log_probs[t] = np.take_along_axis(every, rollout.actions[t].reshape(-1, 1), 1)[:, 0]
        if state is not None:
            state = state.copy()
            state[rollout.terminated[t] | rollout.truncated[t] | ~rollout.valid[t]] = 0
    return values, log_probs


def corrected(rollout: Rollout, network: ActorCritic) -> Trajectory:
    """What V-trace is of: values and log-probabilities of the learner's network, but where the
    actor alone has valued a state, after a time limit and after the last row."""
    values, log_probs = evaluate_by_acting(rollout, network)
    following = np.concatenate([values[1:], rollout.next_values[-1:]])
    by_actor = np.where(rollout.truncated, rollout.next_values, following)
    return Trajectory(
        rewards=rollout.rewards,
        values=values.astype(np.float32),
        next_values=np.where(rollout.terminated, 0, by_actor).astype(np.float32),
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        log_probs=rollout.log_probs,
        target_log_probs=log_probs.astype(np.float32),
    )


@pytest.mark.parametrize("env", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
@pytest.mark.parametrize("kind", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize(
    ("epsilon", "vtrace"),
    [(0.0, VTrace()), (0.3, VTrace(lambda_=0.8, rho_clip=1.4, c_clip=0.9))],
    ids=str,
)
def test_v_trace_has_the_learners_own_values_and_ratios(
    env: Callable[[], EnvBatch], kind: Network, epsilon: float, vtrace: VTrace
) -> None:
    rollout, network = lagging(env, kind, epsilon)
    with mock.patch.dict(LOSSES, {A3C: mock.Mock(side_effect=LOSSES[A3C])}):
        event = learn(replace(experiment_of(), returns=vtrace), network, rollout)
        batch = LOSSES[A3C].call_args.args[2]  # type: ignore[attr-defined]
    assert (event.steps, event.updates) == (rollout.transitions, 1)

    trajectory = corrected(rollout, network)
    advantages, targets = vtrace(trajectory, GAMMA)
    valid = rollout.valid
    np.testing.assert_allclose(batch.advantages[valid], advantages[valid], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(batch.targets[valid], targets[valid], rtol=1e-4, atol=1e-4)

    # The rollout has what matters: ends of both kinds inside, ratios on both sides of the bounds,
    # and other values than when it was collected.
    assert rollout.terminated[:-1].any() and rollout.truncated[:-1].any()
    assert trajectory.target_log_probs is not None
    ratios = np.exp(trajectory.target_log_probs - rollout.log_probs)[valid]
    assert ratios.min() < 0.8 and ratios.max() > 1.1
    assert np.abs(trajectory.values - rollout.values)[valid].max() > 0.1


def test_fresh_gradients_have_the_learners_own_values_and_nothing_is_corrected() -> None:
    rollout, network = lagging(ENVIRONMENTS["one by one"], NETWORKS["mlp"], 0.0)
    with mock.patch.dict(LOSSES, {A3C: mock.Mock(side_effect=LOSSES[A3C])}):
        experiment = replace(experiment_of(), returns=GAE(lambda_=0.9), fresh_gradients=True)
        learn(experiment, network, rollout)
        batch = LOSSES[A3C].call_args.args[2]  # type: ignore[attr-defined]
    advantages, targets = GAE(lambda_=0.9)(corrected(rollout, network), GAMMA)
    valid = rollout.valid
    np.testing.assert_allclose(batch.advantages[valid], advantages[valid], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(batch.targets[valid], targets[valid], rtol=1e-4, atol=1e-4)
    by_actor, _ = GAE(lambda_=0.9)(rollout, GAMMA)
    assert np.abs(by_actor - advantages)[valid].max() > 0.1


@pytest.mark.parametrize("name", ["A3C", "PPO"])
def test_a_network_that_has_diverged_has_a_gradient_that_is_rejected_without_warnings(
    name: str,
) -> None:
    rollout, network = lagging(ENVIRONMENTS["one by one"], NETWORKS["lstm"], 0.0)
    network.vector *= 1e30
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        event = learn(experiment_of(name), network, rollout)
    assert (event.counts.get("rejected", 0), event.updates, event.metrics) == (1, 0, {})
    assert not np.isfinite(network.gradient).all()


@pytest.mark.parametrize("name", ["A3C", "PPO"])
def test_a_gradient_has_nothing_of_the_one_before(name: str) -> None:
    rollout, network = lagging(ENVIRONMENTS["one by one"], ENCODER, 0.0)
    algorithm = {"A3C": A3C(), "PPO": PPO(minibatch_size=None, epochs=2)}[name]
    experiment = replace(experiment_of(), algorithm=algorithm)
    learner, store = make_learner(experiment, network, rollout)
    store.set_multipliers(learning_rate=0.0)  # PPO's second pull brings the same parameters

    gradients = [
        network.gradient.copy()
        for _ in range(2)
        for output in learner.learn(rollout, START)
        if isinstance(output, Event)
    ]
    assert len(gradients) == {"A3C": 2, "PPO": 4}[name] and gradients[0].any()
    for gradient in gradients[1:]:
        np.testing.assert_allclose(gradient, gradients[0], rtol=1e-4, atol=1e-7)


class TestCurvesOfTheCriticAndTheParameters:
    @pytest.mark.parametrize("name", ["A3C", "PPO"])
    def test_are_of_the_transitions_and_of_the_pull(self, name: str) -> None:
        rollout, network = lagging(ENVIRONMENTS["with reset rows"], NETWORKS["lstm"], 0.0)
        rollout.values[~rollout.valid] = 1e6  # of rows that are none
        before = network.vector.astype(np.float64)
        event = learn(experiment_of(name), network, rollout)
        expected = [rollout.values[t, b] for t, b in np.argwhere(rollout.valid)]
        assert len(expected) == rollout.transitions
        assert event.metrics["mean_value"].mean == pytest.approx(
            sum(map(float, expected)) / len(expected), rel=1e-4
        )
        assert event.metrics["parameter_norm"].mean == pytest.approx(
            np.sqrt((before**2).sum()), rel=1e-5
        )

    def test_have_the_norm_of_the_parameters_at_one_push_of_so_many(self) -> None:
        rollout, network = lagging(ENVIRONMENTS["one by one"], NETWORKS["mlp"], 0.0)
        learner, _ = make_learner(experiment_of(), network, rollout)
        events = [next_event(learner.learn(rollout, START)) for _ in range(2 * PARAMETERS_EVERY)]
        measured = [
            number for number, event in enumerate(events) if "parameter_norm" in event.metrics
        ]
        assert measured == [0, PARAMETERS_EVERY]
        assert all("grad_norm" in event.metrics for event in events)


@pytest.mark.parametrize("algorithm", ["A3C", "PPO"])
def test_a_loss_has_the_entropys_multiplier_and_the_curve_the_learning_rates(
    algorithm: str,
) -> None:
    """As a coefficient of that size would have it. PPO pulls for each minibatch."""
    pushed = []
    for coefficient, multiplier in ((0.02, 3.0), (0.06, 1.0), (0.02, 1.0)):
        rollout, network = lagging(ENVIRONMENTS["one by one"], NETWORKS["mlp"], 0.0)
        experiment = experiment_of(algorithm)
        loss: Any = experiment.algorithm
        experiment = replace(experiment, algorithm=replace(loss, entropy_coefficient=coefficient))
        learner, store = make_learner(experiment, network, rollout)
        store.set_multipliers(learning_rate=0.5, entropy=multiplier)
        event = next_event(learner.learn(rollout, learner.pull()))
        assert event.metrics["learning_rate"].mean == 0.5 * experiment.optimizer.learning_rate
        pushed.append(network.gradient.copy())
    np.testing.assert_allclose(pushed[0], pushed[1], atol=1e-6)
    assert not np.allclose(pushed[0], pushed[2], atol=1e-4)
