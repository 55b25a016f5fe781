"""The explanation of a learner's first gradient that is not finite."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from devices import every_device
from runs import BANDIT, config, train
from scripted import Answer, Bandit
from torch import Tensor
from workers import LSTM, make_workers, ppo_config, sgd

from a3c_exp.algorithms import A3C, Batch, Metrics, PolicyOutputs
from a3c_exp.backends.ga3c.device import build_thread_network, parameters_on
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.events import Event
from a3c_exp.core.heartbeat import Heartbeat
from a3c_exp.core.rollout import Rollout
from a3c_exp.core.worker import Learner, Worker

HERE = __name__.partition(".")[0]
PLUGINS = ["scripted", "user_modules", "thirdparty", HERE]
PAYING = f"{HERE}:Paying-v0"
RESIDUAL, GRU, WHOLE = (
    {"_target_": name} for name in ("user_modules.Residual", "user_modules.Gru", "thirdparty.Whole")
)

Change = Callable[[Rollout], Rollout]


def unchanged(rollout: Rollout) -> Rollout:
    return rollout


class Paying(Bandit):
    """A bandit whose rewards float32 can just hold: the sum of four cannot be held."""

    def step(self, action: Any) -> Answer:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, 1e38, terminated, truncated, info


gymnasium.register("Paying-v0", entry_point=f"{HERE}:Paying", kwargs={"length": 100})


@dataclass(frozen=True, kw_only=True)
class Dividing(A3C):
    """A loss with names of its own, one term of which divides by rewards."""

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        fine, ratio = batch.mean(policy.values**2), batch.mean(policy.values.exp() / batch.rewards.abs())
        return fine - policy.log_probs.mean() + ratio, {"fine": fine, "per reward": ratio}


@dataclass(frozen=True, kw_only=True)
class Rooted(A3C):
    """A loss that is finite where rewards are 0, and has no derivative there."""

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        root = batch.mean(torch.sqrt((policy.values * batch.rewards) ** 2))
        return root - policy.log_probs.mean(), {"root": root}


def explanation_of(whole: dict[str, Any], change: Change = unchanged) -> str:
    """The explanation by a worker that learns from one rollout, which `change` has spoiled."""
    _, (worker,) = make_workers(whole | {"plugins": PLUGINS})
    (event, *_) = [event for event in learn_once(worker, change) if event.rejected]
    assert event.explanation is not None
    assert event.metrics == {}
    return event.explanation


def learn_once(worker: Worker, change: Change) -> list[Event]:
    snapshot = worker._learner.pull()
    rollout = change(worker._actor.collect(snapshot))
    return [step for step in worker._learner.learn([rollout], snapshot) if isinstance(step, Event)]


def with_parameter(whole: dict[str, Any], name: str, value: float) -> str:
    """The explanation by a worker whose parameter of this name has been overwritten by another."""
    store, (worker,) = make_workers(whole | {"plugins": PLUGINS})
    snapshot = worker._learner.pull()
    rollout = worker._actor.collect(snapshot)
    network = worker._network
    with torch.no_grad():
        dict(network.named_parameters())[name].view(-1)[0] = value
    store.initialize(network.vector)
    steps = worker._learner.learn([rollout], worker._learner.pull())
    (explanation, *_) = [step.explanation for step in steps if isinstance(step, Event) and step.rejected]
    assert explanation is not None
    return explanation


def spoiled(name: str, value: float) -> Change:
    """A change of one number of a rollout's field."""

    def change(rollout: Rollout) -> Rollout:
        array = getattr(rollout, name).copy()
        array[1, 2] = value
        return replace(rollout, **{name: array})

    return change


