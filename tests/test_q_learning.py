"""Q-learning and Sarsa: targets, gradients, exploration, the target network; held against
definitions of their own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from nets import VECTORS, by_torch, normal, with_runtime
from refusals import Refuses, refused
from runs import BANDIT, CORRIDOR, QUICK, config, train
from runs import make_store as store_of
from stores import SIZE, make_store, ones, push
from workers import LSTM, by_descent

from a3c_exp.common.arrays import Array
from a3c_exp.config.builder import load_experiment
from a3c_exp.config.modules import network_of
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.worker import Worker
from a3c_exp.engine.arrays import OutputGradients
from a3c_exp.networks import ActorCritic, Cnn, Mlp
from a3c_exp.networks.action_values import QNetwork
from a3c_exp.networks.distributions import Greedy
from a3c_exp.optimizers import SGD, Adam, Optimizer, RMSProp, TorchOptimizer
from a3c_exp.schedules import EpsilonByWorker

ALGORITHMS = {"OneStepQ": 1, "Sarsa": 1, "NStepQ": None}
"""By name, with their n."""
LINEAR = {"_target_": "a3c_exp.networks.Mlp", "hidden_sizes": []}
"""A layer on the places of a corridor: a table of action values."""


def q(name: str, **settings: Any) -> dict[str, Any]:
    """Settings of a run of one of the algorithms, for `config`."""
    algorithm = {"_target_": f"a3c_exp.algorithms.{name}", "target_every": 64}
    returns = {"_target_": "a3c_exp.returns.NStep", "n": ALGORITHMS[name]}
    return {"algorithm": algorithm, "returns": returns, "epsilon": 0.3} | settings


# -- targets and gradients
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_update_is_minus_the_gradient_of_the_papers_loss(name: str, envs: int) -> None:
    """By hand, in double precision, for a table of action values and rollouts in which episodes end
    both ways.

    The action after the last row, of which Sarsa needs the value, is the first one of the next
    rollout.
    """
    gamma = 0.9
    places = 3
    settings = q(
        name, network=LINEAR, envs_per_worker=envs, rollout_length=6, epsilon=0.6, total_steps=10**6
    )
    algorithm = settings["algorithm"] | {"target_every": 10**6}
    corridor = {"env__kwargs": {"n": places}, "env__max_episode_steps": 4}
    store, [worker] = by_descent(CORRIDOR, **settings | {"algorithm": algorithm} | corridor)
    learner = worker._learner
    actor = worker._actor
    start = normal(len(learner.network.vector))
    online, target = (
        part[:-2].reshape(2, places).T + part[-2:] for part in np.split(start.astype(np.float64), 2)
    )  # [place, action] each: the weights of a layer, and its biases

    rollouts = []
    changes = []
    ends = 0
    for _ in range(30):
        store.initialize(start)
        snapshot = learner.pull()
        rollouts.append(actor.collect(snapshot))
        list(learner.learn(rollouts[-1], snapshot))
        learner.pull()
        changes.append(learner.network.vector - start)
    for change, rollout, following in zip(changes, rollouts, rollouts[1:], strict=False):
        seen, actions = rollout.observations.argmax(-1), rollout.actions
        expected = np.zeros((2, places + 1))
        for env in range(envs):
            length = len(rollout.rewards)
            for t in range(length):
                last = t
                total = 0.0
                discount = 1.0
                over = False
                while True:
                    total += discount * float(rollout.rewards[last, env])
                    discount *= gamma
                    over = bool(rollout.terminated[last, env] or rollout.truncated[last, env])
                    if over or last == length - 1 or ALGORITHMS[name] == 1:
                        break
                    last += 1
                if over:
                    ends += 1
                    # Where a time limit has cut an episode, its last place is one step from the
                    # row's own.
                    if not rollout.terminated[last, env]:
                        state = max(0, seen[last, env] + (1 if actions[last, env] else -1))
                        total += discount * target[state].max()
                else:
                    after = following if last == length - 1 else rollout
                    row = 0 if last == length - 1 else last + 1
                    state = after.observations[row, env].argmax()
                    action = after.actions[row, env]
                    total += discount * (
                        target[state, action] if name == "Sarsa" else target[state].max()
                    )
                error = online[seen[t, env], actions[t, env]] - total
                expected[actions[t, env], seen[t, env]] += error
                expected[actions[t, env], places] += error
        by_hand = np.concatenate(
            [expected[:, :places].ravel(), expected[:, places], np.zeros(2 * places + 2)]
        )
        np.testing.assert_allclose(change, -by_hand, rtol=1e-4, atol=1e-4)
    assert ends > 10


# -- exploration
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 4, 20])
def test_the_best_action_is_taken_but_for_the_share_that_explores(count: int) -> None:
    values = np.array([[1.0, 3.0, 2.0, 9.0, 9.0, 9.0]], np.float32).repeat(count, 0)
    distribution = Greedy(Discrete(3))
    rng = np.random.default_rng(0)
    assert (distribution.sample(values, rng)[0] == 1).all(), (
        "what the target network says does not count"
    )
    drawn = [distribution.sample_mixed(values, rng, 0.3) for _ in range(8000 // count)]
    actions, log_probs = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    shares = np.array([0.1, 0.8, 0.1])
    np.testing.assert_allclose(np.bincount(actions) / len(actions), shares, atol=0.02)
    np.testing.assert_allclose(log_probs, np.log(shares)[actions], rtol=1e-5)


def test_a_worker_samples_the_share_that_explores_anew_for_each_rollout() -> None:
    """So no run depends on what its few workers would each draw once. The best of two actions has
    probability
    1 - epsilon / 2."""
    schedule = {"_target_": "a3c_exp.schedules.EpsilonByWorker", "until": 0.5}
    experiment = load_experiment(config(CORRIDOR, **q("NStepQ", epsilon=schedule)))
    worker = Worker(RunContext(experiment=experiment), 0, store_of(experiment))
    snapshot = worker._learner.pull()

    def epsilons(progress: float, count: int) -> list[float]:
        rollouts = [worker._actor.collect(snapshot, progress) for _ in range(count)]
        return [2 * (1 - float(np.exp(rollout.log_probs.max()))) for rollout in rollouts]

    assert epsilons(0.0, 1) == pytest.approx([1.0])
    assert {round(sampled, 3) for sampled in epsilons(0.25, 20)} == {0.55, 0.505, 0.75}
    sampled = epsilons(0.5, 400)
    np.testing.assert_allclose(
        [np.mean(np.isclose(sampled, end, atol=1e-3)) for end in (0.1, 0.01, 0.5)],
        [0.4, 0.3, 0.3],
        atol=0.08,
    )
    assert EpsilonByWorker()(1.0) == pytest.approx(0.4 * 0.1 + 0.3 * 0.01 + 0.3 * 0.5)


# -- the target network
# ------------------------------------------------------------------------------------------------

GROUPS = {"online": slice(0, 3), "target": slice(3, 6)}
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(learning_rate=1.0, momentum=0.9),
    "rmsprop": RMSProp(learning_rate=0.1, momentum=0.9),
    "adam, decay": Adam(learning_rate=0.1, weight_decay=0.1),
    "torch, decay": TorchOptimizer(name="AdamW", learning_rate=0.1, settings={"weight_decay": 0.1}),
}


@pytest.mark.parametrize("settings", [{}, {"lock": True}, {"update": "sync", "workers": 1}])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_nothing_moves_it_but_a_copy_every_so_many_steps(
    optimizer: str, settings: dict[str, Any]
) -> None:
    """Whatever the gradient is, and however the optimizer decays weights or remembers earlier
    gradients."""
    store = make_store(
        param_slices=GROUPS, target_every=10, optimizer=OPTIMIZERS[optimizer], **settings
    )
    store.initialize(ones(2.0))
    outcomes = []
    for _ in range(8):
        before = read(store)
        assert push(store, 0, ones(), steps=4).done()
        after = read(store)
        assert (after[:3] < before[:3]).all()
        outcomes.append("copied" if np.array_equal(after[3:], after[:3]) else "kept")
        assert outcomes[-1] == "copied" or np.array_equal(after[3:], before[3:])
    assert [4 * (number + 1) for number, what in enumerate(outcomes) if what == "copied"] == [
        12,
        20,
        32,
    ]


@pytest.mark.parametrize("lock", [False, True])
def test_a_copy_that_is_due_when_a_run_ends_is_made_when_it_goes_on(lock: bool) -> None:
    """Steps without a gradient, of which the next one is to copy."""
    settings = {"param_slices": GROUPS, "target_every": 10, "lock": lock}
    ended = make_store(**settings)
    push(ended, 0, ones(), steps=4)
    push(ended, 0, None, steps=8)
    store = make_store(**settings)
    store.restore(ended.state())
    push(store, 0, ones(), steps=1)
    parameters = read(store)
    np.testing.assert_array_equal(parameters[3:], parameters[:3])


def read(store: Any) -> Array:
    parameters = np.empty(SIZE, np.float32)
    store.pull(0, parameters)
    return parameters


# -- the network
# --------------------------------------------------------------------------------------------------


def make_q_network() -> ActorCritic:
    """Values of three actions, by two layers."""
    network = network_of(Mlp, {"hidden_sizes": (8,), "init": "orthogonal"})
    rng = np.random.default_rng(1)
    return with_runtime(network.build(VECTORS, Discrete(3), rng, action_values=True))


def test_kernels_and_torch_compute_the_same_and_no_gradient_reaches_the_target_network() -> None:
    numpy_network = make_q_network()
    torch_network = by_torch(make_q_network())
    torch_network.vector[:] = numpy_network.vector[:] = normal(len(numpy_network.vector))
    rows = normal(3, 2, 4, seed=1)
    actions = np.array([[0, 2], [1, 1], [2, 0]])
    weights = normal(3, 2, seed=2)
    for network in (numpy_network, torch_network):
        outputs, add_gradient = network.runtime.evaluate(rows, actions)
        parameters, values, _ = network.act_forward(rows[0])
        np.testing.assert_allclose(outputs.values[0], parameters[[0, 1], actions[0]], rtol=1e-5)
        np.testing.assert_allclose(values, parameters[:, 3:].max(1), rtol=1e-6)
        np.testing.assert_allclose(network.values(rows[0]), values, rtol=1e-6)
        assert not np.allclose(parameters[:, :3], parameters[:, 3:])
        add_gradient(OutputGradients(outputs.log_probs, outputs.entropy, weights))
        assert not network.gradient[network.param_slices["target"]].any()
    np.testing.assert_allclose(numpy_network.gradient, torch_network.gradient, rtol=1e-4, atol=1e-5)
    assert numpy_network.gradient.any()


def test_the_target_network_begins_as_a_copy() -> None:
    network = make_q_network()
    online, target = (network.vector[network.param_slices[name]] for name in ("online", "target"))
    np.testing.assert_array_equal(online, target)
    assert isinstance(network, QNetwork) and online.any()


def test_the_target_network_scales_images_as_the_other_does() -> None:
    images = Box(0, 255, (8, 8, 3), np.uint8)
    network = network_of(Cnn, {"layers": ((4, 3, 1),), "features_dim": 8})
    rng = np.random.default_rng(1)
    built = with_runtime(network.build(images, Discrete(3), rng, action_values=True))
    built.normalize_pixels(np.array(100, np.float32), np.array(0.1, np.float32))
    parameters, _, _ = built.act_forward(
        np.random.default_rng(2).integers(0, 256, (4, 8, 8, 3), np.uint8)
    )
    np.testing.assert_array_equal(parameters[:, :3], parameters[:, 3:])
    assert parameters.any()


# -- what is refused
# --------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "continuous actions": ({"env": "scripted:Target-v0"}, "algorithm"),
    "cells": ({"network": LSTM}, "network"),
    "another encoder for a critic": (
        {"network__critic_hidden_sizes": [8]},
        "network.critic_hidden_sizes",
    ),
    "another activation for a critic": (
        {"network__critic_activation": "relu"},
        "network.critic_activation",
    ),
    "targets that correct for lag": (
        {"returns": {"_target_": "a3c_exp.returns.VTrace"}},
        "returns",
    ),
    "targets of other kinds": ({"returns": {"_target_": "a3c_exp.returns.GAE"}}, "returns"),
    "several steps for one": ({"returns__n": 2}, "returns.n"),
    "targets of a critic": (
        {"critic_returns": {"_target_": "a3c_exp.returns.NStep", "n": 1}},
        "critic_returns",
    ),
    "nothing explores": ({"epsilon": 0.0}, "epsilon"),
    "no target network": ({"algorithm__target_every": 0}, "algorithm.target_every"),
    "settings of PPO": ({"algorithm__epochs": 4}, "algorithm.epochs"),
    "a rate of the target network": (
        {"optimizer__param_groups": {"target": {}}},
        "optimizer.param_groups",
    ),
    "shares that are none": (
        {"epsilon": {"_target_": "a3c_exp.schedules.EpsilonByWorker", "probabilities": [1.0]}},
        "epsilon.probabilities",
    ),
    "ends out of range": (
        {"epsilon": {"_target_": "a3c_exp.schedules.EpsilonByWorker", "ends": [0.1, 2, 0.5]}},
        "epsilon.ends",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_settings_that_do_not_fit_are_refused(what: str) -> None:
    changes, key = REFUSED[what]
    value: Any = {"cells": "Lstm"}.get(what, ...)
    refused(
        lambda: load_experiment(config(**{"env": BANDIT} | q("OneStepQ") | changes)), key, value
    )


def test_shards_of_a_parameter_server_are_refused() -> None:
    pytest.importorskip("ray", reason="clusters: pip install 'a3c-exp[ray]'")
    backend = {"_target_": "a3c_exp.backends.ray.Ray", "shards": 2}
    refused(
        lambda: load_experiment(config(**q("NStepQ")) | {"backend": backend}), "backend.shards", 2
    )


def test_a_checkpoint_without_its_target_network_is_refused(
    tmp_path: Path, refuses: Refuses
) -> None:
    train(tmp_path / "run", **q("NStepQ"))
    train(tmp_path / "other")
    shutil.copy(
        tmp_path / "other" / "checkpoints" / "latest.ckpt", tmp_path / "run" / "checkpoints"
    )
    refuses([f"resume={tmp_path / 'run'}", "plugins=[scripted]", "total_steps=320"], "resume")
    words = [
        *QUICK,
        "env=gym",
        f"env.id={BANDIT}",
        "plugins=[scripted]",
        "network.hidden_sizes=[16]",
    ]
    refuses([*words, "experiment=n_step_q", f"init_from={tmp_path / 'other'}"], "init_from")
