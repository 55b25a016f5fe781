"""Proximal policy optimization: its loss against the formula, its minibatches, and what does not go with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from batches import draw_batch, draw_outputs, make_batch, parts
from workers import LSTM, ppo_config

from a3c_exp.algorithms import A3C, PPO, BatchArrays
from a3c_exp.common.arrays import Array, Floats
from a3c_exp.config.builder import load_experiment
from a3c_exp.errors import ConfigError
from a3c_exp.networks import NetworkOutputs

SHAPE = (5, 3)
MASK = np.ones(SHAPE, np.float32)
MASK[1, 0] = MASK[4, 2] = MASK[3, 1] = 0


def outputs() -> NetworkOutputs:
    return draw_outputs(SHAPE, scale=0.5)


def batch(mask: Floats | None = None) -> BatchArrays:
    return draw_batch(SHAPE, scale=0.5, mask=mask)


# -- the loss --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [None, MASK], ids=["every row", "some rows"])
def test_its_metrics_are_those_of_the_formula(mask: Array | None) -> None:
    """Means over the transitions, without coefficients."""
    algorithm = PPO(
        clip=0.2, value_clip=0.3, value_coefficient=2.0, entropy_coefficient=0.1, normalize_advantages=False
    )
    x, y = outputs(), batch(mask=mask)
    rows = slice(None) if mask is None else mask != 0
    ratios = np.exp(x.log_probs - y.log_probs)[rows]
    near = y.values + np.clip(x.values - y.values, -0.3, 0.3)
    gains = np.minimum(ratios * y.advantages[rows], ratios.clip(0.8, 1.2) * y.advantages[rows])
    expected = {
        "policy_loss": -gains.mean(),
        "value_loss": 0.5 * np.maximum((x.values - y.targets) ** 2, (near - y.targets) ** 2)[rows].mean(),
        "entropy": x.entropy[rows].mean(),
        "approx_kl": (ratios - 1 - np.log(ratios)).mean(),
        "clip_fraction": (np.abs(ratios - 1) > 0.2).mean(),
    }
    assert 0 < expected["clip_fraction"] < 1, "ratios on both sides of the clip range"
    assert algorithm.gradient(x, y, 0.0)[1] == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_with_the_policy_that_acted_its_gradient_is_that_of_a3c() -> None:
    settings: dict[str, Any] = {"value_coefficient": 0.3, "entropy_coefficient": 0.1, "normalize_advantages": True}
    x = outputs()
    y = replace(batch(mask=MASK), log_probs=x.log_probs)
    one, other = (algorithm.gradient(x, y, 0.0)[0] for algorithm in (PPO(**settings), A3C(**settings)))
    for by, and_by in zip(parts(one), parts(other), strict=True):
        np.testing.assert_allclose(by, and_by, rtol=1e-5)


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
        ({"accumulate_rollouts": 2}, "accumulate_rollouts", "must be 1"),
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
