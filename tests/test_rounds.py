"""Synchronous rounds: who is waited for, what the average weighs, and who makes the step."""

from __future__ import annotations

import numpy as np
from stores import SIZE, event_of, make_store, ones, pull, push

from a3c_exp.common.arrays import arrays_in, block_size
from a3c_exp.core.rounds import SynchronousRounds


def make_rounds(workers: int) -> SynchronousRounds:
    specs = SynchronousRounds.specs(workers, SIZE)
    return SynchronousRounds(arrays_in(bytearray(block_size(specs)), specs))


class TestMembers:
    def test_a_round_is_complete_once_every_worker_has_submitted(self) -> None:
        rounds = make_rounds(2)
        rounds.submit(0, ones(), weight=1)
        assert rounds.waits(0) and not rounds.is_complete()
        rounds.submit(1, ones(), weight=1)
        assert rounds.is_complete()
        rounds.close_round()
        assert not rounds.waits(0) and not rounds.waits(1)
        assert rounds.completed == 1

    def test_a_round_does_not_wait_for_a_worker_that_has_left(self) -> None:
        rounds = make_rounds(2)
        rounds.leave(1)
        rounds.submit(0, ones(), weight=1)
        assert rounds.is_complete()

    def test_a_worker_that_joins_again_is_waited_for(self) -> None:
        rounds = make_rounds(2)
        rounds.finish_rollout(0)
        rounds.leave(1)
        rounds.join(1)
        rounds.submit(0, ones(), weight=1)
        assert not rounds.is_complete()
        assert not rounds.in_progress(1), "it has finished as many rollouts as the others"

    def test_where_all_have_left_a_worker_that_joins_is_the_only_member(self) -> None:
        rounds = make_rounds(2)
        rounds.leave(0)
        rounds.leave(1)
        rounds.join(0)
        rounds.submit(0, ones(), weight=1)
        assert rounds.is_complete()
        rounds.join(0)  # without effect on a member
        assert rounds.is_complete()

    def test_rounds_go_on_without_a_worker_that_has_finished_its_rollout_until_all_have(self) -> None:
        rounds = make_rounds(2)
        rounds.finish_rollout(0)
        assert rounds.in_progress(0)
        for _ in range(2):
            rounds.submit(1, ones(), weight=1)
            assert rounds.is_complete()
            rounds.close_round()
        rounds.finish_rollout(1)
        assert not rounds.in_progress(0) and not rounds.in_progress(1)
        rounds.submit(1, ones(), weight=1)
        assert not rounds.is_complete(), "both are members again"

    def test_a_worker_that_has_finished_does_not_wait_for_one_that_has_left(self) -> None:
        rounds = make_rounds(3)
        rounds.leave(2)
        rounds.finish_rollout(0)
        assert rounds.in_progress(0)
        rounds.leave(1)
        assert not rounds.in_progress(0)
        rounds.submit(0, ones(), weight=1)
        assert rounds.is_complete()

    def test_nobody_waits_for_a_worker_that_has_left_and_then_finishes(self) -> None:
        rounds = make_rounds(3)
        rounds.leave(1)
        rounds.leave(2)
        rounds.finish_rollout(1)
        rounds.finish_rollout(0)
        assert not rounds.in_progress(0)

    def test_after_a_reset_every_worker_is_a_member_of_round_1(self) -> None:
        rounds = make_rounds(2)
        rounds.leave(0)
        rounds.submit(1, ones(), weight=1)
        rounds.close_round()
        rounds.reset()
        rounds.submit(1, ones(), weight=1)
        assert rounds.completed == 0 and not rounds.is_complete()


class TestTheAverage:
    def test_gradients_are_weighted(self) -> None:
        rounds = make_rounds(2)
        rounds.submit(0, ones(1), weight=30)
        rounds.submit(1, ones(5), weight=10)
        average = rounds.average()
        assert average is not None and average.dtype == np.float32
        np.testing.assert_allclose(average, ones(2))

    def test_a_submission_without_a_gradient_weighs_nothing_and_does_not_count(self) -> None:
        rounds = make_rounds(2)
        rounds.submit(0, None, weight=10)
        rounds.submit(1, ones(3), weight=10)
        assert rounds.is_complete()
        assert (rounds.counted(0), rounds.counted(1)) == (False, True)
        np.testing.assert_allclose(rounds.average(), ones(3))  # type: ignore[arg-type]

    def test_a_round_without_any_gradient_has_no_average(self) -> None:
        rounds = make_rounds(2)
        for worker in range(2):
            rounds.submit(worker, None, weight=10)
        assert rounds.is_complete() and rounds.average() is None

    def test_a_gradient_for_a_later_round_is_no_part_of_this_one(self) -> None:
        rounds = make_rounds(2)
        rounds.submit(0, ones(1), weight=10)
        rounds.submit(1, ones(5), weight=10, round=2)
        assert rounds.is_complete()
        np.testing.assert_allclose(rounds.average(), ones(1))  # type: ignore[arg-type]
        rounds.close_round()
        assert not rounds.waits(0) and rounds.waits(1)


