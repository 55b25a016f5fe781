"""A run folder that an earlier version has written: it evaluates, exports and resumes.

Its run of CartPole has two workers, normalized observations, evaluations and a callback with a
state.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from runs import latest, same, summary

import a3c_exp
from a3c_exp.__main__ import main
from a3c_exp.run.checkpoint import load_latest

EARLIER = Path(__file__).parent / "earlier_run"
LOGITS = [[0.16486700, -0.16887009], [0.09517796, -0.08753832]]
VALUES = [0.54446334, -0.25460449]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EARLIER, tmp_path / "run"))


def test_its_policy_acts_as_it_did(folder: Path) -> None:
    observations = np.array([[0.01, -0.5, 0.02, 0.7], [-0.03, 0.4, -0.05, -0.9]], np.float32)
    logits, values, _ = a3c_exp.load(folder).outputs(observations, None)
    np.testing.assert_allclose(logits, LOGITS, rtol=1e-4)
    np.testing.assert_allclose(values, VALUES, rtol=1e-4)


def test_it_exports(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    from a3c_exp.export.__main__ import main as export

    assert export([str(folder)]) == 0
    assert list(folder.rglob("*.onnx"))


def test_it_resumes_with_all_that_its_checkpoint_has(folder: Path) -> None:
    before, _, warning = load_latest(folder)
    assert not warning
    assert main([f"resume={folder}", "eval.every=null"]) == 0, "it has nothing left to do"
    assert main([f"resume={folder}", "total_steps=1217", "eval.every=null"]) == 0
    after = latest(folder)
    assert after["resumed"] == 1
    assert after["store"].keys() >= before["store"].keys()
    assert after["store"]["steps"] > before["store"]["steps"] == 1216
    assert after["statistics"].keys() >= before["statistics"].keys()
    assert after["best_eval_return"] == before["best_eval_return"]
    assert same(after["callbacks"], before["callbacks"]) and after["callbacks"]["NoImprovement"]
    assert same(after["statistics"]["peak"], before["statistics"]["peak"])
    done = summary(folder)
    assert (done["resumed"], done["stop_reason"]) == (1, "total_steps")
    rows = (EARLIER / "metrics.csv").read_text().splitlines()
    resumed = (folder / "metrics.csv").read_text().splitlines()
    # curves that are newer than the run are further columns
    assert all(line.startswith(row) for line, row in zip(resumed, rows, strict=False))
    assert len(resumed) > len(rows)
