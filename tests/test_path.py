"""The way of an update is counted: files, records and frames; and that of overrides."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is not installed: it belongs to the checkout

from bench import path
from bench.checkout import HERE


@pytest.mark.slow
def test_an_update_of_this_checkout_is_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = path.way(HERE)
    assert all((HERE / name).is_file() for name in found["files"])
    assert any(name.startswith("a3c_exp/networks/") for name in found["files"])
    assert any(name.endswith(".Rollout") for name in found["records"])
    assert found["frames"][0] == "a3c_exp/__init__.py:train"
    assert found["overrides"]
    worker = path.of_worker(found["frames"])
    assert 0 < worker < len(found["frames"])
    monkeypatch.setattr(path, "way", lambda checkout: found)
    assert path.main([]) == 0
    assert f"{len(found['frames'])} frames, {worker} of them the worker's" in capsys.readouterr().out.splitlines()
