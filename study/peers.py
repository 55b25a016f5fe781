"""stable-baselines3 with the settings of rl-baselines3-zoo (hyperparams/a2c.yml and ppo.yml), on this machine."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.entries import RunFailedError
from study.records import Record
from study.runs import execute

# Settings in which the zoo differs from the defaults of the library. `lin_x`: a rate that falls linearly from x to 0.
ZOO: dict[tuple[str, str], dict[str, Any]] = {
    ("A2C", "CartPole-v1"): {"steps": 500_000, "envs": 8, "ent_coef": 0.0},
    ("A2C", "LunarLander-v3"): {
        "steps": 200_000, "envs": 8, "gamma": 0.995, "n_steps": 5, "learning_rate": "lin_8.3e-4", "ent_coef": 1e-5,
    },
    ("PPO", "CartPole-v1"): {
        "steps": 100_000, "envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98,
        "n_epochs": 20, "ent_coef": 0.0, "learning_rate": "lin_1e-3", "clip_range": "lin_0.2",
    },
    ("PPO", "LunarLander-v3"): {
        "steps": 1_000_000, "envs": 16, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999,
        "n_epochs": 4, "ent_coef": 0.01,
    },
}  # fmt: skip


@dataclass(frozen=True)
class StableBaselines3:
    """A recipe: stable-baselines3 with the zoo's settings, and our threshold for `solved`."""

    algorithm: str
    env_id: str
    reward_threshold: float

    @property
    def command(self) -> str:
        return f"python -m study.stable_baselines3 {self.algorithm} {self.env_id} {self.reward_threshold:g}"

    def settings(self) -> Mapping[str, Any]:
        return {"algorithm": self.algorithm, "env": self.env_id, **ZOO[self.algorithm, self.env_id]}

    def run(self, seed: int, folder: Path) -> Record:
        if importlib.util.find_spec("stable_baselines3") is None:
            raise RunFailedError("stable-baselines3 is not installed: pip install 'a3c-exp[bench]'")
        log = folder.with_suffix(".log")
        execute([*self.command.split()[1:], f"seed={seed}"], log)
        found = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
        return Record(
            seed=seed, staleness_mean=None, staleness_max=None, command=f"{self.command} seed={seed}", **found
        )
