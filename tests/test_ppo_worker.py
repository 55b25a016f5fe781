"""Workers that learn in minibatches: pulls and pushes, recurrent networks, and synchronous
rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from batches import make_batch
from refusals import refused
from runs import BANDIT, CORNERS, CORRIDOR, SCRIPTED, SMALL_CNN, TARGET, config, drain
from workers import LSTM, events_of, make_workers, next_event, ppo_config

from a3c_exp.algorithms import PPO
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.events import Event, YieldPoint
from a3c_exp.core.experiment import build_network
from a3c_exp.core.rollout import Actor, Rollout, episode_boundaries
from a3c_exp.core.store import Snapshot
from a3c_exp.core.worker import MAX_CONSECUTIVE_NONFINITE, Worker
from a3c_exp.engine.arrays import BatchArrays, NetworkOutputs
from a3c_exp.engine.losses import loss_gradient
from a3c_exp.errors import RunError

MLP = {"_target_": "a3c_exp.networks.Mlp", "hidden_sizes": [16]}
START = Snapshot(version=0, steps=0, normalizer=None)


def updates(whole: dict[str, Any]) -> list[Event]:
    """One worker's events, an update each."""
    _, (worker,) = make_workers(whole)
    return events_of(worker)


def collect(worker: Worker) -> tuple[Rollout, BatchArrays]:
    """A worker's next rollout, and the batch that its minibatches are taken from."""
    rollout = worker._actor.collect(START)
    batch = worker._learner._batch(rollout)
    return rollout, batch if rollout.state is not None else batch.without_order()


def test_every_minibatch_is_a_push_and_steps_and_statistics_count_once() -> None:
    store, (worker,) = make_workers(
        ppo_config(BANDIT, env__normalize_observations=True, total_steps=48)
    )
    events = events_of(worker)
    assert store.state()["stats"][0] == store.steps == 48
    assert [event.steps for event in events] == [16, 0, 0, 0] * 3
    assert [event.updates for event in events] == [1] * 12
    assert all(
        {"approx_kl", "clip_fraction", "entropy", "grad_norm"} <= set(event.metrics)
        for event in events
    )
    assert sum(len(event.episodes) for event in events) == 48, (
        "an episode of this bandit is one step"
    )
    assert sum(event.episodes.envs_with_finished_episode > 0 for event in events) == 3


