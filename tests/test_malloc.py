"""Freed memory, which some processes keep. A test counts page faults of a program of its own."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc")

ROUNDS = 20
PAGES = 16 * 256
"""Pages of the arrays of a round, which are of 1 MiB each."""

COUNT = f"""
import resource
import numpy as np

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range({ROUNDS}):
        arrays = [np.ones(2**20, np.uint8) for _ in range(16)]
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
"""


def faults_of(program: str, folder: Path) -> int:
    """Return the number that a program prints at last."""
    command = [sys.executable, "-c", COUNT + program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def test_a_process_that_keeps_freed_memory_gets_its_pages_once(tmp_path: Path) -> None:
    keeps = "from a3c_exp.common.malloc import keep_freed_memory\nkeep_freed_memory()\n"
    assert faults_of(f"{keeps}print(faults())", tmp_path) < 2 * PAGES
    assert faults_of("print(faults())", tmp_path) > ROUNDS / 2 * PAGES


COUNTING = """
import multiprocessing
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Counting(CartPoleEnv):
    def reset(self, **kwargs):
        if multiprocessing.parent_process() is not None:
            with open("faults", "w") as file:
                file.write(str(faults()))
        return super().reset(**kwargs)

gymnasium.register("Counting-v0", Counting, max_episode_steps=50)
"""


def test_workers_keep_freed_memory(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(COUNT + COUNTING)
    settings = "env=gym env.id=Counting-v0 plugins=[counting] workers=1 total_steps=64"
    command = [sys.executable, "-m", "a3c_exp", *settings.split(), "hydra.run.dir=run"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert int((tmp_path / "faults").read_text()) < 2 * PAGES
