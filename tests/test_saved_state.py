"""Checkpoints that are whole but wrong: each is refused in one line before anything is built from it."""

from __future__ import annotations

import json
import math
import os
import shutil
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import config, train, train_config

from a3c_exp.__main__ import main
from a3c_exp.cli import evaluate
from a3c_exp.errors import ConfigError
from a3c_exp.run import checkpoint
from a3c_exp.run.run_folder import make_latest
from a3c_exp.run.saved_state import load_latest, load_state

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


def rewrite(path: Path, place: str, value: Any) -> None:
    """Replace a value in a checkpoint, by its dotted place; arrays of any kind too."""
    state = checkpoint.load(path)
    *parents, last = place.split(".")
    node = state
    for name in parents:
        node = node[name]
    node[last] = value
    checkpoint.save(path, state)


def latest(run: Path) -> Path:
    return run / "checkpoints" / "latest.ckpt"


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        ("store.steps", None, "store.steps is None, and must be a whole number from 0 to"),
        ("store.steps", "many", "store.steps is 'many', and must be a whole number"),
        ("store.steps", math.inf, "store.steps is inf, and must be a whole number"),
        ("store.steps", 2**63, "store.steps is 9223372036854775808, and must be a whole number"),
        ("store.steps", 1.5, "store.steps is 1.5, and must be a whole number"),
        ("store.version", True, "store.version is True, and must be a whole number"),
        ("store", [1], "store is [1], and must be a mapping"),
        ("store.parameters", None, "store.parameters is None, and must be an array of numbers of 1 dimension"),
        ("store.parameters", np.array(["a", "b"]), "store.parameters is an array of <U1 (2,), and must be"),
        ("store.parameters", np.zeros(3, np.complex64), "store.parameters is an array of complex64 (3,), and must be"),
        ("store.optimizer_state", np.zeros(3, np.float32), "store.optimizer_state is an array of float32 (3,), and"),
        ("store.stats", np.full(7, math.inf), "store.stats is an array of float64 (7,), and must be finite"),
        ("store.rng_states", np.full((1, 6), 2**40, np.uint64), "store.rng_states is an array of uint64 (1, 6), and"),
        ("store.constants", {"x": 1}, "store.constants is {'x': 1}, and must"),
        ("statistics.seconds", "1", "statistics.seconds is '1', and must be a finite number"),
        ("statistics.cut_eval_episodes", "1", "statistics.cut_eval_episodes is '1', and must be a whole number"),
        ("statistics.staleness", [1, 2], "statistics.staleness is [1, 2], and must be a list of 3 numbers"),
        ("resumed", -1, "resumed is -1, and must be a whole number"),
        ("training_seconds", math.nan, "training_seconds is nan, and must be a finite number"),
        ("best_eval_return", "good", "best_eval_return is 'good', and must be a finite number, or null"),
        ("solved", [1, "x"], "solved is [1, 'x'], and must be a list of 2 numbers, or null"),
    ],
)
def test_a_wrong_value_is_named(place: str, value: Any, problem: str, run: Path) -> None:
    rewrite(latest(run), place, value)
    with pytest.raises(ConfigError) as error:
        load_state(latest(run))
    assert error.value.problem.startswith(f"is a damaged checkpoint: {problem}")


def test_a_missing_value_is_named(run: Path) -> None:
    state = checkpoint.load(latest(run))
    del state["statistics"]["seconds"]
    checkpoint.save(latest(run), state)
    with pytest.raises(ConfigError, match=r"statistics\.seconds is missing"):
        load_state(latest(run))


def test_older_checkpoints_without_later_values_are_read(run: Path) -> None:
    state = checkpoint.load(latest(run))
    for name in ("restarts", "env_errors", "late_gradients", "cut_eval_episodes"):
        del state["statistics"][name]
    del state["store"]["worker_episodes"]
    checkpoint.save(latest(run), state)
    whole = config(**RUN) | {"total_steps": 128}
    assert train_config(whole, run, resume=True).summary["steps"] == 128


# What users type.


