"""The actor-learner's loop: what it does between a pull and a push, and what it reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from runs import CORRIDOR, SCRIPTED
from workers import by_descent, events_of, next_event, sgd

from a3c_exp.common.arrays import Floats
from a3c_exp.core.events import Event, YieldPoint
from a3c_exp.core.rollout import Rollout
from a3c_exp.core.store import Push, SharedStore, Ticket
from a3c_exp.core.worker import MAX_CONSECUTIVE_NONFINITE, Worker
from a3c_exp.errors import RunError


def first_update(**settings: Any) -> tuple[Floats, Event, slice]:
    """The change of the parameters by one worker's first push, its event, and where the critic's
    parameters lie."""
    store, (worker,) = by_descent(**settings)
    before = store.state()["parameters"]
    event = next_event(worker.run())
    return store.state()["parameters"] - before, event, store.spec.param_slices["critic"]


def note_pushes(store: SharedStore, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Floats, int]]:
    """The gradient and the steps of every push from now on."""
    pushes: list[tuple[Floats, int]] = []
    original = store.push

    def noted(worker: int, push: Push) -> Ticket:
        assert push.gradient is not None
        pushes.append((push.gradient.copy(), push.event.steps))
        return original(worker, push)

    monkeypatch.setattr(store, "push", noted)
    return pushes


class TestTheLoop:
    def test_others_may_push_between_its_gradient_and_its_push(self) -> None:
        store, (worker,) = by_descent()
        steps = worker.run()
        assert next(steps) is YieldPoint.BEFORE_PUSH
        assert (store.version, store.steps) == (0, 0)
        assert isinstance(next(steps), Event)
        assert (store.version, store.steps) == (1, 16)

    def test_it_ends_after_the_steps_of_the_run_not_of_itself(self) -> None:
        store, (one, other) = by_descent(workers=2, total_steps=100)
        first = one.run()
        for _ in range(6):
            next(first)  # three updates: 48 steps
        events = events_of(other)
        assert sum(event.steps for event in events) == 64
        assert store.steps == 112
        assert list(first) == []

    def test_it_ends_when_the_store_is_stopped_and_reports_its_last_update(self) -> None:
        store, (worker,) = by_descent()
        steps = worker.run()
        next(steps)
        store.stop()
        (event,) = steps
        assert isinstance(event, Event)
        assert (event.updates, event.steps, store.version) == (1, 16, 1)

    def test_a_worker_stopped_in_a_round_reports_its_steps_too(self) -> None:
        """Its steps and episodes have happened, though its gradient waits for others who will not
        come."""
        store, (worker, _) = by_descent(workers=2, update="sync")
        steps = worker.run()
        assert [next(steps), next(steps)] == [YieldPoint.BEFORE_PUSH, YieldPoint.WAITING]
        store.stop()
        (event,) = steps
        assert isinstance(event, Event)
        assert (event.updates, event.steps, len(event.episodes)) == (0, 16, 16)
        assert (store.version, store.steps) == (0, 16)

    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_a_round_is_the_average_over_transitions_or_with_sums_over_workers(
        self, reduction: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A sum has the weight of its transitions already: weighted again, a rollout would count by
        its square."""
        lengths = {
            "env__kwargs": {"lengths": (2, 6)},
            "rollout_length": "episode",
            "envs_per_worker": 1,
        }
        store, (one, other) = by_descent(
            env=SCRIPTED,
            workers=2,
            update="sync",
            algorithm__reduction=reduction,
            **lengths,
            seed=1,
        )
        pushes = note_pushes(store, monkeypatch)
        before = store.state()["parameters"]
        steps = [one.run(), other.run()]
        for worker in steps:
            assert next(worker) is YieldPoint.BEFORE_PUSH
        next(steps[0])
        next(steps[1])
        gradients, transitions = (np.array(column) for column in zip(*pushes, strict=True))
        assert sorted(transitions) == [2, 6]
        weights = transitions / transitions.sum() if reduction == "mean" else np.array([0.5, 0.5])
        np.testing.assert_allclose(
            before - store.state()["parameters"], weights @ gradients, rtol=1e-4, atol=1e-6
        )

    def test_a_rollout_without_any_transition_is_no_update(self) -> None:
        """A vector environment that restarts late answers the step after an episode's end with a
        reset alone."""
        late = {
            "env__vectorized": True,
            "env__normalize_observations": True,
            "env__kwargs": {"lengths": (2,)},
        }
        store, (worker,) = by_descent(
            env=SCRIPTED, envs_per_worker=1, rollout_length=1, total_steps=6, **late
        )
        events = events_of(worker)
        assert [event.steps for event in events] == [1, 1, 0] * 2 + [1, 1]
        assert [event.updates for event in events] == [event.steps for event in events]
        assert (store.version, sum(event.counts.get("rejected", 0) for event in events)) == (6, 0)


class TestTheGradient:
    def test_the_critic_may_learn_from_another_estimator_than_the_actor(self) -> None:
        settings: dict[str, Any] = {
            "env": CORRIDOR,
            "returns__n": 1,
            "network__shared": False,
            "rollout_length": 8,
        }
        one, _, critic = first_update(**settings)
        other, _, _ = first_update(
            critic_returns={"_target_": "a3c_exp.returns.Discounted"}, **settings
        )
        same, _, _ = first_update(
            critic_returns={"_target_": "a3c_exp.returns.NStep", "n": 1}, **settings
        )
        differs = np.flatnonzero(one != other)
        assert len(differs)
        assert (differs >= critic.start).all(), "the actor's part is unchanged"
        assert (differs < critic.stop).all()
        np.testing.assert_array_equal(one, same)

    def test_it_is_clipped_to_its_norm_and_the_norm_before_is_reported(self) -> None:
        free, event, _ = first_update(env=SCRIPTED)
        norm = event.metrics["grad_norm"].mean
        assert norm == pytest.approx(np.linalg.norm(free), rel=1e-3)
        clipped, event, _ = first_update(env=SCRIPTED, optimizer=sgd(1.0, 0.5))
        assert np.linalg.norm(clipped) == pytest.approx(0.5, rel=1e-3)
        assert event.metrics["grad_norm"].mean == norm


