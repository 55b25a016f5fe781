"""`python -m evidence.study.stable_baselines3 ALGORITHM ENVIRONMENT GOAL seed=N`: a run with the
zoo's settings, as JSON."""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from a3c_exp.run import provenance
from evidence.bench.peers import ZOO
from evidence.bench.stable_baselines3 import make_model
from evidence.study.runs import EPISODES, FIRST_EVALUATION_SEED, describe


class Watch:
    """A callback that notes when the threshold is reached, by our rule: 100 episodes, and one of
    every environment."""

    def __init__(self, reward_threshold: float, environments: int) -> None:
        self.reward_threshold = reward_threshold
        self.environments = environments
        self.returns = list[float]()
        self.ended = set[int]()
        self.solved_steps: int | None = None
        self.solved_seconds: float | None = None
        self.started = time.perf_counter()

    def __call__(self, local: dict[str, Any], global_: dict[str, Any]) -> bool:
        before = len(self.returns)
        for index, info in enumerate(local["infos"]):
            if "episode" in info:
                self.returns.append(float(info["episode"]["r"]))
                self.ended.add(index)

        has_new = len(self.returns) > before  # a mean at every step would be the library's time
        enough = has_new and len(self.returns) >= 100 and len(self.ended) == self.environments
        if (
            self.solved_steps is None
            and enough
            and np.mean(self.returns[-100:]) >= self.reward_threshold
        ):
            self.solved_steps = local["self"].num_timesteps
            self.solved_seconds = round(time.perf_counter() - self.started, 3)

        return True


def main(algorithm: str, env_id: str, reward_threshold: float, seed: int) -> dict[str, Any]:
    """Return the run's record, by its columns."""
    settings = dict(ZOO[f"{algorithm} {env_id}"])
    steps = settings.pop("steps")
    count = settings.pop("envs")
    arguments: dict[str, Any] = {key: _schedule(value) for key, value in settings.items()}
    model = make_model(algorithm, env_id, count, seed=seed, **arguments)
    watch = Watch(reward_threshold, count)
    model.learn(steps, callback=watch)
    seconds = time.perf_counter() - watch.started
    # each takes a seed of its own
    eval_envs = make_vec_env(env_id, 16, seed=FIRST_EVALUATION_SEED + 16 * seed)
    returns, _ = evaluate_policy(model, eval_envs, EPISODES, return_episode_rewards=True)

    return {
        "steps": model.num_timesteps,
        "seconds": round(seconds, 3),
        "steps_per_second": round(model.num_timesteps / seconds, 1),
        "solved_steps": watch.solved_steps,
        "solved_seconds": watch.solved_seconds,
        "last_100": round(float(np.mean(watch.returns[-100:])), 3),
        "greedy_return": round(float(np.mean(returns)), 3),
        "greedy_deviation": round(float(np.std(returns, ddof=1)), 3),
        "greedy_episodes": int(np.size(returns)),
        "best_return": None,
        "date": datetime.date.today().isoformat(),
        "commit": f"stable-baselines3 {metadata.version('stable-baselines3')}",
        "machine": describe(provenance.machine()),
    }


def _schedule(value: Any) -> float | Callable[[float], float]:
    """Return the library's form of the zoo's schedule: a function of the remaining share of
    training."""
    if isinstance(value, str):
        start = float(value.removeprefix("lin_"))
        return lambda remaining: start * remaining
    return value  # type: ignore[no-any-return]


if __name__ == "__main__":
    algorithm, env_id, reward_threshold, seed = sys.argv[1:]
    print(
        json.dumps(
            main(algorithm, env_id, float(reward_threshold), int(seed.removeprefix("seed=")))
        )
    )
