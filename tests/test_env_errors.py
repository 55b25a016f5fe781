"""Environments that raise, return what cannot be used, or hang: the error says why, and the worker
is replaced."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from faulty import SPOILED
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.spaces import Box, Dict, Discrete, Space
from policies import FixedPolicy, Still
from refusals import refused
from runs import config, latest, same, train
from scripted import Changed, Echo

from a3c_exp.cli.existing import find_action
from a3c_exp.config.builder import load_final
from a3c_exp.config.saved import read_config
from a3c_exp.core.acting import ActingPolicy
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.heartbeat import Heartbeat
from a3c_exp.core.rollout import Actor
from a3c_exp.core.store import Snapshot
from a3c_exp.core.worker import make_actor
from a3c_exp.envs import EnvBatch, EnvError, Gym, Step, SyncEnvBatch, on_progress
from a3c_exp.envs.answers import WrongAnswerError, flags_of, rewards_of
from a3c_exp.envs.errors import close_within
from a3c_exp.errors import ConfigError, RunError
from a3c_exp.run.policy import MOST_FAILURES, Recorder, evaluate_policy
from a3c_exp.run.session import Run

NAME = "faulty:Misbehaving-v0"
SEEDS = [4, 5, 6]
TEXTS = {
    "raise": "raised RuntimeError: scripted to fail at step 4",
    "exit": "raised SystemExit: 3 at step 4",
    "nan observation": "returned an observation with nan at [2] at step 4",
    "shape": "of shape (3,), not (4,)",
    "dtype": "returned an observation that is no array of numbers: array([",
    "nan reward": "returned the reward nan at step 4",
    "text as reward": "returned the reward '1.0' at step 4",
}


def batch_of(fault: str, *, guard: int | None = 1_000_000, **kwargs: Any) -> EnvBatch:
    """Three environments, of which the second goes wrong."""
    kwargs = {"fault": fault, "victim": SEEDS[1], "lengths": [0]} | kwargs
    return Gym(id=NAME, kwargs=kwargs, max_steps_guard=guard).make(3, SEEDS)


def vector_of(fault: str, **kwargs: Any) -> EnvBatch:
    """Three environments in a native vector."""
    kwargs = {"fault": fault, "victim": SEEDS[1], "lengths": [0]} | kwargs
    return Gym(id=NAME, vectorized=True, kwargs=kwargs).make(3, SEEDS)


def play(batch: EnvBatch, steps: int) -> list[Step]:
    batch.reset()
    return [batch.step(np.array([0, 1, 0])) for _ in range(steps)]


@pytest.mark.parametrize("fault", SPOILED)
class TestAStepThatGoesWrong:
    def test_is_an_error_with_its_environment_its_value_and_its_step(self, fault: str) -> None:
        with pytest.raises(EnvError) as failed:
            play(batch_of(fault, at=[4]), 4)
        first, *more = str(failed.value).splitlines()
        assert first.startswith("environment 1 (Misbehaving-v0) ") and TEXTS[fault] in first
        raised = fault in ("raise", "exit")
        assert ("faulty.py:" in first) == bool(more) == raised, (
            "an exception has its place and its traceback"
        )
        assert failed.value.reason == "env_errors"

    def test_leaves_a_batch_that_begins_again_with_a_reset(self, fault: str) -> None:
        """A native vector, too. gymnasium's takes a text for a reward."""
        vectors = [] if fault == "text as reward" else [vector_of(fault, at=[4])]
        for batch in batch_of(fault, at=[4]), *vectors:
            with pytest.raises(EnvError, match=r"(?s)Misbehaving-v0.*step 4"):
                play(batch, 4)
            obs = batch.reset()
            assert obs[:, 2].tolist() == [0, 0, 0]
            assert batch.step(np.array([0, 1, 0])).obs[:, 2].tolist() == [1, 1, 1]


def test_an_observation_in_a_native_vector_is_named_with_its_environment() -> None:
    with pytest.raises(
        EnvError, match=r"environment 1 \(Misbehaving-v0\) returned .* nan at \[2\] at step 4"
    ):
        play(vector_of("nan observation", at=[4]), 4)


