"""Whether two checkouts give the same results: what runs leave is compared bit for bit."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from runs import train

sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is not installed: it belongs to the checkout

from bench import compare, path, same, size, versus
from bench.checkout import HERE, ChildError
from bench.compare import REQUIRED, Entries, difference, read_run


def entries(**changed: Any) -> Entries:
    """What has to be there of two runs, and some more."""
    return dict.fromkeys(REQUIRED, np.zeros(3)) | {name: np.array(value) for name, value in changed.items()}


def test_equal_means_the_same_bits() -> None:
    values = np.array([[0.0, 1.0], [np.nan, 3.0]], np.float32)
    assert difference(values, values.copy()) is None
    other = values.copy()
    other[1, 1] = np.nextafter(other[1, 1], np.float32(9))
    assert str(difference(values, other)) == "3.0 here, 3.000000238418579 there; 1 of 4"
    assert difference(np.array(0.0), np.array(-0.0)) == "0.0 here, -0.0 there; 1 of 1"
    assert difference(values, values.astype(np.float64)) == "float32 here, float64 there"
    assert difference(values, values[:1]) == "shape [2, 2] here, [1, 2] there"
    assert difference(np.array(["", "0.1"]), np.array(["", "0.100"])) == "0.1 here, 0.100 there; 1 of 2"


def test_what_only_one_side_has_is_listed_and_not_compared() -> None:
    found = compare.compare(entries(a=1, b=2), entries(b=3, c=4))
    assert found.differences == ["b: 2 here, 3 there; 1 of 1"]
    assert (found.here, found.there) == (["a"], ["c"])


def test_runs_without_parameters_are_not_equal() -> None:
    without = entries()
    del without["latest.ckpt/store/parameters"]
    assert compare.compare(without, entries()).differences == ["latest.ckpt/store/parameters: not on both sides"]


def test_a_run_is_read_whole_but_for_times_and_the_machine(tmp_path: Path) -> None:
    train(tmp_path, "CartPole-v1", plugins=[])
    found = read_run(tmp_path)
    assert set(REQUIRED) <= found.keys()
    assert found["latest.ckpt/store/parameters"].size > 100
    times = ("summary.json/machine", "metrics.csv/time/")
    assert not [name for name in found if "seconds" in name or name.startswith(times)]


@pytest.mark.slow
def test_a_changed_constant_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a3c_exp", "conf"):
        shutil.copytree(HERE / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    settings = tmp_path / "conf/env/cartpole.yaml"
    text = settings.read_text()
    settings.write_text(text.replace("reward_scale: 0.05 ", "reward_scale: 0.05000001 "))
    assert settings.read_text() != text
    monkeypatch.setitem(same.ROWS, "epsilon", f"{same.ROWS['epsilon']} total_steps=600 checkpoint.every=300")
    assert same.main([str(tmp_path), "--only", "epsilon"]) == 1
    assert capsys.readouterr().out.startswith("epsilon          DIFFERS in ")


def test_a_run_that_fails_is_not_equal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(same, "trained", Mock(side_effect=ChildError))
    assert same.main([str(HERE), "--only", "epsilon"]) == 1
    assert "a run failed" in capsys.readouterr().out


@pytest.mark.parametrize("command", [same, size, path, versus])
def test_a_folder_that_is_no_checkout_is_one_line(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
