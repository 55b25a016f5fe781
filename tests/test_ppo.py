"""Proximal policy optimization: its loss against the formula, its minibatches, and what does not go with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from batches import make_batch
from workers import LSTM, ppo_config

from a3c_exp.algorithms import PPO
from a3c_exp.config.builder import load_experiment
from a3c_exp.errors import ConfigError
from a3c_exp.networks import NetworkOutputs

# -- the loss --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advantage", "log_ratio", "learns"), [(1, 0.3, False), (1, -0.3, True), (-1, 0.3, True), (1, 99, False)]
)
def test_a_ratio_beyond_the_clip_range_goes_no_farther_but_may_come_back(
    advantage: float, log_ratio: float, learns: bool
) -> None:
    cell = np.ones((1, 1), np.float32)
    x = NetworkOutputs(log_ratio * cell, cell, cell)
    by, _ = PPO(normalize_advantages=False).gradient(x, make_batch(0 * cell, cell, advantage * cell, cell), 0.0)
    assert np.isfinite(by.log_probs).all()
    assert bool(by.log_probs.any()) is learns


# -- the minibatches -------------------------------------------------------------------------------------------------


def drawn(transitions: int, **settings: Any) -> list[list[int]]:
    return [rows.tolist() for rows in PPO(**settings).minibatches(transitions, 1, np.random.default_rng(0))]


def test_every_epoch_has_each_transition_once_in_an_order_of_its_own() -> None:
    parts = drawn(12, epochs=3, minibatch_size=4)
    assert [len(part) for part in parts] == [4] * 9
    epochs = [[*parts[i], *parts[i + 1], *parts[i + 2]] for i in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize(("transitions", "sizes"), [(1, [1]), (4, [4]), (5, [3, 2]), (9, [3, 3, 3])])
def test_a_rollout_that_was_cut_short_has_fewer_of_about_the_same_size(transitions: int, sizes: list[int]) -> None:
    assert [len(part) for part in drawn(transitions, epochs=1, minibatch_size=4)] == sizes


@pytest.mark.parametrize(("size", "sizes"), [(20, [4, 4]), (10, [2] * 4), (5, [1] * 8), (None, [8])])
def test_sequences_are_taken_whole(size: int | None, sizes: list[int]) -> None:
    """Eight environments, five steps each."""
    parts = list(PPO(epochs=1, minibatch_size=size).minibatches(8, 5, np.random.default_rng(0)))
    assert [len(part) for part in parts] == sizes
    assert sorted(np.concatenate(parts)) == list(range(8))


def test_no_order_is_drawn_where_a_minibatch_is_the_whole_rollout() -> None:
    rng = np.random.default_rng(0)
    assert [rows.tolist() for rows in PPO(epochs=2, minibatch_size=None).minibatches(3, 1, rng)] == [[0, 1, 2]] * 2
    assert rng.random() == np.random.default_rng(0).random()


def test_a_rollout_without_any_transition_has_no_minibatch() -> None:
    assert drawn(0) == drawn(0, minibatch_size=None) == []


V_TRACE = "a3c_exp.returns.VTrace"


@pytest.mark.parametrize(
    ("settings", "key", "word"),
    [
        ({"minibatch_size": 5}, "algorithm.minibatch_size", "a divisor of rollout_length x envs_per_worker"),
        ({"epsilon": 0.3}, "epsilon", "must be 0"),
        ({"returns": V_TRACE}, "returns", "gae"),
        ({"critic_returns": {"_target_": V_TRACE}}, "critic_returns", "gae"),
        ({"network": LSTM, "minibatch_size": 2}, "algorithm.minibatch_size", "multiple of rollout_length=4"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], key: str, word: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_experiment(ppo_config(**settings))
    assert error.value.key == key and word in error.value.problem
