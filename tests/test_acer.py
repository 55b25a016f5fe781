"""ACER and Retrace against definitions of their own in double precision; the network with an
average, and its place in the shared vector."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from batches import make_batch
from gymnasium.spaces import Box, Discrete
from nets import by_torch, normal, with_runtime
from refusals import refused
from runs import BANDIT, CORRIDOR, SMALL_CNN, config, train, train_config
from stores import SIZE, make_store, ones, push
from workers import LSTM, by_descent, events_of

import a3c_exp
from a3c_exp.algorithms import ACER
from a3c_exp.common.arrays import Array, Floats
from a3c_exp.config.builder import load_experiment
from a3c_exp.config.modules import network_of
from a3c_exp.core.events import Event
from a3c_exp.core.rollout import Rollout
from a3c_exp.engine.arrays import BatchArrays, NetworkOutputs, OutputGradients
from a3c_exp.engine.losses import LOSSES, differentiate
from a3c_exp.networks import ActorCritic, Cnn, EncoderNetwork, Lstm, Mlp, ModuleSpec, Network
from a3c_exp.networks.distributions import FORBIDDEN, Categorical
from a3c_exp.networks.recurrent import RecurrentInput
from a3c_exp.returns import Retrace, Returns, Trajectory

ACTIONS = 4


def acer(**settings: Any) -> dict[str, Any]:
    """Settings of a run, for `config`."""
    return {
        "algorithm": {"_target_": "a3c_exp.algorithms.ACER"},
        "returns": {"_target_": "a3c_exp.returns.Retrace"},
        "memory": {"capacity": 500, "ratio": 2, "draw": "poisson"},
    } | settings


# -- Retrace
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_retrace_is_the_sum_of_its_definition(lambda_: float) -> None:
    """Q^ret_t = Q_t + sum_s gamma^(s - t) (c_{t+1} ... c_s) delta_s, to the end of the episode or
    the rollout."""
    rng = np.random.default_rng(0)
    shape = length, envs = 12, 5
    gamma = 0.9
    rewards, values, next_values, action_values = normal(4, *shape)
    log_probs, target_log_probs = -rng.exponential(1.0, (2, *shape)).astype(np.float32)
    terminated = rng.random(shape) < 0.15
    truncated = (rng.random(shape) < 0.15) & ~terminated
    next_values[terminated] = 0
    trajectory = Trajectory(
        rewards,
        values,
        next_values,
        terminated,
        truncated,
        log_probs,
        target_log_probs,
        action_values,
    )
    advantages, targets = Retrace(lambda_=lambda_)(trajectory, gamma)

    wide = [x.astype(np.float64) for x in (rewards, next_values, action_values)]
    weights = lambda_ * np.minimum(1, np.exp(target_log_probs.astype(np.float64) - log_probs))
    for env in range(envs):
        for t in range(length):
            expected = wide[2][t, env]
            factor = 1.0
            for s in range(t, length):
                delta = wide[0][s, env] + gamma * wide[1][s, env] - wide[2][s, env]
                expected += factor * delta
                if terminated[s, env] or truncated[s, env] or s == length - 1:
                    break
                factor *= gamma * weights[s + 1, env]
            assert targets[t, env] == pytest.approx(expected, rel=1e-5, abs=1e-5)
    np.testing.assert_allclose(advantages, targets - values, rtol=1e-5, atol=1e-6)


# -- the loss
# --------------------------------------------------------------------------------------------------


def sample(spread: float, shape: tuple[int, int] = (6, 5)) -> tuple[NetworkOutputs, BatchArrays]:
    """Outputs and a batch. spread: how far the three policies are from one another."""
    rng = np.random.default_rng(3)
    base = normal(*shape, ACTIONS, seed=1)
    logits, average, behaviour = (
        (base + spread * normal(*shape, ACTIONS, seed=seed)).astype(np.float32)
        for seed in (2, 3, 4)
    )
    action_values = normal(*shape, ACTIONS, seed=5)
    advantages, targets, nothing = 2 * normal(3, *shape, seed=6)
    batch = make_batch(nothing, nothing, advantages, targets, rng.random(shape) < 0.8)
    actions = rng.integers(0, ACTIONS, shape)
    outputs = NetworkOutputs(
        nothing, nothing, nothing, None, np.concatenate([logits, action_values, average], axis=-1)
    )
    return outputs, replace(batch, actions=actions, behaviour=behaviour)


def by_definition(algorithm: ACER, outputs: NetworkOutputs, batch: BatchArrays) -> Array:
    """The gradient by logits, action values and logits of the average policy, float64
    [T, B, 3 A], without that of the entropy: from the objective by probabilities, which torch
    differentiates, and the conditions of the trust region, which are checked."""
    assert (
        outputs.parameters is not None and batch.behaviour is not None and batch.valid is not None
    )
    expected = np.zeros(outputs.parameters.shape)
    count = batch.valid.sum()
    for t, b in np.argwhere(batch.valid):
        logits, q, average = torch.from_numpy(outputs.parameters[t, b]).double().chunk(3)
        mu = torch.from_numpy(batch.behaviour[t, b]).double().softmax(0)
        average = average.softmax(0)
        fixed = logits.softmax(0)
        p = fixed.clone().requires_grad_()
        rho = fixed / mu
        action = int(batch.actions[t, b])
        v = (fixed * q).sum()
        c = algorithm.truncation
        objective = (
            min(c, float(rho[action])) * float(batch.advantages[t, b]) * p[action].log()
            + (fixed * ((rho - c) / rho).clamp(min=0) * p.log() * (q - v)).sum()
        )
        [g] = torch.autograd.grad(objective, p)
        [k] = torch.autograd.grad((average * (average / p).log()).sum(), p)

        z = g
        if algorithm.trust_region is not None and k @ g > algorithm.trust_region:
            # the nearest point of the plane k . z = delta
            z = g - k * (k @ g - algorithm.trust_region) / (k @ k)
            assert float(k @ z) == pytest.approx(algorithm.trust_region)
        variable = logits.clone().requires_grad_()
        [by_logits] = torch.autograd.grad(-(z * variable.softmax(0)).sum(), variable)
        expected[t, b, :ACTIONS] = by_logits.numpy() / count
        error = float(q[action]) - float(batch.targets[t, b])
        expected[t, b, ACTIONS + action] = algorithm.value_coefficient * error / count
    return expected


@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"truncation": 0.7},
        {"trust_region": None},
        {"trust_region": 0.01, "truncation": 1.5},
        {"entropy_coefficient": 0.5, "value_coefficient": 2.0},
    ],
)
def test_the_gradient_is_that_of_the_paper(settings: dict[str, Any], spread: float) -> None:
    algorithm = ACER(**settings)
    outputs, batch = sample(spread)
    assert batch.valid is not None and isinstance(algorithm.entropy_coefficient, float)
    expected = by_definition(algorithm, outputs, batch)
    for gradient, _ in (
        differentiate(algorithm, None, outputs, batch, 0.5),
        LOSSES[ACER](algorithm, outputs, batch, 0.5),
    ):
        assert gradient.parameters is not None
        np.testing.assert_allclose(gradient.parameters, expected, rtol=1e-5, atol=1e-5)
        by_entropy = -algorithm.entropy_coefficient * batch.valid / batch.valid.sum()
        np.testing.assert_allclose(gradient.entropy, by_entropy, rtol=1e-5)
        assert not gradient.log_probs.any() and not gradient.values.any()


def test_some_rows_are_truncated_and_some_limited() -> None:
    """So that the test above is about all three terms."""
    outputs, batch = sample(2.0)
    _, metrics = LOSSES[ACER](ACER(truncation=1.5), outputs, batch, 0.5)
    assert 0.1 < metrics["limited"] < 0.9
    assert outputs.parameters is not None and batch.behaviour is not None
    logits = outputs.parameters[..., :ACTIONS]
    ratios = np.exp(logits - batch.behaviour)
    assert (ratios > 3).any() and (ratios < 0.3).any()


def test_where_all_policies_are_one_it_is_the_gradient_of_a3c() -> None:
    outputs, batch = sample(0.0)
    assert outputs.parameters is not None
    logits = torch.from_numpy(outputs.parameters[..., :ACTIONS]).requires_grad_()
    taken = torch.from_numpy(batch.actions)[..., None]
    log_probs = logits.log_softmax(-1).gather(-1, taken)[..., 0]
    assert batch.valid is not None
    weights = torch.from_numpy(np.where(batch.valid, batch.advantages, 0))
    loss = -(log_probs * weights).sum() / int(batch.valid.sum())
    [by_logits] = torch.autograd.grad(loss, logits)
    gradient, _ = LOSSES[ACER](
        ACER(trust_region=None, entropy_coefficient=0.0), outputs, batch, 0.5
    )
    assert gradient.parameters is not None
    np.testing.assert_allclose(
        gradient.parameters[..., :ACTIONS], by_logits.numpy(), rtol=1e-4, atol=1e-6
    )


def test_the_entropys_multiplier_is_a_factor_of_its_coefficient() -> None:
    gradients = []
    for coefficient, multiplier in ((0.02, 3.0), (0.06, 1.0), (0.02, 1.0)):
        settings = acer(algorithm__entropy_coefficient=coefficient)
        store, [worker] = by_descent(BANDIT, **settings)
        store.set_multipliers(entropy=multiplier)
        learner = worker._learner
        snapshot = learner.pull()
        next(learner.learn(worker._actor.collect(snapshot), snapshot))
        gradients.append(learner.network.gradient.copy())
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-5, atol=1e-7)
    assert not np.allclose(gradients[0], gradients[2], rtol=1e-5, atol=1e-7)


def test_an_action_that_a_mask_forbids_changes_nothing() -> None:
    outputs, batch = sample(0.5)
    assert outputs.parameters is not None and batch.behaviour is not None
    logits, action_values, average = np.split(outputs.parameters, 3, axis=-1)
    forbidden = np.full((*logits.shape[:2], 1), FORBIDDEN)
    wider = [np.concatenate([x, forbidden], axis=-1) for x in (logits, average, batch.behaviour)]
    values = np.concatenate([action_values, np.ones_like(forbidden)], axis=-1)
    masked = replace(outputs, parameters=np.concatenate([wider[0], values, wider[1]], axis=-1))
    with_mask = replace(batch, behaviour=wider[2])
    plain, _ = LOSSES[ACER](ACER(), outputs, batch, 0.5)
    for gradient, _ in (
        differentiate(ACER(), None, masked, with_mask, 0.5),
        LOSSES[ACER](ACER(), masked, with_mask, 0.5),
    ):
        assert gradient.parameters is not None and plain.parameters is not None
        by_logits, by_values, _ = np.split(gradient.parameters, 3, axis=-1)
        assert not by_logits[..., -1].any() and not by_values[..., -1].any()
        expected = plain.parameters[..., :ACTIONS]
        np.testing.assert_allclose(by_logits[..., :-1], expected, rtol=1e-4, atol=1e-6)


# -- an update from memory
# --------------------------------------------------------------------------------------------------

PLACES = 3
GAMMA = 0.9
TABLE = {"_target_": "a3c_exp.networks.Mlp", "hidden_sizes": []}
"""A layer on the places of a corridor: tables of logits and of action values."""


def tables(vector: Array) -> tuple[list[Array], Array]:
    """Logits and action values of each place and action, and the average policy's logits."""
    online, average = np.split(vector.astype(np.float64), 2)
    parts = [*np.split(online, 2), np.split(average, 2)[0]]
    logits, q, average_logits = (part[:-2].reshape(2, PLACES).T + part[-2:] for part in parts)
    return [logits, q], average_logits


