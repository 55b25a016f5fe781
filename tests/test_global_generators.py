"""Environments that draw from the global generators of Python and numpy: each worker has numbers of
its own."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import config

import a3c_exp


@pytest.fixture(autouse=True)
def no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial of a run's environment draws as the caller would: its numbers are no worker's."""
    monkeypatch.setattr("a3c_exp.config.checks._take_a_step", lambda *_: None)


def draws(folder: Path, backend: str, seed: int = 0) -> list[str]:
    """Train two workers, and return what the copies of the environment drew first."""
    notes = folder / "notes"
    notes.mkdir(parents=True)
    env = "scripted:GlobalDraws-v0"
    settings = {"env__kwargs": {"notes": str(notes)}, "workers": 2, "seed": seed, "total_steps": 64}
    a3c_exp.train(config(env, backend, **settings), folder / "run")
    return sorted(file.read_text() for file in notes.iterdir())


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_no_two_workers_draw_the_same(tmp_path: Path, backend: str) -> None:
    drawn = draws(tmp_path, backend)
    assert len(drawn) >= 8
    by_generator = list(zip(*(line.split() for line in drawn), strict=True))
    assert all(len(set(numbers)) == len(drawn) for numbers in by_generator)


def test_a_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    first, same, other = (
        draws(tmp_path / str(run), "serial", seed) for run, seed in enumerate([1, 1, 2])
    )
    # those of the workers; the check before the start draws its own
    assert len(set(first) & set(same)) == 8
    assert not set(first) & set(other)


def test_the_caller_has_its_generators_back(tmp_path: Path) -> None:
    def numbers() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(1))  # noqa: NPY002

    def seed() -> None:
        random.seed(5)
        np.random.seed(5)  # noqa: NPY002
        torch.manual_seed(5)

    seed()
    expected = numbers()
    seed()
    a3c_exp.train(config(), tmp_path)
    assert numbers() == expected
