"""Checkpoints that stay: which a finished run keeps, the one before the latest, and copies of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import SCRIPTED, config, latest, same, train, train_config

from a3c_exp import evaluate
from a3c_exp.cli.existing import clear
from a3c_exp.run import checkpoint as checkpoint_format


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

    def save(path: Path, state: dict[str, object]) -> None:
        if len(saved) > 1:
            assert same(latest(tmp_path), saved[-1])
            before, last = (checkpoint_format.load(folder / f"step_{number}.ckpt") for number in numbers(tmp_path))
            assert same(before, saved[-2]) and same(last, saved[-1])
        original(path, state)
        saved.append(latest(tmp_path))

    monkeypatch.setattr(checkpoint_format, "save", save)
    train(tmp_path, checkpoint={"every": 50})
    assert len(saved) == 4
    assert {path.name for path in folder.iterdir()} == {"latest.ckpt"}


def test_a_failed_run_leaves_all_its_checkpoints(tmp_path: Path) -> None:
    faulty: dict[str, Any] = {"env__kwargs": {"fails_at": 9, "failure": "huge"}, "total_steps": 10**9}
    run = train(tmp_path, SCRIPTED, checkpoint={"every": 8, "keep": "none"}, **faulty)
    assert run.exit_code == 1
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"latest.ckpt"}


# Numbered ones: which there are, and that whatever reads or deletes checkpoints knows them.

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
        assert checkpoint_format.load(tmp_path / "checkpoints" / f"step_{steps}.ckpt")["store"]["steps"] == steps
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
    assert latest(tmp_path)["store"]["steps"] == 144 and numbers(tmp_path) == [96, 128, 144]


def test_an_evaluation_takes_one_by_its_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, **SAVES)
    assert evaluate.main([str(tmp_path), "episodes=1", "checkpoint=128", "plugins=[scripted]"]) == 0
    assert capsys.readouterr().out.startswith("policy: step_128.ckpt, after 128 steps\n")


def test_one_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, **SAVES)
    assert evaluate.main([str(tmp_path), "checkpoint=100", "plugins=[scripted]"]) == 2
    assert "checkpoint = 100: must be best, latest or one of [96, 128, 160]" in capsys.readouterr().err


def test_a_new_run_in_the_folder_deletes_them(tmp_path: Path) -> None:
    train(tmp_path, **SAVES)
    clear(tmp_path, keep_log=False)
    assert names(tmp_path) == []


def test_a_folder_that_has_one_without_a_run_is_refused(here: Path, refuses: Callable[..., str]) -> None:
    (here / "run" / "checkpoints").mkdir(parents=True)
    (here / "run" / "checkpoints" / "step_7.ckpt").touch()
    assert "step_7.ckpt" in refuses(["hydra.run.dir=run"], "hydra.run.dir")
