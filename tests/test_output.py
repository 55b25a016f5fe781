"""The files of a run while it goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from a3c_exp.core.events import Episodes
from a3c_exp.run.curves import CurveWriter
from a3c_exp.run.episode_log import EpisodeLog
from a3c_exp.run.metrics import read_points
from a3c_exp.run.output import RunOutput


def output_in(folder: Path) -> RunOutput:
    return RunOutput(folder, CurveWriter(folder, {}), EpisodeLog(folder / "episodes.csv", 10, None))


def one_episode(step: int) -> Episodes:
    return Episodes(np.array([1.0]), np.array([4]), np.array([step]), 1)


def test_episodes_are_written_with_the_next_point_and_the_table_with_a_checkpoint(tmp_path: Path) -> None:
    output = output_in(tmp_path)
    output.add_episodes(0, one_episode(4), seconds=1.0)
    assert "\n4," not in (tmp_path / "episodes.csv").read_text()
    output.log(5, {"rollout/ep_rew_mean": 1.0}, seconds=1.0)
    assert "\n4," in (tmp_path / "episodes.csv").read_text()
    assert not (tmp_path / "metrics.csv").exists()
    output.save("latest.ckpt", {"steps": 5})
    assert output.unwritten == {"latest.ckpt"}, "there is no folder for it"
    (tmp_path / "checkpoints").mkdir()
    output.save("latest.ckpt", {"steps": 5})
    assert not output.unwritten
    assert len(read_points(tmp_path / "metrics.csv")) == 1


@pytest.mark.parametrize("is_replaced", [True, False])
def test_nothing_is_written_into_a_folder_that_has_taken_the_place_of_the_runs(
    is_replaced: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    output = output_in(folder)
    folder.rename(tmp_path / "renamed")
    if is_replaced:
        (folder / "checkpoints").mkdir(parents=True)
    output.add_episodes(0, one_episode(4), seconds=1.0)
    output.log(5, {"a": 1.0}, seconds=1.0)
    output.save("latest.ckpt", {"steps": 1})
    output.keep_checkpoints("none")
    output.close_curves(success=True)
    summary = output.write_summary({"steps": 1})
    assert output.lost
    assert summary["unwritten"] == ["curves", "episodes.csv", "latest.ckpt", "metrics.csv", "summary.json"]
    assert [path.name for path in tmp_path.glob("run/**/*")] == (["checkpoints"] if is_replaced else [])
