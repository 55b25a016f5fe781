"""What is written of a run for TensorBoard and for metrics.csv."""

from __future__ import annotations

import csv
import json
import logging
import math
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import metadata as hparams_metadata

from a3c_exp.run.curves import CurveWriter, ResumePoint, hparams
from a3c_exp.run.run_folder import config_text

CONFIG = {"seed": 3, "returns": {"_target_": "a3c_exp.returns.NStep", "n": 5}, "critic_returns": None}


def writer(folder: Path, resumed: ResumePoint | None = None) -> CurveWriter:
    return CurveWriter(folder, CONFIG, resumed)


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
    w = writer(tmp_path)
    w.log(100, {"rollout/ep_rew_mean": 1.5, "train/n_updates": 5}, 0.25)
    w.log(200, {"rollout/ep_rew_mean": 2.5, "train/n_updates": 9}, 0.5)
    w.close()
    assert curve(tmp_path, "rollout/ep_rew_mean") == [(100, 1.5), (200, 2.5)]
    assert table(tmp_path) == [
        {"step": "100", "wall_seconds": "0.25", "rollout/ep_rew_mean": "1.5", "train/n_updates": "5"},
        {"step": "200", "wall_seconds": "0.5", "rollout/ep_rew_mean": "2.5", "train/n_updates": "9"},
    ]


def test_the_dashboard_opens_with_reward_losses_and_entropy_side_by_side(tmp_path: Path) -> None:
    writer(tmp_path).close()
    content = read(tmp_path).Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    row = layout_pb2.Layout.FromString(content).category[0]
    assert [chart.title for chart in row.chart] == ["Reward", "Losses", "Entropy"]
    assert list(row.chart[1].multiline.tag) == ["^train/policy_loss$", "^train/value_loss$"]


def test_the_config_is_shown_as_text_verbatim(tmp_path: Path) -> None:
    writer(tmp_path).close()
    shown = read(tmp_path).Tensors("config")[0].tensor_proto.string_val[0].decode()
    assert shown == textwrap.indent(config_text(CONFIG).rstrip(), "    ")


def test_the_runs_own_event_file_has_its_hyperparameters_and_no_experiment_record(tmp_path: Path) -> None:
    """An experiment record would hide the columns of other runs."""
    writer(tmp_path).close()
    found = {tag: data.content for tag, data in hparams_content(tmp_path).items()}
    assert set(found) == {hparams_metadata.SESSION_START_INFO_TAG, hparams_metadata.SESSION_END_INFO_TAG}
    start = hparams_metadata.parse_session_start_info_plugin_data(found[hparams_metadata.SESSION_START_INFO_TAG])
    assert start.hparams["returns"].string_value == "NStep"
    assert start.hparams["returns.n"].number_value == 5


def hparams_content(folder: Path) -> dict[str, Any]:
    accumulator = read(folder)
    tags = [tag for tag in accumulator.Tags()["tensors"] if tag.startswith("_hparams_")]
    return {tag: accumulator.SummaryMetadata(tag).plugin_data for tag in tags}


def test_a_run_that_did_not_end_may_still_succeed_when_it_is_resumed(tmp_path: Path) -> None:
    """TensorBoard keeps the first record of how a session ended, so a failed one leaves none."""
    writer(tmp_path).close(success=False)
    assert set(hparams_content(tmp_path)) == {hparams_metadata.SESSION_START_INFO_TAG}
    writer(tmp_path, resumed=ResumePoint(0)).close(success=True)
    assert hparams_metadata.SESSION_END_INFO_TAG in hparams_content(tmp_path)


def test_hyperparameters_are_flat_columns_and_what_is_null_has_none() -> None:
    config = {
        "seed": 0,
        "lock": False,
        "returns": {"_target_": "a3c_exp.returns.NStep", "n": None},
        "network": {"_target_": "a3c_exp.networks.ActorCritic", "body": {"_target_": "my.MLP", "sizes": [64, 64]}},
        "critic_returns": None,
    }
    assert hparams(config) == {
        "seed": 0,
        "lock": False,
        "returns": "NStep",
        "network": "ActorCritic",
        "network.body": "MLP",
        "network.body.sizes": "[64, 64]",
    }