class TestPushesIntoRounds:
    def test_a_round_is_one_step_with_the_average_weighted_by_transitions(self) -> None:
        store = make_store(synchronous=True)
        snapshots = [pull(store, worker) for worker in range(3)]
        first = push(store, 0, ones(1), snapshots[0], steps=10)
        second = push(store, 1, ones(2), snapshots[1], steps=10)
        assert not first.done() and not second.done()
        last = push(store, 2, ones(6), snapshots[2], steps=20)
        assert last.done() and first.done() and second.done()
        assert [event_of(ticket).updates for ticket in (first, second, last)] == [0, 0, 1]
        assert all(event_of(ticket).staleness == {0: 1} for ticket in (first, second, last))
        np.testing.assert_allclose(store.parameters.read(), -ones((10 * 1 + 10 * 2 + 20 * 6) / 40))
        assert (store.version, store.steps) == (1, 40)

    def test_a_ticket_that_is_asked_again_counts_once(self) -> None:
        store = make_store(synchronous=True, workers=1)
        ticket = push(store, 0, ones())
        assert ticket.done() and ticket.done()
        assert (event_of(ticket).updates, event_of(ticket).staleness) == (1, {0: 1})
        assert store.counters.gradients_of(0) == 1

    def test_whoever_asks_after_another_has_left_makes_the_step(self) -> None:
        store = make_store(synchronous=True)
        first, second = push(store, 0, ones(1)), push(store, 1, ones(3))
        store.leave(2)
        assert first.done() and second.done()
        assert (event_of(first).updates, event_of(second).updates) == (1, 0)
        np.testing.assert_allclose(store.parameters.read(), -ones(2))

    def test_a_worker_whose_gradient_was_refused_is_part_of_no_update(self) -> None:
        store = make_store(synchronous=True, workers=2)
        refused, sound = push(store, 0, None, steps=10), push(store, 1, ones(3), steps=10)
        assert refused.done() and sound.done()
        assert event_of(refused).staleness == {}
        assert (store.counters.gradients_of(0), store.counters.gradients_of(1)) == (0, 1)
        np.testing.assert_allclose(store.parameters.read(), -ones(3))

    def test_a_round_of_refused_gradients_passes_without_a_step(self) -> None:
        store = make_store(synchronous=True, workers=2)
        first, second = push(store, 0, None, steps=10), push(store, 1, None, steps=10)
        assert first.done() and second.done()
        assert (store.version, store.steps) == (0, 20)

    def test_the_weight_may_differ_from_the_steps_that_are_counted(self) -> None:
        """A minibatch of 30 transitions, and one of 10 that comes with the 100 steps of its rollout."""
        store = make_store(synchronous=True, workers=2)
        push(store, 0, ones(1), steps=0, weight=30)
        push(store, 1, ones(5), steps=100, weight=10)
        np.testing.assert_allclose(store.parameters.read(), -ones(2))
        assert store.steps == 100

    def test_a_push_for_a_later_round_makes_the_steps_of_rounds_that_do_not_wait_for_it(self) -> None:
        store = make_store(synchronous=True, workers=2)
        first = push(store, 0, ones(1))
        later = push(store, 1, ones(4), round=2)
        assert first.done() and not later.done()
        assert store.version == 1
        assert push(store, 0, ones(2)).done() and later.done()
        np.testing.assert_allclose(store.parameters.read(), -ones(1 + 3))

    def test_a_worker_that_finishes_its_rollout_leaves_the_rounds_to_the_others(self) -> None:
        store = make_store(synchronous=True, workers=2)
        store.finish_rollout(0)
        assert store.round_in_progress(0)
        assert push(store, 1, ones()).done()
        store.finish_rollout(1)
        assert not store.round_in_progress(0)
        assert not push(store, 1, ones()).done(), "both are members again"

    def test_a_worker_that_has_left_can_join_again(self) -> None:
        store = make_store(synchronous=True, workers=2)
        store.leave(1)
        assert push(store, 0, ones()).done()
        store.join(1)
        assert not push(store, 0, ones()).done()

    def test_without_rounds_nobody_waits(self) -> None:
        store = make_store(workers=2)
        store.finish_rollout(0)
        store.leave(1)
        store.join(1)
        assert not store.round_in_progress(0)
        assert push(store, 0, ones()).done()
