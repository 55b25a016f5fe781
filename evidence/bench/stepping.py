"""The upper limit: environments stepped with random actions, without learning."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier

PROCESSES = 2  # one a core


def random_stepping(env_id: str, seconds: float) -> float:
    """Return the steps a second of two processes together, each stepping one environment made by
    gymnasium in a plain loop.

    Actions are drawn before, so that drawing costs nothing. Episodes restart when they end.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    rates = context.SimpleQueue()
    tasks = [(env_id, seed, seconds, barrier, rates) for seed in range(PROCESSES)]
    processes = [context.Process(target=_step, args=task) for task in tasks]
    for process in processes:
        process.start()

    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"stepping {env_id} ended with exit code {process.exitcode}")

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
