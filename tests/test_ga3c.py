"""GA3C: the arithmetic of every backend, nothing lost on its way through slots and queues, nobody
waits for ever."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_runs import (
    SETTINGS,
    assert_as_serial,
    ga3c,
    nobody_works,
    running,
    totals,
    worker_processes,
    worker_threads,
)
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from refusals import refused
from runs import (
    BANDIT,
    CORRIDOR,
    SCRIPTED,
    config,
    drain,
    latest,
    make_store,
    train_config,
    wait_until,
)
from scripted import End, Scripted

from a3c_exp.backends.ga3c import services
from a3c_exp.backends.ga3c.agent import RemoteNetwork
from a3c_exp.backends.ga3c.buffers import WAITING, WORKING, BufferSpec, SharedBuffers
from a3c_exp.common.arrays import Array
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.acting import ActingPolicy
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Experiment, build_network
from a3c_exp.core.heartbeat import Heartbeat
from a3c_exp.core.rollout import Actor, Rollout, concat_rollouts
from a3c_exp.core.seeding import Role, environment_seeds
from a3c_exp.core.store import Snapshot
from a3c_exp.core.worker import Learner
from a3c_exp.envs import Gym
from a3c_exp.networks.distributions import Categorical

# An agent waits until its rollout has been learned from.
STEP_BY_STEP: dict[str, Any] = {"backend__rollouts": 1, "backend__training_batch": 1}
NAMES = [
    "continuous actions, normalized",
    "beta, centered rewards",
    "rmsprop, locked",
    "v-trace",
    "lstm",
    "images",
    "ppo, whole rollouts",
    "sarsa",
    "a loss with a module",
]
"""Of the settings of every backend, those that take ways of their own through agents, predictors
and trainers."""


class TestOneAgentIsOneWorker:
    """With one agent, one predictor, one trainer, and one open rollout, GA3C is A3C."""

    @pytest.mark.parametrize("name", NAMES)
    def test_updates_are_those_of_the_serial_backend_bit_for_bit(self, name: str) -> None:
        _, state, error = drain(ga3c(**{"env": BANDIT} | SETTINGS[name] | STEP_BY_STEP))
        assert error is None
        assert_as_serial(
            state, name, "parameters", "optimizer_state", "version", "steps", "stats", "rng_states"
        )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("update", "sync"),
        ("optimizer_state", "per_worker"),
        ("rollout_length", "episode"),
        ("backend.prediction_batch.maximum", 3),
    ],
)
def test_settings_that_agents_cannot_have_are_refused(key: str, value: Any) -> None:
    """A request has the observations of all four environments of an agent."""
    envs: dict[str, Any] = {"envs_per_worker": 1} if key == "rollout_length" else {}
    batch: dict[str, Any] = {"backend__prediction_batch": {"maximum": 3}}
    refused(
        lambda: load_experiment(ga3c(**envs, **(batch if "." in key else {key: value}))), key, value
    )


def test_minibatches_divide_a_training_batch_not_one_agents_rollout() -> None:
    """An agent's rollout has 4 transitions, a minibatch 16."""
    algorithm = {"_target_": "a3c_exp.algorithms.PPO", "minibatch_size": 16, "epochs": 2}
    run_config = ga3c(
        workers=4,
        envs_per_worker=1,
        algorithm=algorithm,
        backend__training_batch=16,
        total_steps=320,
    )
    events, state, error = drain(run_config)
    assert error is None
    assert state["steps"] >= 320
    assert state["version"] == sum(event.updates for event in events) >= 2 * 320 / 32
    lstm = {"_target_": "a3c_exp.networks.Lstm", "hidden_size": 4}
    uneven = ga3c(algorithm=algorithm, network=lstm, algorithm__minibatch_size=6)
    refused(lambda: load_experiment(uneven), "algorithm.minibatch_size", 6)


