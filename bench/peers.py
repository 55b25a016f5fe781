"""Other systems, each in a process of its own that has both cores to itself."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

# Variable with the Python of Sample Factory, which needs gymnasium < 1 and so an environment of its own.
SAMPLE_FACTORY_PYTHON = "SAMPLE_FACTORY_PYTHON"


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
    """Steps a second of stable-baselines3's A2C or PPO, its defaults but for the number of environments and `settings`.

    way: `fastest`, with one thread of torch and without preparing to render, or `default`.
    An Atari game is named by its id without frame skip, and played with the default CNN.
    """
    needs = ["stable_baselines3"] + (["ale_py", "cv2"] if "NoFrameskip" in env_id else [])
    if not all(_has(sys.executable, module) for module in needs):
        raise UnavailableError("not installed: pip install 'a3c-exp[bench]'")
    command = [sys.executable, "-m", "bench.stable_baselines3", algorithm, env_id, str(environments), str(seconds)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, json.dumps(dict(settings or {})), way],
            cwd=Path(__file__).parent.parent,
            env=os.environ | {"TMPDIR": folder},  # it leaves a log there
            check=True,
            capture_output=True,
            text=True,
        )
    return float(done.stdout)


def peer_versions() -> dict[str, str | None]:
    """The versions of those that are installed, each where it runs; None for the others."""
    here = sys.executable
    pythons = {"ale-py": here, "stable-baselines3": here, "sample-factory": _sample_factory_python()}
    tell = "import sys; from importlib import metadata; print(metadata.version(sys.argv[1]))"
    found = {}
    for name, python in pythons.items():
        done = subprocess.run([python, "-c", tell, name], capture_output=True, text=True, check=False)
        found[name] = done.stdout.strip() or None
    return found


def sample_factory(seconds: float) -> float:
    """Steps a second of Sample Factory's APPO with its CartPole example, two workers of 16 environments."""
    python = _sample_factory_python()
    if not _has(python, "sf_examples"):
        raise UnavailableError(
            "not installed: in an environment of its own (it needs gymnasium < 1) pip install sample-factory, "
            f"then {SAMPLE_FACTORY_PYTHON}=<its python>"
        )
    with tempfile.TemporaryDirectory() as folder:
        command = [
            python, "-m", "sf_examples.train_gym_env", "--algo=APPO", "--env=CartPole-v1", "--experiment=bench",
            f"--train_dir={folder}", "--device=cpu", "--use_rnn=False", "--num_workers=2", "--num_envs_per_worker=16",
        ]  # fmt: skip
        process = subprocess.Popen(
            command, cwd=folder, start_new_session=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            assert process.stdout is not None
            return _speed_of_frames(process.stdout, seconds)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # it would train for hours
            process.communicate()


def _speed_of_frames(lines: Iterable[str], seconds: float) -> float:
    """Frames per second, from a log that reports their total every five seconds; it reports 0 during the start."""
    reports: list[tuple[float, int]] = []
    for line in lines:
        frames = re.search(r"Total num frames: ([1-9]\d*)", line)
        if frames is None:
            continue
        reports.append((time.perf_counter(), int(frames[1])))
        (started, first), (now, last) = reports[min(1, len(reports) - 1)], reports[-1]
        if now - started >= seconds:
            return (last - first) / (now - started)
    raise RuntimeError("Sample Factory ended before it had reported its speed")


def _sample_factory_python() -> str:
    return os.environ.get(SAMPLE_FACTORY_PYTHON, sys.executable)


def _has(python: str, module: str) -> bool:
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", find], check=False).returncode == 0
