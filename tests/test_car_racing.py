"""The study's CarRacing, whose actions last several frames, against gymnasium's own."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("Box2D", reason="CarRacing: pip install 'a3c-exp[box2d]'")

from study.car_racing import FRAMES


def repeated(env: gymnasium.Env[Any, Any], action: Any) -> tuple[Any, float, bool]:
    """Picture, reward and end of FRAMES steps with one action, or of fewer if the episode ends."""
    total = 0.0
    for _ in range(FRAMES):
        picture, reward, terminated, _, _ = env.step(action)
        total += float(reward)
        if terminated:
            break
    return picture, total, terminated


@pytest.mark.parametrize("continuous", [True, False])
def test_an_action_of_several_frames_is_that_of_the_game_repeated(continuous: bool) -> None:
    env = gymnasium.make("study.car_racing:FrameSkippingCarRacing-v0", continuous=continuous)
    game = gymnasium.make("CarRacing-v3", continuous=continuous)
    assert np.array_equal(env.reset(seed=3)[0], game.reset(seed=3)[0])
    env.action_space.seed(0)
    for _ in range(25):
        action = env.action_space.sample()
        picture, reward, terminated, truncated, _ = env.step(action)
        expected = repeated(game, action)
        assert np.array_equal(picture, expected[0])
        assert float(reward) == pytest.approx(expected[1])
        assert (terminated, truncated) == (expected[2], False)


def test_an_episode_ends_at_the_frame_at_which_the_game_ends_with_its_picture() -> None:
    env = gymnasium.make("study.car_racing:FrameSkippingCarRacing-v0")
    game = gymnasium.make("CarRacing-v3")
    gas, steer = np.array([0.0, 1.0, 0.0], np.float32), np.array([0.5, 0.2, 0.0], np.float32)
    env.reset(seed=3)
    env.step(gas)
    game.reset(seed=3)
    repeated(game, gas)
    for each in (env, game):
        each.unwrapped.new_lap = True  # type: ignore[attr-defined]  # the next frame ends the episode
    (picture, reward, terminated, *_), expected = env.step(steer), game.step(steer)
    assert terminated and expected[2]
    assert float(reward) == pytest.approx(float(expected[1]))
    assert np.array_equal(picture, expected[0])


def test_the_time_limit_is_that_of_the_game() -> None:
    limits = [gymnasium.spec(name).max_episode_steps for name in ("FrameSkippingCarRacing-v0", "CarRacing-v3")]
    assert limits == [1000 // FRAMES, 1000]