class TestEveryTransitionIsLearnedFromOnce:
    """Scripted-v0 identifies each step by its observation and its reward."""

    @pytest.fixture
    def learned(self, monkeypatch: pytest.MonkeyPatch) -> list[Rollout]:
        """Copies of all rollouts that trainers learn from."""
        rollouts: list[Rollout] = []
        _on_training(monkeypatch, lambda batch: rollouts.extend(copy.deepcopy(batch)))
        return rollouts

    @pytest.mark.parametrize(("agents", "environments", "trainers"), [(3, 1, 2), (2, 3, 1)])
    def test_terminal_rewards_included(
        self, agents: int, environments: int, trainers: int, learned: list[Rollout]
    ) -> None:
        lengths = (3, 7, 1, 4)
        ends: tuple[End, ...] = ("terminated", "truncated", "both")
        settings: dict[str, Any] = {
            "workers": agents,
            "envs_per_worker": environments,
            "rollout_length": 5,
        }
        batches = {"backend__training_batch": 12, "backend__trainers": trainers}
        run_config = ga3c(
            SCRIPTED,
            env__kwargs={"lengths": lengths, "ends": ends},
            total_steps=300,
            **settings,
            **batches,
        )
        events, state, error = drain(run_config)
        assert error is None
        rows = Counter[tuple[int, ...]]()
        # A seed is not exact in a float32 observation.
        seeds = [
            seed
            for a in range(agents)
            for seed in environment_seeds(0, Role.ENVIRONMENT, a, environments)
        ]
        seed_of = {int(np.float32(seed)): seed for seed in seeds}
        for rollout in learned:
            ends_here = rollout.terminated | rollout.truncated
            columns = map(
                _flat, (rollout.observations, rollout.actions, rollout.rewards, ends_here)
            )
            for observation, action, reward, ended in zip(*columns, strict=True):
                name = seed_of[int(observation[0])]
                episode = int(observation[1])
                moment = int(observation[2])
                assert reward == Scripted.reward(episode, moment + 1, int(action))
                last = moment + 1 == lengths[(name + episode) % len(lengths)]
                assert ended == last
                rows[name, episode, moment] += 1
        assert set(rows.values()) == {1}
        assert sum(rows.values()) == state["steps"] == sum(event.steps for event in events) >= 300
        self.assert_nothing_is_missing(rows, lengths, agents * environments)

    def assert_nothing_is_missing(
        self, rows: Counter[tuple[int, ...]], lengths: tuple[int, ...], count: int
    ) -> None:
        """Each environment's rows are its first ones, without a gap."""
        names = {name for name, _, _ in rows}
        assert len(names) == count
        for name in names:
            learned = sorted(row[1:] for row in rows if row[0] == name)
            expected = [
                (e, m)
                for e in range(len(learned))
                for m in range(lengths[(name + e) % len(lengths)])
            ]
            assert learned == expected[: len(learned)]

    def test_even_those_collected_before_the_store_was_stopped(
        self, learned: list[Rollout]
    ) -> None:
        """Every step ends an episode here, and agents report those."""
        reported: list[Event] = []
        single: dict[str, Any] = {
            "env__kwargs": {"lengths": (1,)},
            "total_steps": 10**9,
            "backend__training_batch": 64,
        }
        with running(ga3c(SCRIPTED, workers=3, envs_per_worker=1, **single)) as (events, store):
            while store.steps < 200:
                reported += filter(None, [next(events)])
            store.stop()
            reported += filter(None, events)
            collected = sum(len(event.episodes) for event in reported)
            assert collected == sum(rollout.transitions for rollout in learned) == store.steps


def _on_training(
    monkeypatch: pytest.MonkeyPatch, listener: Callable[[Sequence[Rollout]], object]
) -> None:
    """Call the listener, in a trainer's thread, with the rollouts of each training batch."""

    def noted(rollouts: Sequence[Rollout]) -> Rollout:
        listener(rollouts)
        return concat_rollouts(rollouts)

    monkeypatch.setattr(services, "concat_rollouts", noted)


def _flat(array: Array) -> Array:
    return array.reshape(-1, *array.shape[2:])


