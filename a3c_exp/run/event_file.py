"""TensorBoard's event file, written record by record.

torch's `SummaryWriter` imports TensorFlow where that is installed: until its first point is in a
file it takes 3.3 s of processor time (5.7 s on the clock), and this module 0.05 s (0.07 s). These
are medians over four alternating pairs of processes that had imported torch, on two cores, with
torch 2.13 and TensorFlow 2.21. Without TensorFlow the difference is below 0.02 s.

On a full disk the thread of that writer ends, with a traceback and half a record in the file, and
the writer takes no point any more, though there is room again. Here the points wait: see
`Appender`.
"""

from __future__ import annotations

import io
import os
import re
import socket
import struct
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as custom_scalar
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.util.tensor_util import make_tensor_proto

from a3c_exp.common.settings import flatten
from a3c_exp.core.run_view import Media
from a3c_exp.run.files import Appender
from a3c_exp.run.run_folder import EVENTS, config_text

BINS = 64  # of histograms

CHARTS = {
    "Learning": {
        "return": ["rollout/ep_rew_mean", "eval/mean_reward"],
        "episode length": ["rollout/ep_len_mean", "eval/mean_ep_length"],
    },
    "Optimization": {
        "losses": ["train/policy_loss", "train/value_loss"],
        "entropy": ["train/entropy"],
        "learning rate": ["train/learning_rate"],
    },
    "Health": {
        "gradient norm": ["train/grad_norm"],
        "explained variance": ["train/explained_variance"],
        "refused updates": ["train/rejected_updates"],
    },
    "Asynchrony and speed": {
        "staleness": [f"workers/staleness_{name}" for name in ("mean", "p50", "p95", "max")],
        "steps per second": ["time/steps_per_second"],
    },
}
"""The page CUSTOM SCALARS: its categories, their charts, and the curves in each chart."""

_STAMP = re.compile(r"[0-9]{10}(?=\.)")


