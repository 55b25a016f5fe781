"""TensorBoard's event file, written record by record.

TensorBoard's own writer and torch's do the same, but bring a quarter of a second of imports (all of TensorFlow, where
it is installed) and write from a thread, in which a full disk is noticed late and leaves half a record behind.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

from a3c_exp.run.files import Appender

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
    """The checksum of a record: CRC-32C, rotated right by 15 bits, plus a constant, as the TFRecord format has it."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def record(data: bytes) -> bytes:
    """`data` as one TFRecord: length, checksum of the length, the data, checksum of the data."""
    length = struct.pack("<Q", len(data))
    return b"".join([length, struct.pack("<I", masked_crc32c(length)), data, struct.pack("<I", masked_crc32c(data))])


class EventFile:
    """One event file, new, in `folder`: what one process writes of one run.

    Its name sorts behind those of earlier files of the folder: TensorBoard reads them in that order.
    """

    def __init__(self, folder: Path) -> None:
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        self._file = Appender(self.path)
        self._write(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))

    def _write(self, *events: event_pb2.Event) -> None:
        self._file.write(b"".join(record(event.SerializeToString()) for event in events))

    def summary(self, step: int, *values: summary_pb2.Summary.Value) -> None:
        """Write values of one step."""
        self._write(event_pb2.Event(wall_time=time.time(), step=step, summary=summary_pb2.Summary(value=values)))

    def session(self, step: int) -> None:
        """Say that a session of the run begins: what earlier files hold of `step` and later steps is void.

        To be said by the first session too: TensorBoard takes only the second such record, and later ones, at its word.
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
    """A page of the text dashboard."""
    return _value(tag, "text", tensor=_string(markdown.encode()))


def dashboard(categories: Mapping[str, Mapping[str, list[str]]]) -> summary_pb2.Summary.Value:
    """The custom scalars dashboard: by category, by chart title, the tags (regular expressions) drawn in one chart."""
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
    """A row of the HParams dashboard, with its hyperparameters; its metrics are the run's curves."""
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
    """Its run has come to its end."""
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
        "Gradient norm": ["^train/grad_norm$"],
        "Learning rate": ["^train/learning_rate$"],
    },
    "Asynchrony and speed": {
        "Staleness": ["^async/staleness_mean$", "^async/staleness_max$"],
        "Steps per second": ["^time/steps_per_second$"],
        "Episode length": ["^rollout/ep_len_mean$", "^eval/mean_ep_length$"],
    },
}
"""What TensorBoard's custom scalars dashboard shows: rows of charts, by title the curves drawn in each."""


def hparams(config: Mapping[str, Any], prefix: str = "") -> dict[str, bool | float | str]:
    """A nested configuration as the columns of the HParams dashboard.

    `{"returns": {"_target_": "a3c_exp.returns.NStep", "n": 5}}` is `{"returns": "NStep", "returns.n": 5}`.
    None has no column: a value that is missing in one run must not turn the other runs' numbers into text.
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
