"""Proximal policy optimization: its loss against the formula, its minibatches, and what does not go with it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from batches import draw_batch, draw_outputs, make_batch, parts
from workers import LSTM, ppo_config

from a3c_exp.algorithms import A3C, PPO, Algorithm, BatchArrays, MinibatchAlgorithm
from a3c_exp.common.arrays import Array, Floats
from a3c_exp.config.builder import load_experiment
from a3c_exp.errors import ConfigError
from a3c_exp.networks import NetworkOutputs
from a3c_exp.schedules import Linear

SHAPE = (5, 3)
PARTS = ("log_probs", "entropy", "values")
MASK = np.ones(SHAPE, np.float32)
MASK[1, 0] = MASK[4, 2] = MASK[3, 1] = 0


def outputs() -> NetworkOutputs:
    return draw_outputs(SHAPE, scale=0.5)


def batch(mask: Floats | None = None) -> BatchArrays:
    return draw_batch(SHAPE, scale=0.5, mask=mask)


# -- the loss --------------------------------------------------------------------------------------------------------


def by_the_formula(algorithm: PPO, x: dict[str, Array], y: BatchArrays) -> dict[str, float]:
    """The loss and its metrics in double precision, one transition after the other."""
    old_log_probs, old_values, advantages, targets = (
        z.astype(np.float64).ravel() for z in (y.log_probs, y.values, y.advantages, y.targets)
    )
    rows = range(len(targets)) if y.mask is None else np.flatnonzero(y.mask)
    mean, deviation = np.mean(advantages[rows]), np.std(advantages[rows])
    sums = dict.fromkeys(("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"), 0.0)
    clip, value_clip, entropy = algorithm.clip, algorithm.value_clip, algorithm.entropy_coefficient
    assert isinstance(clip, float) and isinstance(value_clip, float | None) and isinstance(entropy, float)
    for i in rows:
        advantage = (advantages[i] - mean) / (deviation + 1e-8) if algorithm.normalize_advantages else advantages[i]
        ratio = math.exp(x["log_probs"][i] - old_log_probs[i])
        inside = min(max(ratio, 1 - clip), 1 + clip)
        sums["policy_loss"] -= min(ratio * advantage, inside * advantage)
        errors = [x["values"][i] - targets[i]]
        if value_clip is not None:
            change = min(max(x["values"][i] - old_values[i], -value_clip), value_clip)
            errors.append(old_values[i] + change - targets[i])
        sums["value_loss"] += max(error**2 for error in errors) / 2
        sums["entropy"] += x["entropy"][i]
        sums["approx_kl"] += ratio - 1 - math.log(ratio)
        sums["clip_fraction"] += ratio != inside
    means = {name: total / len(rows) for name, total in sums.items()}
    bonus = entropy * means["entropy"]
    return means | {"loss": means["policy_loss"] + algorithm.value_coefficient * means["value_loss"] - bonus}


def wide(x: NetworkOutputs) -> dict[str, Array]:
    return {name: getattr(x, name).astype(np.float64).ravel() for name in PARTS}


FORMS = [
    PPO(entropy_coefficient=0.1, normalize_advantages=False),
    PPO(clip=0.1, value_coefficient=0.3),
    PPO(value_clip=0.3, value_coefficient=2.0, normalize_advantages=False),
]


@pytest.mark.parametrize("mask", [None, MASK], ids=["every row", "some rows"])
@pytest.mark.parametrize("algorithm", FORMS, ids=["plain", "normalized", "clipped values"])
class TestTheLoss:
    def test_its_metrics_are_those_of_the_formula(self, algorithm: PPO, mask: Array | None) -> None:
        x, y = outputs(), batch(mask=mask)
        _, metrics = algorithm.gradient(x, y, 0.0)
        expected = by_the_formula(algorithm, wide(x), y)
        del expected["loss"]
        assert 0 < expected["clip_fraction"] < 1, "ratios on both sides of the clip range"
        assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-6)

    def test_its_gradient_is_that_of_the_formula(self, algorithm: PPO, mask: Array | None) -> None:
        """By central differences of the formula in double precision."""
        x, y = outputs(), batch(mask=mask)
        by, _ = algorithm.gradient(x, y, 0.0)
        where, step = wide(x), 1e-6
        for name in PARTS:
            slopes = []
            for i in range(where[name].size):
                ends = []
                for direction in (step, -step):
                    moved = where[name].copy()
                    moved[i] += direction
                    ends.append(by_the_formula(algorithm, where | {name: moved}, y)["loss"])
                slopes.append((ends[0] - ends[1]) / (2 * step))
            np.testing.assert_allclose(getattr(by, name).ravel(), slopes, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("mask", [None, MASK], ids=["every row", "some rows"])
@pytest.mark.parametrize("normalize", [False, True])
def test_with_the_policy_that_acted_its_gradient_is_that_of_a3c(mask: Array | None, normalize: bool) -> None:
    settings: dict[str, Any] = {"value_coefficient": 0.3, "entropy_coefficient": 0.1, "normalize_advantages": normalize}
    x = outputs()
    y = replace(batch(mask=mask), log_probs=x.log_probs)
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


@pytest.mark.parametrize("garbage", [500.0, math.nan])
def test_a_row_that_does_not_count_changes_nothing(garbage: float) -> None:
    """A ratio of e to the 500 would be infinite, and 0 times infinity is NaN."""
    results = []
    for hidden in (0.0, garbage):
        x, y = outputs(), batch(mask=MASK)
        for z in (x.log_probs, x.values, x.entropy, y.advantages, y.targets):
            z[MASK == 0] = hidden
        by, metrics = PPO(value_clip=0.2, entropy_coefficient=0.1).gradient(x, y, 0.0)
        results.append([*parts(by), *metrics.values()])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_clip_ranges_may_follow_a_schedule() -> None:
    algorithm = PPO(clip=Linear(start=0.2, end=0.1), value_clip=Linear(start=0.4, end=0.2))
    for progress, fixed in ((0.0, PPO(clip=0.2, value_clip=0.4)), (1.0, PPO(clip=0.1, value_clip=0.2))):
        one, other = (each.gradient(outputs(), batch(), progress) for each in (algorithm, fixed))
        assert one[1] == other[1]
        for by, and_by in zip(parts(one[0]), parts(other[0]), strict=True):
            np.testing.assert_array_equal(by, and_by)


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


def test_it_learns_in_minibatches_and_a3c_does_not() -> None:
    assert isinstance(PPO(), Algorithm) and isinstance(PPO(), MinibatchAlgorithm)
    assert not isinstance(A3C(), MinibatchAlgorithm)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip": 0.0}, "clip = 0.0: must be a number between 0 and 1, or a schedule"),
        ({"epochs": 0}, "epochs = 0: must be a whole number from 1 to 1000"),
        ({"minibatch_size": 0}, "minibatch_size = 0: must be a whole number >= 1, or null for whole rollouts"),
        ({"target_kl": -1.0}, "target_kl = -1.0: must be a number > 0, or null"),
        ({"value_clip": 0.0}, "value_clip = 0.0: must be a number > 0, a schedule, or null"),
        ({"entropy_coefficient": math.nan}, "entropy_coefficient = nan: must be a finite number, or a schedule"),
        ({"clip": Linear(start=1.0)}, "clip = 1.0: must be a number between 0 and 1 where the run begins, too"),
        ({"value_clip": Linear(end=-1.0)}, "value_clip = -1.0: must be a number > 0 where the run ends, too"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        PPO(**settings)
    assert str(error.value) == message


# -- what does not go together ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"minibatch_size": 5},
            "algorithm.minibatch_size = 5: must divide a rollout: rollout_length x envs_per_worker is 16 transitions "
            "(experiment=ppo sets all of them)",
        ),
        ({"accumulate_rollouts": 2}, "accumulate_rollouts = 2: must be 1 with PPO: use longer rollouts instead"),
        (
            {"epsilon": 0.3},
            "epsilon = 0.3: must be 0 with PPO, which stays close to the policy that acted: "
            "algorithm.entropy_coefficient explores",
        ),
        (
            {"returns": "a3c_exp.returns.VTrace"},
            "returns = 'VTrace': must be one that leaves it to PPO to weigh old actions: gae, for one",
        ),
        (
            {"critic_returns": {"_target_": "a3c_exp.returns.VTrace"}},
            "critic_returns = 'VTrace': must be one that leaves it to PPO to weigh old actions: gae, for one",
        ),
        (
            {"network": LSTM, "minibatch_size": 2},
            "algorithm.minibatch_size = 2: must be a multiple of rollout_length=4: a recurrent network learns "
            "whole sequences",
        ),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_experiment(ppo_config(**settings))
    assert str(error.value) == message