class TestLag:
    """With V-trace a worker pulls again between a rollout and its gradient: others may have pushed
    meanwhile."""

    def pushed_between(self, **settings: Any) -> tuple[Floats, Event]:
        """The change of the parameters by the first worker, if another one pushes after its
        rollout; and its event."""
        store, (worker, other) = by_descent(env=CORRIDOR, workers=2, rollout_length=8, **settings)
        steps = worker.run()
        next(steps)
        next_event(other.run())
        before = store.state()["parameters"]
        event = next_event(steps)
        return store.state()["parameters"] - before, event

    def test_a_push_after_the_rollout_makes_nothing_stale(self) -> None:
        assert self.pushed_between()[1].staleness == {1: 1}
        again = self.pushed_between(returns="a3c_exp.returns.VTrace")[1]
        assert again.staleness == {0: 1} and again.metrics["workers/lag"].mean == 1
        assert self.pushed_between(fresh_gradients=True)[1].staleness == {0: 1}

    def test_the_distance_is_how_far_the_parameters_have_moved_since_the_pull(self) -> None:
        store, (worker, other) = by_descent(env=CORRIDOR, workers=2, rollout_length=8)
        pulled = store.state()["parameters"]
        steps = worker.run()
        next(steps)
        alone = next_event(other.run())
        assert alone.metrics["workers/distance"].mean == 0
        moved = np.linalg.norm(store.state()["parameters"] - pulled) / np.linalg.norm(pulled)
        distance = next_event(steps).metrics["workers/distance"].mean
        assert distance == pytest.approx(moved, rel=1e-3) and moved > 0


class TestUniformlyRandomActions:
    """With the probability epsilon an action is drawn from a uniform distribution."""

    def test_stored_log_probabilities_are_those_of_a_mixture_whose_share_follows_its_schedule(
        self,
    ) -> None:
        """The policy is nearly certain of the first of four actions. Rollouts of 160 steps, of 480
        in all."""
        schedule = {"_target_": "a3c_exp.schedules.Linear", "start": 0.8, "end": 0.2}
        store, (worker,) = by_descent(epsilon=schedule, rollout_length=40, total_steps=480)
        certain = np.zeros_like(store.state()["parameters"])
        # the first of the four biases of the last layer
        certain[store.spec.param_slices["actor"]][-4] = 50.0
        actor: Any = worker._actor
        rollouts: list[Rollout] = []
        collect = actor.collect

        def noted(*arguments: Any) -> Rollout:
            rollouts.append(collect(*arguments))
            return rollouts[-1]

        actor.collect = noted
        steps = worker.run()
        for epsilon in (0.8, 0.6, 0.4):
            store.initialize(certain)
            next_event(steps)
            stored = rollouts[-1].log_probs
            assert np.unique(stored.round(3)) == pytest.approx(
                np.log([epsilon / 4, 1 - 0.75 * epsilon]), abs=1e-3
            )
            assert np.mean(stored < np.log(1 - 0.75 * epsilon) - 0.01) == pytest.approx(
                0.75 * epsilon, abs=0.12
            )


class TestGradientsThatAreNotFinite:
    def sick(self, **settings: Any) -> tuple[SharedStore, Worker]:
        whole: dict[str, Any] = {"env__kwargs": {"fails_at": 9, "failure": "huge", "lengths": (4,)}}
        store, (worker,) = by_descent(env=SCRIPTED, **whole | {"total_steps": 10**9} | settings)
        return store, worker

    def test_are_refused_and_counted_and_end_the_run_with_the_reason(self) -> None:
        store, worker = self.sick()
        events: list[Event] = []
        with pytest.raises(
            RunError, match=r"^worker 0: all gradients of the last 20 rollouts were "
        ) as end:
            events += (step for step in worker.run() if isinstance(step, Event))
        assert [event.updates for event in events] == [1] * 2 + [0] * MAX_CONSECUTIVE_NONFINITE
        assert [event.counts.get("rejected", 0) for event in events] == [0] * 2 + [
            1
        ] * MAX_CONSECUTIVE_NONFINITE
        assert [event.steps for event in events] == [16] * len(events), (
            "their steps are counted nevertheless"
        )
        assert all(event.metrics == {} for event in events if event.counts), "they report no losses"
        assert store.version == 2
        assert np.isfinite(store.state()["parameters"]).all()
        assert "3e+38" in str(end.value) and "env.reward_scale" in str(end.value)
        assert "learning rate" not in str(end.value), "the environment is to blame"

    def test_are_counted_anew_after_one_good_gradient(self) -> None:
        learner = self.sick()[1]._learner
        for rejected in [
            *[True] * (MAX_CONSECUTIVE_NONFINITE - 1),
            False,
            *[True] * (MAX_CONSECUTIVE_NONFINITE - 1),
        ]:
            learner._check_divergence(all_rejected=rejected)
        with pytest.raises(RunError):
            learner._check_divergence(all_rejected=True)