class TestCauses:
    def test_a_learning_rate_far_too_high(self) -> None:
        _, (worker,) = make_workers(config(optimizer=sgd(1e30)))
        events = (step for step in worker.run() if isinstance(step, Event))
        event = next(event for event in events if event.rejected)
        assert event.explanation is not None
        assert re.match(r"worker 0, step 16: a gradient that was not finite was refused\. ", event.explanation)
        assert "Loss terms not finite: " in event.explanation and "value_loss (" in event.explanation
        assert re.search(r"Gradient not finite in [^.]*critic", event.explanation)
        assert re.search(r"Largest parameter: \d\.?\d?e\+(29|3\d) in \w+", event.explanation)
        assert event.explanation.endswith("may help.")
        assert "Not finite in the data" not in event.explanation and "Parameters not" not in event.explanation

    def test_an_infinite_term_of_a_users_loss_is_named_and_the_others_are_not(self) -> None:
        text = explanation_of(config(algorithm={"_target_": f"{HERE}.Dividing"}))
        assert "Loss terms not finite: per reward (inf), though the batch and all activations are." in text
        assert "Gradient not finite in critic." in text, "the actor's is finite"
        assert re.search(r"Largest activation: [\d.e-]+ in .* Largest parameter: [\d.e-]+ in ", text)

    def test_only_the_derivative_is_not_finite(self) -> None:
        text = explanation_of(config(algorithm={"_target_": f"{HERE}.Rooted"}))
        assert "All loss terms are finite, the largest is root (" in text
        assert "Gradient not finite in critic." in text

    def test_rewards_whose_sum_overflows(self) -> None:
        text = explanation_of(config(PAYING))
        assert re.search(
            r"Not finite in the batch: advantages, targets \(largest reward 1e\+38, largest value [\d.]+\)\.", text
        )
        assert "env.reward_scale" in text
        assert "though the batch" not in text

    @pytest.mark.parametrize(("name", "value"), [("rewards", np.nan), ("rewards", -np.inf), ("observations", np.nan)])
    def test_data_that_is_not_finite_comes_first_and_no_learning_rate_is_blamed(self, name: str, value: float) -> None:
        text = explanation_of(config(), spoiled(name, value))
        count = 4 if name == "observations" else 1
        numbers = 16 * (4 if name == "observations" else 1)
        assert f"refused. Not finite in the data: {name} ({count} of {numbers} numbers)." in text
        assert "the learning rate is not the cause" in text
        assert "may help" not in text

    @pytest.mark.parametrize(("layer", "value"), [("critic_encoder.0", np.nan), ("value", np.inf)])
    def test_parameters_that_are_not_finite_already(self, layer: str, value: float) -> None:
        text = with_parameter(config(), f"{layer}.bias", value)
        assert f"Parameters not finite in critic ({layer}.bias): an earlier update or another worker made them" in text
        assert f"Largest activation: {value} in {layer} (Linear)." in text, "the first that has it"
        assert f"Largest parameter: {value} in {layer}.bias." in text

    def test_parameters_so_large_that_only_the_gradient_overflows(self) -> None:
        text = with_parameter(config(), "value.weight", 1e30)
        assert "Parameters not finite" not in text
        assert "Gradient not finite in critic (" in text
        assert re.search(r"Largest activation: [\d.]+e\+(29|30) in value \(Linear\)\. ", text)
        assert "Largest parameter: 1e+30 in value.weight." in text


