"""`python -m evidence.study.stable_baselines3 ALGORITHM ENVIRONMENT GOAL seed=N`: a run with the
zoo's settings, as JSON."""

from __future__ import annotations

import datetime
import json
import sys
from importlib import metadata
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from a3c_exp.run import provenance
from evidence.bench.drivers.stable_baselines3 import make_model, watched
from evidence.bench.drivers.watch import Watch
from evidence.bench.peers import zoo
from evidence.study.runs import EPISODES, FIRST_EVALUATION_SEED, describe


def main(algorithm: str, env_id: str, reward_threshold: float, seed: int) -> dict[str, Any]:
    """Return the run's record, by its columns."""
    torch.set_num_threads(1)  # its fastest setting for networks of this size
    settings = zoo(algorithm, env_id)
    model = make_model(env_id, settings, seed, as_it_comes=False)
    watch = Watch(reward_threshold, model.n_envs)
    note = watched(watch, model)

    def on_step(local: dict[str, Any], global_: dict[str, Any]) -> bool:
        note(local, global_)
        return True  # the zoo's runs go on when the task is solved

    watch.start()
    model.learn(settings["steps"], callback=on_step)
    seconds = watch.elapsed
    # each takes a seed of its own
    eval_envs = make_vec_env(env_id, 16, seed=FIRST_EVALUATION_SEED + 16 * seed)
    returns, _ = evaluate_policy(model, eval_envs, EPISODES, return_episode_rewards=True)

    return {
        "steps": model.num_timesteps,
        "seconds": round(seconds, 3),
        "steps_per_second": round(model.num_timesteps / seconds, 1),
        "solved_steps": watch.solved_steps,
        "solved_seconds": None if watch.solved_seconds is None else round(watch.solved_seconds, 3),
        "last_100": round(watch.mean_return(), 3),
        "greedy_return": round(float(np.mean(returns)), 3),
        "greedy_deviation": round(float(np.std(returns, ddof=1)), 3),
        "greedy_episodes": int(np.size(returns)),
        "best_return": None,
        "date": datetime.date.today().isoformat(),
        "commit": f"stable-baselines3 {metadata.version('stable-baselines3')}",
        "machine": describe(provenance.machine()),
    }


if __name__ == "__main__":
    algorithm, env_id, reward_threshold, seed = sys.argv[1:]
    print(
        json.dumps(
            main(algorithm, env_id, float(reward_threshold), int(seed.removeprefix("seed=")))
        )
    )
