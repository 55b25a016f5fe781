"""GA3C: the arithmetic of every backend, nothing lost on its way through slots and queues, nobody waits for ever."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import BANDIT, CORNERS, CORRIDOR, SCRIPTED, SMALL_CNN, TARGET, config, drain, latest, same, wait_until
from scripted import Scripted
from test_backends import SETTINGS, running, serial, totals, workers_alive

import a3c_exp
from a3c_exp.backends.ga3c import threads
from a3c_exp.backends.ga3c.exchange import Exchange
from a3c_exp.config.builder import load_experiment
from a3c_exp.errors import ConfigError
from a3c_exp.core.events import Event
from a3c_exp.core.rollout import Rollout, together
from a3c_exp.run.trainer import run
from a3c_exp.core.seeding import Role, environment_seeds

# One agent, which waits until its rollout has been learned from.
STEP_BY_STEP: dict[str, Any] = {"backend__rollouts": 1, "backend__training_batch": 1}
REFUSED = {
    "whole episodes",
    "synchronous",
    "moments of its own",
    "accumulated",
    "proximal, in rounds of whole rollouts",
}
# Its minibatches are drawn by the trainer, from numbers of its own.
OTHER_MINIBATCHES = {"proximal policy optimisation"}
ONE_MINIBATCH = SETTINGS["proximal policy optimisation"] | {"algorithm__minibatch_size": None}


def ga3c(env: str = BANDIT, **settings: Any) -> dict[str, Any]:
    return config(env, "ga3c", **{"backend__device": "cpu"} | settings)


class TestOneAgentIsOneWorker:
    """With one agent, one predictor, one trainer, and rollouts handed over one at a time, GA3C is A3C."""

    @pytest.mark.parametrize("name", sorted(SETTINGS.keys() - REFUSED - OTHER_MINIBATCHES))
    def test_updates_are_those_of_the_serial_backend_bit_for_bit(self, name: str) -> None:
        settings = {"env": BANDIT} | SETTINGS[name]
        _, state, error = drain(ga3c(**settings, **STEP_BY_STEP))
        assert error is None
        self.equal(state, serial(name))

    def test_proximal_policy_optimisation_too(self) -> None:
        settings = {"env": BANDIT} | ONE_MINIBATCH
        _, state, _ = drain(ga3c(**settings, **STEP_BY_STEP))
        self.equal(state, drain(config(**settings))[1])

    def equal(self, state: dict[str, Any], expected: dict[str, Any]) -> None:
        assert state["version"] >= 3
        for key in ("parameters", "optimizer_state", "version", "steps", "statistics"):
            assert same(state[key], expected[key]), key
        assert same(state["rng_states"][0], expected["rng_states"][0])

    def test_and_so_is_what_is_reported(self) -> None:
        settings: dict[str, Any] = {"env": CORRIDOR, "total_steps": 800}
        expected = totals(drain(config(**settings))[0])
        assert totals(drain(ga3c(**settings, **STEP_BY_STEP))[0]) == expected
        assert len(expected[3]) > 3


@pytest.mark.parametrize("key", ["update", "optimizer_state", "rollout_length", "accumulate_rollouts"])
def test_what_agents_cannot_do_is_refused_in_one_line(key: str) -> None:
    wrong: dict[str, Any] = {"update": "sync", "optimizer_state": "per_worker", "rollout_length": "episode", "accumulate_rollouts": 2}
    with pytest.raises(ConfigError, match="backend=ga3c") as refused:
        load_experiment(ga3c(envs_per_worker=1, **{key: wrong[key]}))
    assert str(refused.value).startswith(f"{key} = ")
    assert "\n" not in str(refused.value)


def test_an_agent_that_asks_for_more_than_a_prediction_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"prediction_batch.maximum = 3: must be at least envs_per_worker=4"):
        load_experiment(ga3c(backend__prediction_batch={"maximum": 3}))


def test_minibatches_are_of_what_a_trainer_has_together_not_of_one_agents_rollout() -> None:
    """A single agent's rollout has 4 transitions here; as many as it takes are learned from at once."""
    algorithm = {"_target_": "a3c_exp.algorithms.PPO", "minibatch_size": 16, "epochs": 2}
    whole = ga3c(workers=4, envs_per_worker=1, algorithm=algorithm, backend__training_batch=16, total_steps=320)
    events, state, error = drain(whole)
    assert error is None
    assert state["steps"] >= 320
    assert state["version"] == sum(event.updates for event in events) >= 2 * 320 / 32
    sequences = {"network": {"_target_": "a3c_exp.networks.Lstm", "cells": 4}, "algorithm__minibatch_size": 6}
    with pytest.raises(ConfigError, match="must be a multiple of rollout_length=4"):
        load_experiment(ga3c(algorithm=algorithm, **sequences))


