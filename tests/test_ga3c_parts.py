"""What GA3C is made of: rollouts put together, the queue of numbers, the tuning of counts, the network on a device."""

from __future__ import annotations

import functools
import itertools
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learning import learned
from runs import CORNERS, CORRIDOR, SCRIPTED, SMALL_CNN, TARGET, config, drain
from test_backends import running
from test_ga3c import ga3c

from a3c_exp.backends.ga3c import tune
from a3c_exp.backends.ga3c.device import OnDevice
from a3c_exp.backends.ga3c.exchange import RESTING, WAITING, WORKING, Exchange, Plan, Queue
from a3c_exp.backends.ga3c.tune import TUNE_SECONDS, Count, Tuner
from a3c_exp.config.builder import load_experiment
from a3c_exp.envs import Gym
from a3c_exp.errors import ConfigError
from a3c_exp.networks import ActorCritic, Cnn, Lstm, Mlp
from a3c_exp.core.rollout import Collector, LocalActor, RewardTransform, Rollout, together
from a3c_exp.run.trainer import run
from a3c_exp.core.experiment import build_network

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")


class TestTogether:
    """Rollouts of several agents as one batch."""

    def rollouts(self, network: Any, lengths: tuple[int, ...] = (3, 5, 2)) -> list[Rollout]:
        """Of three agents with one environment each: they end where an episode does, or are cut after 4 steps."""
        gym = Gym(id=SCRIPTED, kwargs={"lengths": lengths, "ends": ("terminated", "truncated")})
        found = []
        for name in range(3):
            env = gym.make(1, [name])
            built = network.build(env.observation_space, env.action_space, np.random.default_rng(0))
            collector = Collector(env, 4, RewardTransform(), 0.9, built.initial_state(1))
            actor = LocalActor(built, np.random.default_rng(name))
            for _ in range(2):
                rollout = collector.collect(actor, 0, 0, None)
                versions = np.full(rollout.rewards.shape, name)
                found.append(_with(rollout, version=versions))
        return found

    def test_shorter_ones_are_filled_up_with_what_is_no_transition(self) -> None:
        rollouts = self.rollouts(Mlp(sizes=(8,)))
        whole = together(rollouts)
        assert whole.observations.shape == (4, 6, 4)
        lengths = [len(rollout.rewards) for rollout in rollouts]
        np.testing.assert_array_equal(whole.valid, np.arange(4)[:, None] < lengths)
        for index, rollout in enumerate(rollouts):
            np.testing.assert_array_equal(whole.rewards[: lengths[index], index], rollout.rewards[:, 0])
        assert whole.transitions == sum(lengths)
        assert len(whole.episodes) == sum(len(rollout.episodes) for rollout in rollouts)

    @pytest.mark.parametrize("network", [Mlp(sizes=(8,)), Lstm(encoder=Mlp(sizes=(8,)), cells=4)], ids=["mlp", "lstm"])
    @pytest.mark.parametrize("returns", ["NStep", "GAE", "Discounted", "VTrace", "NStepZero"])
    def test_its_gradient_is_the_mean_of_theirs_by_transitions(self, network: Any, returns: str) -> None:
        from a3c_exp.core.learner import Learner

        rollouts = self.rollouts(network)
        estimator = {"_target_": f"a3c_exp.returns.{returns}"} | ({"n": 2} if returns.startswith("NStep") else {})
        experiment = load_experiment(config(SCRIPTED, returns=estimator, algorithm__entropy=0.0))
        env = Gym(id=SCRIPTED).make(1, [0])
        built = network.build(env.observation_space, env.action_space, np.random.default_rng(1))
        learner = Learner(experiment, built)

        def gradient(rollout: Rollout) -> np.ndarray:
            built.gradient.fill(0)
            learner.add_gradient(rollout, 0.0)
            return np.array(built.gradient, np.float64)

        apart = sum(gradient(rollout) * rollout.transitions for rollout in rollouts)
        whole = together(rollouts)
        np.testing.assert_allclose(gradient(whole), apart / whole.transitions, rtol=1e-4, atol=1e-4)

    def test_one_alone_is_what_it_was(self) -> None:
        (rollout, *_) = self.rollouts(Mlp(sizes=(8,)))
        assert together([rollout]) is rollout


