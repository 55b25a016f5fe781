"""TensorBoard's event file, written record by record.

TensorBoard's own writer and torch's take a quarter of a second to import (they import all of TensorFlow where it is
installed). They also write from a thread, which notices a full disk late and leaves half a record in the file.
"""

from __future__ import annotations

import os
import re
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

    Its name sorts after those of earlier files in the folder: TensorBoard reads files in that order. See `Appender` for
    a full disk: records that do not fit are written with the next ones.
    """

    def __init__(self, folder: Path) -> None:
        name = f"{_EVENTS}{_next_stamp(folder):017.6f}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        self._file = Appender(self.path)
        self._write(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))

    def _write(self, event: event_pb2.Event) -> None:
        self._file.add(record(event.SerializeToString()))
        self._file.flush()

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
