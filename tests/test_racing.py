"""CarRacing with actions that last several steps, of which one is drawn."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import a3c_exp
from a3c_exp.config.builder import load_experiment
from a3c_exp.envs.racing import SkipDrawing

pytest.importorskip("Box2D", reason="CarRacing: pip install 'gymnasium[box2d]'")

RIGHT, GAS = 1, 3


def racing(**settings: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CarRacing-v3", continuous=False, disable_env_checker=True, **settings)


def test_an_action_lasts_and_its_last_image_is_the_environments_own() -> None:
    plain = racing()
    skipping = SkipDrawing(racing(), frames=4)
    plain.reset(seed=0)
    skipping.reset(seed=0)
    for action in (GAS, GAS, RIGHT, GAS, RIGHT):
        observation, reward, *_ = skipping.step(action)
        steps = [plain.step(action) for _ in range(4)]
        np.testing.assert_array_equal(observation, steps[-1][0])
        assert reward == pytest.approx(sum(float(step[1]) for step in steps))

    plain.close()
    skipping.close()


def test_the_time_limit_counts_steps_of_the_environment() -> None:
    env = SkipDrawing(racing(max_episode_steps=6), frames=4)
    env.reset(seed=0)
    assert not env.step(GAS)[3]
    assert env.step(GAS)[3]
    env.close()


def test_what_is_not_seen_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    env = racing(render_mode="rgb_array")
    draw = type(env.unwrapped)._render_road  # type: ignore[attr-defined]

    def counted(self: Any, *arguments: Any) -> None:
        drawn.append(arguments)
        draw(self, *arguments)

    monkeypatch.setattr(type(env.unwrapped), "_render_road", counted)
    skipping = SkipDrawing(env, frames=8)
    skipping.reset(seed=0)
    drawn.clear()
    for _ in range(3):
        skipping.step(GAS)
    assert len(drawn) == 3

    frame: Any = skipping.render()
    assert frame.shape == (400, 600, 3)
    assert skipping.metadata["render_fps"] == 50 / 8
    env.close()


def test_a_step_that_fails_leaves_the_drawing_as_it_was() -> None:
    skipping = SkipDrawing(racing(), frames=4)
    skipping.reset(seed=0)
    with pytest.raises(gymnasium.error.InvalidAction):
        skipping.step(9)
    drawn, _ = skipping.reset(seed=1)
    plain = racing()
    np.testing.assert_array_equal(drawn, plain.reset(seed=1)[0])
    skipping.close()
    plain.close()


@pytest.mark.parametrize(
    ("overrides", "actions"),
    [
        ([], Discrete(5)),
        (
            ["env.kwargs.continuous=true", "network.distribution=beta"],
            Box(np.array([-1, 0, 0], np.float32), np.ones(3, np.float32)),
        ),
    ],
    ids=["discrete", "continuous"],
)
def test_actions_are_discrete_or_three_numbers(overrides: list[str], actions: Any) -> None:
    settings = ["env=racing", "env.normalize_observations=[128,64]", *overrides]
    batch = load_experiment(a3c_exp.compose(settings)).env.make(1, [0])
    assert batch.action_space == actions
    assert batch.reset().shape == (1, 4, 96, 96)
    step = batch.step(batch.action_space.sample()[None])
    assert step.obs.dtype == np.uint8 and np.isfinite(step.reward).all()
    batch.close()
