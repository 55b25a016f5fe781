"""`python -m bench.stable_baselines3 A2C|PPO ENVIRONMENT ENVIRONMENTS SECONDS [SETTINGS [WAY]]`: its steps a second.

Atari games by their ids without frame skip (PongNoFrameskip-v4), with its own preprocessing. SETTINGS, as JSON: what is
not to be its default. WAY, where observations are vectors: `fastest`, one thread of torch and nothing made ready to be
drawn, or `default`, as it comes.
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


def main(
    algorithm: str, env_id: str, environments: int, seconds: float, settings: dict[str, Any], way: str = "fastest"
) -> float:
    """Train for so many seconds or more, whole iterations (a rollout, and what is learned from it) behind the first."""
    kind = getattr(stable_baselines3, algorithm)
    made: Any
    if "NoFrameskip" in env_id:
        import ale_py  # noqa: F401 - registers the games

        policy, made = "CnnPolicy", VecFrameStack(make_atari_env(env_id, environments), 4)
    elif way == "default":
        policy, made = "MlpPolicy", make_vec_env(env_id, environments)
    else:
        torch.set_num_threads(1)  # for networks of this size its fastest setting
        # Its default is to be ready to draw, for which LunarLander makes particles whenever an engine fires.
        policy, made = "MlpPolicy", make_vec_env(env_id, environments, env_kwargs={"render_mode": None})
    model = kind(policy, made, device="cpu", **settings)
    model.set_logger(Logger(None, []))  # its default leaves a folder in /tmp
    rollout = model.n_steps * environments
    begun: list[tuple[int, float]] = []  # steps and time when iterations began, without the first

    def goes_on(local: dict[str, Any], everywhere: dict[str, Any]) -> bool:
        if model.num_timesteps > rollout and model.num_timesteps % rollout == environments:
            begun.append((model.num_timesteps, time.perf_counter()))
        return len(begun) < 2 or begun[-1][1] - begun[0][1] < seconds

    model.learn(10**9, callback=goes_on)
    (first, started), (last, ended) = begun[0], begun[-1]
    return (last - first) / (ended - started)


if __name__ == "__main__":
    given = json.loads(sys.argv[5]) if len(sys.argv) > 5 else {}
    print(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), given, *sys.argv[6:]))
