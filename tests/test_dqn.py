"""Deep Q-learning from a memory: targets and gradients against a definition of its own, and what is
counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from nets import VECTORS, by_torch, normal, with_runtime
from refusals import refused
from runs import CORRIDOR, config
from workers import by_descent, events_of, next_event

from a3c_exp.common.arrays import Array
from a3c_exp.config.builder import load_experiment
from a3c_exp.config.modules import network_of
from a3c_exp.core.worker import MAX_CONSECUTIVE_NONFINITE
from a3c_exp.errors import RunError
from a3c_exp.networks import ActorCritic, Mlp
from a3c_exp.networks.action_values import QNetwork

GAMMA = 0.9
PLACES = 3
TABLE = {"_target_": "a3c_exp.networks.Mlp", "hidden_sizes": []}
"""A layer on the places of a corridor: a table of action values."""


def dqn(n: int = 1, memory: dict[str, Any] | None = None, **algorithm: Any) -> dict[str, Any]:
    """Settings of a run, for `config`."""
    transitions = {"sample": "transitions", "capacity": 1000, "batch_size": 8, "ratio": 1}
    return {
        "algorithm": {"_target_": "a3c_exp.algorithms.DQN", "target_every": 64} | algorithm,
        "returns": {"_target_": "a3c_exp.returns.NStep", "n": n},
        "memory": transitions | (memory or {}),
        "epsilon": 0.3,
        "network": TABLE,
    }


def tables(vector: Array) -> tuple[Array, Array]:
    """Q and Q^- of each place and action, of a vector of parameters."""
    wide = vector.astype(np.float64)
    online, target = (part[:-2].reshape(2, PLACES).T + part[-2:] for part in np.split(wide, 2))
    return online, target


@pytest.mark.parametrize(
    "settings", [{}, {"double": True}, {"max_error": 0.1}, {"reduction": "sum"}]
)
@pytest.mark.parametrize(("n", "envs"), [(1, 1), (1, 3), (3, 2)])
def test_an_update_is_minus_the_gradient_of_the_papers_loss(
    settings: dict[str, Any], n: int, envs: int
) -> None:
    """By hand, in double precision, over all that is in the memory, in which episodes end both
    ways."""
    rows = 12
    whole = dqn(n, {"capacity": rows * envs, "batch_size": 100}, target_every=10**6, **settings)
    corridor = {"env__kwargs": {"n": PLACES}, "env__max_episode_steps": 4, "total_steps": 10**6}
    store, [worker] = by_descent(
        CORRIDOR, envs_per_worker=envs, rollout_length=4, **whole | {"epsilon": 0.6}, **corridor
    )
    learner = worker._learner
    actor = worker._actor
    start = normal(len(learner.network.vector))
    online, target = tables(start)
    table = online if settings.get("double") else target
    after = {place: target[place, table[place].argmax()] for place in range(PLACES)}
    bound = settings.get("max_error", 1.0)

    kept: list[tuple[int, int, float, bool, bool, int]] = []
    cuts = 0
    for _ in range(30):
        store.initialize(start)
        rollout = actor.collect(learner.pull())
        list(learner.learn(rollout, learner.pull()))
        learner.pull()
        change = learner.network.vector - start

        # by environment: place, action, reward, ends, and the place after the step
        assert rollout.experience is not None
        following = rollout.experience.observations[1:].argmax(-1)
        for (time, env), observation in zip(
            rollout.experience.finals.tolist(), rollout.experience.final_observations, strict=True
        ):
            following[time, env] = observation.argmax()
        for time in range(len(rollout.rewards)):
            for env in range(envs):
                kept.append(
                    (
                        int(rollout.observations[time, env].argmax()),
                        int(rollout.actions[time, env]),
                        float(rollout.rewards[time, env]),
                        bool(rollout.terminated[time, env]),
                        bool(rollout.truncated[time, env]),
                        int(following[time, env]),
                    )
                )
        kept = kept[-rows * envs :]
        length = len(kept) // envs
        steps = min(n, length)
        expected = np.zeros((2, PLACES + 1))
        count = 0
        for env in range(envs):
            for row in range(length - steps + 1):
                total = 0.0
                for step in range(steps):
                    _, _, reward, terminated, truncated, place = kept[(row + step) * envs + env]
                    total += GAMMA**step * reward
                    if terminated or truncated or step == steps - 1:
                        cuts += truncated
                        total += 0.0 if terminated else GAMMA ** (step + 1) * after[place]
                        break
                place, action, *_ = kept[row * envs + env]
                error = online[place, action] - total
                count += 1
                expected[action, [place, PLACES]] += np.clip(error, -bound, bound)
        if settings.get("reduction") != "sum":
            expected /= count
        by_hand = np.concatenate(
            [expected[:, :PLACES].ravel(), expected[:, PLACES], np.zeros(2 * PLACES + 2)]
        )
        np.testing.assert_allclose(change, -by_hand, rtol=1e-5, atol=1e-5)
    assert cuts > 10


def test_rollouts_without_a_draw_have_no_gradient_and_do_not_hide_refused_ones() -> None:
    whole = dqn(memory={"ratio": 0.5}, max_error=None)
    _, [worker] = by_descent(CORRIDOR, **whole | {"total_steps": 10**6})
    steps = worker.run()
    events = [next_event(steps) for _ in range(4)]
    assert ["grad_norm" in event.metrics for event in events] == [False, True, False, True]

    memory = worker._learner.memory
    assert memory is not None
    for _ in range(MAX_CONSECUTIVE_NONFINITE):
        assert not next_event(steps).counts
        memory._rings["rewards"][:] = np.inf
        assert next_event(steps).counts["rejected"]
    with pytest.raises(RunError):
        next(steps)


@pytest.mark.parametrize("is_double", [False, True])
def test_double_values_are_of_the_action_that_the_online_network_prefers(is_double: bool) -> None:
    def make() -> ActorCritic:
        spec = network_of(Mlp, {"hidden_sizes": (8,)})
        network = spec.build(VECTORS, Discrete(3), np.random.default_rng(1), action_values=True)
        assert isinstance(network, QNetwork)
        network.is_double = is_double
        network.vector[:] = normal(len(network.vector))
        return network

    observations = normal(20, 4, seed=3)
    for network in (with_runtime(make()), by_torch(make())):
        parameters, values, _ = network.act_forward(observations)
        online, target = np.split(parameters, 2, axis=1)
        best = (online if is_double else target).argmax(1)
        assert (online.argmax(1) != target.argmax(1)).any()
        np.testing.assert_allclose(values, target[np.arange(20), best], rtol=1e-6)


@pytest.mark.parametrize("has_bias", [True, False])
def test_dueling_values_are_a_states_value_and_centered_advantages(has_bias: bool) -> None:
    spec = network_of(Mlp, {"hidden_sizes": (8,), "dueling": True, "head_bias": has_bias})
    network = spec.build(VECTORS, Discrete(3), np.random.default_rng(1), action_values=True)
    network.vector[:] = normal(len(network.vector))
    observations = normal(20, 4, seed=3)
    parameters, _, _ = with_runtime(network).act_forward(observations)
    arrays = {name: tensor.double().numpy() for name, tensor in network.state_dict().items()}

    def layer(name: str, x: Array) -> Array:
        outputs: Array = x @ arrays[f"{name}.weight"].T
        outputs += arrays.get(f"{name}.bias", np.zeros(1))
        return outputs

    parts = zip(("online", "target"), np.split(parameters, 2, axis=1), strict=True)
    for part, action_values in parts:
        features = np.tanh(layer(f"{part}.0.0", observations))
        value = layer(f"{part}.1.value", layer(f"{part}.1.value_hidden", features).clip(0))
        hidden = layer(f"{part}.1.advantage_hidden", features).clip(0)
        advantages = layer(f"{part}.1.advantage", hidden)
        expected = value + advantages - advantages.mean(1, keepdims=True)
        np.testing.assert_allclose(action_values, expected, rtol=1e-4, atol=1e-5)


def test_dueling_without_action_values_is_a_warning() -> None:
    network = network_of(Mlp, {"dueling": True}).build(VECTORS, Discrete(3), None)
    assert "dueling=True" in " ".join(network.warnings)


def test_it_learns_from_nothing_but_its_memory_and_counts_every_step() -> None:
    whole = dqn(memory={"min_size": 40, "ratio": 0.5})
    store, [worker] = by_descent(CORRIDOR, total_steps=160, **whole)
    events = events_of(worker)
    assert [event.steps for event in events] == [16] * 10
    assert [event.updates for event in events][:3] == [0, 0, 0]
    assert store.version == sum(event.updates for event in events) == 4
    assert all("mean_value" in event.metrics for event in events)


def test_it_finds_the_end_of_a_corridor() -> None:
    whole = dqn(memory={"ratio": 4}) | {"epsilon": 0.5, "network__hidden_sizes": []}
    store, [worker] = by_descent(
        CORRIDOR, total_steps=3000, optimizer__learning_rate=0.5, env__kwargs={"n": PLACES}, **whole
    )
    events_of(worker)
    online, _ = tables(store.state()["parameters"])
    assert (online[:-1, 1] > online[:-1, 0]).all()
    assert online[1, 1] == pytest.approx(1.0, abs=0.1)


def test_settings_that_do_not_fit_are_refused() -> None:
    def check(key: str, value: object = ..., **changes: Any) -> None:
        whole = config(CORRIDOR, **dqn() | changes)
        refused(lambda: load_experiment(whole), key, value)

    check("memory", None, memory=None)
    check("memory.ratio", 0.0, memory__ratio=0.0)
    check("epsilon", 0.0, epsilon=0.0)
    whole = config(CORRIDOR, **dqn() | {"returns": "a3c_exp.returns.GAE"})
    assert "experiment=dqn" in refused(lambda: load_experiment(whole), "returns", "GAE")
    check("algorithm.max_error", 0.0, algorithm__max_error=0.0)
    check("memory.sample", ..., memory__sample="random")
