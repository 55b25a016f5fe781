"""`python -m bench.stable_baselines3_a2c ENVIRONMENTS SECONDS [GAME]`: steps a second of its A2C.

On CartPole-v1, or on an Atari game by its id without frame skip (PongNoFrameskip-v4), with its own preprocessing.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack


def main(environments: int, seconds: float, game: str | None = None) -> float:
    """Train with its defaults for so many seconds, and return the steps a second."""
    if game is None:
        torch.set_num_threads(1)  # for networks of this size its fastest setting
        model = A2C("MlpPolicy", make_vec_env("CartPole-v1", environments), device="cpu")
    else:
        import ale_py  # noqa: F401 - registers the games

        model = A2C("CnnPolicy", VecFrameStack(make_atari_env(game, environments), 4), device="cpu")
    started = time.perf_counter()

    def goes_on(local: dict[str, Any], everywhere: dict[str, Any]) -> bool:
        return time.perf_counter() - started < seconds

    model.learn(10**9, callback=goes_on)
    return float(model.num_timesteps / (time.perf_counter() - started))


if __name__ == "__main__":
    print(main(int(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:]))