def _with(rollout: Rollout, **changes: Any) -> Rollout:
    return Rollout(**{name: getattr(rollout, name) for name in Rollout.__slots__} | changes)


class TestTheQueue:
    def test_numbers_come_out_in_order_as_many_as_there_are(self) -> None:
        queue = Queue()
        for number in range(5):
            os.write(queue.writer, np.int32(number).tobytes())
        assert queue.depth == 5
        assert np.frombuffer(queue.take(3, 1.0), np.int32).tolist() == [0, 1, 2]
        assert np.frombuffer(queue.take(3, 1.0), np.int32).tolist() == [3, 4]
        began = time.monotonic()
        assert queue.take(3, 0.05) == b""
        assert time.monotonic() - began > 0.04
        queue.close()

    def test_the_block_has_room_for_what_the_network_says_and_takes(self) -> None:
        experiment = load_experiment(ga3c(TARGET, workers=2, network={"_target_": "a3c_exp.networks.Lstm", "cells": 8}))
        plan = Plan.of(experiment, 2, *build_network(experiment))
        assert (plan.parameters, plan.state, plan.observed) == (2, 16, 0)
        assert plan.action == ((1,), np.dtype(np.float32))
        assert plan.told()["observations"][0] == (4, 4, 4, 1)

    def test_an_agent_that_has_not_seen_its_mail_yet_works(self) -> None:
        """Trainers make do with less than `training_batch` where nobody works. An agent whose slot has just been freed
        does, however long it is kept from its core; one that rests does not, whatever waits for it."""
        experiment = load_experiment(ga3c(workers=2))
        exchange = Exchange(Plan.of(experiment, 1, *build_network(experiment)))
        port, status = exchange.port(0), exchange.asked["status"]
        assert exchange.working == 2
        assert port.free_slot() == 0
        status[0] = WAITING
        assert exchange.working == 1
        exchange.free([0])
        assert exchange.working == 2
        status[0] = RESTING
        assert exchange.working == 1
        status[0] = WAITING
        assert port.free_slot() == 0
        assert status[0] == WORKING
        exchange.close()


class TestTuning:
    """One of the counts moves at a time; what is slower is taken back."""

    def tuned(self, speed: Any, looks: int = 60) -> tuple[list[Count], list[dict[str, float]]]:
        """The counts after so many looks, where a second brings `speed(agents, trainers)` steps; and what was told."""
        now = {"agents": 4, "trainers": 1}
        counts = [
            Count(name, now[name], most, functools.partial(now.__setitem__, name)) for name, most in LIMITS.items()
        ]
        passed, steps = 0.0, 1.0
        tuner = Tuner(counts, np.random.default_rng(0), lambda: int(steps), lambda: passed)
        told = [tuner.look()]
        for _ in range(looks):
            passed += TUNE_SECONDS
            steps += TUNE_SECONDS * speed(**now)
            told.append(tuner.look())
        assert {count.name: count.now for count in counts} == now
        return counts, told

    def test_what_is_faster_is_kept(self) -> None:
        counts, told = self.tuned(lambda agents, trainers: 100 * agents + 1000 * min(trainers, 2))
        (agents, trainers) = counts
        assert agents.now >= LIMITS["agents"] - 1
        assert abs(trainers.now - 2) <= 1
        assert told[0] == {}
        assert all(row.keys() == {"ga3c/agents", "ga3c/trainers"} for row in told[1:])

    def test_what_is_in_force_is_measured_again(self) -> None:
        """Throughput falls by a third for good, as where a policy plays longer episodes: what was measured before that
        is no yardstick, and the counts still find to what is best."""
        looks = itertools.count()

        def speed(agents: int, trainers: int) -> int:
            return (3 if next(looks) < 10 else 1) * (100 * agents + 1000 * min(trainers, 2))

        (agents, trainers), _ = self.tuned(speed, looks=200)
        assert agents.now >= LIMITS["agents"] - 1
        assert abs(trainers.now - 2) <= 1

    def test_no_count_leaves_its_limits(self) -> None:
        _, told = self.tuned(lambda agents, trainers: np.random.default_rng(agents * trainers).integers(100))
        for name, most in LIMITS.items():
            assert all(1 <= row[f"ga3c/{name}"] <= most for row in told[1:])

    def test_nothing_moves_between_looks(self) -> None:
        clock = iter(np.arange(0, 2 * TUNE_SECONDS, TUNE_SECONDS / 8).tolist())
        count = Count("agents", 2, 4, lambda _: None)
        tuner = Tuner([count], np.random.default_rng(0), lambda: 1, lambda: next(clock))
        assert [bool(tuner.look()) for _ in range(16)] == [False] * 8 + [True] + [False] * 7

    def test_a_run_is_tuned_while_it_goes_on_and_says_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tune, "TUNE_SECONDS", 0.2)
        done = run(ga3c(CORRIDOR, workers=3, backend__tune=True, total_steps=10**9, stop__max_seconds=5.0), tmp_path)
        assert done.summary["stop_reason"] == "max_seconds"
        log = (tmp_path / "train.log").read_text()
        assert re.search(r"tune: \d+ agents, \d+ predictors, \d+ trainers: \d+ steps/s, kept", log)
        assert "ga3c/predictors" in (tmp_path / "metrics.csv").read_text().splitlines()[0]

    def test_an_agent_that_rests_ends_with_the_run(self) -> None:
        with running(ga3c(workers=3, total_steps=2000)) as (events, store):
            next(event for event in events if event)
            exchange = events.gi_frame.f_locals["exchange"]
            exchange.let_act(1)
            list(events)
        assert store.steps >= 2000


