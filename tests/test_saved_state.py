"""Checkpoints that are whole but wrong: each is refused in one line before anything is built from it."""

from __future__ import annotations

import math
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import config, put, train, train_config

from a3c_exp.errors import ConfigError
from a3c_exp.run import checkpoint
from a3c_exp.run.checkpoint import load_latest, load_state

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


def latest(run: Path) -> Path:
    return run / "checkpoints" / "latest.ckpt"


MISSING = object()


def rewrite(path: Path, place: str, value: Any) -> None:
    """Replace a value in a checkpoint, by its dotted place, or take it away."""
    state = checkpoint.load(path)
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
    rewrite(latest(run), place, value)
    with pytest.raises(ConfigError) as error:
        load_state(latest(run))
    assert error.value.problem.startswith(f"is a damaged checkpoint: {place} is {shown}")
    assert "\n" not in str(error.value)


def test_older_checkpoints_without_later_values_are_read(run: Path) -> None:
    for name in ("restarts", "env_errors", "late_gradients", "cut_eval_episodes"):
        rewrite(latest(run), f"statistics.{name}", MISSING)
    rewrite(latest(run), "store.worker_episodes", MISSING)
    whole = config(**RUN) | {"total_steps": 128}
    assert train_config(whole, run, resume=True).summary["steps"] == 128


# The archive.


def test_an_array_in_many_places_does_not_fill_the_memory(run: Path) -> None:
    with zipfile.ZipFile(latest(run), "a") as archive:
        many = '{"version": %d, "state": {"x": [%s]}}'
        places = ",".join(['{"__array__": "store/parameters.npy"}'] * 1000)
        archive.writestr("state.json", many % (checkpoint.VERSION, places))
    assert len({id(array) for array in checkpoint.load(latest(run))["x"]}) == 1


# The checkpoint that a run goes on from.


def test_a_run_without_a_latest_checkpoint_goes_on_from_its_best_one(run: Path) -> None:
    latest(run).rename(run / "checkpoints" / "best.ckpt")
    _, path, warning = load_latest(run)
    assert path.name == "best.ckpt" and "best.ckpt" in warning


@pytest.fixture
def cut(run: Path) -> Path:
    """A run that was killed: it has the checkpoint before the latest, of step 32."""
    previous = Path(shutil.copy(latest(run), latest(run).with_name("step_32.ckpt")))
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
    """That one takes the place of the damaged one, which is set aside: the next save does not replace it."""
    damaged = flip_bit(latest(cut))
    if is_missing:
        latest(cut).unlink()
    done = train_config(config(**RUN) | {"total_steps": 128}, cut, resume=True)
    assert (done.summary["stop_reason"], done.summary["steps"], done.summary["resumed"]) == ("total_steps", 128, 1)
    assert "the run goes on from step_32.ckpt" in (cut / "train.log").read_text()
    assert load_state(latest(cut))["store"]["steps"] == 128
    aside = latest(cut).with_name("latest.ckpt.old")
    assert is_missing or aside.read_bytes() == damaged


def test_two_damaged_checkpoints_are_refused_in_one_line_and_stay(cut: Path) -> None:
    paths = [latest(cut), latest(cut).with_name("step_32.ckpt")]
    damaged = [flip_bit(path) for path in paths]
    with pytest.raises(ConfigError, match=r"latest\.ckpt'?: is no checkpoint, or a damaged one") as error:
        train_config(config(**RUN) | {"total_steps": 128}, cut, resume=True)
    assert "\n" not in str(error.value)
    assert [path.read_bytes() for path in paths] == damaged
