"""Prioritized replay (Schaul et al. 2016): what is drawn how often, and what it counts, against the
paper's definitions in double precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from nets import normal
from refusals import refused
from runs import CORRIDOR, config
from test_dqn import GAMMA, PLACES, dqn, tables
from workers import by_descent, events_of

from a3c_exp.common.arrays import Array
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.experiment import Memory
from a3c_exp.core.memory import LEAST_PRIORITY, Priorities, RolloutMemory

ALPHA = 0.6
ERRORS = np.array([0.0, -3.0, 0.5, 1.0, 2.0, -0.1, 0.02, 8.0], np.float32)


def make_priorities(rows: int = 4) -> tuple[Priorities, Array]:
    """Of rows of two environments, whose last row is empty, with these errors; and the positions of
    the other rows. The second transition is none."""
    priorities = Priorities(ALPHA, rows + 1, 2)
    positions = np.arange(rows)
    valid = np.ones((rows, 2), np.bool_)
    valid[0, 1] = False
    priorities.add(positions, valid)
    picks = priorities.choose(np.random.default_rng(0), positions, 300)
    priorities.update(ERRORS[picks][None], 1.0)
    return priorities, positions


def probabilities() -> Array:
    powers = (np.abs(ERRORS) + LEAST_PRIORITY) ** ALPHA
    powers[1] = 0.0
    share: Array = powers / powers.sum()
    return share


def test_transitions_are_drawn_in_proportion_to_the_powers_of_their_errors() -> None:
    priorities, positions = make_priorities()
    picks = priorities.choose(np.random.default_rng(1), positions, 200_000)
    shares = np.bincount(picks, minlength=8) / len(picks)
    np.testing.assert_allclose(shares, probabilities(), atol=0.005)


def test_weights_make_up_for_how_often_transitions_are_drawn() -> None:
    for beta in (0.0, 0.4, 1.0):
        priorities, positions = make_priorities()
        picks = priorities.choose(np.random.default_rng(1), positions, 50)
        weights = priorities.update(np.zeros((1, 50), np.float32), beta)
        expected = (len(ERRORS) * probabilities()[picks]) ** -beta
        np.testing.assert_allclose(weights, [expected / expected.max()], rtol=1e-6)


def test_a_new_transition_has_the_largest_priority() -> None:
    priorities, _ = make_priorities()
    priorities.add(np.array([4]), np.ones((1, 2), np.bool_))
    picks = priorities.choose(np.random.default_rng(1), np.arange(5), 100_000)
    counts = np.bincount(picks, minlength=10)
    np.testing.assert_allclose(counts[8:] / counts[7], 1.0, atol=0.05)


def test_errors_that_are_not_finite_are_the_largest() -> None:
    priorities, positions = make_priorities()
    priorities.choose(np.random.default_rng(1), positions, 3)
    priorities.update(np.array([[np.nan, np.inf, -np.inf]], np.float32), 1.0)
    picks = priorities.choose(np.random.default_rng(2), positions, 1000)
    assert (
        np.isfinite(priorities.update(np.zeros((1, 1000), np.float32), 1.0)).all()
        and len(set(picks)) == 7
    )


def test_an_update_weighs_the_gradient_of_each_transition() -> None:
    settings = {"capacity": 40, "batch_size": 10, "priority": ALPHA, "correction": 0.4}
    whole = dqn(memory=settings, target_every=10**6, reduction="sum") | {"epsilon": 0.6}
    corridor = {"env__kwargs": {"n": PLACES}, "env__max_episode_steps": 4, "total_steps": 10**6}
    store, [worker] = by_descent(CORRIDOR, envs_per_worker=2, rollout_length=4, **whole | corridor)
    learner = worker._learner
    memory = learner.memory
    assert memory is not None
    draw = memory.draw
    drawn: list[Any] = []

    def seen_draw(*given: Any) -> Any:
        drawn.append(draw(*given))
        assert memory.priorities is not None
        powers.append(memory.priorities._powers[memory.priorities._drawn])
        return drawn[-1]

    powers: list[Array] = []
    memory.draw = seen_draw  # type: ignore[assignment, method-assign]
    start = normal(len(learner.network.vector))
    online, target = tables(start)
    for _ in range(20):
        store.initialize(start)
        list(learner.learn(worker._actor.collect(learner.pull()), learner.pull()))
        learner.pull()
        change = learner.network.vector - start

        priorities = memory.priorities
        assert priorities is not None
        rollout, unseen = drawn.pop()
        values = np.zeros(10)
        values[unseen.columns] = target[unseen.observations.argmax(-1)].max(-1)
        places, actions = rollout.observations[0].argmax(-1), rollout.actions[0]
        errors = rollout.rewards[0] + GAMMA * values - online[places, actions]
        new_powers = (np.abs(errors) + LEAST_PRIORITY) ** ALPHA
        np.testing.assert_allclose(priorities._powers[priorities._drawn], new_powers, rtol=1e-5)

        weights = powers.pop() ** -0.4
        weights /= weights.max()
        expected = np.zeros((2, PLACES + 1))
        for place, action, part in zip(
            places, actions, weights * np.clip(errors, -1, 1), strict=True
        ):
            expected[action, [place, PLACES]] += part
        by_hand = np.concatenate(
            [expected[:, :PLACES].ravel(), expected[:, PLACES], np.zeros(2 * PLACES + 2)]
        )
        np.testing.assert_allclose(change, by_hand, rtol=1e-5, atol=1e-5)


def test_a_saved_memory_begins_with_equal_priorities(tmp_path: Path) -> None:
    settings = Memory(capacity=64, sample="transitions", batch_size=200, priority=ALPHA)
    _, [worker] = by_descent(CORRIDOR, **dqn(memory={"capacity": 64, "priority": ALPHA}))
    snapshot = worker._learner.pull()
    kept = worker._learner.memory
    assert kept is not None
    for _ in range(3):
        kept.add(worker._actor.collect(snapshot))
    kept.save(tmp_path / "memory_0.npz")

    read = RolloutMemory(settings, 1, 4, saved=tmp_path / "memory_0.npz")
    read.add(worker._actor.collect(snapshot))
    rollout, _ = read.draw(np.random.default_rng(0), None)
    assert rollout.valid[0].all() and read.priorities is not None
    assert set(read.priorities._powers.ravel().tolist()) == {0.0, 1.0}


def test_it_learns_and_a_run_repeats() -> None:
    vectors = []
    for _ in range(2):
        memory = {"ratio": 4, "priority": ALPHA}
        whole = dqn(memory=memory, double=True) | {"epsilon": 0.5, "network__hidden_sizes": []}
        store, [worker] = by_descent(
            CORRIDOR,
            total_steps=2000,
            optimizer__learning_rate=0.5,
            env__kwargs={"n": PLACES},
            **whole,
        )
        events_of(worker)
        vectors.append(store.state()["parameters"])
    online, _ = tables(vectors[0])
    assert (online[:-1, 1] > online[:-1, 0]).all()
    np.testing.assert_array_equal(*vectors)


def test_settings_that_do_not_fit_are_refused() -> None:
    def check(value: float, **settings: Any) -> None:
        whole = config(CORRIDOR, **settings)
        refused(lambda: load_experiment(whole), "memory.priority", value)

    check(1.5, **dqn(memory={"priority": 1.5}))
    check(0.5, **dqn(memory={"priority": 0.5, "sample": "sequences"}))
    of_policies = {"capacity": 1000, "priority": 0.5, "sample": "transitions"}
    check(0.5, memory=of_policies, returns={"_target_": "a3c_exp.returns.VTrace"})