@pytest.mark.parametrize("make", [batch_of, vector_of])
def test_a_reset_that_raises_is_an_error(make: Any) -> None:
    with pytest.raises(EnvError, match="in a reset"):
        make("reset", at=[1]).reset()


class TestObservations:
    """Those that a conversion would change silently are errors."""

    @pytest.mark.parametrize(
        ("space", "observation", "text"),
        [
            (Discrete(5, start=3), 8, "an observation of int64 that is not in Discrete"),
            (
                Box(0, 255, (6, 6), np.uint8),
                np.full((6, 6), 0.5),
                "an observation of float64 that is not in Box",
            ),
            (Box(0, 255, (6, 6), np.uint8), np.full((6, 6), 256), "that is not in Box"),
            (Box(-1, 1, (2,)), np.array([0.0, 1e39]), "that is not in Box"),
            (
                Box(-1, 1, (2,), np.float16),
                np.array([np.inf, 1], np.float16),
                "an observation with inf at",
            ),
            (Box(-1, 1, (2,)), [[0.0], [1.0, 2.0]], "no array"),
            (Box(-1, 1, ()), np.nan, "an observation with nan at"),
        ],
    )
    def test_are_refused(self, space: Space[Any], observation: Any, text: str) -> None:
        with pytest.raises(EnvError, match=rf"environment 0 \(Echo\) returned .*{text}") as failed:
            SyncEnvBatch([Echo(space, Discrete(2), observation)], [0]).reset()
        assert "\n" not in str(failed.value)


class Flagged(Echo):
    """Returns a flag of its own in the place of `terminated` or `truncated`."""

    def __init__(self, flag: Any, name: str = "terminated") -> None:
        super().__init__(Box(-1, 1, (2,)), Discrete(2), np.zeros(2, np.float32))
        self.flag = flag
        self.name = name

    def step(self, action: Any) -> Any:
        observation, reward, *_, info = super().step(action)
        flags = {"terminated": False, "truncated": False, self.name: self.flag}
        return observation, reward, *flags.values(), info


NO_FLAGS: list[Any] = ["False", "", None, math.nan, 0.01, 2, np.array([0, 1]), np.ma.masked, []]


class TestFlags:
    @pytest.mark.parametrize("name", ["terminated", "truncated"])
    @pytest.mark.parametrize("flag", NO_FLAGS, ids=repr)
    def test_that_are_neither_true_nor_false_are_named(self, flag: Any, name: str) -> None:
        batch = SyncEnvBatch([Flagged(False), Flagged(flag, name)], [0, 1])
        batch.reset()
        with pytest.raises(EnvError, match=r"environment 1 .* returned ") as failed:
            batch.step(np.zeros(2, np.int64))
        assert f"{name} {flag!r}, neither true nor false, at step 1" in str(failed.value)

    @pytest.mark.parametrize(
        "kind", [bool, np.bool_, int, float, np.float32, lambda flag: np.array([flag])]
    )
    def test_may_be_truth_values_or_0_and_1_or_arrays_of_one(self, kind: Any) -> None:
        envs = [Flagged(kind(flag), "truncated") for flag in (False, True)]
        batch = SyncEnvBatch(envs, [0, 1])
        batch.reset()
        step = batch.step(np.zeros(2, np.int64))
        assert step.truncated.tolist() == [False, True] and not step.terminated.any()
        assert step.truncated.dtype == bool

    @pytest.mark.parametrize("flags", [[0.0, math.nan], ["", "a"], [False], [0, 2], [0.01, 0]])
    def test_of_a_native_vector_are_checked_too(self, flags: Any) -> None:
        for flags_given in ([False, True], [0, 1], np.array([0.0, 1.0])):
            read = flags_of("truncated", flags_given, 2)
            np.testing.assert_array_equal(read, [False, True], strict=True)
        with pytest.raises(WrongAnswerError, match="truncated"):
            flags_of("truncated", flags, 2)
        with pytest.raises(WrongAnswerError, match="truncated"):
            flags_of("truncated", np.ma.array([False, True], mask=[False, True]), 2)


