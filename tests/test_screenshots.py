"""The pictures of dashboards in docs/."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from runs import train

sys.path.insert(0, str(Path(__file__).parents[1]))  # study is not installed: it belongs to the checkout

from study import screenshots

ROOT = Path(__file__).parents[1]
NAMES = {"report", "report_dark", "tensorboard_hparams", "tensorboard_custom_scalars", "tensorboard_runs"}


def test_the_pictures_of_the_guide_are_those_that_the_command_draws() -> None:
    guide = (ROOT / "docs" / "guide.md").read_text()
    assert "`python -m study.screenshots`" in guide
    shown = {name for name in NAMES if f"]({name}.png)" in guide}
    assert shown == NAMES - {"report_dark"}
    assert all((ROOT / "docs" / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in NAMES)
    assert {f"tensorboard_{name}" for name in screenshots.DASHBOARDS} < NAMES


def test_without_a_browser_a_line_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert screenshots.main([]) == 1
    assert capsys.readouterr().err == "study.screenshots needs one of chromium, chromium-browser, google-chrome\n"


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, screenshots.BROWSERS)), reason="Chromium is not installed")
def test_a_browser_draws_them(tmp_path: Path) -> None:
    for seed in range(2):
        train(tmp_path / "sweep" / str(seed), "CartPole-v1", seed=seed, plugins=[])
    (tmp_path / "docs").mkdir()
    assert screenshots.main(["--sweep", str(tmp_path / "sweep"), "--to", str(tmp_path / "docs")]) == 0
    sizes = {path.stem: path.stat().st_size for path in (tmp_path / "docs").glob("*.png")}
    assert sizes.keys() == NAMES
    assert min(sizes.values()) > 20_000, "an empty page is smaller"
