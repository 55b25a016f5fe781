"""Checkpoints that are whole but wrong: each is refused in one line before anything is built from
it."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from refusals import refused
from runs import SCRIPTED, config, latest, put, same, train, train_config

from a3c_exp import evaluate
from a3c_exp.cli.existing import clear, how_ended
from a3c_exp.config.builder import build_experiment
from a3c_exp.config.saved import read_config
from a3c_exp.errors import ConfigError
from a3c_exp.run import checkpoint
from a3c_exp.run.checkpoint import load_latest, load_state
from a3c_exp.run.files import RunOutput
from a3c_exp.run.recorders.checkpoints import Checkpoints

RUN: dict[str, Any] = {"total_steps": 64, "env__normalize_observations": True}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, with a latest checkpoint alone."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(folder, **RUN)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def latest_path(run: Path) -> Path:
    return run / "checkpoints" / "latest.ckpt"


MISSING = object()


def rewrite(path: Path, place: str, value: Any) -> None:
    """Replace a value in a checkpoint, by its dotted place, or take it away."""
    state = checkpoint.load_file(path)
    if value is MISSING:
        parent, _, name = place.partition(".")
        del state[parent][name]
    else:
        put(state, place, value)
    checkpoint.save(path, state)


@pytest.mark.parametrize(
    ("place", "value", "shown"),
    [
        ("store.steps", 2**63, "9223372036854775808"),
        ("store.steps", -1, "-1"),
        ("store.parameters", np.full(3, math.nan, np.float32), "array([nan, nan, nan]"),
        ("store.rng_states", np.zeros((1, 2), np.uint64), "array([[0, 0]]"),
        ("store.constants", {"x": 1}, "{'x': 1}"),
        ("statistics.seconds", MISSING, "missing"),
        ("training_seconds", math.nan, "nan"),
        ("best_eval_return", "good", "'good'"),
    ],
)
def test_a_wrong_value_is_named(place: str, value: Any, shown: str, run: Path) -> None:
    rewrite(latest_path(run), place, value)
    problem = refused(lambda: load_state(latest_path(run)), "folder")
    assert problem.startswith(f"is a damaged checkpoint: {place} is {shown}")


def test_a_finished_run_that_is_killed_before_it_goes_on_is_as_it_was(run: Path) -> None:
    """Its configuration and its summary still agree, and the same command goes on with it."""
    before = read_config(run)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("a3c_exp.run.provenance.commit", Mock(side_effect=KeyboardInterrupt))
        train_config(config(**RUN) | {"total_steps": 128}, run, resume=True)
    assert (how_ended(run), read_config(run)) == ("finished", before)
    assert (
        train_config(config(**RUN) | {"total_steps": 128}, run, resume=True).summary["steps"] == 128
    )


# The checkpoint that a run goes on from.


def test_a_run_without_a_latest_checkpoint_goes_on_from_its_best_one(run: Path) -> None:
    latest_path(run).rename(run / "checkpoints" / "best.ckpt")
    _, path, warning = load_latest(run)
    assert path.name == "best.ckpt" and "best.ckpt" in warning


@pytest.fixture
def cut(run: Path) -> Path:
    """A run that was killed: it has the checkpoint before the latest, of step 32."""
    previous = Path(shutil.copy(latest_path(run), latest_path(run).with_name("step_32.ckpt")))
    for place in ("store.steps", "statistics.steps"):
        rewrite(previous, place, 32)
    return run


def flip_bit(path: Path) -> bytes:
    """Damage a file; its content."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return bytes(content)


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_cut_run_without_a_readable_latest_checkpoint_goes_on_from_the_one_before(
    is_missing: bool, cut: Path
) -> None:
    """That one takes the place of the damaged one, which is set aside: the next save does not
    replace it."""
    damaged = flip_bit(latest_path(cut))
    if is_missing:
        latest_path(cut).unlink()
    done = train_config(config(**RUN) | {"total_steps": 128}, cut, resume=True)
    assert (done.summary["stop_reason"], done.summary["steps"], done.summary["resumed"]) == (
        "total_steps",
        128,
        1,
    )
    assert "the run goes on from step_32.ckpt" in (cut / "train.log").read_text()
    assert load_state(latest_path(cut))["store"]["steps"] == 128
    aside = latest_path(cut).with_name("latest.ckpt.old")
    assert is_missing or aside.read_bytes() == damaged


def test_two_damaged_checkpoints_are_refused_in_one_line_and_stay(cut: Path) -> None:
    paths = [latest_path(cut), latest_path(cut).with_name("step_32.ckpt")]
    damaged = [flip_bit(path) for path in paths]
    with pytest.raises(
        ConfigError, match=r"latest\.ckpt'?: is no checkpoint, or a damaged one"
    ) as error:
        train_config(config(**RUN) | {"total_steps": 128}, cut, resume=True)
    assert "\n" not in str(error.value)
    assert [path.read_bytes() for path in paths] == damaged


