"""Numbered checkpoints: which there are, and that whatever reads or deletes checkpoints knows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import config, latest, train, train_config

from a3c_exp.cli import evaluate
from a3c_exp.cli.existing import clear
from a3c_exp.run import checkpoint

SAVES: dict[str, Any] = {"checkpoint__every": 32, "checkpoint__last": 3}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def numbers(folder: Path) -> list[int]:
    return sorted(int(name[len("step_") : -len(".ckpt")]) for name in names(folder) if name.startswith("step_"))


def test_those_of_the_last_saves_are_kept(tmp_path: Path) -> None:
    """So many, and no more: they bound the disk. Each is the state at its steps."""
    train(tmp_path, **SAVES)
    assert numbers(tmp_path) == [96, 128, 160]
    for steps in numbers(tmp_path):
        assert checkpoint.load(tmp_path / "checkpoints" / f"step_{steps}.ckpt")["store"]["steps"] == steps
    train(tmp_path / "none", checkpoint__every=32)
    assert names(tmp_path / "none") == ["latest.ckpt"]


def test_a_resumed_run_goes_on_with_them(tmp_path: Path) -> None:
    """Of a checkpoint that is damaged the one before it takes the place; numbers of the lost part go."""
    whole = config(**SAVES)
    train_config(whole, tmp_path)
    for name in ("latest", "step_160"):
        (tmp_path / "checkpoints" / f"{name}.ckpt").write_bytes(b"damaged")
    whole |= {"checkpoint": {"every": 1000, "last": 3}, "total_steps": 144}
    train_config(whole, tmp_path, resume=True)
    assert "the run goes on from step_128.ckpt" in (tmp_path / "train.log").read_text()
    assert latest(tmp_path)["store"]["steps"] == 144 and numbers(tmp_path) == [96, 144]


def test_an_evaluation_takes_one_by_its_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, **SAVES)
    assert evaluate.main([str(tmp_path), "episodes=1", "checkpoint=128", "plugins=[scripted]"]) == 0
    assert capsys.readouterr().out.startswith("policy: step_128.ckpt, after 128 steps\n")


def test_one_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, **SAVES)
    assert evaluate.main([str(tmp_path), "checkpoint=100", "plugins=[scripted]"]) == 2
    assert "checkpoint = 100: must be best, latest, 96, 128, 160" in capsys.readouterr().err


def test_a_new_run_in_the_folder_deletes_them(tmp_path: Path) -> None:
    train(tmp_path, **SAVES)
    clear(tmp_path, keep_log=False)
    assert names(tmp_path) == []


def test_a_folder_that_has_one_without_a_run_is_refused(here: Path, refuses: Callable[..., str]) -> None:
    (here / "run" / "checkpoints").mkdir(parents=True)
    (here / "run" / "checkpoints" / "step_7.ckpt").touch()
    assert "step_7.ckpt" in refuses(["hydra.run.dir=run"], "hydra.run.dir")
