"""Resumed runs: all saved state is restored, and the curves continue."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from backend_runs import SETTINGS
from refusals import Refuses
from runs import CORRIDOR, TARGET, TARGETS, content, latest, put, same, train, train_config

from a3c_exp.__main__ import main
from a3c_exp.config.saved import read_config
from a3c_exp.errors import FolderError
from a3c_exp.run import checkpoint
from a3c_exp.run.files import exclusive_folder
from a3c_exp.run.recorders.progress_line import ProgressLine
from a3c_exp.run.session import Run, Session

LINEAR = {"_target_": "a3c_exp.schedules.Linear", "start": 1.0, "end": 0.0}
NORMALIZED = {
    "env__normalize_observations": True,
    "env__normalize_rewards": True,
    "env__kwargs": {"length": 5},
}
EVERYTHING: dict[str, Any] = NORMALIZED | {"workers": 2, "schedule": LINEAR, "eval__every": 100}

# Whole episodes in an environment without randomness: a resumed run equals a run that never
# stopped, since it stops between two episodes. (Observations are ones and zeros, so that their sums
# are exact in any order.)
ALONE = {"env": CORRIDOR, "envs_per_worker": 1, "rollout_length": "episode", "total_steps": 800}
BETWEEN_EPISODES: dict[str, Any] = ALONE | {
    "env__normalize_observations": True,
    "schedule": LINEAR,
    "lock": True,
}
LSTM = {"network": {"_target_": "a3c_exp.networks.Lstm", "hidden_size": 8}}
NADAM = {"_target_": "torch.optim.NAdam", "lr": 1e-2}
LOSS_MODULE = SETTINGS["a loss with a module"]
SARSA = SETTINGS["sarsa"]


def resume(folder: Path, **changes: Any) -> Run:
    """Resume the run in a folder."""
    whole = read_config(folder, ["scripted", "thirdparty"])
    for name, value in changes.items():
        put(whole, name, value)
    return train_config(whole, folder, resume=True)


class TestState:
    def test_all_saved_state_is_restored(self, tmp_path: Path) -> None:
        """A resumed run with nothing left to do saves the state that it has read."""
        train(tmp_path, TARGET, optimizer_state="per_worker", **EVERYTHING)
        before = latest(tmp_path)
        assert all(
            np.any(before["store"][key])
            for key in ("parameters", "optimizer_state", "stats", "rng_states")
        )
        done = resume(tmp_path)
        after = latest(tmp_path)
        assert same(after["store"], before["store"])
        for key in ("steps", "updates", "episodes", "recent_returns", "staleness"):
            assert same(after["statistics"][key], before["statistics"][key]), key
        assert (
            after["best_eval_return"]
            == before["best_eval_return"]
            == done.summary["best_eval_return"]
        )

    @pytest.mark.parametrize("parts", [LSTM, LSTM | {"optimizer": NADAM}, LOSS_MODULE, SARSA])
    def test_a_run_in_two_parts_equals_the_run_in_one(
        self, parts: dict[str, Any], tmp_path: Path
    ) -> None:
        """Parameters, optimizer state, Adam's counter, the schedule, the statistics and the
        worker's generator: bit for bit, also on another backend."""
        settings = BETWEEN_EPISODES | parts
        train(tmp_path / "one", **settings)
        done = train(tmp_path / "two", stop__max_episodes=20, **settings)
        assert done.summary["steps"] < 500, "threads would run on"
        resume(tmp_path / "two", stop__max_episodes=None, backend={"_target_": TARGETS["threads"]})
        one = latest(tmp_path / "one")
        two = latest(tmp_path / "two")
        for key in one["store"]:
            assert same(one["store"][key], two["store"][key]), key
        for key in (
            "steps",
            "episodes",
            "updates",
            "recent_returns",
            "recent_lengths",
            "recent_end_steps",
        ):
            assert same(one["statistics"][key], two["statistics"][key]), key

    def test_a_resumed_run_plays_other_episodes(self, tmp_path: Path) -> None:
        """Not those that it began with: its environments are reset with other seeds."""
        train(tmp_path / "a", TARGET, total_steps=16)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        first = latest(tmp_path / "a")["statistics"]["recent_returns"]
        resume(tmp_path / "b", total_steps=32)
        both = latest(tmp_path / "b")["statistics"]["recent_returns"]
        assert len(both) == 2 * len(first)
        assert not np.intersect1d(first, both[len(first) :]).size

    def test_a_worse_policy_does_not_replace_the_best_one(self, tmp_path: Path) -> None:
        """Also if the run was killed between the evaluation that found it and the next
        checkpoint."""
        done = train(tmp_path, TARGET, **EVERYTHING)
        state = latest(tmp_path)
        checkpoint.save(
            tmp_path / "checkpoints" / "latest.ckpt", state | {"best_eval_return": None}
        )
        best = checkpoint.load_file(tmp_path / "checkpoints" / "best.ckpt")
        checkpoint.save(tmp_path / "checkpoints" / "best.ckpt", best | {"best_eval_return": 1e6})
        assert resume(tmp_path, total_steps=320).summary["best_eval_return"] == 1e6
        assert done.summary["best_eval_return"] < 0
        kept = checkpoint.load_file(tmp_path / "checkpoints" / "best.ckpt")
        assert same(kept["store"]["parameters"], best["store"]["parameters"])

    def test_returns_of_other_evaluations_do_not_count(self, tmp_path: Path) -> None:
        """They may be of an easier environment, or of one lucky episode."""
        train(tmp_path, TARGET, **EVERYTHING)
        for name in ("latest", "best"):
            place = tmp_path / "checkpoints" / f"{name}.ckpt"
            checkpoint.save(place, checkpoint.load_file(place) | {"best_eval_return": 1e6})
        assert resume(tmp_path, total_steps=320, eval__max_steps=7).summary["best_eval_return"] < 0
        assert checkpoint.load_file(tmp_path / "checkpoints" / "best.ckpt")["best_eval_return"] < 0


