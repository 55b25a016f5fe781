"""The explanation of a learner's first gradient that is not finite."""

from __future__ import annotations

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

from a3c_exp.core.divergence import explain_divergence
from a3c_exp.core.events import Event
from a3c_exp.core.rollout import Rollout
from a3c_exp.core.worker import Worker

HERE = __name__.partition(".")[0]
PLUGINS = ["scripted", "user_modules", HERE]
PAYING = f"{HERE}:Paying-v0"
GRU = {"_target_": "user_modules.Gru"}


class Paying(Bandit):
    """A bandit whose rewards float32 can just hold: the sum of four cannot be held."""

    def step(self, action: Any) -> Answer:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, 1e38, terminated, truncated, info


gymnasium.register("Paying-v0", entry_point=f"{HERE}:Paying", kwargs={"length": 100})


def make_worker(**settings: Any) -> Worker:
    _, (worker,) = make_workers(config(**settings) | {"plugins": PLUGINS})
    return worker


def spoiled(rollout: Rollout, name: str, value: float) -> Rollout:
    """The rollout with another number in one of its fields."""
    array = getattr(rollout, name).copy()
    array[1, 2] = value
    return replace(rollout, **{name: array})


def learn_once(worker: Worker, *spoil: Any) -> list[Event]:
    """The events of learning from a rollout, which is spoiled."""
    snapshot = worker._learner.pull()
    rollout = worker._actor.collect(snapshot)
    if spoil:
        rollout = spoiled(rollout, *spoil)
    return [step for step in worker._learner.learn(rollout, snapshot) if isinstance(step, Event)]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("rewards", -np.inf, "The environment's rewards are not finite (largest inf)."),
        ("observations", np.nan, "The environment's observations are not finite (largest nan)."),
        ("values", np.nan, "Not finite: values (largest nan)."),
        ("next_values", np.inf, "Not finite: advantages (largest nan)."),
    ],
)
def test_what_is_not_finite_in_a_rollout_is_named(name: str, value: float, text: str) -> None:
    (event,) = learn_once(make_worker(), name, value)
    assert event.explanation is not None and event.metrics == {}
    assert text in event.explanation
    assert ("learning rate" in event.explanation) == text.startswith("Not finite"), (
        "data come first"
    )


@pytest.mark.parametrize("limit", [None, 0.5])
def test_a_gradient_without_a_square_is_refused_unless_it_is_clipped(limit: float | None) -> None:
    """Its square, infinite in the optimizer's state, would hold its parameters where they are for
    ever."""
    (event,) = learn_once(make_worker(optimizer=sgd(1e-3, limit)), "rewards", 1e22)
    assert event.counts.get("rejected", 0) == (limit is None)
    assert limit or (event.explanation is not None and "rewards are too large" in event.explanation)


def test_rows_that_are_no_transitions_are_not_blamed() -> None:
    worker = make_worker()
    batch = worker._learner._batch(worker._actor.collect(worker._learner.pull()))
    rewards = batch.rewards.copy()
    values = batch.values.copy()
    valid = np.ones(batch.shape, np.bool_)
    rewards[0, 0], valid[0, 0], values[1, 1] = np.nan, False, np.inf
    spoiled = replace(batch, rewards=rewards, values=values, valid=valid)
    assert explain_divergence(worker._network, spoiled).startswith("Not finite: values")


@pytest.mark.parametrize(
    ("network", "name", "part"),
    [
        (None, "value.bias", "critic"),
        (LSTM, "core.recurrent", "encoder"),
        (GRU, "module.cell.bias_hh", "network"),
    ],
)
def test_parameters_that_are_not_finite_already_are_named_by_their_group(
    network: Any, name: str, part: str
) -> None:
    worker = make_worker() if network is None else make_worker(network=network)
    batch = worker._learner._batch(worker._actor.collect(worker._learner.pull()))
    with torch.no_grad():
        dict(worker._network.named_parameters())[name].view(-1)[0] = np.inf
    assert explain_divergence(worker._network, batch).startswith(
        f"Not finite: parameters of {part} (largest inf)."
    )


def test_a_learning_rate_far_too_high_is_blamed_with_the_worker_and_the_step() -> None:
    events = (step for step in make_worker(optimizer=sgd(1e30)).run() if isinstance(step, Event))
    text = next(event for event in events if event.counts.get("rejected", 0)).explanation
    assert (
        text is not None
        and text.startswith("worker 0, step 16:")
        and "Not finite: gradient of" in text
    )
    assert "learning rate" in text and "environment" not in text


def test_ppo_explains_the_minibatch_at_hand() -> None:
    for whole in (ppo_config(BANDIT), ppo_config(BANDIT, network=LSTM)):
        _, (worker,) = make_workers(whole)
        texts = [event.explanation for event in learn_once(worker, "rewards", np.nan)]
        assert "rewards are not finite" in next(filter(None, texts))


def test_of_refused_gradients_in_one_event_the_first_is_explained() -> None:
    worker = make_worker()
    spoil = ("rewards", np.nan)
    events = [event for each in ((), spoil) for event in learn_once(worker, *each)]
    assert [event.explanation is None for event in events] == [True, False]
    first = events[0]
    first.merge(events[1])
    first.merge(Event(0, explanation="a later one"))
    assert first.explanation == events[1].explanation


def test_a_run_logs_one_for_all_its_workers(tmp_path: Path) -> None:
    """In rounds all workers diverge together."""
    settings: dict[str, Any] = {
        "workers": 3,
        "update": "sync",
        "plugins": PLUGINS,
        "total_steps": 10**9,
    }
    done = train(tmp_path, PAYING, **settings)
    assert done.summary["rejected_updates"] > 20, "more than those of one worker"
    log = (tmp_path / "train.log").read_text()
    assert log.count("was refused") == log.count("WARNING") == 1
    assert "rewards are too large" in done.summary["error"]