def test_minibatches_of_summed_losses_weigh_alike_in_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sum has the weight of its transitions already."""
    monkeypatch.setattr(PPO, "reduction", "sum")
    store, (worker,) = make_workers(ppo_config(BANDIT, total_steps=16))
    push = mock.Mock(side_effect=store.push)
    monkeypatch.setattr(store, "push", push)
    events_of(worker)
    assert [call.args[1].weight for call in push.call_args_list] == [1, 1, 1, 1]


def test_an_algorithm_without_minibatches_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PPO, "minibatches", lambda *_: iter(()))
    _, (worker,) = make_workers(ppo_config(BANDIT))
    with pytest.raises(RunError, match=r"PPO\.minibatches"):
        events_of(worker)


def test_rows_that_are_no_transitions_are_in_no_minibatch() -> None:
    """A vector environment that restarts late gives such rows."""
    _, (worker,) = make_workers(ppo_config(SCRIPTED, env__vectorized=True))
    rollout, batch = collect(worker)
    assert rollout.transitions < rollout.rewards.size
    np.testing.assert_array_equal(batch.observations[0], rollout.observations[rollout.valid])
    taken = batch.take(np.array([2, 0]))
    np.testing.assert_array_equal(taken.values[0], rollout.values[rollout.valid][[2, 0]])
    np.testing.assert_array_equal(taken.actions[0], rollout.actions[rollout.valid][[2, 0]])


def test_with_a_recurrent_network_a_minibatch_is_of_environments_with_their_initial_states() -> (
    None
):
    """Rows that are no transitions stay in their sequences, masked."""
    _, (worker,) = make_workers(ppo_config(SCRIPTED, network=LSTM, env__vectorized=True))
    collect(worker)
    rollout, batch = collect(worker)
    taken = batch.take(np.array([2, 0]))
    assert (batch.shape, taken.shape) == ((4, 4), (4, 2))
    assert (
        taken.transitions
        == rollout.valid[:, [2, 0]].sum()
        < batch.transitions
        == rollout.transitions
        < 16
    )
    np.testing.assert_array_equal(taken.observations, rollout.observations[:, [2, 0]])
    assert taken.recurrent_input is not None and rollout.state is not None
    np.testing.assert_array_equal(taken.recurrent_input.state, rollout.state[[2, 0]])
    np.testing.assert_array_equal(
        taken.recurrent_input.episode_boundaries, episode_boundaries(rollout)[:, [2, 0]]
    )


def test_with_a_recurrent_network_every_minibatch_is_evaluated_as_it_was_acted_in() -> None:
    """At a rate this small the policy that learns is the one that acted, also after ends of
    episodes and rollouts."""
    still = {"_target_": "a3c_exp.optimizers.SGD", "learning_rate": 1e-12}
    settings: dict[str, Any] = {
        "network": LSTM | {"policy_gain": 1.0},
        "optimizer": still,
        "total_steps": 96,
    }
    events = updates(ppo_config(BANDIT, epochs=1, env__kwargs={"length": 3}, **settings))
    assert [event.steps for event in events] == [16, 0] * 6
    assert all(event.metrics["approx_kl"].mean == pytest.approx(0, abs=1e-6) for event in events)


def test_every_minibatch_is_a_pull() -> None:
    """Another worker's push between two minibatches is in the second one's parameters, and makes
    nothing stale."""
    store, (one, other) = make_workers(ppo_config(workers=2))
    steps = one.run()
    assert [next(steps), next(steps)] == [YieldPoint.BEFORE_PULL, YieldPoint.BEFORE_PUSH]
    event = next(steps)
    assert isinstance(event, Event) and event.staleness == {0: 1}
    next_event(other.run())
    assert next(steps) is YieldPoint.BEFORE_PUSH
    event = next(steps)
    assert isinstance(event, Event) and event.staleness == {0: 1}
    assert store.version == 3


@pytest.mark.parametrize(("env", "network"), [(TARGET, MLP), (CORRIDOR, LSTM)])
def test_one_pass_over_the_whole_rollout_is_a3c(env: str, network: dict[str, Any]) -> None:
    sgd = {"_target_": "a3c_exp.optimizers.SGD", "learning_rate": 1.0}
    settings: dict[str, Any] = {"optimizer": sgd, "network": network, "total_steps": 16}
    run_config = config(env, **settings)
    ends = [
        drain(setting)[1]["parameters"]
        for setting in (
            run_config,
            ppo_config(
                env, None, 1, entropy_coefficient=0.01, normalize_advantages=False, **settings
            ),
        )
    ]
    start = build_network(load_experiment(run_config))[0].vector
    assert np.abs(ends[0] - start).max() > 1e-3
    np.testing.assert_allclose(ends[1] - start, ends[0] - start, rtol=1e-3, atol=1e-6)


def test_pixels_of_a_rollout_are_scaled_as_they_were_acted_on() -> None:
    """The first push brings the first statistics of pixels: the next minibatch is of images seen
    before that."""
    settings: dict[str, Any] = {
        "network": SMALL_CNN,
        "env__normalize_observations": "shared",
        "total_steps": 48,
    }
    events = updates(ppo_config(CORNERS, optimizer__learning_rate=1e-12, **settings))
    assert len(events) == 12
    assert max(abs(event.metrics["approx_kl"].sum) for event in events) < 1e-6


def test_a_policy_too_far_from_the_one_that_acted_ends_the_minibatches_of_its_rollout() -> None:
    """A rate this high takes it there with the first push. The second minibatch finds it, and is
    the last."""
    fast = {"_target_": "a3c_exp.optimizers.Adam", "learning_rate": 0.3}
    events = updates(ppo_config(TARGET, target_kl=0.01, optimizer=fast, epochs=10, total_steps=160))
    starts = [i for i, event in enumerate(events) if event.steps]
    assert len(starts) == 10
    assert len(events) < 100
    for start, end in zip(starts, [*starts[1:], len(events)], strict=True):
        far = [event.metrics["approx_kl"].mean > 0.01 for event in events[start:end]]
        assert not any(far[:-1])
        assert far[-1] or len(far) == 20


def test_one_rollout_that_cannot_be_learned_from_is_one_however_many_minibatches_it_has() -> None:
    """Its rewards are finite, and so large that no gradient is."""
    store, (worker,) = make_workers(ppo_config(epochs=15))
    rollout = worker._actor.collect(START)
    huge = replace(rollout, rewards=np.full_like(rollout.rewards, 1e38))
    events = [step for step in worker._learner.learn(huge, START) if isinstance(step, Event)]
    assert (
        sum(event.counts["rejected"] for event in events) == len(events) > MAX_CONSECUTIVE_NONFINITE
    )
    assert store.version == 0 and np.isfinite(store.state()["parameters"]).all()


# -- rounds
# --------------------------------------------------------------------------------------------------


# One environment each, of episodes of 2, 9 and 4 steps in turn: rollouts of 1 to 3 minibatches.
UNEVEN: dict[str, Any] = {
    "env": SCRIPTED,
    "envs_per_worker": 1,
    "rollout_length": 6,
    "minibatch_size": 2,
    "env__kwargs": {"lengths": (2, 9, 4)},
    "env__reward_scale": 1e-3,
}


def test_a_worker_with_fewer_minibatches_leaves_the_rounds_and_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions: dict[Actor, list[int]] = {}
    collect = Actor.collect

    def noted(actor: Actor, snapshot: Snapshot, progress: float) -> Rollout:
        versions.setdefault(actor, []).append(snapshot.version)
        return collect(actor, snapshot, progress)

    monkeypatch.setattr(Actor, "collect", noted)
    events, state, _ = drain(ppo_config(**UNEVEN, update="sync", workers=2, total_steps=200))
    acted, acted_by_other = versions.values()
    assert acted[:20] == acted_by_other[:20], "both act with the same parameters"
    numbers = [sum(event.worker == worker for event in events) for worker in range(2)]
    assert numbers[0] != numbers[1]
    assert max(numbers) <= state["version"] < sum(numbers)
    assert {staleness for event in events for staleness in event.staleness} == {0}


@pytest.mark.parametrize(
    ("backend", "rounds"),
    [
        ("serial", {"update": "async"}),
        ("threads", {"update": "sync", "quorum": 2}),
        ("processes", {"update": "sync"}),
        ("processes", {"update": "sync", "quorum": 2}),
    ],
    ids=str,
)
def test_workers_of_uneven_minibatches_come_to_their_end(
    backend: str, rounds: dict[str, Any]
) -> None:
    events, state, error = drain(
        ppo_config(**UNEVEN, **rounds, backend=backend, workers=3, total_steps=300)
    )
    assert error is None
    # otherwise others may have made all steps before a process has started
    if rounds == {"update": "sync"}:
        assert {event.worker for event in events} == {0, 1, 2}
    assert sum(event.updates for event in events) == state["version"]
    assert sum(event.steps for event in events) == state["steps"] >= 300


def test_a_late_worker_goes_on_with_its_next_minibatch() -> None:
    _, (slow, *others) = make_workers(ppo_config(workers=3, update="sync", quorum=2))
    steps = slow.run()
    assert [next(steps), next(steps)] == [YieldPoint.BEFORE_PULL, YieldPoint.BEFORE_PUSH]
    running = [worker.run() for worker in others]
    made = 0
    while not made:
        made += sum(step.updates for step in map(next, running) if isinstance(step, Event))
    event = next(steps)
    assert isinstance(event, Event) and (event.counts.get("late_gradients", 0), event.steps) == (
        1,
        16,
    )
    assert next(steps) is YieldPoint.BEFORE_PUSH, (
        "of its second minibatch, which nothing has made late"
    )
    assert next(steps) is YieldPoint.WAITING


# The loss and the minibatches.


# -- the loss
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advantage", "log_ratio", "learns"),
    [(1, 0.3, False), (1, -0.3, True), (-1, 0.3, True), (1, 99, False)],
)
def test_a_ratio_beyond_the_clip_range_goes_no_farther_but_may_come_back(
    advantage: float, log_ratio: float, learns: bool
) -> None:
    cell = np.ones((1, 1), np.float32)
    x = NetworkOutputs(log_ratio * cell, cell, cell)
    batch = make_batch(0 * cell, cell, advantage * cell, cell)
    by, _ = loss_gradient(PPO(normalize_advantages=False), None)(x, batch, 0.0)
    assert np.isfinite(by.log_probs).all()
    assert bool(by.log_probs.any()) is learns


# -- the minibatches
# -------------------------------------------------------------------------------------------------


def drawn(transitions: int, **settings: Any) -> list[list[int]]:
    return [
        rows.tolist()
        for rows in PPO(**settings).minibatches(transitions, 1, np.random.default_rng(0))
    ]


def test_every_epoch_has_each_transition_once_in_an_order_of_its_own() -> None:
    parts = drawn(12, epochs=3, minibatch_size=4)
    assert [len(part) for part in parts] == [4] * 9
    epochs = [[*parts[i], *parts[i + 1], *parts[i + 2]] for i in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize(
    ("transitions", "sizes"), [(1, [1]), (4, [4]), (5, [3, 2]), (9, [3, 3, 3])]
)
def test_a_rollout_that_was_cut_short_has_fewer_of_about_the_same_size(
    transitions: int, sizes: list[int]
) -> None:
    assert [len(part) for part in drawn(transitions, epochs=1, minibatch_size=4)] == sizes


@pytest.mark.parametrize(
    ("size", "sizes"), [(20, [4, 4]), (10, [2] * 4), (5, [1] * 8), (None, [8])]
)
def test_sequences_are_taken_whole(size: int | None, sizes: list[int]) -> None:
    """Eight environments, five steps each."""
    parts = list(PPO(epochs=1, minibatch_size=size).minibatches(8, 5, np.random.default_rng(0)))
    assert [len(part) for part in parts] == sizes
    assert sorted(np.concatenate(parts)) == list(range(8))


def test_no_order_is_drawn_where_a_minibatch_is_the_whole_rollout() -> None:
    rng = np.random.default_rng(0)
    assert [
        rows.tolist() for rows in PPO(epochs=2, minibatch_size=None).minibatches(3, 1, rng)
    ] == [[0, 1, 2]] * 2
    assert rng.random() == np.random.default_rng(0).random()


def test_a_rollout_without_any_transition_has_no_minibatch() -> None:
    assert drawn(0) == drawn(0, minibatch_size=None) == []


V_TRACE = "a3c_exp.returns.VTrace"


@pytest.mark.parametrize(
    ("settings", "key", "word"),
    [
        (
            {"minibatch_size": 5},
            "algorithm.minibatch_size",
            "a divisor of rollout_length x envs_per_worker",
        ),
        ({"epsilon": 0.3}, "epsilon", "must be 0"),
        ({"returns": V_TRACE}, "returns", "gae"),
        ({"critic_returns": {"_target_": V_TRACE}}, "critic_returns", "gae"),
        (
            {"network": LSTM, "minibatch_size": 2},
            "algorithm.minibatch_size",
            "multiple of rollout_length=4",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], key: str, word: str) -> None:
    assert word in refused(lambda: load_experiment(ppo_config(**settings)), key)