class TestFiles:
    def test_a_finished_run_that_cannot_go_on_is_as_it_was(self, tmp_path: Path) -> None:
        train(tmp_path)
        (tmp_path / "episodes.csv").unlink()
        (tmp_path / "episodes.csv").mkdir()
        before = [(tmp_path / name).read_bytes() for name in ("config.yaml", "summary.json")]
        with pytest.raises(FolderError):
            resume(tmp_path, total_steps=320)
        assert [
            (tmp_path / name).read_bytes() for name in ("config.yaml", "summary.json")
        ] == before

    def test_a_resumed_run_has_no_summary_until_it_ends(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Killed meanwhile, it has none, as if it were killed in its first session."""
        train(tmp_path)
        assert (tmp_path / "summary.json").exists()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Session, "run", Mock(side_effect=KeyboardInterrupt))
            resume(tmp_path, total_steps=320)
        assert not (tmp_path / "summary.json").exists()


class TestCurves:
    def test_times_add_up_and_resumptions_are_counted(self, tmp_path: Path) -> None:
        first = train(
            tmp_path, reward_threshold=0.0, stop__mean_return=0.0, total_steps=10**6
        ).summary
        saved = latest(tmp_path)["statistics"]["seconds"]
        second = resume(tmp_path, stop__mean_return=None, total_steps=480).summary
        assert json.loads((tmp_path / "summary.json").read_text()) == second
        assert (first["resumed"], second["resumed"]) == (0, 1)
        assert second["wall_seconds"] > saved > 0
        assert second["training_seconds"] > first["training_seconds"]
        assert second["solved_at_steps"] == first["solved_at_steps"]
        assert (second["steps"], second["episodes"], second["updates"]) == (480, 480, 30)

    def test_max_seconds_and_the_time_left_count_from_the_resumption(self, tmp_path: Path) -> None:
        first = train(tmp_path, total_steps=10**9, stop__max_seconds=0.5).summary
        lines: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                ProgressLine, "on_tick", lambda line, run: lines.append(line._line(0.0, ""))
            )
            second = resume(tmp_path, stop__max_seconds=0.3).summary
        assert second["stop_reason"] == "max_seconds"
        # The summaries are rounded to milliseconds: a difference of two can be one short.
        assert 0.298 <= second["training_seconds"] - first["training_seconds"] < 60
        left = [line for line in lines if line.endswith(" left")]
        assert left[len(left) // 2].endswith("0:01 left")


class TestCommandLine:
    @pytest.mark.parametrize("damage", ["missing", "another network's"])
    def test_a_checkpoint_that_cannot_be_used_is_one_line(
        self, damage: str, tmp_path: Path, refuses: Refuses
    ) -> None:
        folder = tmp_path / "run"
        train(folder)
        if damage == "missing":
            (folder / "checkpoints" / "latest.ckpt").unlink()
        else:
            train(tmp_path / "other", network__hidden_sizes=[8])
            shutil.copy(tmp_path / "other" / "checkpoints" / "latest.ckpt", folder / "checkpoints")
        before = content(folder)
        refuses([f"resume={folder}", "plugins=[scripted]", "total_steps=320"], "resume")
        assert content(folder) == before

    def test_a_run_that_is_still_going_on_is_refused(
        self, tmp_path: Path, refuses: Refuses
    ) -> None:
        train(tmp_path)
        with exclusive_folder(tmp_path):
            refuses([f"resume={tmp_path}", "plugins=[scripted]"], "resume", str(tmp_path))
        assert main([f"resume={tmp_path}", "plugins=[scripted]"]) == 0

    def test_total_steps_below_the_steps_made_are_refused(
        self, tmp_path: Path, refuses: Refuses
    ) -> None:
        train(tmp_path, total_steps=150)
        words = [f"resume={tmp_path}", "plugins=[scripted]"]
        assert "must be 160 or more" in refuses([*words, "total_steps=100"], "total_steps", 100)
        assert main(words) == 0, "a run with all its steps may be resumed"
