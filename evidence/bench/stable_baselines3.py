"""`python -m evidence.bench.stable_baselines3 A2C|PPO ENVIRONMENT ENVIRONMENTS SECONDS [SETTINGS
[WAY]]`: its steps a second.

An Atari game is named by its id without frame skip (PongNoFrameskip-v4) and gets the library's
preprocessing. SETTINGS: arguments other than the defaults, as JSON. WAY, for vector observations:
`fastest`, with one thread of torch and without preparing to render, or `default`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import stable_baselines3
import torch
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecFrameStack


def make_model(
    algorithm: str, env_id: str, environments: int, way: str = "fastest", **settings: Any
) -> Any:
    """A2C or PPO with its environments. settings: arguments other than the library's defaults."""
    envs: Any
    policy = "MlpPolicy"
    seed = settings.get("seed")

    if "NoFrameskip" in env_id:
        import ale_py  # noqa: F401 - registers the games

        policy = "CnnPolicy"
        envs = VecFrameStack(make_atari_env(env_id, environments), 4)
    elif way == "default":
        envs = make_vec_env(env_id, environments, seed=seed)
    else:
        torch.set_num_threads(1)  # its fastest setting for networks of this size
        # By default it prepares for rendering, and LunarLander then makes particles whenever an
        # engine fires.
        envs = make_vec_env(env_id, environments, seed=seed, env_kwargs={"render_mode": None})

    model = getattr(stable_baselines3, algorithm)(policy, envs, device="cpu", **settings)
    model.set_logger(Logger(None, []))  # its default leaves a folder in /tmp
    return model


def main(
    algorithm: str,
    env_id: str,
    environments: int,
    seconds: float,
    settings: dict[str, Any],
    way: str = "fastest",
) -> float:
    """Train for at least `seconds`, in whole iterations (a rollout and its updates). Returns steps
    per second without those of the first iteration."""
    model = make_model(algorithm, env_id, environments, way, **settings)
    rollout = model.n_steps * environments
    # steps and time at the start of each iteration but the first
    starts: list[tuple[int, float]] = []

    def on_step(local: dict[str, Any], global_: dict[str, Any]) -> bool:
        if model.num_timesteps > rollout and model.num_timesteps % rollout == environments:
            starts.append((model.num_timesteps, time.perf_counter()))
        return len(starts) < 2 or starts[-1][1] - starts[0][1] < seconds

    model.learn(10**9, callback=on_step)
    (first, started), (last, ended) = starts[0], starts[-1]
    return (last - first) / (ended - started)


if __name__ == "__main__":
    settings = json.loads(sys.argv[5]) if len(sys.argv) > 5 else {}
    print(
        main(
            sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), settings, *sys.argv[6:]
        )
    )
