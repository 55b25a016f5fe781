"""A run's curves: TensorBoard's event file, written record by record, and metrics.csv.

TensorBoard's own writer and torch's take a quarter of a second to import (they import all of TensorFlow where it is
installed). They also write from a thread, which notices a full disk late and leaves half a record in the file.
"""

from __future__ import annotations

import csv
import io
import logging
import math
import os
import re
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

from a3c_exp.run.files import atomic_write, set_aside
from a3c_exp.run.run_folder import METRICS_FILE, config_text

log = logging.getLogger("a3c_exp")

FIRST_COLUMNS = ["step", "wall_seconds"]


class ResumePoint(NamedTuple):
    """Where a resumed run goes on: the moment of its checkpoint.

    steps: of the run. wall_seconds: since its start. training_seconds: of these, those of training.
    """

    steps: int
    wall_seconds: float = math.inf
    training_seconds: float = math.inf


class CurveWriter:
    """Writes a run's curves into its folder: an event file for TensorBoard, and metrics.csv.

    folder: the run's folder, which exists.
    config: the run's configuration, for TensorBoard's text and HParams dashboards.
    resumed: where a resumed run continues; None for a new run. Points of later steps are void: their rows of
        metrics.csv are dropped, and TensorBoard hides them, so that each curve stays one line.

    Every call leaves whole records on disk or raises OSError. A full disk damages no earlier record.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], resumed: ResumePoint | None = None) -> None:
        self._table = CsvLog(folder / METRICS_FILE, resumed)
        self._events = EventFile(folder)
        self._events.session(0 if resumed is None else resumed.steps + 1)
        code = "\n".join(f"    {line}" for line in config_text(config).splitlines())  # indented: verbatim in Markdown
        self._events.summary(
            0,
            text("config", code),
            dashboard(DASHBOARD),
            session_start(hparams(config)),
        )

    def log(self, step: int, values: Mapping[str, float], wall_seconds: float) -> None:
        """Write one point: `values` by name, at `step` of the run, after `wall_seconds`.

        An evaluation's point has the step of the evaluated parameters, which may lie before the last point's.
        """
        self._events.summary(step, *(scalar(name, value) for name, value in values.items()))
        self._table.append(step, wall_seconds, values)

    def close(self, success: bool = True) -> None:
        """Finish the files.

        success: mark the run as ended on the HParams dashboard. Other runs are left open there: they may be resumed,
            and the dashboard keeps the first record of how a run ended.
        """
        try:
            if success:
                self._events.summary(0, session_end())
        finally:
            self._events.close()
            self._table.close()


class CsvLog:
    """metrics.csv: `step`, `wall_seconds` and one column for each name; a cell without a value is empty.

    A new name adds a column. The file is then rewritten and replaced atomically.
    """

    def __init__(self, path: Path, resumed: ResumePoint | None) -> None:
        """Open the file at `path`, new or existing. Its rows after the steps of `resumed` are dropped.

        A kept row may be younger than the checkpoint: that of an evaluation, or the last point before it. It gets the
        checkpoint's time, so that time never goes back. A file with anything else that cannot be kept is set aside: see
        `_read`.
        """
        self._path = path
        columns, rows = _read(path)
        if resumed is not None:
            rows = [row for row in rows if int(row["step"]) <= resumed.steps]
            for row in rows:
                if float(row["wall_seconds"]) > resumed.wall_seconds:
                    row["wall_seconds"] = _rounded(resumed.wall_seconds)
        self._columns, self._file = columns, Appender(path)
        self._replace(columns, rows)

    def append(self, step: int, wall_seconds: float, values: Mapping[str, float]) -> None:
        """Add a row. Raises OSError if it does not fit on the disk, and leaves the file as it was."""
        new = [name for name in values if name not in self._columns]
        if new:
            self._replace([*self._columns, *new], _read(self._path)[1])
        row = {"step": step, "wall_seconds": _rounded(wall_seconds), **values}
        self._file.write(_line([row.get(name, "") for name in self._columns]))

    def _replace(self, columns: list[str], rows: Sequence[Mapping[str, str]]) -> None:
        lines = [_line(columns), *(_line([row.get(name, "") for name in columns]) for row in rows)]
        atomic_write(self._path, lambda file: file.writelines(lines))
        self._file.close()
        self._columns = columns
        self._file = Appender(self._path)

    def close(self) -> None:
        self._file.close()


def _read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns and the rows of a table. A last line without its end, of a writer that was killed, is left out.

    If anything else cannot be read, what another program has made of it, the file is set aside as it is.
    """
    columns, lost = FIRST_COLUMNS, ""
    rows = list[dict[str, str]]()
    if not path.exists() or not path.stat().st_size:
        return columns, rows
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        table = csv.DictReader(line for line in file if line.endswith("\n"))
        columns = []
        with suppress(csv.Error):
            columns = list(table.fieldnames or ())
        found = list(_readable(table)) if columns[: len(FIRST_COLUMNS)] == FIRST_COLUMNS else []
    if columns[: len(FIRST_COLUMNS)] != FIRST_COLUMNS:
        columns, lost = FIRST_COLUMNS, "is no table of this program"
    else:
        rows = [row for row in found if row is not None and _is_whole(row)]
        if len(rows) < len(found):
            lost = f"has unreadable rows ({len(found) - len(rows)})"
    if lost:
        aside = set_aside(path)
        log.warning("%s %s: it is kept as %s", path.name, lost, aside.name)
    return columns, rows


