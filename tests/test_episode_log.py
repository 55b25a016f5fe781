"""episodes.csv: the record of every training episode."""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import config, episode_table, told, train_config

from a3c_exp.core.events import Episodes

THREE_STEPS: dict[str, Any] = {"env__kwargs": {"length": 3}}


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def episodes(*end_steps: int, value: float = 1.5) -> Episodes:
    count = len(end_steps)
    return Episodes(np.full(count, value), np.full(count, 7), np.array(end_steps, np.int64), 1)


class TestARun:
    def test_records_each_episode_once(self, tmp_path: Path) -> None:
        done = train_config(config(workers=2, total_steps=960, **THREE_STEPS), tmp_path)
        rows = rows_of(tmp_path / "episodes.csv")
        assert len(rows) == done.summary["episodes"] > 100
        assert {row["worker"] for row in rows} == {"0", "1"}
        assert {row["length"] for row in rows} == {"3"}
        latest = sorted(rows, key=lambda row: int(row["step"]))[-100:]
        assert np.mean([float(row["return"]) for row in latest]) == pytest.approx(done.summary["mean_return_100"])
        seconds = [float(row["seconds"]) for row in rows]
        assert 0 <= seconds[0] <= seconds[-1] <= done.summary["training_seconds"]

    def test_that_is_resumed_drops_rows_after_its_checkpoint(self, tmp_path: Path) -> None:
        train_config(config(record_episodes=0, **THREE_STEPS), tmp_path)
        assert not (tmp_path / "episodes.csv").exists()
        whole = config(total_steps=160, **THREE_STEPS)
        train_config(whole, tmp_path)
        table = tmp_path / "episodes.csv"
        before = rows_of(table)
        with table.open("a") as file:
            file.write("100000,0,1,3,9.000\n200000,0,1,")  # after the checkpoint, and cut off by a kill
        train_config(whole | {"total_steps": 320}, tmp_path, resume=True)
        after = rows_of(table)
        assert after[: len(before)] == before
        assert len(after) > len(before)
        assert all(int(row["step"]) <= 324 for row in after)


class TestEpisodeLog:
    def test_has_a_limit_which_is_told_once(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        path = tmp_path / "episodes.csv"
        written = episode_table(tmp_path, most=3)
        written.on_episodes(told(12.5), 3, episodes(10, value=-123.4567890123))
        for step in (11, 20):
            written.on_episodes(told(13.25), 3, episodes(step, step + 1, value=1e20))
        written.close(True)
        rows = "10,3,-123.456789,7,12.500\n11,3,1e+20,7,13.250\n12,3,1e+20,7,13.250\n"
        assert path.read_text() == f"step,worker,return,length,seconds\n{rows}"
        [message] = caplog.messages
        assert "record_episodes" in message

    def test_forgets_what_the_run_learned_of_after_its_checkpoint(self, tmp_path: Path) -> None:
        """An episode of a rollout that was under way may have ended at an earlier step than that of the checkpoint."""
        path = tmp_path / "episodes.csv"
        written = episode_table(tmp_path)
        written.on_episodes(told(1.0004), 0, episodes(10, 30))
        written.on_episodes(told(1.0011), 1, episodes(20))
        written.close(True)
        episode_table(tmp_path, episodes=2).close(True)
        assert [row["step"] for row in rows_of(path)] == ["10", "30"]

    def test_a_file_of_another_program_is_set_aside(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        path, content = tmp_path / "episodes.csv", "a,b\r1,2\r"
        path.write_text(content, newline="")
        with caplog.at_level(logging.WARNING, "a3c_exp"):
            episode_table(tmp_path, episodes=3).close(True)
        assert rows_of(path) == []
        assert (tmp_path / "episodes.csv.old").read_bytes() == content.encode()
        [message] = caplog.messages
        assert "episodes.csv.old" in message
