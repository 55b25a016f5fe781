"""Doom: what a policy sees of its games, their ends, and what they leave behind."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_runs import nobody_works, running, worker_processes
from gymnasium.spaces import Discrete
from refusals import refused
from runs import LINUX, SMALL_CNN, config, wait_until

import a3c_exp
from a3c_exp.config.builder import load_experiment
from a3c_exp.envs import EnvBatch, Step

pytest.importorskip("vizdoom", reason="Doom: pip install 'a3c-exp[doom]'")
pytest.importorskip("cv2", reason="Doom: pip install 'a3c-exp[doom]'")

CLONE_FS = 0x200
NOTHING = np.zeros(1, np.int64)  # no button
PROGRAM = """
import signal

import gymnasium
import vizdoom.gymnasium_wrapper
from a3c_exp.envs.doom import DoomScreen

signal.signal(signal.SIGINT, signal.SIG_IGN)
env = DoomScreen(gymnasium.make("VizdoomBasic-v1"))
env.reset(seed=0)
print("started", flush=True)
env.step(int(input()))
print("played", flush=True)
input()
"""
MakeGame = Callable[..., EnvBatch]


@pytest.fixture
def make_game() -> Iterator[MakeGame]:
    """Makes a game of `env=doom` with other settings, and closes it after the test."""
    games: list[EnvBatch] = []

    def make(*overrides: str, seed: int = 0) -> EnvBatch:
        settings = ["env=doom", "env.normalize_observations=[128,64]", *overrides]
        component = load_experiment(a3c_exp.compose(settings)).env
        games.append(component.make(1, [seed]))
        return games[-1]

    yield make
    for game in games:
        game.close()


def played(game: EnvBatch, steps: int) -> tuple[list[np.ndarray[Any, Any]], list[float]]:
    """Return the observations and rewards of an episode of the same random buttons."""
    buttons = np.random.default_rng(0).integers(4, size=(steps, 1))
    observations = [game.reset()]
    rewards = []
    for button in buttons:
        step = game.step(button)
        observations.append(step.final_obs)
        rewards.append(float(step.reward[0]))

    return observations, rewards


def idle(game: EnvBatch) -> Step:
    """Return the last step of an episode in which no button is pressed."""
    game.reset()
    while not (step := game.step(NOTHING)).episode_over[0]:
        pass
    return step


def game_processes(parent: int) -> list[int]:
    """Return the games that a process has started."""
    children = Path(f"/proc/{parent}/task").glob("*/children")
    pids = [int(pid) for tasks in children for pid in tasks.read_text().split()]
    return [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text() == "vizdoom\n"]


def is_alive(pid: int) -> bool:
    """Return whether a process lives, also one that nobody has waited for."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def shared_files() -> list[Path]:
    return list(Path("/dev/shm").glob("ViZDoom*"))


def test_a_policy_sees_small_gray_screens_and_presses_one_button(make_game: MakeGame) -> None:
    game = make_game()
    assert game.observation_space.shape == (4, 60, 80)
    assert game.action_space == Discrete(4)  # left, right, fire, none of them
    observations, rewards = played(game, 10)
    assert all(obs.dtype == np.uint8 and len(np.unique(obs)) > 30 for obs in observations)
    np.testing.assert_array_equal(observations[2][0, :-1], observations[1][0, 1:])
    # each frame costs 1, and each shot 5 more
    assert set(rewards) == {-4.0, -9.0}


def test_the_same_seed_is_the_same_episode(make_game: MakeGame) -> None:
    one, rewards = played(make_game(seed=3), 20)
    other, other_rewards = played(make_game(seed=3), 20)
    np.testing.assert_array_equal(one, other)
    assert rewards == other_rewards
    different, _ = played(make_game(seed=4), 20)
    assert not np.array_equal(one, different)


def test_a_time_limit_truncates_and_leaves_the_last_screen(make_game: MakeGame) -> None:
    step = idle(make_game())
    assert step.truncated[0] and not step.terminated[0]
    np.testing.assert_array_equal(step.final_obs[0, -1], step.final_obs[0, -2])
    assert len(np.unique(step.final_obs[0, -1])) > 30
    assert step.final_info is not None and step.final_info[0] == {"ammo2": 50.0}


