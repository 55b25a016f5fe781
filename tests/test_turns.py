"""The order of turns on the serial backend, and the staleness that it prescribes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from refusals import refused
from runs import config, drain, same

from a3c_exp.config.builder import load_experiment
from a3c_exp.core.events import Event

ROUND_ROBIN = {"backend__order": "round_robin"}
VTRACE = {"returns": "a3c_exp.returns.VTrace"}
FRESH = {"fresh_gradients": True}


def events_of(**settings: Any) -> list[Event]:
    """The events of a run of 300 updates of 16 steps, which nothing has ended too early."""
    events, state, error = drain(config(total_steps=16 * 300, **settings))
    assert error is None and state["steps"] == sum(event.steps for event in events) >= 16 * 300
    return events


def staleness_of(events: list[Event]) -> list[int]:
    """The staleness of each update, in the order of the updates."""
    return [value for event in events for value in event.staleness.elements()]


class TestTheOrder:
    def test_in_turn_every_gradient_is_as_old_as_the_number_of_the_others(self) -> None:
        events = events_of(workers=5, **ROUND_ROBIN)
        assert [event.worker for event in events[:10]] == [*range(5)] * 2
        assert staleness_of(events)[4:-5] == [4] * (len(events) - 9)

    def test_a_worker_of_a_tenth_of_the_weight_makes_a_tenth_of_the_updates(self) -> None:
        events = events_of(workers=4, backend__weights=[1, 0.1])
        updates = Counter(event.worker for event in events)
        for slow, fast in ((1, 0), (3, 2)):
            assert updates[slow] / updates[fast] == pytest.approx(0.1, abs=0.06)

    def test_equal_weights_are_the_same_run_each_time(self) -> None:
        runs = [drain(config(workers=3, backend__weights=[2, 1])) for _ in range(2)]
        assert same(runs[0][1], runs[1][1])

    def test_rounds_may_have_any_order(self) -> None:
        events = events_of(workers=3, update="sync", **ROUND_ROBIN)
        assert set(staleness_of(events)) == {0}


class TestAPrescribedStaleness:
    @pytest.mark.parametrize("staleness", [0, 1, 7])
    def test_in_turn_every_gradient_has_it_and_every_worker_its_share(self, staleness: int) -> None:
        events = events_of(workers=8, backend__staleness=staleness, **ROUND_ROBIN)
        values = staleness_of(events)
        assert values[: staleness + 1] == [*range(staleness + 1)]
        assert set(values[staleness:]) == {staleness}
        updates = Counter(event.worker for event in events)
        assert len(updates) == 8 and max(updates.values()) - min(updates.values()) <= 1

    @pytest.mark.parametrize("weights", [None, [1, 1, 1, 0.1]])
    def test_at_random_it_is_the_mean(self, weights: list[float] | None) -> None:
        events = events_of(workers=8, backend__staleness=3, backend__weights=weights)
        values = staleness_of(events)
        assert np.mean(values) == pytest.approx(3, abs=0.2) and max(values) > 6
        assert {event.worker for event in events} == set(range(8))

    @pytest.mark.parametrize("kind", [VTRACE, FRESH], ids=["v-trace", "fresh gradients"])
    def test_the_data_have_it_and_the_gradient_none_where_workers_pull_again(
        self, kind: dict[str, Any]
    ) -> None:
        events = events_of(workers=8, backend__staleness=5, **ROUND_ROBIN, **kind)
        assert set(staleness_of(events)) == {0}
        assert [event.metrics["workers/lag"].mean for event in events[5:]] == [5] * len(events[5:])

    def test_without_any_no_other_worker_pushes_between(self) -> None:
        assert set(staleness_of(events_of(workers=3, backend__staleness=0))) == {0}

    def test_minibatches_take_turns_too(self) -> None:
        ppo = {"algorithm": {"_target_": "a3c_exp.algorithms.PPO", "minibatch_size": 8}}
        events = events_of(workers=4, backend__staleness=2, **ROUND_ROBIN, **ppo)
        assert set(staleness_of(events)[8:-8]) == {0, 2}, "the first of a rollout is fresh"

    def test_the_same_seed_gives_the_same_run(self) -> None:
        settings: dict[str, Any] = {"workers": 6, "backend__staleness": 2}
        runs = [drain(config(**settings)) for _ in range(2)]
        assert same(runs[0][1], runs[1][1])
        assert not same(runs[0][1], drain(config(**settings | {"backend__staleness": 3}))[1])


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({"backend__staleness": 4, "workers": 4}, "backend.staleness", 4),
        ({"backend__staleness": -1}, "backend.staleness", -1),
        (
            {"backend__staleness": 1, "workers": 4, "update": "sync"},
            "backend.staleness",
            1,
        ),
        ({"backend__weights": [1, 0]}, "backend.weights", [1, 0]),
        ({"backend__weights": []}, "backend.weights", []),
        ({"backend__weights": [1, 2, 3], "workers": 2}, "backend.weights", [1, 2, 3]),
        ({"backend__weights": [1, 2], **ROUND_ROBIN}, "backend.weights", [1, 2]),
        ({"backend__order": "fifo"}, "backend.order", "fifo"),
        (
            {"fresh_gradients": True, "algorithm": {"_target_": "a3c_exp.algorithms.PPO"}},
            "fresh_gradients",
            True,
        ),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], key: str, value: Any) -> None:
    refused(lambda: load_experiment(config(**settings)), key, value)
