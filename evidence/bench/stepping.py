"""The upper limit: environments stepped with random actions, without learning."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from typing import Any

PROCESSES = 2  # one a core


def random_stepping(env_id: str, seconds: float) -> float:
    """Return the steps a second of two processes together, each stepping one environment made by
    gymnasium in a plain loop.

    Actions are drawn before, so that drawing costs nothing. Episodes restart when they end.
    """
    return _on_both_cores(_step, env_id, seconds)


def batch_random_stepping(overrides: str, seconds: float) -> float:
    """Return the same for the environment of a command, with its preprocessing, as a worker has
    it."""
    return _on_both_cores(_step_batch, overrides, seconds)


def doom_random_stepping(scenario: str, seconds: float) -> float:
    """Return the same for ViZDoom without gymnasium: a scenario ('basic.cfg') with the buffer and
    the frames an action of `env=doom`."""
    return _on_both_cores(_step_doom, scenario, seconds)


def _on_both_cores(step: Callable[..., None], what: str, seconds: float) -> float:
    """Return the sum of the steps a second of two processes that step one environment each."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    rates = context.SimpleQueue()
    tasks = [(what, seed, seconds, barrier, rates) for seed in range(PROCESSES)]
    processes = [context.Process(target=step, args=task) for task in tasks]
    for process in processes:
        process.start()

    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"stepping {what} ended with exit code {process.exitcode}")

    return sum([float(rates.get()) for _ in processes])


def atari_random_stepping(game: str, environments: int, seconds: float) -> float:
    """Return the steps a second of the Arcade Learning Environment's vector environment, with a
    thread for each core."""
    from ale_py.vector_env import AtariVectorEnv

    env = AtariVectorEnv(game, environments, num_threads=PROCESSES)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(1000)]
    env.reset(seed=0)
    steps = 0

    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        env.step(actions[steps % len(actions)])
        steps += 1

    rate = steps * environments / (time.perf_counter() - started)
    env.close()
    return rate


def _step(
    env_id: str, seed: int, seconds: float, barrier: Barrier, rates: SimpleQueue[float]
) -> None:
    import gymnasium

    env = gymnasium.make(env_id, disable_env_checker=True)
    env.action_space.seed(seed)
    actions = [env.action_space.sample() for _ in range(1000)]
    if isinstance(env.action_space, gymnasium.spaces.Discrete):
        actions = [int(action) for action in actions]  # taken faster than numpy's integers
    env.reset(seed=seed)
    barrier.wait()
    steps = 0

    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        steps += len(actions)

    rates.put(steps / (time.perf_counter() - started))


def _step_batch(
    overrides: str, seed: int, seconds: float, barrier: Barrier, rates: SimpleQueue[float]
) -> None:
    import a3c_exp
    from a3c_exp.config.builder import load_experiment

    known = "env.normalize_observations=false"  # which is no part of a step
    composed = a3c_exp.compose([*overrides.split(), known])
    env = load_experiment(composed).env.make(1, [seed])
    env.action_space.seed(seed)
    actions = [env.action_space.sample()[None] for _ in range(1000)]
    env.reset()
    barrier.wait()
    rates.put(_rate(lambda step: env.step(actions[step % len(actions)]), seconds))
    env.close()


def _step_doom(
    scenario: str, seed: int, seconds: float, barrier: Barrier, rates: SimpleQueue[float]
) -> None:
    import vizdoom

    game = vizdoom.DoomGame()
    game.load_config(os.path.join(vizdoom.scenarios_path, scenario))
    game.set_window_visible(False)
    game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
    game.set_screen_format(vizdoom.ScreenFormat.GRAY8)
    game.set_seed(seed)
    game.set_doom_config_path(os.devnull)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the game makes a folder there
        game.init()

    buttons = game.get_available_buttons_size()
    one_button = [[int(index == pressed) for index in range(buttons)] for pressed in range(buttons)]
    barrier.wait()

    def step(number: int) -> None:
        game.make_action(one_button[number % buttons], 4)
        if game.is_episode_finished():
            game.new_episode()
        game.get_state()

    rates.put(_rate(step, seconds))
    game.close()


def _rate(step: Callable[[int], Any], seconds: float) -> float:
    """Return the calls a second of a function that gets their number."""
    steps = 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        step(steps)
        steps += 1

    return steps / (time.perf_counter() - started)
