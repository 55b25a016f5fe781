"""Whether two checkouts give the same results: names are translated, what runs leave is compared bit for bit."""

from __future__ import annotations

import io
import json
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is not installed: it belongs to the checkout

from bench import compare, same
from bench.checkout import HERE, ChildError, checked
from bench.compare import REQUIRED, Entries, difference, read_checkpoint, read_run
from bench.renames import known_keys, translated

OLD = {
    "config.yaml": "goal: null\nmoments: shared\naccumulate: 1\n",
    "network/mlp.yaml": "_target_: x\nsizes: [64]\n",
    "network/lstm.yaml": "_target_: x\ncells: 64\n",
    "env/lunar.yaml": "# @package _global_\nenv:\n  stack: 4\nalgorithm:\n  entropy: 0.1\n",
    "optimizer/adam.yaml": "parts: {}\n",
}
NEW = {
    "config.yaml": "reward_threshold: null\noptimizer_state: shared\naccumulate_rollouts: 1\ngoal: null\n",
    "network/mlp.yaml": "hidden_sizes: [64]  # once: sizes\n",
    "env/atari.yaml": "# @package _global_\nenv:\n  frame_stack: 4\n",
}


def checkout(folder: Path, conf: dict[str, str]) -> Path:
    """A checkout with these files in conf/, and an empty package."""
    for name, text in {"a3c_exp/__init__.py": "", **{f"conf/{name}": text for name, text in conf.items()}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def saved(path: Path, state: dict[str, Any], **arrays: np.ndarray) -> Path:
    """A checkpoint written by hand. arrays: by place, two underscores for a slash."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("state.json", json.dumps({"version": 2, "state": state}))
        for name, array in arrays.items():
            data = io.BytesIO()
            np.save(data, array)
            archive.writestr(f"{name.replace('__', '/')}.npy", data.getvalue())
    return path


def entries(**changed: Any) -> Entries:
    """What has to be there of two runs, and some more."""
    return dict.fromkeys(REQUIRED, np.zeros(3)) | {name: np.array(value) for name, value in changed.items()}


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("reward_threshold=20", "goal=20"),
        ("optimizer_state=per_worker", "moments=worker"),
        ("optimizer_state=shared", "moments=shared"),
        ("accumulate_rollouts=2", "accumulate=2"),
        ("network.hidden_size=8", "network.cells=8"),
        ("network.encoder.hidden_sizes=[8,8]", "network.encoder.sizes=[8,8]"),
        ("algorithm.entropy_coefficient=0.5", "algorithm.entropy=0.5"),
        ("+optimizer.param_groups.critic.learning_rate=1", "+optimizer.parts.critic.learning_rate=1"),
        ("env.frame_stack=2", "env.stack=2"),
        ("gamma=0.5", "gamma=0.5"),
    ],
)
def test_an_older_checkout_is_given_its_own_names(new: str, old: str, tmp_path: Path) -> None:
    assert translated(new, known_keys(checkout(tmp_path, OLD))) == old


@pytest.mark.parametrize(
    "override", ["reward_threshold=20", "optimizer_state=per_worker", "network.hidden_sizes=[8]", "env.frame_stack=2"]
)
def test_new_names_are_kept_where_they_are_known(override: str, tmp_path: Path) -> None:
    assert translated(override, known_keys(checkout(tmp_path, NEW))) == override


def test_a_key_that_a_checkout_has_under_no_name_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"network\.hidden_size: conf/ has neither hidden_size nor cells"):
        translated("network.hidden_size=8", known_keys(checkout(tmp_path, NEW)))


def test_equal_means_the_same_bits() -> None:
    values = np.array([[0.0, 1.0], [np.nan, 3.0]], np.float32)
    assert difference(values, values.copy()) is None
    other = values.copy()
    other[1, 1] = np.nextafter(other[1, 1], np.float32(9))
    assert str(difference(values, other)).startswith("first at [1, 1]: 3.0 here, 3.0000002")
    assert "1 of 4, at most 2.38e-07 apart" in str(difference(values, other))
    assert difference(np.array(0.0), np.array(-0.0)) == "0.0 here, -0.0 there; 1 of 1, at most 0 apart"
    assert difference(values, values.astype(np.float64)) == "float32 here, float64 there"
    assert difference(values, values[:1]) == "shape [2, 2] here, [1, 2] there"
    assert difference(np.empty(0), np.empty(0)) is None


def test_text_is_compared_as_it_is_written() -> None:
    assert difference(np.array(["", "0.1"]), np.array(["", "0.1"])) is None
    message = "first at [1]: 0.1 here, 0.100 there; 1 of 2, at most 0 apart"
    assert difference(np.array(["", "0.1"]), np.array(["", "0.100"])) == message
    assert difference(np.array("null"), np.array(3.5)) == "null here, 3.5 there; 1 of 1"


def test_what_only_one_side_has_is_listed_and_not_compared() -> None:
    found = compare.compare(entries(a=1, b=2), entries(b=3, c=4))
    assert found.differences == ["b: 2 here, 3 there; 1 of 1, at most 1 apart"]
    assert (found.here, found.there) == (["a"], ["c"])


def test_runs_without_parameters_are_not_equal() -> None:
    without = entries()
    del without["latest.ckpt/store/parameters"]
    assert compare.compare(without, entries()).differences == ["latest.ckpt/store/parameters: not on both sides"]


def test_a_checkpoint_is_read_whole_and_under_one_name(tmp_path: Path) -> None:
    old = {"store": {"moments": {"__array__": "store/moments.npy"}, "steps": 5}, "tally": {"staleness": [3, 2]}}
    new = {
        "store": {"optimizer_state": {"__array__": "store/optimizer_state.npy"}, "steps": 5},
        "statistics": {"staleness": [3, 2], "seconds": 1.5},
    }
    first = read_checkpoint(saved(tmp_path / "old", old, store__moments=np.arange(3)))
    second = read_checkpoint(saved(tmp_path / "new", new, store__optimizer_state=np.arange(3)))
    assert list(first) == ["store/optimizer_state", "store/steps", "statistics/staleness/0", "statistics/staleness/1"]
    assert list(first) == list(second)
    assert all(difference(first[name], second[name]) is None for name in first)
    assert first["store/optimizer_state"].tolist() == [0, 1, 2]


def test_times_and_the_machine_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    saved(tmp_path / "checkpoints/latest.ckpt", {"tally": {"steps": 4, "seconds": 2.5}, "training_seconds": 1.0})
    (tmp_path / "metrics.csv").write_text("step,wall_seconds,time/steps_per_second,train/entropy\n4,0.1,40,0.7\n")
    (tmp_path / "summary.json").write_text('{"steps": 4, "wall_seconds": 0.1, "commit": "0a", "error": null}')
    assert {name: array.tolist() for name, array in read_run(tmp_path).items()} == {
        "latest.ckpt/statistics/steps": 4,
        "metrics.csv/step": ["4"],
        "metrics.csv/train/entropy": ["0.7"],
        "summary.json/steps": 4,
        "summary.json/error": "null",
    }


def test_the_last_of_a_key_counts() -> None:
    assert same.last_of_each(["a=1", "b=2", "a=3"]) == ["a=3", "b=2"]


def test_rows_have_names_of_their_own_and_keys_that_this_checkout_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert same.main(["--list"]) == 0
    names = capsys.readouterr().out.split()
    assert names == [row.name for row in same.ROWS] and len(set(names)) == len(names)
    known = known_keys(HERE)
    for row in same.ROWS:
        assert all("=" in translated(override, known) for override in (*row.overrides, *row.resumed))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nonsense", str(HERE)], "--only nonsense: must be one of cartpole, "),
        (["/no/such/folder"], "/no/such/folder: must be a checkout of this repository, and has no a3c_exp/__init__.py"),
        ([], "CHECKOUT is missing"),
    ],
)
def test_a_bad_argument_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert same.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"bench.same: {message}") and error.count("\n") == 1


def test_a_run_that_fails_is_not_equal(tmp_path: Path) -> None:
    broken = checkout(tmp_path, {"config.yaml": (HERE / "conf/config.yaml").read_text()})
    row = same.Row("fails", ())
    with pytest.raises(ChildError, match=r"No module named a3c_exp\.__main__"):
        same.trained(row, checked(broken), tmp_path / "run")


def test_a_changed_constant_is_found_and_a_copy_is_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a3c_exp", "conf"):
        shutil.copytree(HERE / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    assert same.main([str(tmp_path), "--only", "epsilon"]) == 0
    assert capsys.readouterr().out.startswith("epsilon          equal ")

    settings = tmp_path / "conf/env/cartpole.yaml"
    text = settings.read_text()
    settings.write_text(text.replace("reward_scale: 0.05 ", "reward_scale: 0.05000001 "))
    assert settings.read_text() != text
    assert same.main([str(tmp_path), "--only", "epsilon"]) == 1
    assert capsys.readouterr().out.startswith("epsilon          DIFFERS latest.ckpt/store/parameters: first at [")