LIMITS = {"agents": 8, "trainers": 4}


class TestDevices:
    def networks(self, device: str) -> tuple[ActorCritic, ActorCritic]:
        """The same twice, one of them on a device."""
        space = Gym(id=CORNERS).make(1, [0])
        built = Cnn(layers=((8, 3, 2),), features=32, precision="float32")
        here, other = (
            built.build(space.observation_space, space.action_space, np.random.default_rng(0)) for _ in range(2)
        )
        return here, OnDevice(other, torch.device(device))

    @pytest.fixture(params=["cpu", pytest.param("cuda", marks=GPU)])
    def pair(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[ActorCritic, ActorCritic]:
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # convolutions in full float32
        return self.networks(request.param)

    def test_a_network_answers_alike_on_each(self, pair: tuple[ActorCritic, ActorCritic]) -> None:
        here, there = pair
        for count in (5, 9, 2):  # more than before, and fewer: what is left of others is not taken along
            seen = np.random.default_rng(count).integers(0, 255, (count, 12, 12, 3)).astype(np.uint8)
            for one, other in zip(here.infer(seen)[:2], there.infer(seen)[:2], strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(there.values(seen), there.infer(seen)[1])
            here.vector *= 1.5
            there.vector[:] = here.vector
            there.load()

    def test_and_learns_alike(self, pair: tuple[ActorCritic, ActorCritic]) -> None:
        seen = np.random.default_rng(0).integers(0, 255, (3, 2, 12, 12, 3)).astype(np.uint8)
        actions = np.random.default_rng(1).integers(0, 4, (3, 2))
        for _ in range(2):
            for network in pair:
                network.gradient.fill(0)
                learned(network, seen, actions, log_probs=1, entropy=1, values=2)
                network.fetch_gradient()
            here, there = pair
            assert here.gradient.any()
            np.testing.assert_allclose(here.gradient, there.gradient, rtol=1e-3, atol=1e-4)

    @GPU
    def test_a_run_learns_on_a_gpu(self) -> None:
        _, state, error = drain(ga3c(CORNERS, network=SMALL_CNN, workers=2, total_steps=800, backend__device="cuda"))
        assert error is None
        assert np.isfinite(state["parameters"]).all()

    def test_a_memory_is_refused_before_anything_is_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        lstm = {"_target_": "a3c_exp.networks.Lstm", "cells": 4}
        with pytest.raises(ConfigError, match=r"backend.device = 'cuda': must be cpu or auto: the cells of"):
            load_experiment(ga3c(backend__device="cuda", network=lstm))

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_a_gpu_that_is_not_there_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"backend.device = 'cuda': must be cpu or auto"):
            load_experiment(ga3c(backend__device="cuda"))