class TestEveryTransitionIsLearnedFromOnce:
    """Scripted-v0 says in each observation which one it is, and each reward says of which step it is."""

    @pytest.fixture
    def learned(self, monkeypatch: pytest.MonkeyPatch) -> list[Rollout]:
        """Copies of all rollouts that trainers learn from."""
        found: list[Rollout] = []

        def noted(rollouts: Any) -> Rollout:
            found.extend(_copied(rollout) for rollout in rollouts)
            return together(rollouts)

        monkeypatch.setattr(threads, "together", noted)
        return found

    @pytest.mark.parametrize(("agents", "environments", "trainers"), [(1, 1, 1), (3, 1, 2), (2, 3, 1)])
    @pytest.mark.parametrize("ends", [("terminated",), ("terminated", "truncated", "both")], ids=len)
    def test_terminal_rewards_included(
        self, agents: int, environments: int, trainers: int, ends: Any, learned: list[Rollout]
    ) -> None:
        lengths = (3, 7, 1, 4)
        settings: dict[str, Any] = {"workers": agents, "envs_per_worker": environments, "rollout_length": 5}
        batches = {"backend__training_batch": 12, "backend__trainers": trainers}
        whole = ga3c(SCRIPTED, env__kwargs={"lengths": lengths, "ends": ends}, total_steps=300, **settings, **batches)
        events, state, error = drain(whole)
        assert error is None
        rows = Counter[tuple[int, ...]]()
        # Numbers as large as seeds are not exact in an observation.
        seeds = [seed for a in range(agents) for seed in environment_seeds(0, Role.ENVIRONMENT, a, environments)]
        named = {int(np.float32(seed)): seed for seed in seeds}
        for rollout in learned:
            for seen, action, reward, ended in zip(*map(_flat, (
                rollout.observations, rollout.actions, rollout.rewards, rollout.terminated | rollout.truncated,
            )), strict=True):  # fmt: skip
                name, episode, moment = named[int(seen[0])], int(seen[1]), int(seen[2])
                assert reward == Scripted.reward(episode, moment + 1, int(action))
                last = moment + 1 == lengths[(name + episode) % len(lengths)]
                assert ended == last
                rows[name, episode, moment] += 1
        assert set(rows.values()) == {1}
        assert sum(rows.values()) == state["steps"] == sum(event.steps for event in events) >= 300
        self.nothing_is_missing(rows, lengths, agents * environments)

    def nothing_is_missing(self, rows: Counter[tuple[int, ...]], lengths: tuple[int, ...], count: int) -> None:
        """Each environment's rows are the first so many of its life."""
        names = {name for name, _, _ in rows}
        assert len(names) == count
        for name in names:
            seen = sorted(row[1:] for row in rows if row[0] == name)
            expected = [(e, m) for e in range(len(seen)) for m in range(lengths[(name + e) % len(lengths)])]
            assert seen == expected[: len(seen)]

    def test_rollouts_are_told_apart_from_those_that_come_later_in_their_slots(self, learned: list[Rollout]) -> None:
        """What was learned from is what was collected: each agent's rows are one chain of steps."""
        drain(ga3c(SCRIPTED, workers=2, envs_per_worker=1, env__kwargs={"lengths": (0,)}, total_steps=200))
        for name in {int(rollout.observations[0, 0, 0]) for rollout in learned}:
            mine = [rollout for rollout in learned if int(rollout.observations[0, 0, 0]) == name]
            optimizer_state = np.concatenate([rollout.observations[:, 0, 2] for rollout in mine])
            np.testing.assert_array_equal(optimizer_state, np.arange(len(optimizer_state)))

    def test_who_stops_the_store_has_all_that_was_collected_learned_from(self, learned: list[Rollout]) -> None:
        """Rollouts that wait in the queue, too. Every step ends an episode here, and agents tell of those."""
        told: list[Event] = []
        single = {"env__kwargs": {"lengths": (1,)}, "total_steps": 10**9, "backend__training_batch": 64}
        with running(ga3c(SCRIPTED, workers=3, envs_per_worker=1, **single)) as (events, store):
            while store.steps < 200:
                told += filter(None, [next(events)])
            store.stop()
            told += filter(None, events)
            collected = sum(len(event.episodes) for event in told)
            assert collected == sum(rollout.transitions for rollout in learned) == store.steps


def _copied(rollout: Rollout) -> Rollout:
    return Rollout(**{name: _copy(getattr(rollout, name)) for name in Rollout.__slots__})


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1, *array.shape[2:])