def test_a_resumed_run_is_one_line_without_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    w = writer(tmp_path)
    for step in (100, 200, 300, 400):
        w.log(step, {"rollout/ep_rew_mean": step}, step / 100)
    w.close(success=False)
    w = writer(tmp_path, resumed=ResumePoint(200))
    for step in (250, 350, 450):
        w.log(step, {"rollout/ep_rew_mean": step}, step / 100)
    w.close()
    steps = [100, 200, 250, 350, 450]
    assert curve(tmp_path, "rollout/ep_rew_mean") == [(step, step) for step in steps]
    assert [int(row["step"]) for row in table(tmp_path)] == steps


def test_a_run_resumed_several_times_within_a_second_is_still_read_in_order(tmp_path: Path) -> None:
    for session in range(12):
        w = writer(tmp_path, resumed=ResumePoint(session * 10) if session else None)
        w.log(session * 10 + 5, {"x/y": session}, 0)
        w.log(session * 10 + 15, {"x/y": -1}, 0)  # beyond the checkpoint from which the next session goes on
        w.close()
    assert curve(tmp_path, "x/y") == [(session * 10 + 5, session) for session in range(12)] + [(125, -1)]


def test_a_name_that_comes_later_gets_a_column_and_old_rows_a_gap(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.log(1, {"train/entropy": 0.5}, 0.1)
    w.log(1, {"eval/mean_reward": 9.0}, 0.2)
    w.log(2, {"train/entropy": 0.25}, 0.3)
    w.close()
    assert [(row["train/entropy"], row["eval/mean_reward"]) for row in table(tmp_path)] == [
        ("0.5", ""),
        ("", "9.0"),
        ("0.25", ""),
    ]


LONG_CELL = b"x" * 200_000 + b",1,2\n"
DAMAGE = [b"300,0.3", b"300,0.3,1,2,3\n", b"\xff\x00,1,2\n", b"\n", b"x,y,z\n", LONG_CELL]


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
def test_a_row_that_was_left_broken_is_dropped_when_a_run_is_resumed(tmp_path: Path, damage: bytes) -> None:
    w = writer(tmp_path)
    w.log(100, {"train/entropy": 0.5}, 0.1)
    w.close(success=False)
    with open(tmp_path / "metrics.csv", "ab") as file:
        file.write(damage)
    w = writer(tmp_path, resumed=ResumePoint(1000))
    w.log(1100, {"train/entropy": 0.25}, 0.2)
    w.close()
    assert [row["step"] for row in table(tmp_path)] == ["100", "1100"]


def damaged_by_excel(text: str) -> bytes:
    """The table as Excel saves it where decimals have a comma."""
    return b"\xef\xbb\xbf" + text.replace(",", ";").replace(".", ",").replace("\n", "\r\n").encode()


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (damaged_by_excel, "is no table of this program"),
        (lambda text: text.replace("step", "stop", 1).encode(), "is no table of this program"),
        (lambda text: ("x" * 200_000 + text).encode(), "is no table of this program"),
        (lambda text: text.replace("\n", "\r").encode(), "is no table of this program"),
        (lambda text: text.replace("\n200,", "\n2e2,").encode(), "has unreadable rows (1)"),
    ],
    ids=["Excel", "header", "a long line", "other ends of lines", "a row"],
)
@pytest.mark.parametrize("moment", ["before a resumption", "during a run"])
def test_a_table_that_another_program_has_changed_is_kept_under_another_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, moment: str, damage: Callable[[str], bytes], complaint: str
) -> None:
    path, older = tmp_path / "metrics.csv", tmp_path / "metrics.csv.old"
    older.write_text("of an earlier time")
    w = writer(tmp_path)
    w.log(100, {"train/entropy": 0.5}, 0.1)
    w.log(200, {"train/entropy": 0.25}, 0.2)
    content = damage(path.read_text())
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "a3c_exp"):
        if moment == "before a resumption":
            w.close(success=False)
            w = writer(tmp_path, resumed=ResumePoint(1000))
        w.log(300, {"train/entropy": 0.125, "eval/mean_reward": 1.0}, 0.3)  # a new column: the table is read again
    w.close()
    assert (tmp_path / "metrics.csv.old2").read_bytes() == content
    assert older.read_text() == "of an earlier time"
    assert [record.message for record in caplog.records] == [f"metrics.csv {complaint}: it is kept as metrics.csv.old2"]
    kept = ["100", "300"] if "rows" in complaint else ["300"]
    assert [row["step"] for row in table(tmp_path)] == kept


