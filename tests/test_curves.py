"""What is written of a run to metrics.csv and for TensorBoard."""

from __future__ import annotations

import csv
import logging
import math
import re
import resource
import textwrap
import tracemalloc
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from runs import config, episode_table, told, train_config
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as custom_scalar_metadata
from tensorboard.plugins.hparams import api_pb2, backend_context
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.hparams.list_session_groups import Handler
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from a3c_exp.common.reading import UnreadableError
from a3c_exp.core.events import Episodes
from a3c_exp.run import files
from a3c_exp.run.event_file import EventFile, header, hparams
from a3c_exp.run.metrics import PointsTable, read_points
from a3c_exp.run.run_folder import config_text

# metrics.csv.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.csv"


def test_each_point_is_a_row_at_once_and_a_new_name_a_column(path: Path) -> None:
    """With a gap in the rows before."""
    table = PointsTable(path, 0, 0.0)
    assert path.read_text() == "step,wall_seconds\n"
    table.log({"step": 100, "wall_seconds": 0.25, "rollout/ep_rew_mean": 1.5})
    table.log({"step": 150, "wall_seconds": 0.375, "eval, of 10": math.inf, "loss": math.nan})
    table.log({"step": 200, "wall_seconds": 0.5, "rollout/ep_rew_mean": 2})
    assert path.read_text() == (
        'step,wall_seconds,rollout/ep_rew_mean,"eval, '
        'of 10",loss\n100,0.25,1.5,,\n150,0.375,,inf,nan\n200,0.5,2,,\n'
    )
    _, point, _ = read_points(path)
    assert point["eval, of 10"] == math.inf and math.isnan(point["loss"])
    table.close()


def test_a_resumed_run_goes_on_without_what_came_after_its_checkpoint(path: Path) -> None:
    """Of a kept point that is younger than the checkpoint, an evaluation's, the time is the
    checkpoint's."""
    path.write_text(
        "step,wall_seconds,n,eval\n100,1.0,100,\n200,2.0,200,\n300,3.0,300,\n90,185.5,,7.0\n400,4.0,4"
    )
    table = PointsTable(path, 200, 2.12349)
    assert (table.kept["n"], table.dropped) == (200, 300)
    table.log({"step": 250, "wall_seconds": 2.5, "n": 250})
    table.close()
    assert (
        path.read_text()
        == "step,wall_seconds,n,eval\n90,2.123,,7.0\n100,1.0,100,\n200,2.0,200,\n250,2.5,250,\n"
    )


def test_the_rows_of_a_run_that_has_ended_are_in_the_order_of_their_steps(path: Path) -> None:
    """An evaluation's is late: it has the step of the parameters that were evaluated."""
    table = PointsTable(path, 0, 0.0)
    for step, name in ((10, "a"), (30, "a"), (20, "b"), (40, "a"), (30, "b"), (5, "b"), (50, "a")):
        table.log({"step": step, "wall_seconds": step, name: step})
    assert [point["step"] for point in read_points(path)] == [10, 30, 20, 40, 30, 5, 50]
    table.close()
    points = read_points(path)
    assert [point["step"] for point in points] == [5, 10, 20, 30, 30, 40, 50]
    assert [("a" in point, point.get("a"), point.get("b")) for point in points[3:5]] == [
        (True, 30, None),
        (False, None, 30),
    ]


def test_memory_does_not_grow_with_the_points(path: Path) -> None:
    """Neither while they come, nor where a new name has the table written again, nor at the end."""
    table = PointsTable(path, 0, 0.0)
    point = {f"name{n}": n / 7 for n in range(20)}
    tracemalloc.start()
    try:
        for step in range(5000):
            table.log({"step": step, "wall_seconds": step, **point})
        table.log({"step": 10, "wall_seconds": step, "new": 1.0})
        table.close()
        PointsTable(path, 4000, 4000.0).close()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 1_000_000
    assert most < 200_000


