"""stable-baselines3, and sbx, which has its interface.

Settings: `library` (stable_baselines3 or sbx), `algorithm`, `envs`, how many environments, `steps`,
after which training ends, and arguments other than the library's defaults, in the words of
rl-baselines3-zoo: `normalize` for running statistics of observations and rewards, `lin_x` for a
rate that falls linearly from x to 0.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from evidence.bench.drivers.watch import Task, Watch, run

ENDLESS = 10**9


def make_model(env_id: str, settings: Mapping[str, Any], seed: int, as_it_comes: bool) -> Any:
    """Return an algorithm with its environments.

    env_id: an Atari game is named without frame skip (PongNoFrameskip-v4), and gets the library's
        preprocessing and CNN.
    as_it_comes: also with its preparations to render, with which LunarLander makes particles
        whenever an engine fires.
    """
    arguments = {key: schedule(value) for key, value in settings.items()}
    library = arguments.pop("library", "stable_baselines3")
    algorithm = arguments.pop("algorithm")
    environments = arguments.pop("envs")
    normalize = arguments.pop("normalize", False)
    arguments.pop("steps", None)

    envs: Any
    policy = "MlpPolicy"
    if "NoFrameskip" in env_id:
        import ale_py  # noqa: F401 - registers the games

        policy = "CnnPolicy"
        envs = VecFrameStack(make_atari_env(env_id, environments, seed=seed), 4)
    else:
        kwargs = {} if as_it_comes else {"render_mode": None}
        envs = make_vec_env(env_id, environments, seed=seed, env_kwargs=kwargs)

    if normalize:
        envs = VecNormalize(envs, gamma=arguments.get("gamma", 0.99))

    make = getattr(importlib.import_module(library), algorithm)
    model = make(policy, envs, device="cpu", seed=seed, **arguments)
    model.set_logger(Logger(None, []))  # its default leaves a folder in /tmp
    return model


def schedule(value: Any) -> Any:
    """Return the library's form of the zoo's schedule: a function of the remaining share of
    training. Other values are returned as they are."""
    if not (isinstance(value, str) and value.startswith("lin_")):
        return value

    start = float(value.removeprefix("lin_"))
    linear: Callable[[float], float] = lambda remaining: start * remaining  # noqa: E731
    return linear


def watched(watch: Watch, model: Any) -> Callable[[dict[str, Any], dict[str, Any]], bool]:
    """Return a callback of the library's that tells `watch` of episodes and iterations, and ends
    the training when it is over."""
    rollout = model.n_steps * model.n_envs

    def on_step(local: dict[str, Any], global_: dict[str, Any]) -> bool:
        for index, info in enumerate(local["infos"]):
            if "episode" in info:
                watch.episode(float(info["episode"]["r"]), index, model.num_timesteps)

        # the first step of a rollout: the updates of the one before it are done
        begins = model.num_timesteps > rollout and model.num_timesteps % rollout == model.n_envs
        if begins:
            return watch.iteration(model.num_timesteps)
        return not watch.is_over

    return on_step


def train(task: Task) -> dict[str, Any]:
    """Train until the goal, the time or the settings' number of steps ends it."""
    model = make_model(task.environment, task.settings, task.seed, task.threads is None)
    watch = Watch(task.goal, model.n_envs, task.seconds)
    # a speed is measured until the time is up
    steps = ENDLESS if task.goal is None else int(task.settings.get("steps", ENDLESS))
    watch.start()
    model.learn(steps, callback=watched(watch, model))
    return watch.report(task)


if __name__ == "__main__":
    run(train)
