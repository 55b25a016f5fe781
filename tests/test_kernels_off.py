"""`kernels=false`: torch computes everything by its definition, and gives the same updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import BACKENDS, BANDIT, CORNERS, CORRIDOR, SMALL_CNN, TARGET, config, drain, train
from workers import LSTM, make_workers, sgd

from a3c_exp.common.arrays import Floats
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.rollout import Rollout
from a3c_exp.core.worker import Worker
from a3c_exp.engine.runtime import TorchRuntime

UPDATES = 20
TOLERANCE = 1e-4
"""Of parameters after all updates, as a share of the largest change that these have made."""

MLP = "a3c_exp.networks.Mlp"


def algorithm(name: str, **settings: Any) -> dict[str, Any]:
    """Settings of a run of one of the algorithms, for `config`."""
    return {"algorithm": {"_target_": f"a3c_exp.algorithms.{name}", **settings}}


def mlp(**settings: Any) -> dict[str, Any]:
    """Settings of a run of a perceptron."""
    return {"network": {"_target_": MLP, "hidden_sizes": [8], **settings}}


OF_ACTION_VALUES = {"epsilon": 0.3, "returns": {"_target_": "a3c_exp.returns.NStep", "n": 1}}
THIRD_PARTY: dict[str, Any] = {"plugins": ["scripted", "thirdparty"]}

ALGORITHMS: dict[str, dict[str, Any]] = {
    "a3c": algorithm("A3C"),
    "a3c, sum": algorithm("A3C", reduction="sum", normalize_advantages=True),
    "v-trace": algorithm("A3C") | {"returns": {"_target_": "a3c_exp.returns.VTrace"}},
    "ppo": algorithm("PPO", minibatch_size=8, epochs=2),
    "n-step q": algorithm("NStepQ") | OF_ACTION_VALUES,
    "dueling q": algorithm("NStepQ") | OF_ACTION_VALUES | mlp(dueling=True),
    "one-step q": algorithm("OneStepQ") | OF_ACTION_VALUES,
    "sarsa": algorithm("Sarsa") | OF_ACTION_VALUES,
    "a loss with a module": THIRD_PARTY | {"algorithm": {"_target_": "thirdparty.PredictingA3C"}},
}
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": (CORRIDOR, mlp()),
    "shared mlp": (CORRIDOR, mlp(shared=True, activation="elu")),
    "lstm": (CORRIDOR, {"network": LSTM}),
    "lstms": (CORRIDOR, {"network": LSTM | {"shared": False, "critic_hidden_size": 4}}),
    "lstm of the critic": (
        CORRIDOR,
        {"network": LSTM | {"shared": False, "hidden_size": 0, "critic_hidden_size": 8}},
    ),
    "no biases": (CORRIDOR, {"network": LSTM | {"head_bias": False}}),
    "cnn": (CORNERS, {"network": SMALL_CNN | {"precision": "float32"}}),
    "an encoder by torch": (
        CORRIDOR,
        THIRD_PARTY | {"network": {"_target_": "thirdparty.Attention"}},
    ),
    "whole": (CORRIDOR, THIRD_PARTY | {"network": {"_target_": "thirdparty.Whole"}}),
    "gaussian": (TARGET, mlp()),
    "gaussian, softplus": (TARGET, mlp(softplus_std=True, squash_mean=True)),
    "squashed gaussian": (TARGET, mlp(distribution="squashed_gaussian")),
    "beta": (TARGET, mlp(distribution="beta", initial_std=0.4)),
    "rows that are none": ("scripted:Scripted-v0", mlp() | {"env__vectorized": True}),
}
CASES = {f"{name} by mlp": (CORRIDOR, settings) for name, settings in ALGORITHMS.items()}
CASES |= {f"a3c by {name}": case for name, case in NETWORKS.items()}
CASES |= {
    f"ppo by {name}": (env, settings | algorithm("PPO", minibatch_size=8, epochs=2))
    for name, (env, settings) in NETWORKS.items()
}


def make_worker(env: str, kernels: bool, settings: dict[str, Any]) -> Worker:
    run_config = config(env, kernels=kernels, **settings, total_steps=10**6)
    run_config["optimizer"] = sgd(0.01)
    _, [worker] = make_workers(run_config)
    worker._learner.rng = np.random.default_rng(0)  # draws minibatches
    return worker


def updates(worker: Worker, rollouts: list[Rollout]) -> Floats:
    """The change of all parameters after one update, or PPO's, for each of the rollouts."""
    learner = worker._learner
    snapshot = learner.pull()
    before = learner.network.vector.copy()
    for rollout in rollouts:
        list(learner.learn(rollout, snapshot))
        snapshot = learner.pull()
    change: Floats = learner.network.vector - before
    return change


@pytest.mark.parametrize("case", CASES)
def test_the_same_rollouts_give_the_same_updates(case: str) -> None:
    env, settings = CASES[case]
    with one_thread():
        fast, defined = (make_worker(env, kernels, settings) for kernels in (True, False))
        snapshot = fast._learner.pull()
        rollouts = [fast._actor.collect(snapshot) for _ in range(UPDATES)]
        fast_updates = updates(fast, rollouts)
        expected = updates(defined, rollouts)
    largest = float(np.abs(expected).max())
    assert largest > 1e-3
    np.testing.assert_allclose(fast_updates, expected, rtol=0, atol=TOLERANCE * largest)


def test_no_kernel_is_used(tmp_path: Path) -> None:
    worker = make_worker(BANDIT, kernels=False, settings=mlp())
    assert isinstance(worker._network.runtime, TorchRuntime)
    train(tmp_path, kernels=False)
    assert "kernels: none" in (tmp_path / "train.log").read_text()


@pytest.mark.parametrize("backend", [*BACKENDS, "ga3c"])
def test_a_closed_form_of_a_plugin_holds_in_every_process(backend: str) -> None:
    by_hand = THIRD_PARTY | {"algorithm": {"_target_": "thirdparty.ByHand"}}
    for kernels in (True, False):
        events, _, error = drain(config(BANDIT, backend, **by_hand, kernels=kernels))
        assert error is None
        learned = [event for event in events if "policy_loss" in event.metrics]
        assert learned
        assert all(("by_hand" in event.metrics) == kernels for event in learned)


def test_the_log_says_what_torch_computes_because_its_class_has_no_fast_form(
    tmp_path: Path,
) -> None:
    subclass = {"_target_": "thirdparty.PredictingA3C"}
    train(tmp_path, **THIRD_PARTY, algorithm=subclass)
    text = (tmp_path / "train.log").read_text()
    assert "torch for the loss (PredictingA3C" in text
