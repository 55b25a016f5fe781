"""What is written of a run for TensorBoard and to metrics.csv."""

from __future__ import annotations

import csv
import logging
import math
import re
import textwrap
from pathlib import Path
from unittest.mock import Mock

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from a3c_exp.common.reading import UnreadableError
from a3c_exp.run import files
from a3c_exp.run.curves import CurveWriter
from a3c_exp.run.event_file import EventFile, header, hparams
from a3c_exp.run.metrics import ResumePoint, read_points
from a3c_exp.run.run_folder import config_text

CONFIG = {"seed": 3, "returns": {"_target_": "a3c_exp.returns.NStep", "n": 5}, "critic_returns": None}


def writer(folder: Path, resumed: ResumePoint | None = None) -> CurveWriter:
    made = CurveWriter(folder, resumed)
    made.events.write(summary=header(CONFIG))
    return made


def read(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in read(folder).Scalars(name)]


def table(folder: Path) -> list[dict[str, str]]:
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_tensorboard_and_the_table_get_the_same(tmp_path: Path) -> None:
    """Each point is a row at once. A name that comes later gets a column, and old rows a gap."""
    w = writer(tmp_path)
    w.log(100, {"rollout/ep_rew_mean": 1.5, "train/n_updates": 5}, 0.25)
    w.log(150, {"eval, of 10": 9.0}, 0.375)
    assert len(table(tmp_path)) == 2
    w.log(200, {"rollout/ep_rew_mean": 2.5, "train/n_updates": 9}, 0.50049)
    assert (tmp_path / "metrics.csv").read_text() == (
        'step,wall_seconds,rollout/ep_rew_mean,train/n_updates,"eval, of 10"\n'
        "100,0.25,1.5,5,\n150,0.375,,,9.0\n200,0.5,2.5,9,\n"
    )
    w.close()
    assert curve(tmp_path, "rollout/ep_rew_mean") == [(100, 1.5), (200, 2.5)]


def test_the_dashboard_opens_with_reward_losses_and_entropy_and_the_config_is_shown_verbatim(tmp_path: Path) -> None:
    writer(tmp_path).close()
    written = read(tmp_path)
    content = written.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    row = layout_pb2.Layout.FromString(content).category[0]
    assert [chart.title for chart in row.chart] == ["Reward", "Losses", "Entropy"]
    assert list(row.chart[1].multiline.tag) == ["^train/policy_loss$", "^train/value_loss$"]
    shown = written.Tensors("config")[0].tensor_proto.string_val[0].decode()
    assert shown == textwrap.indent(config_text(CONFIG).rstrip(), "    ")


def test_a_run_that_did_not_end_may_still_succeed_when_it_is_resumed(tmp_path: Path) -> None:
    """TensorBoard keeps the first record of how a session ended, so a failed one leaves none. An experiment record
    would hide the columns of other runs."""
    writer(tmp_path).close(success=False)
    written = read(tmp_path)
    content = written.SummaryMetadata(hparams_metadata.SESSION_START_INFO_TAG).plugin_data.content
    start = hparams_metadata.parse_session_start_info_plugin_data(content)
    assert (start.hparams["returns"].string_value, start.hparams["returns.n"].number_value) == ("NStep", 5)
    assert hparams_metadata.SESSION_END_INFO_TAG not in written.Tags()["tensors"]
    writer(tmp_path, resumed=ResumePoint(0)).close(success=True)
    assert hparams_metadata.SESSION_END_INFO_TAG in read(tmp_path).Tags()["tensors"]


def test_hyperparameters_are_flat_columns_and_what_is_null_has_none() -> None:
    network = {"_target_": "a3c_exp.networks.Lstm", "encoder": {"_target_": "my.Mlp", "sizes": [64, 64]}, "kwargs": {}}
    returns = {"_target_": "a3c_exp.returns.NStep", "n": None}
    assert hparams({"lock": False, "returns": returns, "network": network}) == {
        "lock": False,
        "returns": "NStep",
        "network": "Lstm",
        "network.encoder": "Mlp",
        "network.encoder.sizes": "[64, 64]",
    }


def test_a_resumed_run_is_one_line_without_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    """Of a kept point that is younger than the checkpoint, an evaluation's, the time is the checkpoint's."""
    w = writer(tmp_path)
    for step in (100, 200, 300, 400):
        w.log(step, {"rollout/ep_rew_mean": float(step), "train/n_updates": step}, step / 100)
    w.log(90, {"eval/mean_reward": 7.0}, 185.5)
    w.close(success=False)
    w = writer(tmp_path, resumed=ResumePoint(200, wall_seconds=2.12349))
    assert [row["wall_seconds"] for row in table(tmp_path)] == ["1.0", "2.0", "2.123"], "whole from the resumption on"
    for step in (250, 350):
        w.log(step, {"rollout/ep_rew_mean": float(step), "train/n_updates": step}, step / 100)
    w.close()
    assert curve(tmp_path, "rollout/ep_rew_mean") == [(step, step) for step in (100, 200, 250, 350)]
    assert [row["step"] for row in table(tmp_path)] == ["100", "200", "90", "250", "350"]
    assert [row["train/n_updates"] for row in table(tmp_path)] == ["100", "200", "", "250", "350"]


