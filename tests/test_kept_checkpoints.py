"""Checkpoints that stay: which a finished run keeps, the one before the latest, and copies of files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from runs import SCRIPTED, latest, same, train

from a3c_exp.run import checkpoint as checkpoint_format
from a3c_exp.run.files import atomic_write, size_of


@pytest.mark.parametrize(
    ("keep", "evaluate", "left"),
    [
        ("both", 80, {"latest.ckpt", "best.ckpt", "step_160.ckpt"}),
        ("latest", 80, {"latest.ckpt", "step_160.ckpt"}),
        ("best", 80, {"best.ckpt"}),
        ("best", None, {"latest.ckpt", "step_160.ckpt"}),
        ("none", 80, set()),
    ],
)
def test_a_finished_run_leaves_the_checkpoints_that_are_to_be_kept(
    keep: str, evaluate: int | None, left: set[str], tmp_path: Path
) -> None:
    """Numbered ones with the latest."""
    train(tmp_path, checkpoint={"every": 40, "keep": keep, "last": 1}, eval={"every": evaluate, "episodes": 1})
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == left


def test_while_a_run_goes_on_there_is_the_checkpoint_before_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[dict[str, object]] = []
    folder = tmp_path / "checkpoints"
    original = checkpoint_format.save

    def save(path: Path, state: dict[str, object], *before: Path) -> None:
        if len(saved) > 1:
            assert same(latest(tmp_path), saved[-1])
            assert same(checkpoint_format.load(folder / "previous.ckpt"), saved[-2])
        original(path, state, *before)
        saved.append(latest(tmp_path))

    monkeypatch.setattr(checkpoint_format, "save", save)
    train(tmp_path, checkpoint={"every": 40})
    assert len(saved) >= 3
    assert {path.name for path in folder.iterdir()} == {"latest.ckpt"}


def test_a_failed_run_leaves_all_its_checkpoints(tmp_path: Path) -> None:
    faulty: dict[str, Any] = {"env__kwargs": {"fails_at": 9, "failure": "huge"}, "total_steps": 10**9}
    run = train(tmp_path, SCRIPTED, checkpoint={"every": 8, "keep": "none"}, **faulty)
    assert run.exit_code == 1
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"latest.ckpt"}


def test_a_copy_and_its_file_are_never_the_same_version(tmp_path: Path) -> None:
    """Otherwise damage to the one file would be damage to both, if the run is killed while it writes."""
    file, copy = tmp_path / "file", tmp_path / "copy"

    def write(text: bytes) -> None:
        atomic_write(file, lambda partial: assert_apart() and partial.write(text), keep=copy)

    def assert_apart() -> bool:
        return not copy.exists() or not copy.samefile(file)

    for version in (b"one", b"two", b"three"):
        write(version)
        assert assert_apart()
    assert size_of(tmp_path) == len("three" + "two")
    os.link(copy, tmp_path / "link")
    assert size_of(tmp_path) == len("three" + "two"), "a file with two names counts once"
    (tmp_path / "link").unlink()
    with pytest.raises(OSError, match="full"):
        atomic_write(file, Mock(side_effect=OSError("the disk is full")), keep=copy)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "three", "copy": "two"}