DAMAGE = ["1,0.5,2,3\n", "1\n", "2,x,1\n", "2,,1\n", f"2,1,{'9' * 200_000}\n"]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage[:20])
def test_a_table_that_another_program_has_changed_is_kept_under_another_name(
    damage: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = f"step,wall_seconds,a\n1,0.5,2\n{damage}3,1.5,2\n"
    path.write_text(content)
    with pytest.raises(UnreadableError, match="is no point"):
        read_points(path)
    with caplog.at_level(logging.WARNING, "a3c_exp"):
        PointsTable(path, 1000, 9.0).close()
    assert read_points(path) == []
    assert path.with_name("metrics.csv.old").read_text() == content
    [record] = caplog.records
    assert "metrics.csv.old" in record.message


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("names", [["a", "a"], ["a", "new"], ["new", "a"]])
def test_what_a_full_disk_did_not_take_is_written_with_the_next_point_or_at_the_end(
    names: list[str], is_last: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = PointsTable(path, 0, 0.0)
    full = Mock(side_effect=OSError("the disk is full"))
    points: list[dict[str, float]] = [{"step": 0, "wall_seconds": 0, "a": 0}]
    points += [
        {"step": step, "wall_seconds": step, name: step} for step, name in enumerate(names, 1)
    ]
    points += [{"step": 3, "wall_seconds": 3, "a": 3}]
    table.log(points[0])
    with monkeypatch.context() as patch:
        patch.setattr(files.Appender, "flush", full)
        patch.setattr(files, "atomic_write", full)
        for point in points[1:-1]:
            with pytest.raises(OSError, match="full"):
                table.log(point)
    if is_last:
        del points[-1]
    else:
        table.log(points[-1])
    table.close()
    assert read_points(path) == points


# TensorBoard's file.


def read(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def test_tensorboard_reads_what_was_written_while_the_file_is_still_open(tmp_path: Path) -> None:
    events = EventFile(tmp_path, start=0)
    events.scalars(7, {"train/entropy": math.inf})
    found = list(EventFileLoader(str(events.path)).Load())
    events.close()
    assert found[0].file_version == "brain.Event:2"
    assert (found[-1].step, found[-1].summary.value[0].tag) == (7, "train/entropy")


def test_a_resumed_runs_curve_is_one_line(tmp_path: Path) -> None:
    for start, steps in ((0, (100, 200, 300)), (201, (250, 350))):
        events = EventFile(tmp_path, start)
        for step in steps:
            events.scalars(step, {"train/entropy": step})
        events.close()
    assert [point.step for point in read(tmp_path).Scalars("train/entropy")] == [100, 200, 250, 350]


def test_points_that_a_full_disk_did_not_take_are_read_once_there_is_room(tmp_path: Path) -> None:
    """A limit of a file's size stands for the disk, which takes a part of the last record."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    events = EventFile(tmp_path, start=0)
    events.scalars(1, {"train/entropy": 1.0})
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (events.path.stat().st_size + 10, before[1]))
        for step in (2, 3):
            with pytest.raises(OSError, match="too large"):
                events.scalars(step, {"train/entropy": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [point.step for point in read(tmp_path).Scalars("train/entropy")] == [1]
    events.scalars(4, {"train/entropy": 1.0})
    events.close()
    assert [point.step for point in read(tmp_path).Scalars("train/entropy")] == [1, 2, 3, 4]


def test_a_run_that_was_killed_and_resumed_has_one_curve_and_its_first_page(
    tmp_path: Path,
) -> None:
    """What a killed session had logged after its last checkpoint is in its file only."""
    run_config = config(total_steps=160, log__every=16, **THREE_STEPS)
    train_config(run_config, tmp_path)
    killed = EventFile(tmp_path, start=161)
    killed.scalars(176, {"train/entropy": 1.0})
    killed.scalars(1000, {"train/entropy": 1.0})
    killed.close()
    train_config(run_config | {"total_steps": 320}, tmp_path, resume=True)

    written = read(tmp_path)
    steps = [point.step for point in written.Scalars("train/entropy")]
    assert steps == sorted(set(steps)) and steps[-1] == 320
    table = [point["step"] for point in read_points(tmp_path / "metrics.csv")]
    assert steps == list(dict.fromkeys(table))


def test_the_prepared_page_has_charts_of_curves_that_a_run_has(tmp_path: Path) -> None:
    train_config(config(workers=2, eval__every=80, **THREE_STEPS), tmp_path)
    written = read(tmp_path)
    (event,) = written.Tensors(custom_scalar_metadata.CONFIG_SUMMARY_TAG)
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    charts = [chart for category in layout.category for chart in category.chart]
    assert len({chart.title for chart in charts}) == len(charts) >= 4
    curves = written.Tags()["scalars"]
    for chart in charts:
        for tag in chart.multiline.tag:
            assert [name for name in curves if re.match(tag, name)] == [tag.rstrip("$")]
    shown = {tag.rstrip("$") for chart in charts for tag in chart.multiline.tag}
    assert shown >= {"rollout/ep_rew_mean", "eval/mean_reward", "train/rejected_updates"}


def test_returns_come_first_where_curves_are_sorted_by_name(tmp_path: Path) -> None:
    """TensorBoard's first page shows the curves of the first two prefixes, and hides the others."""
    histograms = {"_target_": "a3c_exp.callbacks.Histograms", "points": 1}
    profile = {"_target_": "a3c_exp.callbacks.Profile"}
    run_config = config(workers=2, eval__every=80, callbacks=[histograms, profile], **THREE_STEPS)
    train_config(run_config, tmp_path)
    tags = read(tmp_path).Tags()
    names = [*tags["scalars"], *(tag for tag in tags["tensors"] if tag.startswith("train/"))]
    prefixes = {name.partition("/")[0] for name in names}
    assert sorted(prefixes)[:2] == ["eval", "rollout"]


def test_hyperparameters_that_differ_between_runs_are_known_with_their_last_numbers(
    tmp_path: Path,
) -> None:
    for number, estimator in enumerate(("GAE", "NStep")):
        folder = tmp_path / estimator
        folder.mkdir()
        events = EventFile(folder, start=0)
        returns = {"_target_": f"a3c_exp.returns.{estimator}"}
        events.write(summary=header({"seed": number, "gamma": 0.9, "returns": returns}))
        events.scalars(10, {"eval/mean_reward": 100.0})
        events.scalars(20, {"eval/mean_reward": 7.5 + number})
        events.success()
        events.close()

    runs = EventMultiplexer()
    runs.AddRunsFromDirectory(str(tmp_path))
    runs.Reload()
    provider = MultiplexerDataProvider(runs, str(tmp_path))
    context = backend_context.Context(TBContext(data_provider=provider))
    request = RequestContext()
    records = context.hparams_metadata(request, "")
    experiment = context.experiment_from_metadata(request, "", True, records, None)
    differing = {info.name: info.differs for info in experiment.hparam_infos}
    assert differing == {"seed": True, "returns": True, "gamma": False}

    every = api_pb2.ListSessionGroupsRequest(
        slice_size=10, allowed_statuses=[api_pb2.STATUS_SUCCESS]
    )
    rows = Handler(request, context, "", every).run().session_groups
    values = {row.name: [metric.value for metric in row.metric_values] for row in rows}
    assert values == {"GAE": [7.5], "NStep": [8.5]}


def test_the_dashboards_show_the_configuration_and_its_hyperparameters(tmp_path: Path) -> None:
    """TensorBoard keeps the first record of how a session ended, so one that may be resumed leaves
    none."""
    config = {
        "seed": 3,
        "returns": {"_target_": "a3c_exp.returns.NStep", "n": 5},
        "critic_returns": None,
    }
    events = EventFile(tmp_path, start=0)
    events.write(summary=header(config))
    written = read(tmp_path)
    shown = written.Tensors("config")[0].tensor_proto.string_val[0].decode()
    assert shown == textwrap.indent(config_text(config).rstrip(), "    ")
    data = written.SummaryMetadata(hparams_metadata.SESSION_START_INFO_TAG).plugin_data.content
    start = hparams_metadata.parse_session_start_info_plugin_data(data)
    assert (start.hparams["returns"].string_value, start.hparams["returns.n"].number_value) == (
        "NStep",
        5,
    )
    assert hparams_metadata.SESSION_END_INFO_TAG not in written.Tags()["tensors"]
    events.success()
    events.close()
    assert hparams_metadata.SESSION_END_INFO_TAG in read(tmp_path).Tags()["tensors"]


def test_hyperparameters_are_flat_columns_and_what_is_null_has_none() -> None:
    network = {
        "_target_": "a3c_exp.networks.Lstm",
        "encoder": {"_target_": "my.Mlp", "sizes": [64, 64]},
        "kwargs": {},
    }
    returns = {"_target_": "a3c_exp.returns.NStep", "n": None}
    assert hparams({"lock": False, "returns": returns, "network": network}) == {
        "lock": False,
        "returns": "NStep",
        "network": "Lstm",
        "network.encoder": "Mlp",
        "network.encoder.sizes": "[64, 64]",
    }


def test_files_are_read_in_order_although_the_clock_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run's session within the same second, on another machine, or after the clock has
    been set right."""
    # the first one's form is of before
    names = ["events.out.tfevents.1800000000.400000.host.9"]
    now = 1_800_000_000.5
    (tmp_path / names[0]).touch()
    for seconds in (now, now, now - 86_400, now - 3600, now + 60):
        monkeypatch.setattr("time.time", lambda seconds=seconds: seconds)
        events = EventFile(tmp_path, start=0)
        events.close()
        names.append(events.path.name)
    assert names == sorted(set(names))
    assert names[5].startswith(f"events.out.tfevents.{int(now + 60)}.")


def test_the_name_of_a_file_is_that_of_other_writers(tmp_path: Path) -> None:
    """W&B's reader takes the part after `tfevents` for whole seconds and the next ones for the
    host's name."""
    events = EventFile(tmp_path, start=0)
    events.close()
    theirs = EventFileWriter(str(tmp_path / "theirs"))
    theirs.close()
    (path,) = (tmp_path / "theirs").iterdir()
    forms = {re.sub(r"\d+", "1", name) for name in (events.path.name, path.name)}
    assert len(forms) == 1


# episodes.csv: the record of every training episode.


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
        assert np.mean([float(row["return"]) for row in latest]) == pytest.approx(
            done.summary["mean_return_100"]
        )
        seconds = [float(row["seconds"]) for row in rows]
        assert 0 <= seconds[0] <= seconds[-1] <= done.summary["training_seconds"]

    def test_that_is_resumed_drops_rows_after_its_checkpoint(self, tmp_path: Path) -> None:
        train_config(config(record_episodes=0, **THREE_STEPS), tmp_path)
        assert not (tmp_path / "episodes.csv").exists()
        run_config = config(total_steps=160, **THREE_STEPS)
        train_config(run_config, tmp_path)
        table = tmp_path / "episodes.csv"
        before = rows_of(table)
        with table.open("a") as file:
            # after the checkpoint, and cut off by a kill
            file.write("100000,0,1,3,9.000\n200000,0,1,")
        train_config(run_config | {"total_steps": 320}, tmp_path, resume=True)
        after = rows_of(table)
        assert after[: len(before)] == before
        assert len(after) > len(before)
        assert all(int(row["step"]) <= 324 for row in after)

    def test_that_is_resumed_counts_the_episodes_that_a_kept_point_knows_of(
        self, tmp_path: Path
    ) -> None:
        """A checkpoint has the steps of events that come after it, but not their episodes."""
        run_config = config(total_steps=160, **THREE_STEPS)
        before = train_config(run_config, tmp_path).summary["episodes"]
        table = tmp_path / "metrics.csv"
        header, *rows = table.read_text().splitlines()
        place = header.split(",").index("rollout/episodes")
        last = rows[-1].split(",")
        last[place] = str(before + 5)
        table.write_text("\n".join([header, *rows[:-1], ",".join(last), ""]))
        after = train_config(run_config | {"total_steps": 320}, tmp_path, resume=True).summary
        points = read_points(table)
        episodes = [point["rollout/episodes"] for point in points if "rollout/episodes" in point]
        assert episodes == sorted(episodes)
        assert after["episodes"] == episodes[-1] > before + 5


class TestEpisodeLog:
    def test_has_a_limit_which_is_told_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
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
        """An episode of a rollout that was under way may have ended at an earlier step than that of
        the checkpoint."""
        path = tmp_path / "episodes.csv"
        written = episode_table(tmp_path)
        written.on_episodes(told(1.0004), 0, episodes(10, 30))
        written.on_episodes(told(1.0011), 1, episodes(20))
        written.close(True)
        episode_table(tmp_path, episodes=2).close(True)
        assert [row["step"] for row in rows_of(path)] == ["10", "30"]

    def test_a_file_of_another_program_is_set_aside(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "episodes.csv"
        content = "a,b\r1,2\r"
        path.write_text(content, newline="")
        with caplog.at_level(logging.WARNING, "a3c_exp"):
            episode_table(tmp_path, episodes=3).close(True)
        assert rows_of(path) == []
        assert (tmp_path / "episodes.csv.old").read_bytes() == content.encode()
        [message] = caplog.messages
        assert "episodes.csv.old" in message