WHOLE = b"step,wall_seconds,a\n1,0.5,2\n"
DAMAGE = [b"1,0.5,2,3\n", b"1\n", b"2,x,1\n", b"2,,1\n", b"2,1," + b"9" * 200_000 + b"\n"]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage[:20].decode())
def test_a_table_that_another_program_has_changed_is_kept_under_another_name(
    damage: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(WHOLE + damage + b"3,1.5,2\n")
    with pytest.raises(UnreadableError, match="is no point"):
        read_points(path)
    with caplog.at_level(logging.WARNING, "a3c_exp"):
        writer(tmp_path, resumed=ResumePoint(1000)).close()
    assert table(tmp_path) == []
    assert (tmp_path / "metrics.csv.old").read_bytes() == WHOLE + damage + b"3,1.5,2\n"
    [record] = caplog.records
    assert "metrics.csv.old" in record.message


def test_a_line_without_its_end_is_that_of_a_killed_writer(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(WHOLE + b"2,0.7")
    assert len(read_points(path)) == 1
    writer(tmp_path, resumed=ResumePoint(1000)).close()
    assert path.read_bytes() == WHOLE
    assert not (tmp_path / "metrics.csv.old").exists()


def test_numbers_that_are_not_finite_are_written_as_such(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.log(1, {"train/value_loss": math.inf, "train/policy_loss": math.nan}, 0.0)
    w.close()
    assert curve(tmp_path, "train/value_loss") == [(1, math.inf)]
    [point] = read_points(tmp_path / "metrics.csv")
    assert point["train/value_loss"] == math.inf and math.isnan(point["train/policy_loss"])


@pytest.mark.parametrize("names", [["train/entropy"] * 4, ["train/entropy", "train/entropy", "new", "train/entropy"]])
def test_what_a_full_disk_did_not_take_is_written_with_the_next_point(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, full = writer(tmp_path), Mock(side_effect=OSError("the disk is full"))
    w.log(0, {names[0]: 0}, 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(files.Appender, "flush", full)
        patch.setattr(files, "atomic_write", full)
        for step in (1, 2):
            with pytest.raises(OSError, match="full"):
                w.log(step, {names[step]: step}, step / 7)
    w.log(3, {names[3]: 3}, 1.0)
    w.close()
    assert [step for name in set(names) for step, _ in curve(tmp_path, name)] == [0, 1, 2, 3] or "new" in names
    assert [int(row["step"]) for row in table(tmp_path)] == [0, 1, 2, 3]
    assert [row["train/entropy"] for row in table(tmp_path)] == ["0", "1", "" if "new" in names else "2", "3"]


# The event file.


def test_tensorboard_reads_what_was_written_while_the_file_is_still_open(tmp_path: Path) -> None:
    events = EventFile(tmp_path, start=0)
    events.scalars(7, {"train/entropy": 0.5})
    found = list(EventFileLoader(str(events.path)).Load())
    events.close()
    assert found[0].file_version == "brain.Event:2"
    assert (found[-1].step, found[-1].summary.value[0].tag) == (7, "train/entropy")


def test_files_are_read_in_order_although_the_clock_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run's session within the same second, on another machine, or after the clock has been set right."""
    names, now = ["events.out.tfevents.1800000000.400000.host.9"], 1_800_000_000.5  # the first one's form is of before
    (tmp_path / names[0]).touch()
    for seconds in (now, now, now - 86_400, now - 3600, now + 60):
        monkeypatch.setattr("time.time", lambda seconds=seconds: seconds)
        events = EventFile(tmp_path, start=0)
        events.close()
        names.append(events.path.name)
    assert names == sorted(set(names))
    assert names[5].startswith(f"events.out.tfevents.{int(now + 60)}.")


def test_the_name_of_a_file_is_that_of_other_writers(tmp_path: Path) -> None:
    """W&B's reader takes the part after `tfevents` for whole seconds and the next ones for the host's name."""
    events = EventFile(tmp_path, start=0)
    events.close()
    theirs = EventFileWriter(str(tmp_path / "theirs"))
    theirs.close()
    (path,) = (tmp_path / "theirs").iterdir()
    forms = {re.sub(r"\d+", "1", name) for name in (events.path.name, path.name)}
    assert len(forms) == 1