class EventFile(Appender):
    """A new event file in `folder`, for one session of a run.

    Its name is of the form that other readers take, and sorts after those of earlier files in the
    folder: TensorBoard reads files in that order. See `Appender` for a full disk: records that do
    not fit are written with the next ones.

    start: step at which the session starts. Points of earlier files at this step and later are
    void.
    """

    def __init__(self, folder: Path, start: int) -> None:
        # The last part is the number of the file in its process, for other writers; here each has
        # seconds of its own.
        self.path = (
            folder / f"{EVENTS}{_next_stamp(folder):010d}.{socket.gethostname()}.{os.getpid()}.0"
        )
        super().__init__(self.path)
        self.write(file_version="brain.Event:2")
        # The first session writes its start too: TensorBoard acts only on the second and later
        # ones.
        self.write(step=start, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))

    def write(self, **content: Any) -> None:
        """Write an event with fields of TensorBoard's `Event`, such as `summary`."""
        self.add(record(event_pb2.Event(wall_time=time.time(), **content).SerializeToString()))
        self.flush()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write the points of the curves at one step (float32 in TensorBoard)."""
        points = [
            summary_pb2.Summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
        ]
        self.write(step=step, summary=summary_pb2.Summary(value=points))

    def media(self, step: int, kind: Media, name: str, value: Any) -> None:
        """Write a histogram, an image or a text: see `Callback.on_media`. A video has no place
        here."""
        makers: dict[str, Callable[[str, Any], summary_pb2.Summary.Value]]
        makers = {"histogram": _histogram, "image": _image, "text": _text}
        if kind in makers:
            self.write(step=step, summary=summary_pb2.Summary(value=[makers[kind](name, value)]))

    def success(self) -> None:
        """Write the successful end of the run, for the HParams dashboard."""
        info = plugin_data_pb2.SessionEndInfo(
            status=api_pb2.STATUS_SUCCESS, end_time_secs=time.time()
        )
        about = metadata.create_summary_metadata(
            plugin_data_pb2.HParamsPluginData(session_end_info=info)
        )
        end = {
            "tag": metadata.SESSION_END_INFO_TAG,
            "metadata": about,
            "tensor": metadata.NULL_TENSOR,
        }
        self.write(summary=summary_pb2.Summary(value=[end]))


def _next_stamp(folder: Path) -> int:
    """The time in seconds, or the second after the last one in the name of a file in `folder`,
    whichever is later."""
    names = [path.name.removeprefix(EVENTS) for path in folder.glob(f"{EVENTS}*")]
    stamps = [int(stamp[0]) for name in names if (stamp := _STAMP.match(name))]
    return max([int(time.time()), *(stamp + 1 for stamp in stamps)])


def record(data: bytes) -> bytes:
    """`data` as one TFRecord: length, checksum of the length, the data, checksum of the data."""
    length = struct.pack("<Q", len(data))
    return b"".join(
        [
            length,
            struct.pack("<I", masked_crc32c(length)),
            data,
            struct.pack("<I", masked_crc32c(data)),
        ]
    )


def header(config: Mapping[str, Any]) -> summary_pb2.Summary:
    """Return what a session begins with: the configuration as a text and as hyperparameters, and
    the layout of CHARTS.

    The hyperparameters are a row of the HParams dashboard, whose metrics are the run's curves.
    """
    # indented: verbatim in Markdown
    code = textwrap.indent(config_text(config).rstrip(), "    ", lambda _: True)
    # Without an identity each run is a trial. By default all with the same hyperparameters are one.
    session = hparams_pb(hparams(config), trial_id="").value
    return summary_pb2.Summary(value=[_text("config", code), *session, _layout()])


def _layout() -> summary_pb2.Summary.Value:
    categories = []
    for title, charts in CHARTS.items():
        # A tag is a regular expression of the beginning of a curve's name.
        multilines = [
            {"title": chart, "multiline": {"tag": [f"{name}$" for name in names]}}
            for chart, names in charts.items()
        ]
        categories.append({"title": title, "chart": multilines})
    layout = layout_pb2.Layout(category=categories).SerializeToString()
    return _summary_value(custom_scalar.CONFIG_SUMMARY_TAG, custom_scalar.PLUGIN_NAME, layout)


def _text(tag: str, markdown: str) -> summary_pb2.Summary.Value:
    """A text for the text dashboard."""
    return _summary_value(tag, "text", markdown)


def _histogram(tag: str, numbers: NDArray[np.float64]) -> summary_pb2.Summary.Value:
    """Numbers [N] for the histogram dashboard: rows of left edge, right edge, count.

    TensorBoard's own `histogram_pb` holds N times BINS numbers meanwhile.
    """
    counts, edges = np.histogram(numbers, BINS)
    return _summary_value(tag, "histograms", np.stack([edges[:-1], edges[1:], counts], axis=1))


def _image(tag: str, pixels: NDArray[np.uint8]) -> summary_pb2.Summary.Value:
    """An image [height, width, 3] for the image dashboard: width, height, PNG."""
    from PIL import Image  # TensorBoard needs Pillow, and few runs have images

    png = io.BytesIO()
    Image.fromarray(pixels).save(png, "PNG")
    height, width, _ = pixels.shape
    strings = [str(width).encode(), str(height).encode(), png.getvalue()]
    return _summary_value(tag, "images", np.array(strings, object))


def _summary_value(tag: str, plugin: str, content: Any) -> summary_pb2.Summary.Value:
    return summary_pb2.Summary.Value(
        tag=tag,
        tensor=make_tensor_proto(content),
        metadata={"plugin_data": {"plugin_name": plugin}},
    )


def hparams(config: Mapping[str, Any]) -> dict[str, bool | float | str]:
    """A nested configuration as columns of the HParams dashboard.

    `{"returns": {"_target_": "a3c_exp.returns.NStep", "n": 5}}` is
    `{"returns": "NStep", "returns.n": 5}`.
    None has no column: otherwise one run without a value would turn the numbers of all runs into
    text.
    """
    columns: dict[str, bool | float | str] = {}
    for key, value in flatten(config):
        component, _, name = key.rpartition(".")
        if name == "_target_":
            columns[component or key] = str(value).rpartition(".")[2]
        elif value is not None and value != {}:
            columns[key] = value if isinstance(value, bool | int | float | str) else str(value)
    return columns