def softmax(logits: Array) -> Array:
    """Probabilities [..., A]."""
    shares: Array = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return shares


def sequences_of(rollout: Rollout) -> list[dict[str, Any]]:
    """What a memory should know of each environment: places, actions, rewards, how rows ended, the
    places after them, and the probabilities with which it acted."""
    assert rollout.experience is not None and rollout.behaviour is not None
    following = rollout.experience.observations[1:].argmax(-1)
    finals = rollout.experience.final_observations
    for (time, env), final in zip(rollout.experience.finals.tolist(), finals, strict=True):
        following[time, env] = final.argmax()
    columns = {
        "place": rollout.observations.argmax(-1),
        "action": rollout.actions,
        "reward": rollout.rewards,
        "terminated": rollout.terminated,
        "truncated": rollout.truncated,
        "following": following,
        "mu": softmax(rollout.behaviour.astype(np.float64)),
    }
    return [
        {name: column[:, env] for name, column in columns.items()}
        for env in range(rollout.rewards.shape[1])
    ]


def update_by_definition(algorithm: ACER, vector: Array, sequences: list[dict[str, Any]]) -> Array:
    """The gradient of algorithm 2 over whole sequences, row by row."""
    (logits, q), average_logits = tables(vector)
    p = softmax(logits)
    average = softmax(average_logits)
    v = (p * q).sum(-1)
    by_logits, by_values = np.zeros((2, PLACES, 2))
    count = 0
    for sequence in sequences:
        length = len(sequence["reward"])
        q_ret = 0.0
        for t in reversed(range(length)):
            after = sequence["following"][t]
            is_last = sequence["truncated"][t] or t == length - 1
            if sequence["terminated"][t]:
                value = 0.0
            elif is_last:
                value = v[after]
            else:
                action = sequence["action"][t + 1]
                trace = min(1.0, p[after, action] / sequence["mu"][t + 1][action])
                value = v[after] + trace * (q_ret - q[after, action])
            q_ret = sequence["reward"][t] + GAMMA * value

            place, action = sequence["place"][t], sequence["action"][t]
            rho = p[place] / sequence["mu"][t]
            g = np.maximum(0, 1 - algorithm.truncation / rho) * (q[place] - v[place])
            weight = min(algorithm.truncation, rho[action])
            g[action] += weight * (q_ret - v[place]) / p[place, action]
            k = -average[place] / p[place]
            assert algorithm.trust_region is not None
            z = g - max(0, (k @ g - algorithm.trust_region) / (k @ k)) * k

            log_p = np.log(p[place])
            entropy = -(p[place] * log_p).sum()
            assert isinstance(algorithm.entropy_coefficient, float)
            by_logits[place] -= p[place] * (z - p[place] @ z)
            by_logits[place] += algorithm.entropy_coefficient * p[place] * (log_p + entropy)
            by_values[place, action] += algorithm.value_coefficient * (q[place, action] - q_ret)
            count += 1
    online = [np.concatenate([table.T.ravel(), table.sum(0)]) for table in (by_logits, by_values)]
    gradient: Array = np.concatenate([*online, np.zeros(len(vector) // 2)]) / count
    return gradient


@pytest.mark.parametrize("envs", [1, 3])
def test_an_update_from_memory_is_that_of_the_papers_algorithm(envs: int) -> None:
    """Over sequences in which episodes end both ways, and which other policies acted in."""
    rows = 12
    algorithm = {"truncation": 1.2, "trust_region": 0.5, "entropy_coefficient": 0.1}
    settings = acer(
        algorithm={"_target_": "a3c_exp.algorithms.ACER"} | algorithm,
        memory={"capacity": rows * envs, "ratio": 1, "batch_size": 100},
        network=TABLE,
    )
    store, [worker] = by_descent(
        CORRIDOR,
        envs_per_worker=envs,
        rollout_length=4,
        env__kwargs={"n": PLACES},
        env__max_episode_steps=5,
        **settings,
    )
    learner = worker._learner
    memory = learner.memory
    assert memory is not None
    rng = np.random.default_rng(5)
    size = len(learner.network.vector)
    kept: list[list[dict[str, Any]]] = []
    ends = np.zeros(2)
    for _ in range(40):
        store.initialize(rng.normal(0, 1, size).astype(np.float32))
        rollout = worker._actor.collect(learner.pull())
        memory.add(rollout)
        kept.append(sequences_of(rollout))
        while sum(len(sequences[0]["reward"]) for sequences in kept) > rows:
            del kept[0]
        ends += rollout.terminated.sum(), rollout.truncated.sum()

        vector = rng.normal(0, 1, size).astype(np.float32)
        store.initialize(vector)
        gradient = learner._memory_gradient(memory, Event(0), None).gradient
        assert gradient is not None
        everything = [sequence for sequences in kept for sequence in sequences]
        expected = update_by_definition(ACER(**algorithm), vector, everything)
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)
    assert ends.min() > 5


# -- the network
# --------------------------------------------------------------------------------------------------

ENCODER = EncoderNetwork(encoder=ModuleSpec(Mlp, {"hidden_sizes": (8,)}), init="orthogonal")
NETWORKS: dict[str, Network] = {
    "mlp": ENCODER,
    "shared": replace(ENCODER, shared=True),
    "lstm": Lstm(encoder=ENCODER, hidden_size=4),
    "cnn": network_of(Cnn, {"layers": ((4, 3, 1),), "features_dim": 8}),
}
VECTORS = Box(-1, 1, (4,), np.float32)
IMAGES = Box(0, 255, (8, 8, 3), np.uint8)


def build(name: str, actions: int = 3) -> ActorCritic:
    space = IMAGES if name == "cnn" else VECTORS
    rng = np.random.default_rng(1)
    return with_runtime(NETWORKS[name].build(space, Discrete(actions), rng, averaged=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_kernels_and_torch_compute_the_same(name: str) -> None:
    network, other = build(name), by_torch(build(name))
    other.vector[:] = network.vector[:] = 0.3 * normal(len(network.vector))
    rng = np.random.default_rng(2)
    observations: Array = normal(5, 2, 4)
    if name == "cnn":
        observations = rng.integers(0, 256, (5, 2, 8, 8, 3), np.uint8)
    actions = rng.integers(0, 3, (5, 2))
    state = network.initial_state(2)
    recurrent = None
    if state is not None:
        recurrent = RecurrentInput(normal(2, network.state_size), rng.random((5, 2)) < 0.3)
    weights = normal(5, 2, 9, seed=4)
    outputs = []
    for each in (network, other):
        result, add_gradient = each.runtime.evaluate(observations, actions, recurrent)
        logits, q, average = np.split(result.parameters.copy(), 3, axis=-1)
        p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        np.testing.assert_allclose(result.values, (p * q).sum(-1), rtol=1e-4, atol=1e-5)
        taken = np.take_along_axis(np.log(p), actions[..., None], -1)[..., 0]
        np.testing.assert_allclose(result.log_probs, taken, rtol=1e-4, atol=1e-5)
        assert not np.allclose(logits, average)

        nothing = np.zeros((5, 2), np.float32)
        each.zero_grad()
        add_gradient(OutputGradients(nothing, nothing, nothing, None, weights))
        assert not each.gradient[each.param_slices["target"]].any()
        assert each.gradient.any()
        acted = each.act_forward(observations[0], None if recurrent is None else recurrent.state)
        np.testing.assert_allclose(acted[0], logits[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(acted[1], result.values[0], rtol=1e-4, atol=1e-5)
        outputs.append((logits, q, average, each.gradient.copy()))
    for one, two in zip(*outputs, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_average_begins_as_a_copy(name: str) -> None:
    network = build(name)
    online, target = (network.vector[network.param_slices[part]] for part in ("online", "target"))
    np.testing.assert_array_equal(online, target)
    assert online.any() and isinstance(network.distribution, Categorical)


@pytest.mark.parametrize("settings", [{}, {"lock": True}, {"update": "sync", "workers": 1}])
def test_the_average_moves_a_little_with_each_update(settings: dict[str, Any]) -> None:
    groups = {"online": slice(0, 3), "target": slice(3, 6)}
    store = make_store(param_slices=groups, target_decay=0.9, **settings)
    store.initialize(ones(2.0))
    online = average = 2.0
    for _ in range(5):
        assert push(store, 0, ones(), steps=4).done()
        online -= 1.0
        average = 0.9 * average + 0.1 * online
        parameters: Floats = np.empty(SIZE, np.float32)
        store.pull(0, parameters)
        np.testing.assert_allclose(parameters, [online] * 3 + [average] * 3, rtol=1e-5)


# -- runs
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_a_rollout_has_the_distributions_that_acted(network: str) -> None:
    settings = acer(**({"network": LSTM} if network == "lstm" else {}))
    _, [worker] = by_descent(CORRIDOR, **settings)
    rollout = worker._actor.collect(worker._learner.pull())
    assert rollout.behaviour is not None
    log_p = rollout.behaviour - np.log(np.exp(rollout.behaviour).sum(-1, keepdims=True))
    taken = np.take_along_axis(log_p, rollout.actions[..., None], -1)[..., 0]
    np.testing.assert_allclose(taken, rollout.log_probs, rtol=1e-5, atol=1e-6)
    memory = worker._learner.memory
    assert memory is not None
    memory.add(rollout)
    drawn, _ = memory.draw(np.random.default_rng(0), None)
    np.testing.assert_array_equal(drawn.behaviour, rollout.behaviour)


def test_it_learns_with_and_without_a_memory() -> None:
    for memory in (acer()["memory"], None):
        settings = acer(memory=memory, total_steps=6000)
        _, [worker] = by_descent(
            BANDIT,
            optimizer={"_target_": "a3c_exp.optimizers.Adam", "learning_rate": 0.01},
            **settings,
        )
        returns = np.concatenate([event.episodes.returns for event in events_of(worker)])
        assert returns[-500:].mean() > 0.8 > returns[:200].mean()


def test_images_and_cells_run() -> None:
    for settings in ({"env": "scripted:Corners-v0", "network": SMALL_CNN}, {"network": LSTM}):
        _, [worker] = by_descent(**acer(**settings), total_steps=48)
        assert sum(event.updates for event in events_of(worker)) > 3


@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_a_run_is_loaded_and_goes_on(network: str, tmp_path: Path) -> None:
    settings = acer(**({"network": LSTM} if network == "lstm" else {}))
    train(tmp_path, CORRIDOR, **settings)
    policy = a3c_exp.load(tmp_path, ["scripted"])
    assert policy.act(np.int64(3)) in (0, 1)
    resumed = train_config(
        config(CORRIDOR, **settings) | {"total_steps": 240}, tmp_path, resume=True
    )
    assert resumed.summary["steps"] == 240


@dataclass(frozen=True, kw_only=True)
class OwnReturns(Returns):
    """Retrace of a user's own, which keeps what it has been given."""

    off_policy: ClassVar[bool] = True
    needs_action_values: ClassVar[bool] = True
    trajectories: ClassVar[list[Trajectory]] = []

    def __call__(self, trajectory: Trajectory, gamma: float) -> tuple[Floats, Floats]:
        self.trajectories.append(trajectory)
        return Retrace()(trajectory, gamma)


def test_returns_of_ones_own_get_the_action_values() -> None:
    own = {"_target_": f"{__name__}.OwnReturns"}
    _, [worker] = by_descent(
        BANDIT, **acer(returns=own), plugins=["scripted", __name__], total_steps=64
    )
    OwnReturns.trajectories.clear()
    assert events_of(worker)
    assert OwnReturns.trajectories
    assert all(trajectory.action_values is not None for trajectory in OwnReturns.trajectories)


def test_settings_that_do_not_fit_are_refused() -> None:
    def check(key: str, value: object = ..., env: str = BANDIT, **changes: Any) -> None:
        whole = config(env, **acer() | changes)
        refused(lambda: load_experiment(whole), key, value)

    check("algorithm", "ACER", env="scripted:Target-v0")
    check("returns", "GAE", returns="a3c_exp.returns.GAE")
    check("returns", "Retrace", algorithm={"_target_": "a3c_exp.algorithms.A3C"})
    check("critic_returns", "VTrace", critic_returns={"_target_": "a3c_exp.returns.VTrace"})
    check("epsilon", 0.1, epsilon=0.1)
    check("backend", "Ga3c", backend="ga3c", memory=None)
    check("algorithm.truncation", 0.0, algorithm__truncation=0.0)
    check("algorithm.target_decay", 1.5, algorithm__target_decay=1.5)


def test_an_environment_of_one_action_is_refused() -> None:
    network = network_of(Mlp, {"hidden_sizes": (4,)})
    refused(lambda: network.build(VECTORS, Discrete(1), None, averaged=True), "env.id")
