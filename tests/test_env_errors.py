"""Environments that misbehave: the step is no transition, a new episode begins, and the others go on."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import numpy as np
import pytest
from faulty import SPOILED
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from scripted import Echo, Scripted

from a3c_exp.common.arrays import Array
from a3c_exp.envs import EnvBatch, Gym, Step, SyncEnvBatch
from a3c_exp.envs.atari import Atari, _AtariBatch
from a3c_exp.envs.errors import GOOD_STEPS, MOST_IN_A_ROW, close_within
from a3c_exp.errors import ConfigError, RunError

NAME = "faulty:Misbehaving-v0"
SEEDS = [4, 5, 6]
TEXTS = {
    "raise": "raised RuntimeError: scripted to fail at step 4",
    "exit": "raised SystemExit: 3 at step 4",
    "nan observation": "returned an observation with nan at [2] at step 4",
    "infinite observation": "returned an observation with inf at [2] at step 4",
    "shape": "of shape (3,), not (4,)",
    "dtype": "returned an observation that is no array of numbers: array([",
    "nan reward": "returned the reward nan at step 4",
    "infinite reward": "returned the reward -inf at step 4",
    "no reward": "returned the reward None at step 4",
    "text as reward": "returned the reward '1.0' at step 4",
}


def batch_of(fault: str, *, on_error: Any = "restart", guard: int | None = 1_000_000, **kwargs: Any) -> EnvBatch:
    """Three environments, of which the second goes wrong."""
    kwargs = {"fault": fault, "victim": SEEDS[1], "lengths": [0]} | kwargs
    return Gym(id=NAME, kwargs=kwargs, on_error=on_error, max_steps_guard=guard).make(3, SEEDS)


def vector_of(fault: str, mode: str = "NextStep", *, on_error: Any = "restart", **kwargs: Any) -> EnvBatch:
    """Three environments in a native vector."""
    kwargs = {"fault": fault, "autoreset_mode": mode, "lengths": [0]} | kwargs
    return Gym(id=NAME, vectorized=True, kwargs=kwargs, on_error=on_error).make(3, SEEDS)


def play(batch: EnvBatch, steps: int) -> list[Step]:
    batch.reset()
    return [batch.step(np.array([0, 1, 0])) for _ in range(steps)]


def test_every_kind_of_fault_is_tested() -> None:
    assert TEXTS.keys() == SPOILED.keys()


@pytest.mark.parametrize("fault", SPOILED)
class TestAStepThatGoesWrong:
    def test_is_no_transition_and_the_others_go_on(self, fault: str) -> None:
        steps, sound = play(batch_of(fault, at=[4]), 6), play(batch_of("", at=[4]), 6)
        broken = steps[3]
        assert broken.broken is not None
        assert (broken.broken.tolist(), broken.valid.tolist()) == ([False, True, False], [True, False, True])
        assert broken.reward[1] == 0 and not broken.episode_over.any()
        assert broken.obs[1].tolist() == [5, 1, 0, -1], "the first observation of its next episode"
        for step, expected in zip(steps, sound, strict=True):
            np.testing.assert_array_equal(step.obs[::2], expected.obs[::2])
            np.testing.assert_array_equal(step.reward[::2], expected.reward[::2])
            assert step is broken or (step.broken is None and step.valid.all() and step.errors == 0)
        assert steps[5].obs[1].tolist() == [5, 1, 2, 1], "which goes on"

    def test_is_reported_with_its_environment_and_its_value(self, fault: str) -> None:
        broken = play(batch_of(fault, at=[4]), 4)[3]
        (text,) = broken.warnings
        assert broken.errors == 1
        assert text.startswith("environment 1 (Misbehaving-v0) ") and TEXTS[fault] in text
        assert "\n" not in text
        assert "faulty.py:" in text or fault not in ("raise", "exit")

    def test_ends_the_run_if_it_is_to_stop_at_errors(self, fault: str) -> None:
        with pytest.raises(RunError) as failed:
            play(batch_of(fault, at=[4], on_error="stop"), 4)
        assert failed.value.reason == "env_errors"
        assert TEXTS[fault] in str(failed.value)
        assert ("Traceback" in str(failed.value)) == (fault in ("raise", "exit"))

    def test_begins_all_episodes_of_a_native_vector_anew(self, fault: str) -> None:
        steps = play(vector_of(fault, at=[4]), 6)
        broken = steps[3]
        assert broken.broken is not None and broken.broken.all()
        assert not broken.valid.any() and not broken.reward.any() and not broken.episode_over.any()
        assert broken.obs.tolist() == [[seed, 1, 0, -1] for seed in SEEDS]
        assert steps[5].obs[:, 1:3].tolist() == [[1, 2]] * 3
        (text,) = broken.warnings
        assert broken.errors == 1 and "all begin a new episode" in text
        assert ("environment 1 (Misbehaving-v0)" in text) == (fault not in ("raise", "exit", "shape", "dtype"))
        with pytest.raises(RunError, match=r"Misbehaving-v0.*\(env.on_error=stop\)"):
            play(vector_of(fault, at=[4], on_error="stop"), 4)


@pytest.mark.parametrize("make", [batch_of, vector_of])
class TestAResetThatGoesWrong:
    def test_is_tried_again_and_counted_with_the_next_step(self, make: Any) -> None:
        (step,) = play(make("reset", at=[1, 2]), 1)
        assert step.errors == 2 and step.broken is None and step.valid.all()
        assert "in a reset" in step.warnings[0]
        assert np.isfinite(step.obs).all()

    def test_gets_another_seed_from_which_the_episodes_follow(self, make: Any) -> None:
        one, other = (make("reset", at=[1]).reset() for _ in range(2))
        np.testing.assert_array_equal(one, other)
        assert one[1, 0] != SEEDS[1]

    def test_is_given_up_after_ten_in_a_row(self, make: Any) -> None:
        with pytest.raises(RunError, match=f"the last of {MOST_IN_A_ROW} errors in a row") as failed:
            make("reset", at=range(1, 100)).reset()
        assert failed.value.reason == "env_errors"


def test_a_reset_after_an_end_leaves_the_last_transition_as_it_is() -> None:
    steps = play(batch_of("reset", at=[2], lengths=[2]), 3)
    assert steps[1].terminated.all() and steps[1].valid.all() and steps[1].broken is None
    assert steps[1].errors == 1
    assert steps[1].obs[:, 2].tolist() == [0, 0, 0]


class TestErrorsInARow:
    def test_end_the_run_at_the_tenth(self) -> None:
        steps = []
        batch = batch_of("raise", every=1)
        batch.reset()
        with pytest.raises(RunError, match=f"the last of {MOST_IN_A_ROW} errors in a row"):
            steps += [batch.step(np.zeros(3, np.int64)) for _ in range(100)]
        with pytest.raises(RunError, match="in a row"):
            play(vector_of("nan reward", at=range(1, 100)), 100)

    def test_are_none_with_an_episode_or_enough_steps_between_them(self) -> None:
        assert sum(step.errors for step in play(batch_of("raise", every=4, lengths=[2]), 200)) > 40
        assert sum(step.errors for step in play(vector_of("raise", at=range(4, 200, 4), lengths=[2]), 200)) > 40
        with pytest.raises(RunError, match="in a row"):
            play(batch_of("raise", every=4), 200)
        assert sum(step.errors for step in play(batch_of("raise", every=GOOD_STEPS), 12 * GOOD_STEPS)) == 12


class TestObservations:
    """Those that a conversion would change silently are errors."""

    @pytest.mark.parametrize(
        ("space", "observation", "text"),
        [
            (Discrete(5, start=3), 8, "an observation that is not in Discrete"),
            (Discrete(5), -1, "an observation that is not in Discrete"),
            (Discrete(5), 1.0, "an observation of float64, not int64"),
            (MultiDiscrete([2, 3]), np.array([0, 3]), "an observation that is not in MultiDiscrete"),
            (Box(0, 255, (6, 6), np.uint8), np.full((6, 6), 0.5), "an observation of float64, not uint8"),
            (Box(0, 255, (6, 6), np.uint8), np.full((6, 6), 256), "an observation that is not in Box"),
            (Box(-1, 1, (2,)), np.array([0.0, 1e39]), "an observation that is not in Box"),
            (Box(-1, 1, (2,)), np.array([0.0, 1j]), "no array of numbers"),
            (Box(-1, 1, (2,)), [[0.0], [1.0, 2.0]], "no array"),
            (Box(-1, 1, ()), np.nan, "an observation with nan in a reset"),
        ],
    )
    def test_are_refused(self, space: Space[Any], observation: Any, text: str) -> None:
        with pytest.raises(RunError, match=rf"environment 0 \(Echo\) returned .*{text}"):
            SyncEnvBatch([Echo(space, Discrete(2), observation)], [0], on_error="stop").reset()

    @pytest.mark.parametrize(
        ("space", "observation"),
        [
            (Discrete(5, start=3), np.array([4])),
            (Box(0, 255, (6, 6), np.uint8), np.full((6, 6), 255)),
            (Box(-1, 1, (2,)), np.array([0.0, -3e38])),
            (Box(-1, 1, (2,)), [1, 2]),
            (Box(-1, 1, ()), np.array([0.5])),
        ],
    )
    def test_are_converted_if_nothing_is_lost(self, space: Space[Any], observation: Any) -> None:
        batch = SyncEnvBatch([Echo(space, Discrete(2), observation)] * 2, [0, 1], on_error="stop")
        np.testing.assert_array_equal(batch.reset(), batch.encode([observation] * 2))
        step = batch.step(np.array([0, 1]))
        assert step.valid.all() and step.broken is None


class TestEpisodesWithoutAnEnd:
    def test_are_truncated_with_a_warning(self) -> None:
        steps = play(batch_of("", guard=5), 12)
        assert [step.truncated.all() for step in steps] == [(t + 1) % 5 == 0 for t in range(12)]
        assert steps[4].final_obs[:, 2].tolist() == [5, 5, 5] and not steps[4].obs[:, 2].any()
        assert steps[4].errors == 0 and len(steps[4].warnings) == 3
        assert "environment 0 (Misbehaving-v0): an episode has not ended after 5 steps" in steps[4].warnings[0]

    def test_are_no_more_than_a_shorter_time_limit_allows(self) -> None:
        batch = Gym(id="scripted:Corridor-v0", max_episode_steps=5, max_steps_guard=10).make(1, [0])
        batch.reset()
        steps = [batch.step(np.zeros(1, np.int64)) for _ in range(12)]
        assert steps[4].truncated[0] and not any(step.warnings for step in steps)

    @pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
    def test_in_a_native_vector_end_all_its_episodes(self, mode: str) -> None:
        """The first environment never ends its episode; the others end theirs in time."""
        kwargs = {"autoreset_mode": mode, "lengths": [0, 3, 3], "fault": ""}
        batch = Gym(id=NAME, vectorized=True, kwargs=kwargs, max_steps_guard=5).make(3, [0, 1, 2])
        steps = play(batch, 6)
        guarded = steps[4]
        assert guarded.truncated.all() and not guarded.terminated.any()
        assert guarded.final_obs[0].tolist() == [0, 0, 5, 0]
        assert not guarded.obs[:, 2].any()
        assert guarded.warnings and "environment 0 (Misbehaving-v0)" in guarded.warnings[0]
        assert steps[5].valid.all() and steps[5].obs[:, 2].tolist() == [1, 1, 1]

    def test_the_setting(self) -> None:
        with pytest.raises(ConfigError, match="max_steps_guard = 0: must be a whole number >= 1, or null"):
            Atari(game="pong", max_steps_guard=0)
        assert not any(step.truncated.any() for step in play(batch_of("", guard=None), 50))


class Games:
    """The emulator as `_AtariBatch` sees it; its answers go wrong."""

    num_envs = 2
    single_observation_space = Box(0, 255, (1, 4, 4), np.uint8)
    single_action_space = Discrete(2)

    def __init__(self, fault: str, at: int) -> None:
        self.fault, self.at, self.taken, self.resets = fault, at, 0, 0

    def reset(self, seed: Any = None) -> Any:
        self.resets += 1
        return np.full((2, 1, 4, 4), self.resets, np.uint8), {"lives": np.array([3, 3])}

    def step(self, actions: Array) -> Any:
        self.taken += 1
        none, obs, reward = np.zeros(2, bool), np.zeros((2, 1, 4, 4), np.uint8), np.ones(2)
        if self.taken == self.at:
            match self.fault:
                case "raise":
                    raise RuntimeError("scripted to fail")
                case "shape":
                    obs = obs[:, :, 1:]
                case "dtype":
                    obs = obs.astype(np.float32)
                case "nan reward":
                    reward[1] = np.nan
        return obs, reward, none, none, {"lives": np.array([3, 3])}


@pytest.mark.parametrize("fault", ["raise", "shape", "dtype", "nan reward"])
def test_atari_begins_all_games_anew(fault: str) -> None:
    games: Any = Games(fault, at=3)
    batch = _AtariBatch(games, [0, 1], True, "pong")
    batch.reset()
    steps = [batch.step(np.zeros(2, np.int64)) for _ in range(4)]
    assert steps[2].broken is not None and steps[2].broken.all() and not steps[2].valid.any()
    assert (steps[2].obs == 2).all(), "of the second reset"
    assert steps[2].errors == 1 and "pong" in steps[2].warnings[0]
    assert steps[3].valid.all() and steps[3].broken is None


class TestClose:
    def test_that_hangs_is_not_waited_for(self, caplog: pytest.LogCaptureFixture) -> None:
        class Stuck:
            def close(self) -> None:
                released.wait()

        released, began = threading.Event(), time.monotonic()
        with caplog.at_level(logging.WARNING):
            close_within(Stuck(), 0.05)
        assert time.monotonic() - began < 30
        assert "not closed within 0.05 s" in caplog.text
        released.set()

    @pytest.mark.parametrize("error", [RuntimeError("no display"), SystemExit(1)])
    def test_that_raises_is_logged(self, error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
        class Torn:
            def close(self) -> None:
                raise error

        with caplog.at_level(logging.WARNING):
            close_within(Torn())
        assert f"could not be closed: {type(error).__name__}" in caplog.text

    def test_that_works_has_returned(self) -> None:
        env = Scripted()
        close_within(env)
        assert env.closed == 1