# Checkpoints that stay: which a finished run keeps, and numbered ones.


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
    train(
        tmp_path,
        checkpoint={"every": 40, "keep": keep, "last": 1},
        eval={"every": evaluate, "episodes": 1},
    )
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == left


def test_while_a_run_goes_on_there_is_the_checkpoint_before_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[dict[str, object]] = []
    folder = tmp_path / "checkpoints"
    original = checkpoint.save

    def save(path: Path, state: dict[str, object]) -> None:
        if len(saved) > 1:
            assert same(latest(tmp_path), saved[-1])
            before, last = (
                checkpoint.load_file(folder / f"step_{number}.ckpt") for number in numbers(tmp_path)
            )
            assert same(before, saved[-2]) and same(last, saved[-1])
        original(path, state)
        saved.append(latest(tmp_path))

    monkeypatch.setattr(checkpoint, "save", save)
    train(tmp_path, checkpoint={"every": 50})
    assert len(saved) == 4
    assert {path.name for path in folder.iterdir()} == {"latest.ckpt"}


def test_a_failed_run_leaves_all_its_checkpoints(tmp_path: Path) -> None:
    faulty: dict[str, Any] = {
        "env__kwargs": {"fails_at": 9, "failure": "huge"},
        "total_steps": 10**9,
    }
    run = train(tmp_path, SCRIPTED, checkpoint={"every": 8, "keep": "none"}, **faulty)
    assert run.exit_code == 1
    assert names(tmp_path)[0] == "latest.ckpt" and len(numbers(tmp_path)) == 2, (
        "one may be damaged, or of a bad policy"
    )


def test_a_best_checkpoint_that_could_not_be_written_leaves_the_latest(tmp_path: Path) -> None:
    """The best one is of an earlier evaluation then."""
    train(tmp_path, checkpoint={"every": 40}, eval={"every": 80, "episodes": 1})
    settings = build_experiment(config(checkpoint={"keep": "best"}))
    output = RunOutput(tmp_path)
    output.unwritten.add("best.ckpt")
    network = SimpleNamespace(constants=dict)
    run: Any = SimpleNamespace(
        experiment=settings, folder=tmp_path, steps=160, output=output, network=network
    )
    Checkpoints(run).close(finished=True)
    assert names(tmp_path) == ["best.ckpt", "latest.ckpt"]


# Numbered ones: which there are, and that whatever reads or deletes checkpoints knows them.

SAVES: dict[str, Any] = {"checkpoint__every": 32, "checkpoint__last": 3}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def numbers(folder: Path) -> list[int]:
    return sorted(
        int(name[len("step_") : -len(".ckpt")])
        for name in names(folder)
        if name.startswith("step_")
    )


def test_those_of_the_last_saves_are_kept(tmp_path: Path) -> None:
    """So many, and no more: they bound the disk. Each is the state at its steps."""
    train(tmp_path, **SAVES)
    assert numbers(tmp_path) == [96, 128, 160]
    for steps in numbers(tmp_path):
        assert (
            checkpoint.load_file(tmp_path / "checkpoints" / f"step_{steps}.ckpt")["store"]["steps"]
            == steps
        )
    train(tmp_path / "none", checkpoint__every=32)
    assert names(tmp_path / "none") == ["latest.ckpt"]


def test_a_resumed_run_goes_on_with_them(tmp_path: Path) -> None:
    """Of a checkpoint that is damaged the one before it takes the place; numbers of the lost part
    go."""
    run_config = config(**SAVES)
    train_config(run_config, tmp_path)
    for name in ("latest", "step_160"):
        (tmp_path / "checkpoints" / f"{name}.ckpt").write_bytes(b"damaged")
    run_config |= {"checkpoint": {"every": 1000, "last": 3}, "total_steps": 144}
    train_config(run_config, tmp_path, resume=True)
    assert "the run goes on from step_128.ckpt" in (tmp_path / "train.log").read_text()
    assert latest(tmp_path)["store"]["steps"] == 144 and numbers(tmp_path) == [96, 128, 144]


def test_an_evaluation_takes_one_by_its_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, **SAVES)
    assert evaluate.main([str(tmp_path), "episodes=1", "checkpoint=128", "plugins=[scripted]"]) == 0
    assert capsys.readouterr().out.startswith("policy: step_128.ckpt, after 128 steps\n")


def test_one_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, **SAVES)
    assert evaluate.main([str(tmp_path), "checkpoint=100", "plugins=[scripted]"]) == 2
    assert (
        "checkpoint = 100: must be best, latest or one of [96, 128, 160]" in capsys.readouterr().err
    )


def test_a_new_run_in_the_folder_deletes_them(tmp_path: Path) -> None:
    train(tmp_path, **SAVES)
    clear(tmp_path, keep_log=False)
    assert names(tmp_path) == []


def test_a_folder_that_has_one_without_a_run_is_refused(
    here: Path, refuses: Callable[..., str]
) -> None:
    (here / "run" / "checkpoints").mkdir(parents=True)
    (here / "run" / "checkpoints" / "step_7.ckpt").touch()
    assert "step_7.ckpt" in refuses(["hydra.run.dir=run"], "hydra.run.dir")
