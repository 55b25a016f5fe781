"""Atari games: the transitions of their native vector environment, their scores, and error
texts."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from policies import FixedPolicy
from refusals import refused
from test_envs import collected_transitions

from a3c_exp.common.arrays import Array
from a3c_exp.core.acting import ActingPolicy
from a3c_exp.core.events import Episodes
from a3c_exp.core.rollout import Actor
from a3c_exp.core.store import Snapshot
from a3c_exp.envs import Atari, VectorEnvBatch

START = Snapshot(version=0, steps=0, normalizer=None)
ALE = pytest.importorskip("ale_py.vector_env", reason="Atari games: pip install 'a3c-exp[atari]'")
SEEDS = [4, 5]  # gymnasium gives a native vector environment one seed, and it counts on from there
# Quick: small images, no stack, always the same start, and whole games of few steps.
QUICK = Atari(game="breakout", height=12, width=12, frame_stack=1, noop_max=0)


def fire(obs: Array) -> Array:
    """Actions with which lives are soon lost."""
    return np.ones(len(obs), np.int64)


@pytest.mark.parametrize(("max_frames", "steps"), [(108_000, 300), (100, 60)])
def test_its_transitions_are_those_of_the_environment_that_restarts_a_step_late(
    max_frames: int, steps: int
) -> None:
    """That one shows the final observation of an episode as every other observation, and rows that
    only restart are left out. Every episode has to be the same, end and final observation
    included."""
    # so that the two games differ
    setting = replace(QUICK, max_frames=max_frames, repeat_action_probability=0.25)
    late = ALE.AtariVectorEnv(
        "breakout",
        2,
        num_threads=1,
        autoreset_mode="NextStep",
        img_height=12,
        img_width=12,
        stack_num=1,
        noop_max=0,
        reward_clipping=False,
        max_num_frames_per_episode=max_frames,
        repeat_action_probability=0.25,
    )
    # before another is made: all of them share one record of the autoreset mode
    theirs = VectorEnvBatch(late, SEEDS)
    ours = setting.make(2, SEEDS)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    transitions = collected_transitions(ours, steps, fire)
    expected = collected_transitions(theirs, steps, fire)
    assert transitions[0] != transitions[1]
    for mine, other in zip(transitions, expected, strict=True):
        assert mine[: len(other)] == other
        assert sum(terminated or truncated for *_, terminated, truncated in other) >= 1
        assert {truncated for *_, truncated in other} == (
            {False} if max_frames > 1000 else {False, True}
        )
    ours.close()
    theirs.close()


class TestACrop:
    def test_of_the_whole_image_changes_nothing(self) -> None:
        """Not a point of any observation, with games that end in between and frames from before and
        after that."""
        small: dict[str, Any] = {"height": 42, "width": 36, "frame_stack": 3}
        uncropped = Atari(
            game="space_invaders",
            noop_max=0,
            max_frames=100,
            repeat_action_probability=0.25,
            **small,
        )
        cropped = replace(uncropped, crop=(0, 210, 0, 160)).make(2, SEEDS)
        plain = uncropped.make(2, SEEDS)
        assert cropped.observation_space == plain.observation_space
        assert cropped.action_space == plain.action_space
        image = cropped.observation_space.sample()
        assert np.array_equal(cropped.encode([image]), [image]), "as a policy is given it"
        transitions = collected_transitions(cropped, 60, fire)
        expected = collected_transitions(plain, 60, fire)
        assert transitions == expected
        assert sum(truncated for *_, truncated in transitions[0]) == 2
        cropped.close()
        plain.close()

    def test_is_cut_before_it_is_scaled(self) -> None:
        """To half its height and width, so that a point is the mean of four."""
        screen = Atari(game="pong", height=210, width=160, frame_stack=2).make(2, SEEDS)
        half = Atari(game="pong", height=80, width=60, frame_stack=2, crop=(34, 194, 20, 140)).make(
            2, SEEDS
        )
        screen.reset()
        half.reset()
        for action in (2, 3) * 5:
            screens, halves = (env.step(np.full(2, action)).obs for env in (screen, half))
            means = screens[..., 34:194, 20:140].reshape(2, 2, 80, 2, 60, 2).mean((3, 5))
            assert abs(halves - means).max() <= 0.5
        screen.close()
        half.close()


def first_images(seeds: list[int]) -> Array:
    batch = Atari(game="pong", height=20, width=20, repeat_action_probability=0.25).make(
        len(seeds), seeds
    )
    batch.reset()
    for _ in range(30):
        obs = batch.step(np.full(len(seeds), 2)).obs
    batch.close()
    return obs


def test_each_game_has_its_own_seed() -> None:
    together = first_images([3, 8])
    again = first_images([8, 3])
    np.testing.assert_array_equal(together, again[::-1])
    assert (together[0] != together[1]).any()


def make_actor(game: Atari, length: Any) -> Actor:
    """An actor that always fires."""
    firing = ActingPolicy(FixedPolicy(lambda step: 1), np.random.default_rng(0))
    return Actor(game.make(1, [0]), firing, game, rollout_length=length, gamma=0.99)


def test_scores_are_those_of_the_game_and_only_training_clips() -> None:
    """Space Invaders pays 5 to 30 for a hit, and firing without moving hits something."""
    game = Atari(game="space_invaders", height=12, width=12, frame_stack=1, max_frames=1200)
    actor = make_actor(game, "episode")
    rollout = actor.collect(START)
    assert set(np.unique(rollout.rewards)) == {0.0, 1.0}
    assert rollout.episodes.returns[0] >= 5 * rollout.rewards.sum() > 0


def test_a_lost_life_ends_the_learned_episode_and_not_the_game() -> None:
    """Breakout has five lives: the learner sees four ends more, and games have the same scores and
    lengths."""
    ends_by_setting = []
    for terminal_on_life_loss in (False, True):
        actor = make_actor(replace(QUICK, terminal_on_life_loss=terminal_on_life_loss), 2000)
        ends = 0
        episodes = Episodes()
        while not len(episodes):
            rollout = actor.collect(START)
            ends += int(rollout.terminated.sum())
            episodes = episodes.merge(rollout.episodes)
        ends_by_setting.append((episodes.returns.tolist(), episodes.lengths.tolist()))
        assert ends == (5 if terminal_on_life_loss else 1)
        actor.env.close()
    assert ends_by_setting[0] == ends_by_setting[1]


def test_games_can_be_filmed() -> None:
    batch = Atari(game="pong").make(2, [0, 1], "rgb_array")
    obs = batch.reset()
    frame = batch.render()
    assert frame is not None
    assert frame.shape == (336, 336, 3) and frame.dtype == np.uint8
    np.testing.assert_array_equal(frame[::4, ::4, 0], obs[0, -1])
    batch.close()


class TestErrors:
    """Each names the key, the value and what is allowed."""

    @pytest.mark.parametrize(
        ("settings", "hint"),
        [
            ({"game": "pongg"}, "'pong'"),
            ({"game": "SpaceInvaders"}, "'space_invaders'"),
            # for two players: the emulator would end the program
            ({"game": "combat"}, "no such game"),
            ({"crop": (0, 211, 0, 160)}, "[0, 210, 0, 160]"),
            *(
                ({"crop": crop}, "[0, 210, 0, 160]")
                for crop in ((0, 9, 0, 161), (-1, 9, 0, 9), (9, 9, 0, 9))
            ),
        ],
    )
    def test_what_cannot_be_made(self, settings: dict[str, Any], hint: str) -> None:
        [(key, value)] = settings.items()
        wanted: dict[str, Any] = {"game": "pong"} | settings
        assert hint in refused(
            lambda: Atari(**wanted).make(1, [0]), key, list(value) if key == "crop" else value
        )

    def test_a_form_of_drawing_that_is_not_offered(self) -> None:
        assert "'human'" in refused(lambda: Atari(game="pong").make(1, [0], "human"), "game")

    def test_what_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "cv2", None)
        cropped = Atari(game="pong", crop=(34, 194, 0, 160))
        assert "a3c-exp[atari]" in refused(lambda: cropped.make(1, [0]), "crop")

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("repeat_action_probability", 1.0),
            ("noop_max", -1),
            *((key, 0) for key in ("frame_skip", "frame_stack", "threads", "height")),
        ],
    )
    def test_values_out_of_range(self, key: str, value: Any) -> None:
        refused(lambda: Atari(game="pong", **{key: value}), key, value)