class TestLag:
    def test_staleness_counts_from_the_oldest_action(self) -> None:
        """An agent that goes on collecting while it is learned from acts with parameters of several versions."""
        events, state, _ = drain(ga3c(workers=3, total_steps=1600, backend__training_batch=1))
        staleness = [value for event in events for value in event.staleness.elements()]
        assert len(staleness) == state["version"]
        assert np.mean(staleness) > 0.5

    def test_there_is_none_where_agents_wait_for_their_update(self) -> None:
        events, _, _ = drain(ga3c(**STEP_BY_STEP))
        assert {value for event in events for value in event.staleness} == {0}

    def test_versions_behind_the_steps_of_a_rollout_may_differ(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found: list[np.ndarray] = []

        def noted(rollouts: Any) -> Rollout:
            found.extend(np.array(rollout.version) for rollout in rollouts)
            return together(rollouts)

        monkeypatch.setattr(threads, "together", noted)
        settings: dict[str, Any] = {"workers": 3, "rollout_length": 16, "envs_per_worker": 1, "total_steps": 1600}
        drain(ga3c(SCRIPTED, env__kwargs={"lengths": (0,)}, backend__training_batch=1, **settings))
        assert any(len(np.unique(versions)) > 1 for versions in found)
        assert all((np.diff(versions, axis=0) >= 0).all() for versions in found)


class TestManyAgents:
    LEARNERS: dict[str, dict[str, Any]] = {  # noqa: RUF012
        "discrete": {"env": BANDIT},
        "continuous, normalised": {
            "env": TARGET, "env__kwargs": {"length": 7},
            "env__normalize_observations": True, "env__normalize_rewards": True,
        },
        "a memory": {"env": CORRIDOR, "network": {"_target_": "a3c_exp.networks.Lstm", "cells": 8}},
        "pictures": {"env": CORNERS, "network": SMALL_CNN},
        "ppo": {"env": CORRIDOR} | SETTINGS["proximal policy optimisation"],
        "v-trace, locked": {"env": BANDIT, "returns": "a3c_exp.returns.VTrace", "lock": True},
        "epsilon": {"env": BANDIT, "epsilon": 0.2},
        "one environment each": {"env": CORRIDOR, "envs_per_worker": 1},
    }  # fmt: skip

    @pytest.mark.parametrize("name", LEARNERS)
    def test_every_update_step_and_episode_is_counted_once(self, name: str) -> None:
        whole = ga3c(**self.LEARNERS[name], workers=3, total_steps=800, backend__trainers=2, backend__predictors=2)
        events, state, error = drain(whole)
        assert error is None
        updates, steps, measured, _ = totals(events)
        assert updates == measured == state["version"]
        assert steps == state["steps"] >= 800
        assert steps < 800 + 3 * 2 * 16, "no agent begins a rollout once the run has its steps"
        assert np.isfinite(state["parameters"]).all()
        if whole["env"].get("normalize_observations"):
            assert state["statistics"][0] == state["steps"]

    def test_what_it_reports(self) -> None:
        events, _, _ = drain(ga3c(workers=4, total_steps=8000))
        found = {name for event in events for name in event.metrics if name.startswith("ga3c/")}
        assert found == {
            "ga3c/prediction_queue", "ga3c/training_queue", "ga3c/prediction_batch", "ga3c/training_batch",
            "ga3c/predictions_per_second", "ga3c/trainings_per_second", "ga3c/agent_wait", "ga3c/lag",
        }  # fmt: skip
        waits = [event.metrics["ga3c/agent_wait"] for event in events if "ga3c/agent_wait" in event.metrics]
        assert all(0 < wait.minimum <= wait.maximum <= 1 for wait in waits)
        assert {event.worker for event in events if len(event.episodes)} == {0, 1, 2, 3}

    def test_a_batch_is_not_waited_for_where_nobody_can_add_to_it(self) -> None:
        """All agents wait for trainers, who want more than these can give."""
        began = time.monotonic()
        _, state, error = drain(ga3c(workers=2, backend__rollouts=1, backend__training_batch=10**6))
        assert error is None
        assert state["steps"] >= 160
        assert time.monotonic() - began < 60

    def test_a_run_goes_on_from_its_checkpoint_also_on_another_backend(self, tmp_path: Path) -> None:
        whole = ga3c(CORRIDOR, workers=3, backend__trainers=2, total_steps=640)
        done = run(whole | {"eval": {"every": 320, "episodes": 1}}, tmp_path)
        assert done.summary["best_eval_return"] is not None
        assert "the network computes on the CPU" in (tmp_path / "train.log").read_text()
        before = latest(tmp_path)["store"]
        for backend, workers, total in (("ga3c", 2, 1280), ("serial", 1, 1600)):
            done = run(config(CORRIDOR, backend, workers=workers, total_steps=total), tmp_path, resume=True)
            after = latest(tmp_path)["store"]
            assert done.summary["stop_reason"] == "total_steps"
            assert after["steps"] >= total
            assert after["version"] > before["version"]
            before = after


class TestFaults:
    """Whoever dies ends the run, with the reason, at once."""

    def failed(self, **settings: Any) -> str:
        _, _, error = drain(ga3c(total_steps=10**9, **settings))
        assert error is not None
        self.nothing_is_left()
        return str(error)

    def nothing_is_left(self) -> None:
        assert not workers_alive()
        assert not [one for one in threading.enumerate() if one.name.startswith(("predictor", "trainer"))]

    def faulty(self, fault: str) -> str:
        victim = environment_seeds(0, Role.ENVIRONMENT, 1, 4)[2]
        settings: dict[str, Any] = {"env__kwargs": {"fault": fault, "victim": victim}, "plugins": ["faulty"]}
        return self.failed(env="faulty:Faulty-v0", workers=3, **settings)

    def test_an_agent_that_raises_is_shown_with_its_traceback(self) -> None:
        error = self.faulty("raise")
        assert error.startswith("worker 1 failed:\nTraceback")
        assert error.endswith("RuntimeError: scripted to fail")

    def test_an_agent_that_is_killed_is_named_with_its_signal(self) -> None:
        assert self.faulty("kill") == "worker 1 was killed by SIGKILL"

    @pytest.mark.parametrize("who", ["predictor", "trainer"])
    def test_a_thread_that_raises_is_shown_with_its_traceback(self, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its agents wait for an answer, or for room for another rollout, when it does."""

        def broken(*_: Any) -> Any:
            raise RuntimeError("scripted to break")

        where = (Exchange, "answer") if who == "predictor" else (threads, "together")
        monkeypatch.setattr(*where, broken)
        began = time.monotonic()
        error = self.failed(workers=3)
        assert error.startswith(f"{who} 0 failed:\nTraceback")
        assert error.endswith("RuntimeError: scripted to break")
        assert time.monotonic() - began < 60

    def test_training_that_diverges_ends_with_the_reason_alone(self) -> None:
        error = self.failed(env=SCRIPTED, env__kwargs={"fails_at": 9, "failure": "nan"}, workers=2)
        assert error.startswith("the last 20 gradients of trainer 0 were not finite")
        assert "Traceback" not in error

    @pytest.mark.parametrize("moment", range(3))
    def test_a_kill_at_any_moment_ends_the_run(self, moment: int) -> None:
        """In the middle of asking, of an answer or of handing over: no lock is left held, no queue half written."""
        with running(ga3c(workers=4, envs_per_worker=1, total_steps=10**9)) as (events, store):
            wait_until(lambda: (next(events), store.steps > 200)[1])
            time.sleep(0.013 * moment)
            pid = next(child.pid for child in workers_alive() if getattr(child, "pid", None))
            os.kill(pid, signal.SIGKILL)
            killed = time.monotonic()
            with pytest.raises(Exception, match="was killed by SIGKILL"):
                for _ in events:
                    assert time.monotonic() - killed < 20
        self.nothing_is_left()

    def test_a_trainer_that_outlasts_the_run_pushes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A batch may take longer than the end of the run waits for it. What is saved then stays as it is."""
        begun, go_on = threading.Event(), threading.Event()

        def slow(rollouts: Any) -> Rollout:
            begun.set()
            assert go_on.wait(30)
            return together(rollouts)

        monkeypatch.setattr(threads, "together", slow)
        with running(ga3c(workers=2, total_steps=10**9)) as (events, store):
            wait_until(lambda: (next(events), begun.is_set())[1])
            events.close()
            before = store.version
            go_on.set()
            wait_until(lambda: not [one for one in threading.enumerate() if one.name.startswith("trainer")])
            assert store.version == before
        self.nothing_is_left()

    def test_who_closes_the_iterator_ends_everybody(self) -> None:
        with running(ga3c(workers=3, total_steps=10**9)) as (events, store):
            wait_until(lambda: (next(events), store.steps > 100)[1])
            events.close()
            self.nothing_is_left()


@pytest.mark.parametrize("name", ["ga3c_cartpole", "ga3c_pong"])
def test_presets_train(name: str, tmp_path: Path) -> None:
    if name == "ga3c_pong":
        pytest.importorskip("ale_py", reason="Atari games: pip install 'a3c-exp[atari]'")
    few = ["workers=2", "total_steps=200", "eval.every=null", "backend.device=cpu"]
    done = a3c_exp.train([f"experiment={name}", *few], folder=str(tmp_path / "run"))
    assert (done.summary["stop_reason"], done.summary["error"]) == ("total_steps", None)
    assert done.summary["updates"] > 0
