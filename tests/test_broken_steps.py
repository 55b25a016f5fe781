"""Rollouts, learning, evaluations and whole runs with environments that go wrong now and then."""

from __future__ import annotations

import csv
import itertools
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_runs import ga3c, nobody_works
from hypothesis import given
from hypothesis import strategies as st
from policies import FixedPolicy
from runs import config, latest, same, train, train_config, wait_until
from workers import LSTM, events_of, make_workers, ppo_config

from a3c_exp.common.arrays import Array
from a3c_exp.core.rollout import Actor, Rollout
from a3c_exp.core.store import Snapshot
from a3c_exp.envs import EnvBatch, Gym, Step
from a3c_exp.errors import RunError
from a3c_exp.returns import GAE, Discounted, NStep, NStepZero, Returns, Trajectory, VTrace
from a3c_exp.run.policy import evaluate_policy

NAME = "faulty:Misbehaving-v0"
ESTIMATORS: list[Returns] = [NStep(n=2), NStep(), NStepZero(n=2), GAE(), Discounted(), VTrace(), VTrace(lambda_=0.9)]


def value(observations: Array) -> Array:
    """1000 name + 100 episode + step: every value says which state it is of."""
    result: Array = observations[:, :3] @ np.array([1000, 100, 1], np.float32)
    return result


def make_actor(count: int = 2, length: Any = 6, vectorized: bool = False, **kwargs: Any) -> Actor:
    """An actor in environments named 0, 1, ... that go wrong."""
    env = Gym(id=NAME, vectorized=vectorized, kwargs={"fault": "raise"} | kwargs).make(count, list(range(count)))
    policy = FixedPolicy(lambda step: step % 2, value)
    return Actor(env, policy, np.random.default_rng(0), rollout_length=length, gamma=0.5, name="worker 7")


def collect(actor: Actor, count: int = 1) -> list[Rollout]:
    return actor.collect_several(Snapshot(0, 0, None), 0.0, count)


def pieces(rollout: Rollout, env: int) -> list[slice]:
    """The rows of an environment that belong together: between those that are no transitions."""
    edges = [-1, *np.flatnonzero(~rollout.valid[:, env]).tolist(), len(rollout.rewards)]
    return [slice(start + 1, end) for start, end in itertools.pairwise(edges) if end > start + 1]


def part(rollout: Rollout, env: int, rows: slice) -> Trajectory:
    """A trajectory of these rows alone. The learner's log-probabilities differ from the actor's."""
    names = ("rewards", "values", "next_values", "terminated", "truncated", "log_probs")
    arrays = {name: getattr(rollout, name)[rows, env : env + 1] for name in names}
    return Trajectory(**arrays, target_log_probs=arrays["log_probs"] * np.float32(1.2))


