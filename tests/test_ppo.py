"""Proximal policy optimisation: its loss against the formula; what minibatches do to pulls, pushes and rounds."""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import BACKENDS, BANDIT, CORRIDOR, SCRIPTED, TARGET, config, drain

from a3c_exp.algorithms import A3C, PPO, Algorithm, Batch, Evaluation, Reusing
from a3c_exp.config.builder import load_experiment
from a3c_exp.errors import ConfigError, RunError
from a3c_exp.core.events import Event
from a3c_exp.core.store import SharedStore
from a3c_exp.core.rollout import episode_boundaries
from a3c_exp.run.trainer import run
from a3c_exp.schedules import Linear
from a3c_exp.core.worker import MAX_CONSECUTIVE_NONFINITE, YieldPoint, RunContext, Worker
from a3c_exp.core.experiment import build_network, layout

SHAPE = (5, 3)
PARTS = ("log_probs", "entropy", "values")
MASK = np.ones(SHAPE, np.float32)
MASK[1, 0] = MASK[4, 2] = MASK[3, 1] = 0


def draw(seed: int, count: int) -> list[np.ndarray]:
    return list(0.5 * np.random.default_rng(seed).standard_normal((count, *SHAPE)).astype(np.float32))


def evaluation(seed: int = 0) -> Evaluation:
    return Evaluation(*draw(seed, 3))


def batch(seed: int = 1, mask: np.ndarray | None = None) -> Batch:
    return Batch(*draw(seed, 4), mask=mask)


# -- the loss --------------------------------------------------------------------------------------------------------


def by_the_formula(algorithm: PPO, x: dict[str, np.ndarray], y: Batch) -> dict[str, float]:
    """The loss and its metrics in double precision, one transition after the other."""
    old_log_probs, old_values, advantages, targets = (
        z.astype(np.float64).ravel() for z in (y.log_probs, y.values, y.advantages, y.targets)
    )
    rows = range(len(targets)) if y.mask is None else np.flatnonzero(y.mask)
    mean, deviation = np.mean(advantages[rows]), np.std(advantages[rows])
    sums = dict.fromkeys(("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"), 0.0)
    clip, value_clip = float(algorithm.clip), algorithm.value_clip  # type: ignore[arg-type]
    for i in rows:
        advantage = (advantages[i] - mean) / (deviation + 1e-8) if algorithm.normalize_advantages else advantages[i]
        ratio = math.exp(x["log_probs"][i] - old_log_probs[i])
        inside = min(max(ratio, 1 - clip), 1 + clip)
        sums["policy_loss"] -= min(ratio * advantage, inside * advantage)
        errors = [x["values"][i] - targets[i]]
        if value_clip is not None:
            has_new_data = min(max(x["values"][i] - old_values[i], -value_clip), value_clip)  # type: ignore[type-var]
            errors.append(old_values[i] + has_new_data - targets[i])
        sums["value_loss"] += max(error**2 for error in errors) / 2
        sums["entropy"] += x["entropy"][i]
        sums["approx_kl"] += ratio - 1 - math.log(ratio)
        sums["clip_fraction"] += ratio != inside
    means = {name: total / len(rows) for name, total in sums.items()}
    bonus = float(algorithm.entropy) * means["entropy"]  # type: ignore[arg-type]
    return means | {"loss": means["policy_loss"] + algorithm.value_coefficient * means["value_loss"] - bonus}


def wide(x: Evaluation) -> dict[str, np.ndarray]:
    return {name: getattr(x, name).astype(np.float64).ravel() for name in PARTS}


FORMS = [
    PPO(entropy=0.1, normalize_advantages=False),
    PPO(clip=0.1, value_coefficient=0.3),
    PPO(value_clip=0.3, value_coefficient=2.0, normalize_advantages=False),
]


