"""Synchronous rounds: who is waited for, what the average weighs, and who makes the step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from stores import join, make_store, ones, pull, push, waits

from a3c_exp.core.counters import pack_rng
from a3c_exp.core.normalization import NormalizedObservations, measure_stats


class TestPushesIntoRounds:
    def test_a_round_is_one_step_with_the_average_weighted_by_transitions(self) -> None:
        store = make_store(update="sync")
        snapshots = [pull(store, worker) for worker in range(3)]
        first = push(store, 0, ones(1), snapshots[0], steps=10)
        second = push(store, 1, ones(2), snapshots[1], steps=10)
        assert not first.done() and not second.done()
        last = push(store, 2, ones(6), snapshots[2], steps=20)
        assert last.done() and first.done() and second.done()
        assert [ticket.event.updates for ticket in (first, second, last)] == [0, 0, 1]
        assert all(ticket.event.staleness == {0: 1} for ticket in (first, second, last))
        np.testing.assert_allclose(
            store.state()["parameters"], -ones((10 * 1 + 10 * 2 + 20 * 6) / 40)
        )
        assert (store.version, store.steps) == (1, 40)

    def test_a_worker_whose_gradient_was_refused_is_part_of_no_update(self) -> None:
        store = make_store(update="sync", workers=2)
        refused = push(store, 0, None, steps=10)
        sound = push(store, 1, ones(3), steps=10)
        assert refused.done() and sound.done()
        assert refused.event.staleness == {}
        assert store.counters.gradients[:2].tolist() == [0, 1]
        np.testing.assert_allclose(store.state()["parameters"], -ones(3))

    def test_a_push_for_a_later_round_makes_the_steps_of_rounds_that_do_not_wait_for_it(
        self,
    ) -> None:
        store = make_store(update="sync", workers=2)
        first = push(store, 0, ones(1))
        later = push(store, 1, ones(4), pull(store)._replace(rounds=1))
        assert first.done() and not later.done()
        assert store.version == 1
        assert push(store, 0, ones(2)).done() and later.done()
        np.testing.assert_allclose(store.state()["parameters"], -ones(1 + 3))


class TestAQuorum:
    """Rounds of M of N."""

    def test_drops_a_late_gradient_but_not_what_it_brings(self) -> None:
        store = make_store(update="sync", quorum=2, observations=NormalizedObservations(True, (3,)))
        snapshots = [pull(store, worker) for worker in range(3)]
        first, second = (push(store, worker, ones(), snapshots[worker]) for worker in range(2))
        assert second.done() and first.done()
        stats = measure_stats(np.ones((5, 3), np.float32), None)
        rng = np.random.default_rng(7)
        late = push(store, 2, ones(100), snapshots[2], steps=5, stats=stats, rng=rng)
        assert late.done(), "without waiting for another round"
        event = late.event
        assert (
            event.counts.get("late_gradients", 0),
            event.updates,
            event.staleness,
            event.steps,
        ) == (1, 0, {}, 5)
        counted = store.counters.stats()
        assert store.steps == 7 and counted is not None and counted[0] == 5
        np.testing.assert_array_equal(store.counters.rng_states[2], pack_rng(rng))
        assert store.counters.gradients[:3].tolist() == [1, 1, 0]
        push(store, 0, ones())
        push(store, 1, ones())
        np.testing.assert_array_equal(store.state()["parameters"], -ones(2))

    def test_a_refused_gradient_does_not_count_and_its_worker_may_bring_another(self) -> None:
        store = make_store(update="sync", quorum=2)
        refused = push(store, 0, None)
        first = push(store, 1, ones(1))
        assert refused.done() and not first.done()
        assert refused.event.staleness == {}
        assert push(store, 0, ones(3)).done() and first.done()
        np.testing.assert_array_equal(store.state()["parameters"], -ones(2))

    @pytest.mark.parametrize("quorum", ["all", 3])
    def test_larger_than_the_living_is_all_of_them(self, quorum: int | str) -> None:
        store = make_store(update="sync", quorum=quorum, workers=4)
        store.leave(3)
        store.leave(2)
        first = push(store, 0, ones(1))
        assert not first.done()
        assert push(store, 1, ones(3)).done() and first.done()
        store.leave(1)
        assert push(store, 0, ones()).done()
        join(store, 1)
        join(store, 0)  # without effect on one that takes part
        assert not push(store, 0, ones()).done()
        assert not waits(store, 1), "it has finished as many rollouts as the others"

    def test_whoever_waits_closes_the_round_of_one_that_has_died_in_it(self) -> None:
        store = make_store(update="sync", quorum=2)
        push(store, 0, ones(1))
        store.leave(0)
        assert push(store, 1, ones(3)).done(), (
            "the gradient of the dead counts: it is in the average"
        )
        np.testing.assert_array_equal(store.state()["parameters"], -ones(2))

    def test_a_replacement_takes_the_place_of_the_dead_in_a_round(self) -> None:
        store = make_store(update="sync", quorum=2)
        push(store, 0, ones(1))
        store.leave(0)
        store.start(0, np.random.default_rng(0))
        assert not push(store, 0, ones(7)).done(), "one worker is no quorum"
        assert push(store, 1, ones(1)).done()
        np.testing.assert_array_equal(store.state()["parameters"], -ones(4))

    def test_after_a_restoration_rounds_and_turns_begin_anew(self) -> None:
        store = make_store(update="sync", quorum=1, workers=2)
        push(store, 0, ones())
        store.finish_rollout(0)
        assert not waits(store, 0)
        state, store = store.state(), make_store(update="sync", quorum=1, workers=2)
        store.restore(state)
        assert pull(store).rounds == 0
        assert not push(store, 1, ones()).event.counts.get("late_gradients", 0)
        store.finish_rollout(1)
        assert not waits(store, 1)


class TestCyclesWithAQuorum:
    """The end of rollouts of minibatch algorithms."""

    def test_end_once_a_quorum_has_finished(self) -> None:
        store = make_store(update="sync", quorum=2)
        store.finish_rollout(0)
        assert waits(store, 0)
        store.finish_rollout(1)
        assert not waits(store, 0) and not waits(store, 1)
        store.finish_rollout(0)
        assert waits(store, 0), "the next cycle"
        store.finish_rollout(2)
        assert not waits(store, 2), "the slow one counts in the cycle in which it has finished"
        assert not waits(store, 0)

    @pytest.mark.parametrize("quorum", ["all", 2])
    def test_do_not_wait_for_those_that_have_left(self, quorum: int | str) -> None:
        store = make_store(update="sync", quorum=quorum)
        store.finish_rollout(0)
        store.leave(1)
        assert waits(store, 0)
        store.leave(2)
        store.finish_rollout(2)
        assert not waits(store, 0)
        assert push(store, 0, ones()).done()

    def test_a_replacement_of_one_that_died_at_its_end_takes_part_in_rounds(self) -> None:
        store = make_store(update="sync", quorum=2)
        store.finish_rollout(0)
        store.leave(0)
        join(store, 0)
        assert not waits(store, 0)
        store.finish_rollout(1)
        assert waits(store, 1), "the dead one's end does not count"
        waiting = push(store, 2, ones())
        assert not waiting.done()
        assert push(store, 0, ones()).done() and waiting.done()

    def test_nobody_waits_for_ever(self) -> None:
        """Workers that push, finish, leave and come back at random: one of them can always go
        on."""
        for seed in range(30):
            rng = np.random.default_rng(seed)
            workers = int(rng.integers(2, 6))
            store = make_store(update="sync", workers=workers, quorum=int(rng.integers(1, workers)))
            snapshots = [pull(store, worker) for worker in range(workers)]
            waits: dict[int, Callable[[], bool]] = {}
            for _ in range(200):
                free = [
                    worker for worker in range(workers) if worker not in waits or waits[worker]()
                ]
                assert free, "all wait"
                worker = int(rng.choice(free))
                waits.pop(worker, None)
                match rng.choice(["push", "finish", "die"], p=[0.7, 0.2, 0.1]):
                    case "push":
                        waits[worker] = push(store, worker, ones(), snapshots[worker]).done
                    case "finish":
                        waits[worker] = store.finish_rollout(worker).done
                    case "die":
                        victim = int(rng.integers(workers))
                        waits.pop(victim, None)
                        store.leave(victim)
                        join(store, victim)
                        snapshots[victim] = pull(store, victim)
                snapshots[worker] = pull(store, worker) if rng.random() < 0.8 else snapshots[worker]