class TestARollout:
    def test_is_truncated_before_the_step_that_went_wrong(self) -> None:
        (rollout,) = collect(make_actor(victim=1, at=[4], lengths=[0]))
        assert rollout.valid.T.tolist() == [[True] * 6, [True, True, True, False, True, True]]
        assert rollout.truncated.T.tolist() == [[False] * 6, [False, False, True, False, False, False]]
        assert rollout.next_values[2, 1] == 1003, "of the last observation before it"
        assert rollout.values[4, 1] == 1100, "of the first observation of the next episode"
        assert (rollout.rewards[3, 1], rollout.transitions, rollout.env_errors) == (0, 11, 1)
        assert rollout.episodes.lengths.tolist() == [3], "the episode's record ends"
        assert rollout.warnings[0].startswith("worker 7: environment 1 (Misbehaving-v0) raised")

    def test_whose_first_row_went_wrong_ends_the_record_alone(self) -> None:
        first, second = collect(make_actor(victim=1, at=[4], lengths=[0], length=3), 2)
        assert first.next_values[-1, 1] == 1003 and not first.truncated.any()
        assert second.valid[:, 1].tolist() == [False, True, True] and not second.truncated.any()
        (length,), (total,) = second.episodes.lengths, second.episodes.returns
        assert (length, total) == (3, first.rewards[:, 1].sum())

    def test_an_episode_that_went_wrong_in_its_first_step_is_no_episode(self) -> None:
        (rollout,) = collect(make_actor(victim=1, at=[3], lengths=[2], length=4))
        assert rollout.episodes.lengths.tolist() == [2, 2, 2]
        assert rollout.terminated[:, 1].tolist() == [False, True, False, False]
        assert not rollout.truncated.any(), "the row before ended its episode itself"

    @pytest.mark.parametrize(
        ("length", "errors", "ended"),
        [(1, [1, 0, 3, 0], [[], [], [2], []]), (3, [2, 2], [[2], [3]]), ("episode", [2, 2], [[2], [3]])],
    )
    def test_of_one_environment_ends_with_the_episode_and_is_never_empty(
        self, length: Any, errors: list[int], ended: list[list[int]]
    ) -> None:
        """Steps 1, 4, 5 and 6 go wrong; the episode of steps 7 to 9 ends by itself."""
        rollouts = collect(make_actor(1, length, at=[1, 4, 5, 6], lengths=[0, 0, 0, 0, 3]), len(errors))
        for rollout in rollouts:
            assert rollout.transitions == rollout.valid.sum() > 0
            assert rollout.valid[: rollout.transitions, 0].all(), "rows before the first transition are left out"
        assert [rollout.env_errors for rollout in rollouts] == errors
        assert [rollout.episodes.lengths.tolist() for rollout in rollouts] == ended

    def test_of_a_native_vector_begins_with_a_transition(self) -> None:
        actor = make_actor(2, 3, True, at=[4], lengths=[0], autoreset_mode="NextStep")
        _, second = collect(actor, 2)
        assert len(second.rewards) == 3 and second.valid.all() and second.env_errors == 1
        assert second.episodes.lengths.tolist() == [3, 3]
        assert second.values[0].tolist() == [100, 1100]

    @given(
        at=st.lists(st.integers(1, 24), max_size=6), lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4),
        vectorized=st.booleans(),
    )  # fmt: skip
    def test_has_the_returns_of_episodes_truncated_there_and_of_fresh_ones_after_it(
        self, at: list[int], lengths: list[int], vectorized: bool
    ) -> None:
        kwargs: dict[str, Any] = {"autoreset_mode": "NextStep"} if vectorized else {}
        (rollout,) = collect(make_actor(3, 12, vectorized, at=at, lengths=lengths, **kwargs))
        whole = replace(rollout, target_log_probs=rollout.log_probs * np.float32(1.2))
        for estimate in ESTIMATORS:
            found = estimate(whole, 0.9)
            for env in range(3):
                for rows in pieces(rollout, env):
                    alone = part(rollout, env, rows)
                    if rows.stop < len(rollout.rewards):
                        assert alone.ended[-1, 0]
                    for one, other in zip(found, estimate(alone, 0.9), strict=True):
                        np.testing.assert_allclose(one[rows, env], other[:, 0], rtol=1e-5, atol=1e-3)
        name, episode, step = np.moveaxis(rollout.observations[..., :3], -1, 0)
        following = np.where(rollout.terminated, 0, 1000 * name + 100 * episode + step + 1)
        np.testing.assert_array_equal(rollout.next_values[rollout.valid], following[rollout.valid])


class Own:
    """A batch of a user's own around another one, which changes its steps."""

    def __init__(self, env: EnvBatch, change: Any) -> None:
        self._env, self._change = env, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, actions: Array) -> Step:
        step: Step = self._change(self._env.step(actions))
        return step