def test_a_death_terminates(make_game: MakeGame) -> None:
    step = idle(make_game("env.id=VizdoomDefendCenter-v1"))
    assert step.terminated[0] and not step.truncated[0]
    assert step.final_info is not None and step.final_info[0] == {"ammo2": 26.0, "health": 0.0}


def test_a_video_has_the_games_own_speed(make_game: MakeGame) -> None:
    game: Any = make_game()
    assert game.render_fps == 35 / 4  # of 35 frames a second, every fourth


def test_a_video_in_color_shows_a_policy_the_same_screens(make_game: MakeGame) -> None:
    gray, _ = played(make_game(), 5)
    color, _ = played(make_game("env.kwargs.screen_format=RGB24"), 5)
    np.testing.assert_allclose(np.array(color, float), np.array(gray, float), atol=1)


@pytest.mark.parametrize(
    ("key", "value"), [("screen_resolution", "RES_1X1"), ("doom_skil", 3)], ids=["value", "name"]
)
def test_what_the_game_does_not_know_is_refused(
    make_game: MakeGame, key: str, value: object
) -> None:
    refused(lambda: make_game(f"++env.kwargs.{key}={value}"), f"env.kwargs.{key}", value)


@pytest.mark.parametrize("frames", [0, -1])
def test_an_action_lasts_one_frame_at_least(make_game: MakeGame, frames: int) -> None:
    word = f"env.kwargs.frame_skip={frames}"
    refused(lambda: make_game(word), "env.kwargs.frame_skip", frames)


@LINUX
def test_a_running_game_has_no_files(
    make_game: MakeGame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that none is left, however it ends."""
    monkeypatch.chdir(tmp_path)
    before = set(shared_files())
    game = make_game()
    game.reset()
    assert set(shared_files()) <= before
    [pid] = game_processes(os.getpid())
    game.close()
    assert not is_alive(pid)
    assert not list(tmp_path.iterdir())


@LINUX
def test_a_game_that_starts_leaves_other_threads_their_working_directory(
    make_game: MakeGame,
) -> None:
    """An evaluation starts games in a thread, while others read and write."""
    game = make_game()
    here = os.getcwd()
    seen = set()
    with ThreadPoolExecutor(1) as other:
        if other.submit(ctypes.CDLL(None).unshare, CLONE_FS).result() != 0:
            pytest.skip("a container keeps threads from a working directory of their own")

    with ThreadPoolExecutor(1) as thread:
        started = thread.submit(game.reset)
        while not started.done():
            seen.add(os.getcwd())
    assert seen == {here}


@LINUX
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_a_game_outlives_a_ctrl_c_but_not_the_program_that_plays_it() -> None:
    """A terminal sends SIGINT to a program and to its games, which it needs until its end."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "started\n"
        [game] = game_processes(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        process.stdin.write("0\n")
        process.stdin.flush()
        assert process.stdout.readline() == "played\n"
        process.kill()

    wait_until(lambda: not is_alive(game))


@LINUX
@pytest.mark.parametrize("victim", ["game", "worker"])
def test_a_game_or_a_worker_that_is_killed_is_replaced(victim: str) -> None:
    settings = ["env=doom", "env.normalize_observations=[128,64]"]
    whole = {
        **config(backend="processes", workers=2, envs_per_worker=1, total_steps=10**6),
        "env": a3c_exp.compose(settings)["env"],
        "network": SMALL_CNN,
    }
    whole["backend"]["max_restarts"] = 3
    before = set(shared_files())
    with running(whole) as (events, store):
        seen = set[int]()
        while seen != {0, 1}:
            seen |= {event.worker for event in [next(events)] if event is not None}

        games = {child.pid: game_processes(child.pid or 0) for child in worker_processes()}
        worker, [game] = next(iter(games.items()))
        os.kill(game if victim == "game" or worker is None else worker, signal.SIGKILL)
        restart = next(event for event in events if event is not None and event.counts["restarts"])
        next(
            event
            for event in events
            if event is not None and event.worker == restart.worker and event.contributions
        )
        store.stop()

    wait_until(nobody_works)
    left = [pid for pids in games.values() for pid in pids]
    wait_until(lambda: not any(map(is_alive, left)))
    assert set(shared_files()) <= before
