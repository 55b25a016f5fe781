"""stable-baselines3, in a process of its own that has both cores to itself."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from evidence.bench.checkout import HERE

ZOO: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("zoo.yaml").read_text(encoding="utf-8")
)
"""The zoo's settings, by "algorithm environment"."""


class UnavailableError(Exception):
    """A system that is not installed. The message says how to install it."""


def stable_baselines3(
    algorithm: str,
    env_id: str,
    environments: int,
    seconds: float,
    settings: Mapping[str, Any] | None = None,
    way: Literal["fastest", "default"] = "fastest",
) -> float:
    """Return the steps a second of stable-baselines3's A2C or PPO, its defaults but for the number
    of environments and `settings`.

    way: `fastest`, with one thread of torch and without preparing to render, or `default`.
    An Atari game is named by its id without frame skip, and played with the default CNN.
    """
    needs = ["stable_baselines3", *(["ale_py", "cv2"] if "NoFrameskip" in env_id else [])]
    if not all(map(importlib.util.find_spec, needs)):
        raise UnavailableError("not installed: pip install 'a3c-exp[bench]'")
    arguments = [
        algorithm,
        env_id,
        str(environments),
        str(seconds),
        json.dumps(dict(settings or {})),
        way,
    ]

    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "evidence.bench.stable_baselines3", *arguments],
            cwd=HERE,
            env=os.environ | {"TMPDIR": folder},  # it leaves a log there
            check=True,
            capture_output=True,
            text=True,
        )

    return float(done.stdout)