class TestABatchOfAUsersOwn:
    def actor(self, change: Any) -> Actor:
        env: Any = Own(Gym(id="scripted:Scripted-v0", kwargs={"lengths": [0]}).make(2, [0, 1]), change)
        policy = FixedPolicy(lambda step: 0, value)
        return Actor(env, policy, np.random.default_rng(0), rollout_length=4, gamma=0.5, name="worker 7")

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            (
                lambda step: step._replace(reward=step.reward + np.array([0, np.nan], np.float32)),
                "a reward of environment 1",
            ),
            (lambda step: step._replace(obs=step.obs * np.inf), "an observation of environment"),
            (lambda step: step._replace(truncated=~step.truncated, final_obs=step.obs + np.nan), "an observation is"),
        ],
    )
    def test_may_not_give_what_is_not_finite(self, change: Any, text: str) -> None:
        with np.errstate(invalid="ignore"), pytest.raises(ValueError, match=f"worker 7: {text}.*Own should"):
            collect(self.actor(change))

    def test_may_flag_steps_as_broken(self) -> None:
        def change(step: Step) -> Step:
            wrong = step.obs[:, 2] == 3
            return (
                step._replace(broken=wrong, valid=~wrong, reward=np.where(wrong, 0, step.reward))
                if wrong.any()
                else step
            )

        (rollout,) = collect(self.actor(change))
        assert rollout.env_errors == 2 and rollout.truncated[1].all()

    def test_that_never_makes_a_transition_ends_the_run(self) -> None:
        wrong = np.ones(2, np.bool_)
        with pytest.raises(RunError, match="went wrong in all environments"):
            collect(self.actor(lambda step: step._replace(broken=wrong, valid=~wrong, reward=step.reward * 0)))


class TestLearning:
    SETTINGS: dict[str, Any] = {  # noqa: RUF012
        "env__kwargs": {"fault": "nan reward", "every": 5, "lengths": [3, 9]},
        "plugins": ["faulty"],
    }

    def test_a_recurrent_network_computes_what_the_actor_did(self) -> None:
        _, (worker,) = make_workers(config(NAME, network=LSTM, rollout_length=16, **self.SETTINGS))
        snapshot = worker._learner.pull()
        for _ in range(3):
            rollout = worker._actor.collect(snapshot)
            assert rollout.env_errors
            outputs, _ = worker._network.evaluate(rollout.observations, rollout.actions, rollout.recurrent_input)
            np.testing.assert_allclose(
                outputs.values[rollout.valid], rollout.values[rollout.valid], rtol=1e-4, atol=1e-5
            )

    def test_statistics_are_of_transitions_alone(self) -> None:
        settings = self.SETTINGS | {"env__normalize_observations": True, "env__normalize_rewards": True}
        store, (worker,) = make_workers(config(NAME, total_steps=400, **settings))
        events = events_of(worker)
        stats = store.state()["stats"]
        assert np.isfinite(stats).all()
        assert stats[0] == stats[-3] == store.steps == sum(event.steps for event in events)

    def test_minibatches_are_of_transitions_alone_and_report_the_errors_once(self) -> None:
        store, (worker,) = make_workers(ppo_config(NAME, total_steps=400, **self.SETTINGS))
        events = events_of(worker)
        assert not any(event.rejected for event in events)
        assert sum(event.env_errors for event in events) == sum(len(event.warnings) for event in events) > 10
        assert store.steps == sum(event.steps for event in events)