def _readable(table: csv.DictReader[str]) -> Iterator[dict[str, str] | None]:
    """The rows of a table; None for one that the reader refuses: a cell of a hundred thousand characters."""
    while True:
        try:
            row = next(table, None)
        except csv.Error:
            yield None
            continue
        if row is None:
            return
        yield row


def _is_whole(row: Mapping[Any, Any]) -> bool:
    """Return whether a row has a step and a time, and as many cells as there are columns."""
    try:
        int(row["step"] or ""), float(row["wall_seconds"] or "")
    except ValueError:
        return False
    return None not in row and None not in row.values()


def _rounded(seconds: float) -> str:
    return repr(round(seconds, 3))


def _line(cells: Sequence[object]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue().encode()


class Appender:
    """A file that grows by whole pieces: one that does not fit on a full disk is removed again.

    The file stays readable, and later writes succeed once there is room again. A missing file is created.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        self._end = os.fstat(self._file.fileno()).st_size

    def write(self, piece: bytes) -> None:
        """Append `piece`, unbuffered. Raises OSError if it does not fit."""
        rest = memoryview(piece)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(self._end)
            raise
        self._end += len(piece)

    def close(self) -> None:
        self._file.close()


_CASTAGNOLI = 0x82F63B78
_STRING = types_pb2.DT_STRING


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_CASTAGNOLI if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()


def masked_crc32c(data: bytes) -> int:
    """The checksum of the TFRecord format: CRC-32C, rotated right by 15 bits, plus a constant."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def record(data: bytes) -> bytes:
    """`data` as one TFRecord: length, checksum of the length, the data, checksum of the data."""
    length = struct.pack("<Q", len(data))
    return b"".join([length, struct.pack("<I", masked_crc32c(length)), data, struct.pack("<I", masked_crc32c(data))])


_EVENTS = "events.out.tfevents."
_STAMP = re.compile(r"[0-9]{10}\.[0-9]{6}")


def _next_stamp(folder: Path) -> float:
    """The time in seconds, or a moment after that in the name of a file in `folder` if the clock was put back since."""
    names = [path.name.removeprefix(_EVENTS)[:17] for path in folder.glob(f"{_EVENTS}*")]
    stamps = [float(name) for name in names if _STAMP.fullmatch(name)]
    return max([time.time(), *(stamp + 1e-3 for stamp in stamps)])


class EventFile:
    """A new event file in `folder`, for one session of a run.

    Its name sorts after those of earlier files in the folder: TensorBoard reads files in that order.
    """

    def __init__(self, folder: Path) -> None:
        name = f"{_EVENTS}{_next_stamp(folder):017.6f}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        self._file = Appender(self.path)
        self._write(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))

    def _write(self, *events: event_pb2.Event) -> None:
        self._file.write(b"".join(record(event.SerializeToString()) for event in events))

    def summary(self, step: int, *values: summary_pb2.Summary.Value) -> None:
        """Write the values of one step."""
        self._write(event_pb2.Event(wall_time=time.time(), step=step, summary=summary_pb2.Summary(value=values)))

    def session(self, step: int) -> None:
        """Write the start of a session: points of earlier files at `step` and later are void.

        The first session writes one too: TensorBoard acts only on the second and later ones.
        """
        session = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(event_pb2.Event(wall_time=time.time(), step=step, session_log=session))

    def close(self) -> None:
        self._file.close()