class TestMaskedArrays:
    """Other subclasses of arrays lose nothing where they are taken as plain ones."""

    def step(self, space: Space[Any], observation: Any, reward: Any = 0.0) -> Step:
        class Rewarded(Echo):
            def step(self, action: Any) -> Any:
                observation, _, *rest = super().step(action)
                return observation, reward, *rest

        batch = SyncEnvBatch([Rewarded(space, Discrete(2), observation)], [0])
        batch.reset()
        return batch.step(np.zeros(1, np.int64))

    def test_without_a_masked_number_are_plain(self) -> None:
        box = Box(-1, 1, (3,))
        for plain in (np.ma.array([0.5, 0, 1]), np.array([0.5, 0, 1]).view(np.recarray)):
            step = self.step(box, plain, np.ma.array([2.0]))
            assert type(step.obs) is np.ndarray and step.obs.tolist() == [[0.5, 0, 1]]
            assert step.reward.tolist() == [2]

    @pytest.mark.parametrize(
        ("space", "observation"),
        [
            (Box(-1, 1, (3,)), np.ma.array([0.5, 0, 1], mask=[False, True, False])),
            (Box(0, 255, (2, 2), np.uint8), np.ma.array(np.eye(2), mask=np.eye(2) > 0)),
            (Dict(part=Box(-1, 1, (1,))), {"part": np.ma.array([0.5], mask=[True])}),
            (Discrete(4), np.ma.masked),
        ],
    )
    def test_with_one_are_named(self, space: Space[Any], observation: Any) -> None:
        with pytest.raises(EnvError, match=r"observation that is masked at \["):
            self.step(space, observation)

    @pytest.mark.parametrize("reward", [np.ma.masked, np.ma.array([1.0], mask=[True])])
    def test_a_masked_reward_is_named(self, reward: Any) -> None:
        with pytest.raises(EnvError, match="the reward "):
            self.step(Box(-1, 1, (3,)), np.zeros(3), reward)
        with pytest.raises(WrongAnswerError):
            rewards_of(np.ma.array([1.0, 2.0], mask=[False, True]), 2)


@pytest.mark.parametrize("rewards", [["1.0", "2.0"], [1.0], [[1.0, 2.0]], [1.0, np.inf]])
def test_rewards_of_a_native_vector_are_an_array_of_finite_numbers(rewards: Any) -> None:
    np.testing.assert_array_equal(rewards_of([1, 2], 2), np.array([1, 2], np.float32), strict=True)
    with pytest.raises(WrongAnswerError):
        rewards_of(rewards, 2)


class TestEpisodesWithoutAnEnd:
    def test_are_truncated(self) -> None:
        steps = play(batch_of("", guard=5), 12)
        assert [step.truncated.all() for step in steps] == [(t + 1) % 5 == 0 for t in range(12)]
        assert steps[4].final_obs[:, 2].tolist() == [5, 5, 5] and not steps[4].obs[:, 2].any()
        assert not any(step.truncated.any() for step in play(batch_of("", guard=None), 50))

    def test_are_told_once_in_the_log(self, tmp_path: Path) -> None:
        settings: dict[str, Any] = {
            "env__kwargs": {"lengths": [0]},
            "env__max_steps_guard": 10,
            "total_steps": 320,
        }
        train(tmp_path, "scripted:Scripted-v0", **settings)
        assert (tmp_path / "train.log").read_text().count("env.max_steps_guard") == 1


SPOILED_STEPS = {
    "a reward that is nan": lambda step: step._replace(
        reward=step.reward + np.array([0, np.nan], np.float32)
    ),
    "an observation that is": lambda step: step._replace(obs=step.obs + np.inf),
    "an observation that is nan": lambda step: step._replace(
        truncated=~step.truncated, final_obs=step.obs + np.nan
    ),
    "a Step whose terminated": lambda step: step._replace(terminated=step.terminated.astype(int)),
}