@pytest.mark.parametrize("mask", [None, MASK], ids=["every row", "some rows"])
@pytest.mark.parametrize("algorithm", FORMS, ids=["plain", "normalised", "clipped values"])
class TestTheLoss:
    def test_its_metrics_are_those_of_the_formula(self, algorithm: PPO, mask: np.ndarray | None) -> None:
        x, y = evaluation(), batch(mask=mask)
        _, metrics = algorithm.gradient(x, y, 0.0)
        expected = by_the_formula(algorithm, wide(x), y)
        del expected["loss"]
        assert 0 < expected["clip_fraction"] < 1, "both sides of the clip are seen"
        assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-6)

    def test_its_gradient_is_that_of_the_formula(self, algorithm: PPO, mask: np.ndarray | None) -> None:
        """By central differences of the formula in double precision."""
        x, y = evaluation(), batch(mask=mask)
        by, _ = algorithm.gradient(x, y, 0.0)
        where, step = wide(x), 1e-6
        for name in PARTS:
            slopes = []
            for i in range(where[name].size):
                ends = []
                for direction in (step, -step):
                    has_new_data = where[name].copy()
                    has_new_data[i] += direction
                    ends.append(by_the_formula(algorithm, where | {name: has_new_data}, y)["loss"])
                slopes.append((ends[0] - ends[1]) / (2 * step))
            np.testing.assert_allclose(getattr(by, name).ravel(), slopes, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("mask", [None, MASK], ids=["every row", "some rows"])
@pytest.mark.parametrize("normalize", [False, True])
def test_with_the_policy_that_acted_its_gradient_is_that_of_a3c(mask: np.ndarray | None, normalize: bool) -> None:
    settings: dict[str, Any] = {"value_coefficient": 0.3, "entropy": 0.1, "normalize_advantages": normalize}
    x = evaluation()
    y = replace(batch(mask=mask), log_probs=x.log_probs)
    one, other = (algorithm.gradient(x, y, 0.0)[0] for algorithm in (PPO(**settings), A3C(**settings)))
    for by, and_by in zip(astuple(one), astuple(other), strict=True):
        np.testing.assert_allclose(by, and_by, rtol=1e-5)


@pytest.mark.parametrize(
    ("advantage", "log_ratio", "learns"), [(1, 0.3, False), (1, -0.3, True), (-1, 0.3, True), (1, 99, False)]
)
def test_what_has_moved_far_enough_moves_no_farther_but_may_come_back(
    advantage: float, log_ratio: float, learns: bool
) -> None:
    cell = np.ones((1, 1), np.float32)
    x = Evaluation(log_ratio * cell, cell, cell)
    by, _ = PPO(normalize_advantages=False).gradient(x, Batch(0 * cell, cell, advantage * cell, cell), 0.0)
    assert np.isfinite(by.log_probs).all()
    assert bool(by.log_probs.any()) is learns


@pytest.mark.parametrize("garbage", [500.0, math.nan])
def test_a_row_that_does_not_count_changes_nothing(garbage: float) -> None:
    """Whatever stands there: a ratio of e to the 500 would be infinite, and nothing times infinity is no number."""
    results = []
    for hidden in (0.0, garbage):
        x, y = evaluation(), batch(mask=MASK)
        for z in (x.log_probs, x.values, x.entropy, y.advantages, y.targets):
            z[MASK == 0] = hidden
        by, metrics = PPO(value_clip=0.2, entropy=0.1).gradient(x, y, 0.0)
        results.append([*astuple(by), *metrics.values()])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_clip_ranges_may_follow_a_schedule() -> None:
    algorithm = PPO(clip=Linear(start=0.2, end=0.1), value_clip=Linear(start=0.4, end=0.2))
    for progress, fixed in ((0.0, PPO(clip=0.2, value_clip=0.4)), (1.0, PPO(clip=0.1, value_clip=0.2))):
        one, other = (each.gradient(evaluation(), batch(), progress) for each in (algorithm, fixed))
        assert one[1] == other[1]
        for by, and_by in zip(astuple(one[0]), astuple(other[0]), strict=True):
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


def test_nothing_is_drawn_where_a_minibatch_is_the_whole_rollout() -> None:
    rng = np.random.default_rng(0)
    assert [rows.tolist() for rows in PPO(epochs=2, minibatch_size=None).minibatches(3, 1, rng)] == [[0, 1, 2]] * 2
    assert rng.random() == np.random.default_rng(0).random()


def test_a_rollout_without_any_transition_has_no_minibatch() -> None:
    assert drawn(0) == drawn(0, minibatch_size=None) == []


def test_it_is_an_algorithm_that_reuses_rollouts_and_a3c_is_not() -> None:
    assert isinstance(PPO(), Algorithm) and isinstance(PPO(), Reusing)
    assert not isinstance(A3C(), Reusing)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip": 0.0}, "clip = 0.0: must be a number between 0 and 1, or a schedule"),
        ({"epochs": 0}, "epochs = 0: must be a whole number >= 1"),
        ({"minibatch_size": 0}, "minibatch_size = 0: must be a whole number >= 1, or null for whole rollouts"),
        ({"target_kl": -1.0}, "target_kl = -1.0: must be a number > 0, or null"),
        ({"value_clip": 0.0}, "value_clip = 0.0: must be a number > 0, a schedule, or null"),
        ({"entropy": math.nan}, "entropy = nan: must be a finite number, or a schedule"),
        ({"clip": Linear(start=1.0)}, "clip = 1.0: must be a number between 0 and 1 where the run begins, too"),
        ({"value_clip": Linear(end=-1.0)}, "value_clip = -1.0: must be a number > 0 where the run ends, too"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        PPO(**settings)
    assert str(error.value) == message


# -- the worker ------------------------------------------------------------------------------------------------------


MLP = {"_target_": "a3c_exp.networks.Mlp", "sizes": [16]}
LSTM = {"_target_": "a3c_exp.networks.Lstm", "cells": 8}


def ppo(env: str = CORRIDOR, minibatch_size: int | None = 8, epochs: int = 2, **settings: Any) -> dict[str, Any]:
    """A whole configuration: rollouts of 16 transitions in two minibatches, gone over twice."""
    own = {name: settings.pop(name) for name in list(settings) if name in PPO.__dataclass_fields__}
    sizes = {"minibatch_size": minibatch_size, "epochs": epochs}
    whole = config(env, **settings)
    whole["algorithm"] = {"_target_": "a3c_exp.algorithms.PPO"} | sizes | own
    return whole


def made(whole: dict[str, Any]) -> tuple[SharedStore, list[Worker]]:
    experiment = load_experiment(whole)
    network, spaces = build_network(experiment)
    store = SharedStore(layout(experiment, network, spaces.observation_space.shape))
    store.initialise(network.vector)
    return store, [Worker(RunContext(experiment=experiment), index, store) for index in range(experiment.worker_count)]


def updates(whole: dict[str, Any]) -> list[Event]:
    """One worker's events, an update each."""
    _, (worker,) = made(whole)
    return [step for step in worker.run() if isinstance(step, Event)]


def test_every_minibatch_is_a_push_and_steps_count_once() -> None:
    events = updates(ppo(BANDIT, total_steps=48))
    assert [event.steps for event in events] == [16, 0, 0, 0] * 3
    assert [event.updates for event in events] == [1] * 12
    assert all({"approx_kl", "clip_fraction", "entropy", "grad_norm"} <= set(event.metrics) for event in events)
    assert sum(len(event.episodes) for event in events) == 48, "an episode of this bandit is one step"
    assert all(event.envs_with_finished_episode == events[-1].envs_with_finished_episode for event in events[-4:])


def test_rows_that_are_no_transitions_are_in_no_minibatch() -> None:
    """A vector environment that restarts late gives such rows; the minibatches are of the others."""
    _, (worker,) = made(ppo(SCRIPTED, env__vectorized=True))
    rollout = worker._gatherer._collector.collect(worker._gatherer._actor, 0, 0, None)
    samples, _ = worker._pusher._learner.samples(rollout)
    assert rollout.transitions < rollout.rewards.size
    np.testing.assert_array_equal(samples.observations[0], rollout.observations[rollout.valid])
    taken = samples.take(np.array([2, 0]))
    np.testing.assert_array_equal(taken.batch.values[0], rollout.values[rollout.valid][[2, 0]])
    np.testing.assert_array_equal(taken.actions[0], rollout.actions[rollout.valid][[2, 0]])


def test_with_a_memory_a_minibatch_is_environments_with_the_state_that_they_began_in() -> None:
    """Here rows that are no transitions stay in their sequences, masked, and count for nothing."""
    _, (worker,) = made(ppo(SCRIPTED, network=LSTM, env__vectorized=True))
    gatherer = worker._gatherer
    gatherer._collector.collect(gatherer._actor, 0, 0, None)
    rollout = gatherer._collector.collect(gatherer._actor, 0, 0, None)
    samples, _ = worker._pusher._learner.samples(rollout)
    taken = samples.take(np.array([2, 0]))
    assert (samples.shape, taken.shape) == ((4, 4), (4, 2))
    assert taken.transitions == rollout.valid[:, [2, 0]].sum() < samples.transitions == rollout.transitions < 16
    np.testing.assert_array_equal(taken.observations, rollout.observations[:, [2, 0]])
    assert taken.memory is not None and rollout.state is not None
    np.testing.assert_array_equal(taken.memory.state, rollout.state[[2, 0]])
    np.testing.assert_array_equal(taken.memory.episode_boundaries, episode_boundaries(rollout)[:, [2, 0]])


def test_with_a_memory_every_minibatch_is_seen_as_it_was_acted_in() -> None:
    """At a rate this small the policy that learns is the one that acted, also behind ends of episodes and rollouts."""
    still = {"_target_": "a3c_exp.optimizers.SGD", "learning_rate": 1e-12}
    settings: dict[str, Any] = {"network": LSTM | {"policy_gain": 1.0}, "optimizer": still, "total_steps": 96}
    events = updates(ppo(BANDIT, epochs=1, env__kwargs={"length": 3}, **settings))
    assert [event.steps for event in events] == [16, 0] * 6
    assert all(event.metrics["approx_kl"].mean == pytest.approx(0, abs=1e-6) for event in events)


def test_every_minibatch_is_a_pull() -> None:
    """What another worker pushes between two minibatches is in the second one's parameters, and makes nothing stale."""
    store, (one, other) = made(ppo(workers=2))
    steps = one.run()
    assert [next(steps), next(steps)] == [YieldPoint.BEFORE_PULL, YieldPoint.BEFORE_PUSH]
    event = next(steps)
    assert isinstance(event, Event) and event.staleness == {0: 1}
    next(step for step in other.run() if isinstance(step, Event))
    assert next(steps) is YieldPoint.BEFORE_PUSH
    event = next(steps)
    assert isinstance(event, Event) and event.staleness == {0: 1}
    assert store.version == 3


def test_the_first_minibatch_is_of_the_policy_that_acted() -> None:
    (first,) = updates(ppo(epochs=1, minibatch_size=None, total_steps=16))
    assert first.metrics["approx_kl"].mean == pytest.approx(0, abs=1e-6)
    assert first.metrics["clip_fraction"].mean == 0
    _, second = updates(ppo(epochs=2, minibatch_size=None, total_steps=16))
    assert second.metrics["approx_kl"].mean > 1e-6


@pytest.mark.parametrize(("env", "network"), [(CORRIDOR, MLP), (TARGET, MLP), (CORRIDOR, LSTM)])
def test_one_pass_over_the_whole_rollout_is_a3c(env: str, network: dict[str, Any]) -> None:
    sgd = {"_target_": "a3c_exp.optimizers.SGD", "learning_rate": 1.0}
    settings = {"optimizer": sgd, "network": network, "total_steps": 16}
    whole = config(env, **settings)
    ends = [drain(each)[1]["parameters"] for each in (
        whole, ppo(env, None, 1, entropy=0.01, normalize_advantages=False, **settings),
    )]  # fmt: skip
    start = build_network(load_experiment(whole))[0].vector
    assert np.abs(ends[0] - start).max() > 1e-3
    np.testing.assert_allclose(ends[1] - start, ends[0] - start, rtol=1e-3, atol=1e-6)


def test_a_policy_that_is_far_enough_from_the_one_that_acted_has_learned_enough() -> None:
    """A rate this high takes it there with the first push: the second minibatch finds it, and is the last."""
    fast = {"_target_": "a3c_exp.optimizers.Adam", "learning_rate": 0.3}
    events = updates(ppo(TARGET, target_kl=0.01, optimizer=fast, epochs=10, total_steps=160))
    starts = [i for i, event in enumerate(events) if event.steps]
    assert len(starts) == 10
    assert len(events) < 100
    for start, end in zip(starts, [*starts[1:], len(events)], strict=True):
        far = [event.metrics["approx_kl"].mean > 0.01 for event in events[start:end]]
        assert not any(far[:-1])
        assert far[-1] or len(far) == 20


def test_gradients_that_are_not_finite_are_refused_one_by_one() -> None:
    settings = {"fails_at": 9, "failure": "nan", "lengths": (4,)}
    store, (worker,) = made(ppo(SCRIPTED, env__kwargs=settings, total_steps=10**9))
    events: list[Event] = []
    with pytest.raises(RunError, match="the last 20 gradients of worker 0 were not finite"):
        events += (step for step in worker.run() if isinstance(step, Event))
    assert sum(event.rejected for event in events) >= MAX_CONSECUTIVE_NONFINITE
    assert np.isfinite(store.parameters()).all()


# -- rounds ----------------------------------------------------------------------------------------------------------


def in_rounds(whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[int]], list[list[Event]]]:
    """Two workers in rounds, in turn: with which versions each acted, and what each said."""
    _, workers = made(whole | {"update": "sync", "workers": 2})
    acted: list[list[int]] = [[], []]
    for worker, versions in zip(workers, acted, strict=True):
        collect = worker._gatherer._collector.collect

        def noted(actor: Any, version: int, *rest: Any, collect: Any = collect, versions: Any = versions) -> Any:
            versions.append(version)
            return collect(actor, version, *rest)

        monkeypatch.setattr(worker._gatherer._collector, "collect", noted)
    said: list[list[Event]] = [[], []]
    running = dict(enumerate(worker.run() for worker in workers))
    for turn in range(10_000):
        if not running:
            return acted, said
        index = turn % 2 if len(running) == 2 else next(iter(running))
        step = next(running[index], None)
        if step is None:
            workers[index].close()
            del running[index]
        elif isinstance(step, Event):
            said[index].append(step)
    raise AssertionError("they wait for one another")


# One environment each, of episodes of 2, 9 and 4 steps in turn: rollouts of 1 to 3 minibatches.
UNEVEN: dict[str, Any] = {
    "env": SCRIPTED, "envs_per_worker": 1, "rollout_length": 6, "minibatch_size": 2,
    "env__kwargs": {"lengths": (2, 9, 4)}, "env__reward_scale": 1e-3,
}  # fmt: skip


def test_who_has_fewer_minibatches_leaves_the_rounds_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    acted, said = in_rounds(ppo(**UNEVEN, total_steps=200), monkeypatch)
    assert acted[0] == acted[1], "all of them act with the same parameters"
    numbers = [len(events) for events in said]
    assert numbers[0] != numbers[1]
    rounds = sum(event.updates for events in said for event in events)
    assert max(numbers) <= rounds < sum(numbers)
    assert {staleness for events in said for event in events for staleness in event.staleness} == {0}


def test_who_stops_early_leaves_the_rounds_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = {"_target_": "a3c_exp.optimizers.Adam", "learning_rate": 0.02}
    whole = ppo(TARGET, target_kl=0.03, epochs=8, optimizer=fast, total_steps=640)
    acted, said = in_rounds(whole, monkeypatch)
    assert acted[0] == acted[1]
    assert len(said[0]) != len(said[1])
    assert sum(event.steps for events in said for event in events) == 640


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("update", ["sync", "async"])
def test_workers_of_uneven_minibatches_come_to_their_end(backend: str, update: str) -> None:
    events, state, error = drain(ppo(**UNEVEN, backend=backend, update=update, workers=3, total_steps=300))
    assert error is None
    assert {event.worker for event in events} == {0, 1, 2}
    assert sum(event.updates for event in events) == state["version"]
    assert sum(event.steps for event in events) == state["steps"] >= 300


def test_a_store_that_is_stopped_keeps_nobody_waiting() -> None:
    store, (one, _) = made(ppo(workers=2, update="sync"))
    steps = one.run()
    assert [next(steps) for _ in range(3)] == [YieldPoint.BEFORE_PULL, YieldPoint.BEFORE_PUSH, YieldPoint.WAITING]
    store.stop()
    assert [type(step) for step in steps] == [Event]


@pytest.mark.parametrize("backend", BACKENDS)
def test_rounds_go_on_in_a_run_that_is_resumed(backend: str, tmp_path: Path) -> None:
    whole = ppo(**UNEVEN, backend=backend, update="sync", workers=2, total_steps=100)
    first = run(whole, tmp_path).summary
    then = run(whole | {"total_steps": 200}, tmp_path, resume=True).summary
    assert (first["stop_reason"], then["stop_reason"]) == ("total_steps", "total_steps")
    assert then["steps"] >= 200 and then["updates"] > first["updates"]


# -- what does not go together ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"minibatch_size": 5},
            "algorithm.minibatch_size = 5: must divide a rollout: rollout_length x envs_per_worker is 16 transitions "
            "(experiment=ppo sets all of them)",
        ),
        ({"accumulate_rollouts": 2}, "accumulate_rollouts = 2: must be 1 with PPO: take longer rollouts instead"),
        (
            {"epsilon": 0.3},
            "epsilon = 0.3: must be 0 with PPO, which stays close to the policy that acted: algorithm.entropy explores",
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
            "algorithm.minibatch_size = 2: must be a multiple of rollout_length=4: a network with a memory learns "
            "whole sequences",
        ),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_experiment(ppo(**settings))
    assert str(error.value) == message


def test_whole_episodes_may_have_any_length() -> None:
    settings: dict[str, Any] = {"envs_per_worker": 1, "rollout_length": "episode", "minibatch_size": 7}
    events = updates(ppo(**settings, total_steps=200))
    assert sum(event.steps for event in events) >= 200