def refused_by_every_command(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The line in which evaluate and resume refuse a run, with exit code 2."""
    for code in (
        evaluate.main([str(run), "episodes=1", "plugins=[scripted]"]),
        main([f"resume={run}", "plugins=[scripted]"]),
    ):
        assert code == 2
    first, second = (line.partition(": ")[2] for line in capsys.readouterr().err.splitlines())
    assert first.partition(" = ")[2] == second.partition(" = ")[2]
    return first


def test_parameters_that_are_not_finite_are_no_policy(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parameters = checkpoint.load(latest(run))["store"]["parameters"]
    rewrite(latest(run), "store.parameters", np.full_like(parameters, math.nan))
    line = refused_by_every_command(run, capsys)
    assert "must be finite: the training had diverged, or the file has been changed" in line


def test_a_checkpoint_that_is_a_fifo_is_refused_at_once(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    latest(run).unlink()
    os.mkfifo(latest(run))
    assert evaluate.main([str(run), "plugins=[scripted]"]) == 2
    assert "is no checkpoint, or a damaged one (is a FIFO, not a regular file)" in capsys.readouterr().err
    assert main([f"resume={run}", "plugins=[scripted]"]) == 2
    assert "holds latest.ckpt, which is neither a file nor a folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["metrics.jsonl", "episodes.csv", "train.log", "checkpoints/latest.ckpt.partial"])
def test_a_folder_with_a_fifo_is_not_written_to(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To open one for writing would wait for a reader."""
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    assert main([f"resume={run}", "plugins=[scripted]", "total_steps=128"]) == 2
    assert f"holds {Path(name).name}, which is neither a file nor a folder" in capsys.readouterr().err


# The archive.


def replace_entry(path: Path, name: str, content: bytes) -> None:
    """Replace an entry of a checkpoint by other bytes, with a right checksum."""
    with zipfile.ZipFile(path) as archive:
        entries = {each: archive.read(each) for each in archive.namelist()} | {name: content}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for each, data in entries.items():
            archive.writestr(each, data)


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (",  # tokenize.TokenError
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "[" * 5000,
    ],
)
def test_an_array_whose_header_does_not_fit_is_refused(header: str, run: Path) -> None:
    replace_entry(latest(run), "store/parameters.npy", npy(header, bytes(8)))
    with pytest.raises(ConfigError, match="is no checkpoint, or a damaged one") as error:
        load_state(latest(run))
    assert "\n" not in str(error.value)


def test_a_header_that_numpy_mends_with_a_warning_is_refused_in_one_line(run: Path) -> None:
    """A number with an L, as Python 2 wrote them: the warning would be a second line on the terminal."""
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2L,), }"
    replace_entry(latest(run), "store/parameters.npy", npy(header, bytes(8)))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(ConfigError, match="is no checkpoint, or a damaged one"):
            load_state(latest(run))
    assert not told


def test_an_array_in_many_places_does_not_fill_the_memory(run: Path) -> None:
    state = {"version": checkpoint.VERSION, "state": [{"__array__": "store/parameters.npy"}] * 1000}
    replace_entry(latest(run), "state.json", json.dumps(state).encode())
    with pytest.raises(ConfigError, match=r"store/parameters.npy has two places"):
        load_state(latest(run))


# The checkpoint that a run goes on from.


def test_a_run_that_goes_on_from_its_best_checkpoint_says_so(run: Path) -> None:
    latest(run).rename(run / "checkpoints" / "best.ckpt")
    train_config(config(**RUN) | {"total_steps": 128}, run, resume=True)
    assert "WARNING there is no latest.ckpt: the run goes on from best.ckpt" in (run / "train.log").read_text()


@pytest.fixture
def cut(run: Path) -> Path:
    """A run that was killed: it has the checkpoint before the latest, of step 32."""
    previous = Path(shutil.copy(latest(run), latest(run).with_name("previous.ckpt")))
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
    """That one takes the place of the damaged one, so that the next save does not replace it."""
    damaged = flip_bit(latest(cut))
    if is_missing:
        latest(cut).unlink()
    state, path, warning = load_latest(cut)
    assert (state["store"]["steps"], path.name) == (32, "previous.ckpt")
    make_latest(path)
    assert load_state(latest(cut))["store"]["steps"] == 32
    aside = latest(cut).with_name("latest.ckpt.old")
    assert aside.exists() is not is_missing
    if not is_missing:
        assert aside.read_bytes() == damaged
        assert warning.startswith("latest.ckpt is no checkpoint, or a damaged one (Bad CRC-32 for file ")
        assert warning.endswith("): the run goes on from previous.ckpt, step 32")


def test_a_run_resumed_from_the_checkpoint_before_warns_and_ends_by_its_rule(cut: Path) -> None:
    flip_bit(latest(cut))
    done = train_config(config(**RUN) | {"total_steps": 128}, cut, resume=True)
    assert (done.summary["stop_reason"], done.summary["steps"], done.summary["resumed"]) == ("total_steps", 128, 1)
    assert "the run goes on from previous.ckpt, step 32" in (cut / "train.log").read_text()
    assert load_state(latest(cut))["store"]["steps"] == 128


def test_two_damaged_checkpoints_are_refused_in_one_line_and_stay(cut: Path) -> None:
    paths = [latest(cut), latest(cut).with_name("previous.ckpt")]
    damaged = [flip_bit(path) for path in paths]
    with pytest.raises(ConfigError, match=r"latest\.ckpt'?: is no checkpoint, or a damaged one") as error:
        train_config(config(**RUN) | {"total_steps": 128}, cut, resume=True)
    assert "\n" not in str(error.value)
    assert [path.read_bytes() for path in paths] == damaged