@pytest.mark.parametrize("text", SPOILED_STEPS)
def test_a_batch_of_a_users_own_may_not_give_what_a_rollout_cannot_hold(text: str) -> None:
    game = Gym(id="scripted:Scripted-v0", kwargs={"lengths": [0]})
    env: Any = Changed(game.make(2, [0, 1]), SPOILED_STEPS[text])
    network = FixedPolicy(lambda step: 0, lambda observations: observations[:, 0])
    policy = ActingPolicy(network, np.random.default_rng(0))
    actor = Actor(env, policy, game, rollout_length=4, gamma=0.5)
    with np.errstate(invalid="ignore"), pytest.raises(EnvError, match=f"Changed returned {text}"):
        actor.collect(Snapshot(0, 0, None), 0.0)


def test_environments_of_a_worker_whose_first_reset_fails_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may have started programs of their own."""
    closed: list[object] = []
    monkeypatch.setattr(SyncEnvBatch, "close", lambda batch: closed.append(batch))
    run_config = config(NAME, plugins=["faulty"], env__kwargs={"fault": "reset", "at": [1]})
    context = RunContext(experiment=load_final(run_config)[1])
    with pytest.raises(EnvError):
        make_actor(context, 0, lambda _: FixedPolicy(lambda step: 0), Heartbeat())
    assert len(closed) == 1


class Leased(CartPoleEnv):
    """The third cannot be made. One that is closed may raise."""

    open: ClassVar[list[Any]] = []

    def __init__(self, most: int = 2) -> None:
        if len(self.open) == most:
            raise RuntimeError("no license is left")
        super().__init__()
        self.open.append(self)

    def close(self) -> None:
        self.open.remove(self)
        raise RuntimeError("the license server is gone")


gymnasium.register("Leased-v0", entry_point=lambda **kwargs: Leased(**kwargs))


class TestEnvironmentsAreClosed:
    def test_if_a_later_one_cannot_be_made(self) -> None:
        with pytest.raises(ConfigError, match="no license is left"):
            Gym(id="Leased-v0").make(3, SEEDS)
        assert not Leased.open

    def test_if_a_wrapper_does_not_fit(self) -> None:
        refused(
            lambda: Gym(id="Leased-v0", wrappers=("FilterObservation",)).make(1, [0]), "wrappers"
        )
        assert not Leased.open

    def test_also_after_one_that_could_not_be(self) -> None:
        batch = Gym(id="Leased-v0").make(2, [0, 1])
        with pytest.raises(RuntimeError, match="the license server is gone"):
            batch.close()
        assert not Leased.open


class TestAnEvaluation:
    def test_begins_again_after_an_error(self, caplog: pytest.LogCaptureFixture) -> None:
        env = Gym(id=NAME, kwargs={"fault": "nan reward", "at": [2, 7], "lengths": [3]}).make(
            2, [0, 1]
        )
        with caplog.at_level(logging.WARNING):
            episodes = evaluate_policy(Still(), env, 6)  # type: ignore[arg-type]
        assert episodes.lengths.tolist() == [3] * 6 and np.isfinite(episodes.returns).all()
        assert "environment 0 (Misbehaving-v0)" in caplog.text

    def test_films_its_first_episode_from_the_last_beginning(self) -> None:
        pytest.importorskip("moviepy")
        env = Gym(id=NAME, kwargs={"fault": "nan reward", "at": [2], "lengths": [3]}).make(1, [0])
        frames = (np.full((1, 1, 3), number, np.uint8) for number in range(100))
        env.render = lambda: next(frames)  # type: ignore[method-assign]
        recorder = Recorder(Path("film.mp4"))
        evaluate_policy(Still(), env, 2, on_step=recorder)  # type: ignore[arg-type]
        assert np.unique(recorder._frames).tolist() == [2, 3, 4]

    def test_begins_again_after_an_error_of_a_reset(self) -> None:
        env = Gym(id=NAME, kwargs={"fault": "reset", "at": [1, 3], "lengths": [3]}).make(2, [0, 1])
        assert evaluate_policy(Still(), env, 6).lengths.tolist() == [3] * 6  # type: ignore[arg-type]

    def test_ends_with_the_last_of_too_many(self) -> None:
        env = Gym(id=NAME, kwargs={"fault": "nan reward", "every": 2, "lengths": [3]}).make(1, [0])
        with pytest.raises(EnvError, match="the reward nan"):
            evaluate_policy(Still(), env, 1)  # type: ignore[arg-type]
        assert env._envs[0].unwrapped.resets == MOST_FAILURES  # type: ignore[attr-defined]

    def test_fails_if_a_return_is_not_finite(self) -> None:
        env: Any = Changed(
            Gym(id="scripted:Scripted-v0").make(1, [0]),
            lambda step: step._replace(reward=step.reward * np.float32(np.nan)),
        )
        with pytest.raises(RunError, match="has the return nan"):
            evaluate_policy(Still(), env, 1)  # type: ignore[arg-type]


def test_a_run_whose_environments_go_wrong_again_and_again_trains_to_its_end_and_is_reproduced(
    tmp_path: Path,
) -> None:
    """At each 40th step of theirs: many times as often as they may in a row. Nothing that is
    written is NaN."""
    normalized = {
        "env__normalize_observations": True,
        "env__normalize_rewards": True,
        "env__reward_scale": 0.01,
    }
    faults = {
        "env__kwargs": {"fault": "nan observation", "every": 40, "lengths": [4, 7]},
        "plugins": ["faulty"],
    }
    settings: dict[str, Any] = {
        "workers": 2,
        "backend__max_restarts": 3,
        "total_steps": 1600,
        **normalized,
        **faults,
    }
    stores = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        summary = train(folder, NAME, **settings).summary
        assert summary["stop_reason"] == "total_steps"
        assert summary["env_errors"] == summary["restarts"] >= 6
        assert summary["rejected_updates"] == 0
        stores.append(latest(folder)["store"])
        assert all(
            np.isfinite(stores[-1][name]).all()
            for name in ("parameters", "optimizer_state", "stats")
        )
        assert stores[-1]["steps"] == summary["steps"] >= 1600
        assert "(Misbehaving-v0) r" in (folder / "train.log").read_text()
        assert "workers/env_errors" in (folder / "metrics.csv").read_text()
    assert same(*stores)


class TestARunWhoseEnvironmentsFail:
    def trained(
        self,
        folder: Path,
        fault: str,
        every: int,
        lengths: Sequence[int],
        backend: str = "serial",
        **settings: Any,
    ) -> Run:
        """A run in which an environment fails at each `every`-th step, or reset, of its own."""
        settings["env__kwargs"] = {"fault": fault, "every": every, "lengths": lengths}
        defaults = {"plugins": ["faulty"], "backend__max_restarts": 3, "total_steps": 1600}
        return train(folder, NAME, backend, **defaults | settings)

    @pytest.mark.parametrize(("fault", "every"), [("raise", 3), ("reset", 2)])
    @pytest.mark.parametrize("backend", ["serial", "processes"])
    def test_at_each_end_of_an_episode_fails(
        self, fault: str, every: int, backend: str, tmp_path: Path
    ) -> None:
        """In its last step, or in the reset after it. Updates alone are no progress."""
        short: dict[str, Any] = {"envs_per_worker": 1, "rollout_length": 2}
        done = self.trained(tmp_path, fault, every, [3], backend, **short)
        summary = done.summary
        assert (done.exit_code, summary["stop_reason"]) == (1, "max_restarts")
        assert (summary["episodes"], summary["restarts"]) == (0, 3)

    def test_once_in_50_episodes_trains_to_its_end(self, tmp_path: Path) -> None:
        done = self.trained(tmp_path, "raise", 3 * 50 + 1, [3], total_steps=16_000)
        summary = done.summary
        assert (done.exit_code, summary["stop_reason"]) == (0, "total_steps")
        assert summary["restarts"] > 20 and summary["episodes"] > 50 * summary["restarts"]
        assert "most episodes" not in (tmp_path / "train.log").read_text()

    def test_always_after_an_update_and_half_of_its_episodes_says_so_once(
        self, tmp_path: Path
    ) -> None:
        done = self.trained(tmp_path, "raise", 6, [3, 100])
        summary = done.summary
        assert (done.exit_code, summary["stop_reason"]) == (0, "total_steps")
        assert 10 < summary["restarts"] < summary["episodes"] < 4 * summary["restarts"]
        assert (tmp_path / "train.log").read_text().count("most episodes end in a failure") == 1

    def test_ten_times_and_never_ends_an_episode_has_failed(self, tmp_path: Path) -> None:
        """Many rollouts come between its failures. Another run would be no better: a repeated sweep
        keeps it."""
        short: dict[str, Any] = {"envs_per_worker": 1, "rollout_length": 1, "total_steps": 1100}
        done = self.trained(tmp_path, "raise", 102, [0], **short)
        summary = done.summary
        assert (done.exit_code, summary["stop_reason"]) == (1, "no_episodes")
        assert (summary["episodes"], summary["restarts"]) == (0, 10)
        assert "no episode has ended" in summary["error"] and summary["steps"] == 1100
        config = read_config(tmp_path, ["faulty"])
        assert find_action(tmp_path, config, "resume") == "leave"
        assert find_action(tmp_path, config, "restart") == "begin"


class Counted(Echo):
    """Notes how often there was progress before each of its steps and before it is closed."""

    def __init__(self, progress: list[object], notes: list[int]) -> None:
        super().__init__(Box(-1, 1, (2,)), Discrete(2), np.zeros(2, np.float32))
        self.progress = progress
        self.notes = notes

    def step(self, action: Any) -> Any:
        self.notes.append(len(self.progress))
        return super().step(action)

    def close(self) -> None:
        self.notes.append(len(self.progress))


def test_each_of_several_environments_that_has_stepped_or_closed_is_progress() -> None:
    """A limit of time is one for each of them: none hangs while the others work."""
    progress: list[object] = []
    notes: list[int] = []
    on_progress(lambda: progress.append(None))
    try:
        batch = SyncEnvBatch([Counted(progress, notes) for _ in range(3)], range(3))
        batch.reset()
        batch.step(np.zeros(3, np.int64))
        close_within(batch)
    finally:
        on_progress(lambda: None)
    first = notes[0]
    begun = notes[3] - (first + 3)  # the close itself
    assert notes == [first, first + 1, first + 2, *(first + 3 + begun + k for k in range(3))]


class TestClose:
    def test_of_each_environment_has_a_second_of_its_own(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Slow(Echo):
            def close(self) -> None:
                left = signal.getitimer(signal.ITIMER_REAL)[0]
                while signal.getitimer(signal.ITIMER_REAL)[0] > left - 0.06:
                    pass
                closed.append(self)

        closed: list[Slow] = []
        space = Box(-1, 1, (2,))
        slow = [Slow(space, Discrete(2), np.zeros(2, np.float32)) for _ in range(4)]
        with caplog.at_level(logging.WARNING):
            close_within(SyncEnvBatch(slow, range(4)), 0.2)
        assert closed == slow and not caplog.text

    def test_that_hangs_is_not_waited_for(self, caplog: pytest.LogCaptureFixture) -> None:
        class Stuck:
            def close(self) -> None:
                released.wait()

        released = threading.Event()
        began = time.monotonic()
        with caplog.at_level(logging.WARNING):
            close_within(Stuck(), 0.05)
        assert time.monotonic() - began < 30
        assert "TimeoutError: its close took longer than 0.05 s" in caplog.text
        released.set()

    def test_that_raises_a_timeout_of_its_own_keeps_no_other_open(self) -> None:
        class Simulator(gymnasium.Env[Any, Any]):
            observation_space = Box(-1, 1, (1,))
            action_space = Discrete(2)

            def close(self) -> None:
                closed.append(self)
                raise TimeoutError("the simulator does not answer")

        closed: list[Simulator] = []
        close_within(SyncEnvBatch([Simulator(), Simulator()], range(2)))
        assert len(closed) == 2

    @pytest.mark.parametrize("error", [RuntimeError("no display"), SystemExit(1)])
    def test_that_raises_is_logged(
        self, error: BaseException, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Torn:
            def close(self) -> None:
                raise error

        with caplog.at_level(logging.WARNING):
            close_within(Torn())
        assert f"could not be closed: {type(error).__name__}" in caplog.text
