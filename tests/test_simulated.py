"""The simulated cluster: its arithmetic is serial's, its clock is added up by hand."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_runs import PPO, SETTINGS, WHOLE_ROLLOUTS, assert_as_serial
from refusals import Refuses, refused
from runs import SCRIPTED, config, drain, make_store, same, train

import a3c_exp
from a3c_exp import measure
from a3c_exp.config.builder import load_experiment, load_final
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import RunContext
from a3c_exp.run.metrics import SECONDS
from a3c_exp.run.outcome import outcome

SIMULATED = "a3c_exp.backends.simulated.Simulated"
GAE = {"_target_": "a3c_exp.returns.GAE"}
# A rollout of 4 steps and its gradient take 10 ms.
TIMES = {"step_ms": 2.0, "gradient_ms": 2.0}


def simulated(workers: int, updates: int, backend: Any = TIMES, **settings: Any) -> dict[str, Any]:
    """A configuration of so many workers, each of whose rollouts has 16 transitions. backend: the
    settings of the clock."""
    whole = config(workers=workers, total_steps=16 * updates, **settings)
    whole["backend"] = {"_target_": SIMULATED, "max_restarts": 0, **backend}
    return whole


def timed(whole: dict[str, Any]) -> tuple[list[Event], list[float]]:
    """Run a configuration. Returns its events and the simulated milliseconds of each."""
    experiment = load_experiment(whole)
    store = make_store(experiment)
    events: list[Event] = []
    times: list[float] = []
    for event in experiment.backend.run(RunContext(experiment=experiment), store):
        assert event is not None
        events.append(event)
        times.append(1000 * store.training_seconds)
    return events, times


def staleness(events: Sequence[Event]) -> list[int]:
    return [value for event in events for value in event.staleness.elements()]


def equal(times: Sequence[float], expected: Sequence[float]) -> bool:
    return times == pytest.approx(expected)


class TestTheArithmeticIsSerials:
    @pytest.mark.parametrize(
        "name", ["rmsprop, locked", "ppo", "ppo, synchronous", "v-trace", "lstm", "sarsa"]
    )
    def test_one_worker_is_serial_bit_for_bit(self, name: str) -> None:
        whole = config(**SETTINGS[name])
        times = TIMES | {"push_ms": 1.0, "pull_ms": 1.0, "turn_spread": 0.5, "cores": 1}
        whole["backend"] = {"_target_": SIMULATED, **times}
        _, state, error = drain(whole)
        assert error is None
        assert_as_serial(state, name)

    def test_a_whole_run_of_one_worker_has_serials_curves_but_for_the_seconds(
        self, tmp_path: Path
    ) -> None:
        settings: dict[str, Any] = {"eval": {"every": 160, "episodes": 2}, "log": {"every": 32}}
        train(tmp_path / "serial", **settings)
        train(tmp_path / "simulated", backend="simulated", backend__step_ms=1.0, **settings)
        tables = [
            list(csv.DictReader((tmp_path / name / "metrics.csv").open()))
            for name in ("serial", "simulated")
        ]
        for row in [row for table in tables for row in table]:
            del row[SECONDS]
            row.pop("time/steps_per_second", None)
        assert tables[0] == tables[1] != []

    def test_the_same_seed_gives_the_same_run_and_another_seed_another_one(self) -> None:
        spread = TIMES | {"worker_spread": 0.5, "turn_spread": 0.5, "cores": 2}
        runs = [timed(simulated(5, 40, spread, seed=seed)) for seed in (0, 0, 1)]
        assert runs[0][1] == runs[1][1] != runs[2][1]
        states = [drain(simulated(5, 40, spread))[1] for _ in range(2)]
        assert same(*states)


class TestTheClock:
    def test_a_worker_takes_the_time_of_its_steps_and_its_gradient(self) -> None:
        assert equal(timed(simulated(1, 3))[1], [10, 20, 30])

    def test_equal_workers_push_together_each_after_the_others(self) -> None:
        events, times = timed(simulated(3, 9))
        assert equal(times[:9], [10] * 3 + [20] * 3 + [30] * 3)
        assert staleness(events)[:9] == [0, 1, 2] + [2] * 6, "every later gradient is 2 updates old"

    def test_a_rollout_that_ends_with_its_episode_takes_the_time_of_its_steps(self) -> None:
        whole = simulated(1, 1, env=SCRIPTED, env__kwargs={"lengths": [6]}, envs_per_worker=1)
        events, times = timed(whole)
        assert [event.steps for event in events[:4]] == [4, 2, 4, 2]
        assert equal(times[:4], [10, 16, 26, 32])

    def test_each_minibatch_has_a_gradient_and_a_push(self) -> None:
        """Steps 8 ms; three passes over two minibatches, each 2 ms and a push of 1 ms."""
        settings: dict[str, Any] = {"algorithm": PPO, "returns": GAE}
        times = timed(simulated(1, 1, TIMES | {"push_ms": 1.0}, **settings))[1]
        assert equal(times, [8 + 3 * count for count in range(1, 7)])

    def test_v_trace_pulls_between_its_steps_and_its_gradient(self) -> None:
        """Worker 1 pulls for its gradient after worker 0 has pushed."""
        settings: dict[str, Any] = {"returns": {"_target_": "a3c_exp.returns.VTrace"}}
        slow = TIMES | {"stragglers": 0.5, "slowdown": 1.5}
        events, times = timed(simulated(2, 2, slow, **settings))
        assert equal(times[:2], [10, 15])
        assert staleness(events[:2]) == [0, 0]

    def test_parameters_that_are_pulled_arrive_later(self) -> None:
        assert equal(timed(simulated(1, 2, TIMES | {"pull_ms": 3.0}))[1], [13, 26])

    @pytest.mark.parametrize(
        ("lock", "expected"),
        [(False, [14, 14, 14, 28, 28, 28]), (True, [14, 18, 22, 28, 32, 36])],
    )
    def test_pushes_follow_one_another_with_a_lock(
        self, lock: bool, expected: Sequence[float]
    ) -> None:
        times = timed(simulated(3, 6, TIMES | {"push_ms": 4.0}, lock=lock))[1]
        assert equal(times[:6], expected)

    def test_who_comes_first_gets_the_lock_first(self) -> None:
        """Worker 1 has pulled before worker 0 pulls again, and comes later."""
        slow = TIMES | {"push_ms": 4.0, "stragglers": 0.5, "slowdown": 3.0}
        events, times = timed(simulated(2, 3, slow, lock=True))
        assert [event.worker for event in events[:3]] == [0, 0, 1]
        assert equal(times[:3], [14, 28, 34])

    def test_workers_queue_for_cores(self) -> None:
        events, times = timed(simulated(4, 8, TIMES | {"cores": 2}))
        assert equal(times[:8], [10, 10, 20, 20, 30, 30, 40, 40])
        assert staleness(events)[4:8] == [3] * 4, "all are at work, whatever the cores"

    @pytest.mark.parametrize("lock", [False, True])
    def test_a_push_needs_no_core(self, lock: bool) -> None:
        times = timed(simulated(2, 4, TIMES | {"cores": 1, "push_ms": 4.0}, lock=lock))[1]
        assert equal(times[:4], [14, 24, 34, 44])

    def test_stragglers_are_the_last_workers(self) -> None:
        slow = TIMES | {"stragglers": 0.5, "slowdown": 3.0}
        events, times = timed(simulated(4, 8, slow))
        assert equal(times[:8], [10, 10, 20, 20, 30, 30, 30, 30])
        assert {event.worker for event in events[:4]} == {0, 1}

    @pytest.mark.parametrize("kind", ["worker_spread", "turn_spread"])
    def test_spread_times_have_the_mean_of_equal_ones(self, kind: str) -> None:
        events, times = timed(simulated(60, 300, TIMES | {kind: 0.5}))
        ends: dict[int, list[float]] = {}
        for event, time in zip(events, times, strict=True):
            ends.setdefault(event.worker, []).append(time)
        first, second = np.array([row[:2] for row in ends.values() if len(row) > 1]).T
        assert len(first) > 55
        assert first.mean() == pytest.approx(10, rel=0.25)
        assert np.log(first).std() == pytest.approx(0.5, rel=0.25)
        is_of_the_worker = np.allclose(second, 2 * first)
        assert is_of_the_worker == (kind == "worker_spread")


class TestRounds:
    def test_a_round_waits_for_the_slowest(self) -> None:
        slow = TIMES | {"stragglers": 0.25, "slowdown": 5.0}
        events, times = timed(simulated(4, 12, slow, update="sync"))
        assert equal(times, [50] * 4 + [100] * 4 + [150] * 4)
        assert [event.updates for event in events].count(1) == 3

    def test_a_quorum_does_not(self) -> None:
        slow = TIMES | {"stragglers": 0.25, "slowdown": 5.0}
        events, times = timed(simulated(4, 16, slow, update="sync", quorum=3))
        quick = [time for event, time in zip(events, times, strict=True) if event.worker != 3]
        assert equal(quick[:9], [10] * 3 + [20] * 3 + [30] * 3)
        late = [
            (event.worker, time)
            for event, time in zip(events, times, strict=True)
            if event.counts["late_gradients"]
        ]
        assert late[0][0] == 3
        assert late[0][1] == pytest.approx(50)

    def test_gradients_of_a_round_are_handed_in_one_after_the_other(self) -> None:
        times = timed(simulated(3, 6, TIMES | {"push_ms": 4.0}, update="sync"))[1]
        assert equal(times, [22] * 3 + [44] * 3)

    def test_rounds_of_minibatches_end(self) -> None:
        settings: dict[str, Any] = {"algorithm": WHOLE_ROLLOUTS, "returns": GAE, "update": "sync"}
        events, times = timed(simulated(3, 6, **settings))
        assert sum(event.steps for event in events) == 6 * 16
        assert times[-1] == pytest.approx(2 * (8 + 3 * 2))

    def test_a_round_goes_on_without_a_worker_that_fails_and_with_its_replacement(self) -> None:
        failing: dict[str, Any] = {"env": SCRIPTED, "env__kwargs": {"fails_at": 10}}
        whole = simulated(3, 30, TIMES | {"max_restarts": 3}, update="sync", **failing)
        events, _ = timed(whole)
        assert sum(event.counts["restarts"] for event in events) > 3
        assert sum(event.steps for event in events) >= 16 * 30


class TestRuns:
    def test_seconds_of_a_run_are_simulated(self, tmp_path: Path) -> None:
        settings: dict[str, Any] = {"backend__step_ms": 2000.0, "backend__gradient_ms": 2000.0}
        done = train(tmp_path, backend="simulated", workers=2, update="sync", **settings).summary
        assert done["training_seconds"] == 50
        assert done["steps_per_second"] == 3.2
        assert done["wall_seconds"] < 50
        assert done["clock"] == "simulated"
        assert ", 50.0 s (simulated)" in outcome(done)
        last = list(csv.DictReader((tmp_path / "metrics.csv").open()))[-1]
        assert float(last[SECONDS]) == 50

    def test_the_limit_in_seconds_is_one_of_simulated_seconds(self, tmp_path: Path) -> None:
        settings: dict[str, Any] = {"backend__step_ms": 2000.0, "backend__gradient_ms": 2000.0}
        done = train(
            tmp_path, backend="simulated", stop__max_seconds=25, total_steps=10**9, **settings
        ).summary
        assert done["stop_reason"] == "max_seconds"
        assert (done["updates"], done["training_seconds"]) == (3, 30)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("step_ms", 0),
        ("gradient_ms", -1),
        ("push_ms", -1.0),
        ("pull_ms", -0.5),
        ("worker_spread", 4),
        ("turn_spread", -0.1),
        ("stragglers", 1.5),
        ("slowdown", 0.5),
        ("cores", 0),
    ],
)
def test_times_out_of_range_are_refused(setting: str, value: float) -> None:
    refused(lambda: load_experiment(simulated(2, 1, {setting: value})), f"backend.{setting}", value)


class TestMeasuredTimes:
    """The command that prints the settings of this machine."""

    def test_what_is_printed_is_a_run_that_can_be_made(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(measure, "TRAINING_SECONDS", 0.2)
        words = ["env=cartpole", "workers=64", "backend=threads"]
        assert measure.main(words) == 0
        *start, step, gradient, push, pull = shlex.split(capsys.readouterr().out)
        assert start == [
            "python",
            "-m",
            "a3c_exp",
            "env=cartpole",
            "workers=64",
            "backend=simulated",
        ]
        _, experiment = load_final(a3c_exp.compose([*start[3:], step, gradient, push, pull]))
        backend: Any = experiment.backend
        assert experiment.workers == 64
        assert 0 < backend.step_ms < 100
        assert 0 < backend.pull_ms < backend.gradient_ms < 1000

    def test_are_of_one_worker_although_a_quorum_is_of_many(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(measure, "TRAINING_SECONDS", 0.2)
        assert measure.main(["env=cartpole", "workers=64", "update=sync", "quorum=58"]) == 0
        assert " quorum=58 " in capsys.readouterr().out

    def test_too_few_steps_to_measure_are_refused(self, refuses: Refuses) -> None:
        words = ["env=cartpole", "total_steps=1", "stop.mean_return=null"]
        refuses(words, "total_steps", 1, main=measure.main)

    def test_a_wrong_word_is_refused(self, refuses: Refuses) -> None:
        refuses(["env=cartpole", "gamma=2"], "gamma", 2.0, main=measure.main)