def test_a_byte_order_mark_and_other_line_ends_are_read(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.log(100, {"train/entropy": 0.5}, 0.1)
    w.close(success=False)
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    writer(tmp_path, resumed=ResumePoint(1000)).close()
    assert table(tmp_path) == [{"step": "100", "wall_seconds": "0.1", "train/entropy": "0.5"}]
    assert not (tmp_path / "metrics.csv.old").exists()


def test_numbers_that_are_not_finite_are_written_as_such(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.log(1, {"train/value_loss": math.inf, "train/policy_loss": math.nan}, 0.0)
    w.close()
    assert curve(tmp_path, "train/value_loss") == [(1, math.inf)]
    assert table(tmp_path)[0]["train/policy_loss"] == "nan"


FULL_DISK = """
import json, resource, sys
from pathlib import Path
from a3c_exp.run.curves import CurveWriter
from a3c_exp.run.run_folder import config_text

writer = CurveWriter(Path(sys.argv[1]), {})
full = resource.RLIM_INFINITY
written, refused = [], []
for step in range(60):
    # From step 20 to 39 no file may grow beyond what the table and the event file have by then.
    if step == 20:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, full))
    if step == 40:
        resource.setrlimit(resource.RLIMIT_FSIZE, (full, full))
    try:
        values = {"train/entropy": step, "train/value_loss": 1 / 3}
        writer.log(step, values | ({"eval/mean_reward": 1.0} if step >= 30 else {}), step / 7)
        written.append(step)
    except OSError as error:
        refused.append(step)
writer.close()
print(json.dumps([written, refused]))
"""


def test_a_full_disk_damages_nothing_and_writing_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """The limit on the size of files stands in for the full disk: a write beyond it stops half-way and fails."""
    done = subprocess.run([sys.executable, "-c", FULL_DISK, tmp_path], capture_output=True, text=True, check=True)
    written, refused = json.loads(done.stdout)
    assert refused
    assert set(refused) <= set(range(20, 40))
    assert set(range(20)) | set(range(40, 60)) <= set(written)
    assert set(written) <= {step for step, _ in curve(tmp_path, "train/entropy")}
    rows = table(tmp_path)
    assert [int(row["step"]) for row in rows] == written
    assert all(row["train/entropy"] == row["step"] for row in rows)
    assert rows[-1]["eval/mean_reward"] == "1.0"


def test_seconds_of_a_resumed_run_do_not_go_back(tmp_path: Path) -> None:
    """The evaluation of the policy at step 90 ended three minutes after the checkpoint of step 100."""
    first = writer(tmp_path)
    first.log(90, {"a": 1.0}, 5.25)
    first.log(90, {"eval/mean_reward": 1.0}, 185.5)
    first.close(success=False)
    resumed = writer(tmp_path, resumed=ResumePoint(100, wall_seconds=5.5674))
    resumed.log(101, {"a": 2.0}, 5.5676)
    resumed.log(102, {"a": 3.0}, 6.25)
    resumed.close()
    assert [row["wall_seconds"] for row in table(tmp_path)] == ["5.25", "5.567", "5.568", "6.25"]