class TestAnEvaluation:
    def test_leaves_out_episodes_that_went_wrong_and_plays_others(self, caplog: pytest.LogCaptureFixture) -> None:
        env = Gym(id=NAME, kwargs={"fault": "nan reward", "at": [2, 7], "lengths": [3]}).make(2, [0, 1])
        with caplog.at_level(logging.WARNING):
            episodes = evaluate_policy(Random(), env, 6)  # type: ignore[arg-type]
        assert episodes.lengths.tolist() == [3] * 6 and np.isfinite(episodes.returns).all()
        assert "warnings in an evaluation: 4, the first: environment 0 (Misbehaving-v0)" in caplog.text

    def test_fails_if_a_return_is_not_finite(self) -> None:
        env: Any = Own(
            Gym(id="scripted:Scripted-v0").make(1, [0]),
            lambda step: step._replace(reward=step.reward * np.float32(np.nan)),
        )
        with pytest.raises(RunError, match="environment 0 of an evaluation has the return nan"):
            evaluate_policy(Random(), env, 1)  # type: ignore[arg-type]

    def test_of_a_command_that_fails_is_one_error(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        from a3c_exp.cli.evaluate import main

        train(tmp_path, NAME, env__kwargs={"fault": "nan reward", "every": 5}, plugins=["faulty"])
        text = (tmp_path / "config.yaml").read_text()
        (tmp_path / "config.yaml").write_text(text.replace("every: 5", "every: 1"))
        assert main([str(tmp_path), "plugins=[faulty]"]) == 1
        assert "the last of 10 errors in a row" in capfd.readouterr().err


class Random:
    """As much of a policy as an evaluation needs."""

    def predict(self, observations: Array, state: Any, greedy: bool) -> tuple[Array, None]:
        return np.zeros(len(observations), np.int64), None


FAULTS = ["raise", "exit", "nan observation", "nan reward", "shape", "reset"]


def faulty_run(fault: str, **settings: Any) -> dict[str, Any]:
    whole = {
        "env__kwargs": {"fault": fault, "every": 13, "lengths": [4, 7]}, "plugins": ["faulty"], "workers": 2,
        "env__normalize_observations": True, "env__normalize_rewards": True, "env__reward_scale": 0.01,
        "total_steps": 1200, "eval": {"every": 400, "episodes": 4},
    }  # fmt: skip
    return whole | settings


class TestAWholeRun:
    def sound(self, folder: Path) -> dict[str, Any]:
        """The summary of a run that ended by itself; nothing that it wrote is NaN."""
        summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
        assert summary["stop_reason"] == "total_steps"
        assert summary["env_errors"] > 15 and summary["rejected_updates"] == 0
        assert np.isfinite(summary["best_eval_return"])
        store = latest(folder)["store"]
        assert all(np.isfinite(store[name]).all() for name in ("parameters", "optimizer_state", "stats"))
        table = (folder / "metrics.csv").read_text()
        assert "nan" not in table.lower() and "inf" not in table.lower()
        curve = [int(row["async/env_errors"]) for row in csv.DictReader(table.splitlines()) if row["async/env_errors"]]
        assert curve[-1] == summary["env_errors"]
        assert "(Misbehaving-v0) r" in (folder / "train.log").read_text()
        wait_until(nobody_works)
        return summary

    @pytest.mark.parametrize("fault", FAULTS)
    def test_ends_at_its_own_rule_and_is_reproduced(self, fault: str, tmp_path: Path) -> None:
        for folder in ("one", "other"):
            train(tmp_path / folder, NAME, **faulty_run(fault))
            self.sound(tmp_path / folder)
        assert same(latest(tmp_path / "one")["store"], latest(tmp_path / "other")["store"])

    @pytest.mark.parametrize("backend", ["threads", "processes"])
    def test_on_other_backends_too(self, backend: str, tmp_path: Path) -> None:
        train(tmp_path, NAME, backend, **faulty_run("nan observation"))
        assert self.sound(tmp_path)["restarts"] == 0

    @pytest.mark.parametrize("settings", [{}, {"envs_per_worker": 1, "rollout_length": 2, "total_steps": 300}])
    def test_with_ga3c_too(self, settings: dict[str, Any], tmp_path: Path) -> None:
        train_config(ga3c(NAME, **faulty_run("raise") | settings), tmp_path)
        self.sound(tmp_path)

    def test_of_native_vectors(self, tmp_path: Path) -> None:
        kwargs = {"fault": "nan reward", "at": list(range(5, 600, 11)), "lengths": [4, 7], "autoreset_mode": "NextStep"}
        train(tmp_path, NAME, **faulty_run("") | {"env__kwargs": kwargs, "env__vectorized": True})
        self.sound(tmp_path)

    @pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
    def test_ends_at_the_first_error_if_it_is_to(self, backend: str, tmp_path: Path) -> None:
        done = train(tmp_path, NAME, backend, **faulty_run("nan reward", env__on_error="stop", eval__every=None))
        assert (done.summary["stop_reason"], done.exit_code) == ("env_errors", 1)
        assert done.summary["error"].startswith("worker ") and "returned the reward nan" in done.summary["error"]

    def test_whose_environments_cannot_be_closed_ends_nevertheless(self, tmp_path: Path) -> None:
        done = train(tmp_path, NAME, "processes", **faulty_run("close", workers=1, eval__every=None, total_steps=64))
        assert (done.summary["stop_reason"], done.exit_code) == ("total_steps", 0)
