"""stable-baselines3 with the settings of rl-baselines3-zoo (hyperparams/a2c.yml and ppo.yml), on
this machine."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence.bench.peers import ZOO
from evidence.study.records import Record
from evidence.study.runs import RunFailedError, execute


@dataclass(frozen=True)
class StableBaselines3:
    """A recipe: stable-baselines3 with the zoo's settings, and our threshold for `solved`."""

    algorithm: str
    env_id: str
    reward_threshold: float

    @property
    def command(self) -> str:
        return (
            f"python -m evidence.study.stable_baselines3 {self.algorithm} {self.env_id} "
            f"{self.reward_threshold:g}"
        )

    def settings(self) -> Mapping[str, Any]:
        return {
            "algorithm": self.algorithm,
            "env": self.env_id,
            **ZOO[f"{self.algorithm} {self.env_id}"],
        }

    def run(self, seed: int, folder: Path) -> Record:
        if importlib.util.find_spec("stable_baselines3") is None:
            raise RunFailedError("stable-baselines3 is not installed: pip install 'a3c-exp[bench]'")
        log = folder.with_suffix(".log")
        execute([*self.command.split()[1:], f"seed={seed}"], log)
        cells = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])

        return Record(
            seed=seed,
            staleness_mean=None,
            staleness_max=None,
            command=f"{self.command} seed={seed}",
            **cells,
        )