class TestNetworks:
    @pytest.mark.parametrize("kernels", ["auto", "torch"])
    def test_lstm_cells(self, kernels: str) -> None:
        text = with_parameter(config(network=LSTM | {"kernels": kernels}), "core.recurrent", np.nan)
        assert "Parameters not finite in encoder (core.recurrent)" in text
        assert "Largest activation: nan in core (LstmCore)." in text

    @pytest.mark.parametrize(
        ("network", "parameter", "place"),
        [
            (RESIDUAL, "actor_encoder.blocks.1.bias", "actor_encoder.blocks.1 (Linear)"),
            (GRU, "module.cell.bias_hh", "module.cell (GRUCell)"),
            (WHOLE, "module.layer.bias", "module.layer (Linear)"),
        ],
    )
    def test_modules_of_a_users_own(self, network: dict[str, Any], parameter: str, place: str) -> None:
        text = with_parameter(config(network=network), parameter, np.nan)
        assert f"({parameter})" in text
        assert f"Largest activation: nan in {place}." in text

    def test_the_module_of_a_loss(self) -> None:
        whole = config(algorithm={"_target_": "thirdparty.PredictingA3C"})
        text = with_parameter(whole, "loss_module.layers.2.bias", np.inf)
        assert "Parameters not finite in loss (loss_module.layers.2.bias)" in text
        assert "reward_loss (inf)" in text
        assert "policy_loss" not in text

    def test_a_forward_pass_that_fails_leaves_the_activations_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Kernels run the network itself; only the explanation runs its module."""
        _, (worker,) = make_workers(config())
        (encoder, *_) = worker._network.children()
        monkeypatch.setattr(encoder, "forward", lambda x: 1 / 0)
        event, *_ = learn_once(worker, spoiled("rewards", np.nan))
        assert event.explanation is not None
        assert "activation" not in event.explanation
        assert "Largest parameter: " in event.explanation
        assert not any(module._forward_hooks for module in worker._network.modules())

    @every_device
    def test_networks_on_a_device(self, device: torch.device) -> None:
        experiment = load_experiment(config())
        store, (worker,) = make_workers(config())
        snapshot = worker._learner.pull()
        rollout = spoiled("rewards", np.inf)(worker._actor.collect(snapshot))
        with parameters_on(device, store):
            network = build_thread_network(experiment, store, learns=True)
            rng = np.random.default_rng(0)
            learner = Learner(experiment, network, 0, store, rng, "trainer 0", Heartbeat())
            (event,) = [e for e in learner.learn([rollout], learner.pull()) if isinstance(e, Event)]
        assert event.explanation is not None
        assert "trainer 0, step 0: " in event.explanation
        assert "Largest activation: " in event.explanation


def test_ppo_explains_the_minibatch_at_hand() -> None:
    for whole in (ppo_config(BANDIT), ppo_config(BANDIT, network=LSTM)):
        assert "rewards (1 of 8 numbers)" in explanation_of(whole, spoiled("rewards", np.nan))


def test_several_rollouts_of_one_gradient_are_looked_at_together() -> None:
    _, (worker,) = make_workers(config(accumulate_rollouts=2))
    snapshot = worker._learner.pull()
    rollouts = [worker._actor.collect(snapshot), spoiled("rewards", np.nan)(worker._actor.collect(snapshot))]
    (event,) = [e for e in worker._learner.learn(rollouts, snapshot) if isinstance(e, Event)]
    assert event.explanation is not None
    assert "rewards (1 of 32 numbers)" in event.explanation


class TestOnce:
    def test_a_learner_explains_its_first_refused_gradient_alone(self) -> None:
        _, (worker,) = make_workers(config())
        spoil = spoiled("rewards", np.nan)
        events = [event for change in (unchanged, spoil, spoil) for event in learn_once(worker, change)]
        assert [event.rejected for event in events] == [0, 1, 1]
        assert [event.explanation is None for event in events] == [True, False, True]

    def test_merged_events_keep_the_first_one(self) -> None:
        merged = Event(0).merge(Event(0, explanation="first")).merge(Event(0, explanation="second"))
        assert merged.explanation == "first"

    @pytest.mark.parametrize("backend", ["serial", "processes"])
    def test_a_run_logs_one_for_all_its_workers(self, backend: str, tmp_path: Path) -> None:
        """In rounds all workers diverge together."""
        settings: dict[str, Any] = {"workers": 3, "update": "sync", "plugins": PLUGINS, "total_steps": 10**9}
        done = train(tmp_path, PAYING, backend, **settings)
        assert done.summary["rejected_updates"] > 20, "more than those of one worker"
        log = (tmp_path / "train.log").read_text()
        assert log.count("was refused") == log.count("Not finite in the batch: ") == 1
        assert re.search(r"WARNING.* worker \d, step \d+: a gradient that was not finite was refused", log)
        assert "A warning in train.log says more" in done.summary["error"]

    def test_a_run_too_short_to_fail_by_itself_points_to_it(self, tmp_path: Path) -> None:
        done = train(tmp_path, PAYING, plugins=PLUGINS, total_steps=80)
        assert done.summary["error"].startswith("no gradient was finite")
        assert "a warning in train.log says more" in done.summary["error"]
        assert "advantages, targets" in (tmp_path / "train.log").read_text()
