"""TensorBoard's event file, checked against TensorBoard's own reader."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.summary.writer.record_writer import RecordWriter

from a3c_exp.run.event_file import EventFile, record


@given(st.binary(max_size=300))
def test_a_record_is_what_tensorboards_writer_writes(data: bytes) -> None:
    file = io.BytesIO()
    RecordWriter(file).write(data)
    assert record(data) == file.getvalue()


def test_tensorboard_reads_what_was_written_while_the_file_is_still_open(tmp_path: Path) -> None:
    events = EventFile(tmp_path, {}, start=0)
    events.scalars(7, {"train/entropy": 0.5})
    found = list(EventFileLoader(str(events.path)).Load())
    events.close()
    assert found[0].file_version == "brain.Event:2"
    assert (found[-1].step, found[-1].summary.value[0].tag) == (7, "train/entropy")


def test_files_are_read_in_order_although_the_clock_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run's session on another machine, or after the clock has been set right."""
    names, now = [], 1_800_000_000.5
    for seconds in (now, now, now - 86_400, now - 3600, now + 60):
        monkeypatch.setattr("time.time", lambda seconds=seconds: seconds)
        events = EventFile(tmp_path, {}, start=0)
        events.close()
        names.append(events.path.name)
    assert names == sorted(set(names))
    assert names[4].startswith(f"events.out.tfevents.{now + 60:.6f}")
