"""The explanation of a learner's first gradient that is not finite."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from runs import BANDIT, config, train
from scripted import Answer, Bandit
from workers import LSTM, make_workers, ppo_config, sgd

from a3c_exp.core.events import Event
from a3c_exp.core.rollout import Rollout
from a3c_exp.core.worker import Worker

HERE = __name__.partition(".")[0]
PLUGINS = ["scripted", "user_modules", HERE]
PAYING = f"{HERE}:Paying-v0"
GRU = {"_target_": "user_modules.Gru"}

Change = Callable[[Rollout], Rollout]


def unchanged(rollout: Rollout) -> Rollout:
    return rollout


class Paying(Bandit):
    """A bandit whose rewards float32 can just hold: the sum of four cannot be held."""

    def step(self, action: Any) -> Answer:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, 1e38, terminated, truncated, info


gymnasium.register("Paying-v0", entry_point=f"{HERE}:Paying", kwargs={"length": 100})


def explanation_of(whole: dict[str, Any], change: Change = unchanged) -> str:
    """The explanation by a worker that learns from one rollout, which `change` has spoiled."""
    _, (worker,) = make_workers(whole | {"plugins": PLUGINS})
    (event, *_) = [event for event in learn_once(worker, change) if event.counts.get("rejected", 0)]
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
    (explanation, *_) = [
        step.explanation for step in steps if isinstance(step, Event) and step.counts.get("rejected", 0)
    ]
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
        text = next(event for event in events if event.counts.get("rejected", 0)).explanation
        assert text is not None
        assert text.startswith("worker 0, step 16:") and "Not finite: gradient of" in text
        assert text.endswith("may help.") and "environment" not in text

    @pytest.mark.parametrize(
        ("name", "value", "largest"),
        [("rewards", np.nan, "nan"), ("rewards", -np.inf, "inf"), ("observations", np.nan, "nan")],
    )
    def test_data_that_is_not_finite_comes_first_and_no_learning_rate_is_blamed(
        self, name: str, value: float, largest: str
    ) -> None:
        text = explanation_of(config(), spoiled(name, value))
        assert f"refused. The environment's {name} are not finite (largest {largest})." in text
        assert "learning rate" not in text

    def test_rewards_whose_sum_overflows_are_blamed_with_a_remedy(self) -> None:
        text = explanation_of(config(PAYING))
        assert "The environment's rewards are too large to learn from (largest 1e+38)." in text
        assert "env.reward_scale" in text and "learning rate" not in text

    @pytest.mark.parametrize(
        ("network", "name", "value", "part"),
        [
            (None, "value.bias", np.inf, "critic"),
            (LSTM, "core.recurrent", np.nan, "encoder"),
            (GRU, "module.cell.bias_hh", np.nan, "network"),
        ],
    )
    def test_parameters_that_are_not_finite_already(self, network: Any, name: str, value: float, part: str) -> None:
        text = with_parameter(config() if network is None else config(network=network), name, value)
        assert f"Not finite: parameters of {part} (largest {value})." in text

    def test_values_that_the_actor_or_the_returns_have_computed(self) -> None:
        assert "Not finite: values (largest nan)." in explanation_of(config(), spoiled("values", np.nan))
        assert "Not finite: advantages (largest nan)." in explanation_of(config(), spoiled("next_values", np.inf))


def test_ppo_explains_the_minibatch_at_hand() -> None:
    for whole in (ppo_config(BANDIT), ppo_config(BANDIT, network=LSTM)):
        assert "rewards are not finite" in explanation_of(whole, spoiled("rewards", np.nan))


class TestOnce:
    def test_a_learner_explains_its_first_refused_gradient_alone(self) -> None:
        _, (worker,) = make_workers(config())
        spoil = spoiled("rewards", np.nan)
        events = [event for change in (unchanged, spoil, spoil) for event in learn_once(worker, change)]
        assert [event.explanation is None for event in events] == [True, False, True]
        merged = events[0].merge(events[1]).merge(Event(0, explanation="a later one"))
        assert merged.explanation == events[1].explanation

    def test_a_run_logs_one_for_all_its_workers(self, tmp_path: Path) -> None:
        """In rounds all workers diverge together."""
        settings: dict[str, Any] = {"workers": 3, "update": "sync", "plugins": PLUGINS, "total_steps": 10**9}
        done = train(tmp_path, PAYING, **settings)
        assert done.summary["rejected_updates"] > 20, "more than those of one worker"
        log = (tmp_path / "train.log").read_text()
        assert log.count("was refused") == log.count("WARNING") == 1
        assert re.search(r"WARNING.* worker \d, step \d+: a gradient that was not finite was refused", log)
        assert "rewards are too large" in done.summary["error"]