def _value(
    tag: str, plugin: str, *, content: bytes = b"", tensor: tensor_pb2.TensorProto | None = None
) -> summary_pb2.Summary.Value:
    data = summary_pb2.SummaryMetadata.PluginData(plugin_name=plugin, content=content)
    return summary_pb2.Summary.Value(tag=tag, tensor=tensor, metadata=summary_pb2.SummaryMetadata(plugin_data=data))


def _string(value: bytes) -> tensor_pb2.TensorProto:
    return tensor_pb2.TensorProto(dtype=_STRING, string_val=[value], tensor_shape=tensor_shape_pb2.TensorShapeProto())


def scalar(tag: str, value: float) -> summary_pb2.Summary.Value:
    """A point of a curve (float32 in TensorBoard)."""
    return summary_pb2.Summary.Value(tag=tag, simple_value=value)


def text(tag: str, markdown: str) -> summary_pb2.Summary.Value:
    """A text for the text dashboard."""
    return _value(tag, "text", tensor=_string(markdown.encode()))


def dashboard(categories: Mapping[str, Mapping[str, list[str]]]) -> summary_pb2.Summary.Value:
    """The custom scalars dashboard. categories: by title, charts; these by title, regular expressions of tags."""
    proto = layout_pb2.Layout()
    for title, charts in categories.items():
        category = proto.category.add(title=title)
        for name, tags in charts.items():
            category.chart.add(title=name, multiline=layout_pb2.MultilineChartContent(tag=tags))
    return _value("custom_scalars__config__", "custom_scalars", tensor=_string(proto.SerializeToString()))


def _session(tag: str, **content: Any) -> summary_pb2.Summary.Value:
    data = plugin_data_pb2.HParamsPluginData(version=0, **content)
    empty = tensor_pb2.TensorProto(
        dtype=types_pb2.DT_FLOAT,
        tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=0)]),
    )
    return _value(f"_hparams_/{tag}", "hparams", content=data.SerializeToString(), tensor=empty)


def session_start(hparams: Mapping[str, bool | float | str]) -> summary_pb2.Summary.Value:
    """The hyperparameters of a run: a row of the HParams dashboard, whose metrics are the run's curves."""
    info = plugin_data_pb2.SessionStartInfo(start_time_secs=time.time())
    for name, value in hparams.items():
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif isinstance(value, str):
            info.hparams[name].string_value = value
        else:
            info.hparams[name].number_value = value
    return _session("session_start_info", session_start_info=info)


def session_end() -> summary_pb2.Summary.Value:
    """The successful end of a run on the HParams dashboard."""
    info = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS, end_time_secs=time.time())
    return _session("session_end_info", session_end_info=info)


DASHBOARD: dict[str, dict[str, list[str]]] = {
    "Learning": {
        "Reward": ["^rollout/ep_rew_mean$", "^eval/mean_reward$"],
        "Losses": ["^train/policy_loss$", "^train/value_loss$"],
        "Entropy": ["^train/entropy$"],
    },
    "Health": {
        "Explained variance": ["^train/explained_variance$"],
        "Mean value": ["^train/mean_value$"],
        "Gradient norm": ["^train/grad_norm$"],
        "Parameter norm": ["^train/parameter_norm$"],
        "Learning rate": ["^train/learning_rate$"],
    },
    "Asynchrony and speed": {
        "Staleness": ["^async/staleness_mean$", "^async/staleness_max$"],
        "Steps per second": ["^time/steps_per_second$"],
        "Episode length": ["^rollout/ep_len_mean$", "^eval/mean_ep_length$"],
    },
}
"""The custom scalars dashboard: see `dashboard`."""


def hparams(config: Mapping[str, Any], prefix: str = "") -> dict[str, bool | float | str]:
    """A nested configuration as columns of the HParams dashboard.

    `{"returns": {"_target_": "a3c_exp.returns.NStep", "n": 5}}` is `{"returns": "NStep", "returns.n": 5}`.
    None has no column: otherwise one run without a value would turn the numbers of all runs into text.
    """
    columns: dict[str, bool | float | str] = {}
    for key, value in config.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if key == "_target_":
            columns[prefix or name] = str(value).rpartition(".")[2]
        elif isinstance(value, Mapping):
            columns.update(hparams(value, name))
        elif isinstance(value, bool | int | float | str):
            columns[name] = value
        elif value is not None:
            columns[name] = str(value)
    return columns