class TestLag:
    def test_staleness_counts_from_the_oldest_action(self) -> None:
        """An agent goes on collecting while a trainer learns from its last rollout."""
        events, state, _ = drain(ga3c(workers=3, total_steps=1600, backend__training_batch=1))
        staleness = [value for event in events for value in event.staleness.elements()]
        assert len(staleness) == state["version"]
        assert np.mean(staleness) > 0.5
        events, _, _ = drain(ga3c(**STEP_BY_STEP))
        assert {value for event in events for value in event.staleness} == {0}, (
            "agents wait for their update"
        )

    def test_versions_of_the_steps_of_a_rollout_may_differ(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen_versions: list[Array] = []
        _on_training(
            monkeypatch,
            lambda batch: seen_versions.extend(np.array(rollout.version) for rollout in batch),
        )
        settings: dict[str, Any] = {
            "workers": 3,
            "rollout_length": 16,
            "envs_per_worker": 1,
            "total_steps": 1600,
        }
        drain(ga3c(SCRIPTED, env__kwargs={"lengths": (0,)}, backend__training_batch=1, **settings))
        assert any(len(np.unique(versions)) > 1 for versions in seen_versions)
        assert all((np.diff(versions, axis=0) >= 0).all() for versions in seen_versions)


def test_threads_make_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some may be made in a main thread alone, such as one that handles signals."""
    made: list[threading.Thread] = []
    make = Gym.make

    def noted(env: Gym, *arguments: Any) -> Any:
        made.append(threading.current_thread())
        return make(env, *arguments)

    monkeypatch.setattr(Gym, "make", noted)
    assert drain(ga3c(total_steps=160))[2] is None
    assert set(made) == {threading.main_thread()}


class TestManyAgents:
    @pytest.mark.parametrize("envs", [1, 4])
    def test_every_update_step_and_episode_is_counted_once(self, envs: int) -> None:
        normalized = {"env__normalize_observations": True, "env__normalize_rewards": True}
        threads = {"backend__trainers": 2, "backend__predictors": 2}
        run_config = ga3c(
            CORRIDOR,
            workers=3,
            envs_per_worker=envs,
            total_steps=800,
            lock=True,
            **normalized,
            **threads,
        )
        events, state, error = drain(run_config)
        assert error is None
        updates, steps, measured, _ = totals(events)
        assert updates == measured == state["version"]
        assert steps == state["steps"] >= 800
        assert steps < 800 + 3 * 2 * 16, "no agent begins a rollout once the run has its steps"
        assert np.isfinite(state["parameters"]).all()
        assert state["stats"][0] == state["steps"]

    def test_events_carry_these_metrics(self) -> None:
        names = (
            "prediction_queue",
            "training_queue",
            "prediction_batch",
            "training_batch",
            "agent_wait",
            "lag",
        )
        expected = {f"workers/{name}" for name in names} | {"workers/distance"}

        def complete(events: list[Event]) -> bool:
            agents = {event.worker for event in events if len(event.episodes)}
            return agents == {0, 1, 2, 3} and expected <= {
                name for event in events for name in event.metrics
            }

        events, _, error = drain(ga3c(workers=4, total_steps=10**9), enough=complete)
        assert error is None
        assert {
            name for event in events for name in event.metrics if name.startswith("workers/")
        } == expected
        waits = [
            event.metrics["workers/agent_wait"].mean
            for event in events
            if "workers/agent_wait" in event.metrics
        ]
        assert all(0 < wait <= 1 for wait in waits)

    def test_a_run_can_be_resumed_also_on_another_backend(self, tmp_path: Path) -> None:
        """All agents wait for a training batch that is larger than what they have room for."""
        waiting = {"backend__rollouts": 1, "backend__training_batch": 10**6}
        done = train_config(ga3c(CORRIDOR, workers=3, total_steps=320, **waiting), tmp_path)
        assert (
            "the network and the optimizer compute on the CPU"
            in (tmp_path / "train.log").read_text()
        )
        before = latest(tmp_path)["store"]
        assert len(before["rng_states"]) == 3, "no agent is given the generator of a trainer"
        for backend, workers, total in (("ga3c", 2, 640), ("serial", 1, 960)):
            done = train_config(
                config(CORRIDOR, backend, workers=workers, total_steps=total), tmp_path, resume=True
            )
            after = latest(tmp_path)["store"]
            assert done.summary["stop_reason"] == "total_steps"
            assert after["steps"] >= total and after["version"] > before["version"]
            before = after


class TestTheEnd:
    def test_does_not_wait_for_agents_that_have_not_been_started(self) -> None:
        with running(ga3c(BANDIT, workers=24, total_steps=10**9)) as (events, store):
            while not worker_processes():
                next(events)
            store.stop()
            assert all(event is None or not event.warnings for event in events)
        assert store.counters.heartbeats[23] == 0

    def test_a_trainer_that_outlasts_the_run_pushes_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A batch may take longer than the run waits for its trainer. The store that is saved then
        stays as it is."""
        begun = threading.Event()
        go_on = threading.Event()

        def wait(batch: Sequence[Rollout]) -> None:
            begun.set()
            go_on.wait()

        _on_training(monkeypatch, wait)
        with running(ga3c(workers=2, total_steps=10**9)) as (events, store):
            try:
                wait_until(lambda: (next(events), begun.is_set())[1])
                events.close()
                before = store.version
                assert worker_threads()
            finally:
                go_on.set()
            wait_until(nobody_works)
            assert store.version == before


MLP: dict[str, Any] = {"_target_": "a3c_exp.networks.Mlp", "hidden_sizes": [8]}
LSTM: dict[str, Any] = {"_target_": "a3c_exp.networks.Lstm", "encoder": MLP, "hidden_size": 4}


class TestConcatRollouts:
    """Rollouts of several agents as one."""

    def experiment(self, env: str = SCRIPTED, **settings: Any) -> Experiment:
        kwargs = {"lengths": (3, 5, 2), "ends": ("terminated", "truncated")}
        episodes = {"env__kwargs": kwargs} if env == SCRIPTED else {"env__max_episode_steps": 6}
        return load_experiment(config(env, envs_per_worker=1, **episodes, **settings))

    def rollouts(self, experiment: Experiment) -> list[Rollout]:
        """Two of each of three agents with one environment: they end with an episode, or after 4
        steps."""
        rollouts = []
        for agent in range(3):
            env = experiment.env.make(1, [agent])
            network = experiment.build_network(env, np.random.default_rng(0))
            policy = ActingPolicy(network, np.random.default_rng(agent))
            actor = Actor(env, policy, experiment.env, rollout_length=4, gamma=0.9)
            for _ in range(2):
                rollout = actor.collect(Snapshot(version=0, steps=0, normalizer=None))
                rollouts.append(replace(rollout, version=np.full(rollout.rewards.shape, agent)))
        return rollouts

    def test_shorter_ones_are_filled_up_with_rows_that_are_no_transitions(self) -> None:
        rollouts = self.rollouts(self.experiment())
        joined = concat_rollouts(rollouts)
        assert joined.observations.shape == (4, 6, 4)
        lengths = [len(rollout.rewards) for rollout in rollouts]
        np.testing.assert_array_equal(joined.valid, np.arange(4)[:, None] < lengths)
        for index, rollout in enumerate(rollouts):
            np.testing.assert_array_equal(
                joined.rewards[: lengths[index], index], rollout.rewards[:, 0]
            )
        assert joined.transitions == sum(lengths)
        assert concat_rollouts(rollouts[:1]) is rollouts[0], "a single one is not copied"

    @pytest.mark.parametrize(
        ("env", "network", "returns"),
        [
            (SCRIPTED, MLP, "VTrace"),
            (SCRIPTED, LSTM, "GAE"),
            ("Pendulum-v1", MLP | {"distribution": "beta"}, "VTrace"),
        ],
    )
    def test_the_gradient_is_the_mean_of_theirs_by_transitions(
        self, env: str, network: dict[str, Any], returns: str
    ) -> None:
        estimator = {"_target_": f"a3c_exp.returns.{returns}"}
        experiment = self.experiment(
            env, returns=estimator, network=network, algorithm__entropy_coefficient=0.0
        )
        rollouts = self.rollouts(experiment)
        batch = experiment.env.make(1, [0])
        built = experiment.build_network(batch, np.random.default_rng(1))
        rng = np.random.default_rng(0)
        learner = Learner(experiment, built, 0, make_store(experiment), rng, "learner", Heartbeat())

        def gradient(rollout: Rollout) -> NDArray[np.float64]:
            list(learner.learn(rollout, Snapshot(version=0, steps=0, normalizer=None)))
            return np.asarray(built.gradient, np.float64)

        sums = np.sum([gradient(rollout) * rollout.transitions for rollout in rollouts], axis=0)
        joined = concat_rollouts(rollouts)
        np.testing.assert_allclose(
            gradient(joined), sums / joined.transitions, rtol=1e-4, atol=1e-4
        )


class TestSharedBuffers:
    @pytest.fixture
    def buffers(self) -> Iterator[SharedBuffers]:
        """Of two agents with one slot each."""
        experiment = load_experiment(ga3c(workers=2))
        buffers = SharedBuffers(BufferSpec.of(experiment, 1, *build_network(experiment)), 2)
        yield buffers
        buffers.close()

    def test_an_agent_with_an_unread_notification_is_busy(self, buffers: SharedBuffers) -> None:
        """Trainers learn from less than `training_batch` if no agent is busy. An agent whose slot
        has just been released is, however long the system keeps it from its core."""
        agent = buffers.agents[0]
        network = RemoteNetwork(agent, Categorical(Discrete(2)), Heartbeat())
        assert buffers.busy_agents == 2
        assert network.acquire_slot() == 0
        agent.status[0] = WAITING
        assert buffers.busy_agents == 1
        agent.notify(0)
        assert buffers.busy_agents == 2
        assert network.acquire_slot() == 0
        assert agent.status[0] == WORKING


def test_returns_that_do_not_correct_for_the_lag_are_warned_of() -> None:
    def warnings(**settings: Any) -> list[str]:
        return [line for line in load_experiment(ga3c(**settings)).warnings if "vtrace" in line]

    assert warnings()
    assert not warnings(backend__lag="accept")
    assert not warnings(returns="a3c_exp.returns.VTrace")
    assert not warnings(algorithm={"_target_": "a3c_exp.algorithms.PPO"})
