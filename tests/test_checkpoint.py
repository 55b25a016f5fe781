"""Checkpoints come back exactly, are never half written, and never run code."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import resource
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from killing import killed_at_line
from refusals import refused
from runs import LINUX, same

from a3c_exp.errors import ConfigError
from a3c_exp.run import checkpoint, files
from a3c_exp.run.files import Appender, FolderLockedError, exclusive_folder, write_text


def test_a_checkpoint_has_the_same_bytes_each_time_and_its_arrays_can_be_written_to(
    tmp_path: Path,
) -> None:
    (tmp_path / "two.partial").write_bytes(b"x" * 10_000)  # of a process that was killed
    for name in ("one", "two"):
        checkpoint.save(
            tmp_path / name, {"store": {"parameters": np.arange(50, dtype=np.float32), "steps": 7}}
        )
    loaded = checkpoint.load_file(tmp_path / "one")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["one", "two"]
    loaded["store"]["parameters"] += 1
    with np.load(tmp_path / "one", allow_pickle=False) as opened:
        assert np.array_equal(opened["store/parameters"] + 1, loaded["store"]["parameters"])


names = st.text("ab.Ü 0", min_size=1, max_size=3)
plain = st.integers(-(2**128), 2**128) | st.floats() | st.booleans() | st.none() | names
dtypes: list[Any] = [
    np.float32,
    np.float64,
    np.int64,
    np.uint64,
    np.uint8,
    np.bool_,
    np.dtype("<U5"),
]
arrays: st.SearchStrategy[Any] = hnp.arrays(
    st.sampled_from(dtypes),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
states = st.dictionaries(
    names,
    st.recursive(
        plain | arrays,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


@given(states)
@settings(max_examples=60)
def test_any_nesting_of_plain_values_and_arrays_comes_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, state: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.ckpt"
    checkpoint.save(path, state)
    assert same(checkpoint.load_file(path), state)


@pytest.mark.parametrize(
    ("value", "kind", "place"),
    [
        (np.array([{}], dtype=object), "ndarray", "x"),
        *(({key: 2}, "dict", "x") for key in ("a/b", "", "a\0", "__array__", 1)),
        ([1, {"y": {1, 2}}], "set", "x/1/y"),
    ],
)
def test_what_would_not_come_back_as_it_was_is_refused_and_the_old_one_stays(
    tmp_path: Path, value: Any, kind: str, place: str
) -> None:
    path = tmp_path / "latest.ckpt"
    checkpoint.save(path, {"kept": 1})
    with pytest.raises(TypeError, match=rf"{kind} \(at statistics/{place}\)"):
        checkpoint.save(path, {"statistics": {"x": value}})
    assert checkpoint.load_file(path) == {"kept": 1}
    assert list(tmp_path.iterdir()) == [path]


# -- what is refused -------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    return refused(lambda: checkpoint.load_file(path), "folder", str(path))


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latest.ckpt"
    assert "no such checkpoint" in refusal(path)
    assert "is no checkpoint" in refusal(tmp_path)
    for content in (b"", b"PK", pickle.dumps({"parameters": 1})):
        path.write_bytes(content)
        assert "is no checkpoint" in refusal(path)


def archive(path: Path, header: Any, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("state.json", header if isinstance(header, str) else json.dumps(header))
        for name, content in entries.items():
            file.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("version", [checkpoint.VERSION - 1, checkpoint.VERSION + 1])
def test_a_checkpoint_of_another_version_says_so(tmp_path: Path, version: int) -> None:
    assert "version" in refusal(archive(tmp_path / "c", {"version": version, "state": {}}))


def test_a_header_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    states = (
        [1],
        {"__array__": 3},
        *({"x": {"__array__": name}} for name in (["a"], "missing.npy", "state.json")),
    )
    headers = [{"version": checkpoint.VERSION, "state": state} for state in states]
    for header in ("", "[" * 100_000, "7", {"version": checkpoint.VERSION}, *headers):
        assert "is no checkpoint" in refusal(archive(tmp_path / "c", header))


class Mischief:
    """Unpickled, it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_in_a_checkpoint_is_refused_and_not_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    with open(tmp_path / "x.npy", "wb") as file:
        np.save(file, np.array([Mischief(trap)], dtype=object), allow_pickle=True)
    header = {"version": checkpoint.VERSION, "state": {"x": {"__array__": "x.npy"}}}
    refusal(archive(tmp_path / "c", header, x=(tmp_path / "x.npy").read_bytes()))
    assert not trap.exists()


def test_a_checkpoint_cut_off_anywhere_or_with_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "c"
    small = {
        "parameters": np.arange(4, dtype=np.float32),
        "statistics": {"steps": 12, "returns": np.ones(2)},
    }
    checkpoint.save(path, small)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 11), len(whole) - 1]:
        path.write_bytes(whole[:length])
        refusal(path)
    noticed = 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            assert same(checkpoint.load_file(path), small), f"byte {place} changed unseen"
        except ConfigError:
            noticed += 1
    # the rest are dates and the like, which the archive keeps and nobody reads
    assert noticed > len(whole) // 6


# -- being cut short -------------------------------------------------------------------------------


def test_a_process_killed_at_any_line_while_it_saves_leaves_the_old_checkpoint_or_the_new_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "latest.ckpt"
    checkpoint.save(path, {"steps": 1})
    new = {"parameters": np.ones(1000, np.float32), "steps": 2}
    folder = str(Path(checkpoint.__file__).parent)
    line = 1
    kept = 0
    while killed_at_line(line, folder, lambda: checkpoint.save(path, new)):
        state = checkpoint.load_file(path)
        kept += "parameters" not in state
        assert state == {"steps": 1} or same(state, new)
        line += 2
    assert kept > 10
    checkpoint.save(path, {"steps": 3})  # over whatever was left
    assert checkpoint.load_file(path) == {"steps": 3}
    assert list(tmp_path.iterdir()) == [path]


# -- JSON for people and programs ------------------------------------------------------------------


def test_a_summary_is_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    files.write_json(
        path,
        {"steps": np.int64(3), "mean": math.nan, "worst": -np.inf, "list": (1, np.float32(0.5))},
    )
    text = path.read_text()
    expected = {"steps": 3, "mean": None, "worst": None, "list": [1, 0.5]}
    assert json.loads(text, parse_constant=pytest.fail) == expected
    assert text.endswith("}\n")
    assert os.listdir(tmp_path) == ["summary.json"]


# Other files.


@LINUX
def test_a_file_is_on_disk_before_it_takes_the_old_ones_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its folder is afterwards. A power cut comes at any moment, and cannot be made."""
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(file: int) -> None:
        calls.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        fsync(file)

    def note_replace(old: Path, new: Path) -> None:
        calls.append("replace")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_text(tmp_path / "note.txt", "new")
    assert calls == ["note.txt.partial", "replace", tmp_path.name]


def test_what_does_not_fit_leaves_nothing_of_itself_behind_and_is_written_later(
    tmp_path: Path,
) -> None:
    """The limit on the size of files stands in for a full disk: a write beyond it stops half-way,
    the next fails."""
    write_text(tmp_path / "note.txt", "old")
    appender = Appender(tmp_path / "log")
    appender.add(b"whole\n" * 10)
    appender.flush()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        appender.add(b"x" * 90)
        for write in (appender.flush, lambda: write_text(tmp_path / "note.txt", "n" * 200)):
            with pytest.raises(OSError, match="File too large"):
                write()
            assert len((tmp_path / "log").read_bytes()) == 60
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    appender.add(b"y" * 90)
    appender.close()
    assert (tmp_path / "log").read_bytes() == b"whole\n" * 10 + b"x" * 90 + b"y" * 90
    assert (tmp_path / "note.txt").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"log", "note.txt"}


class Interrupted(io.FileIO):
    """A file whose writes Ctrl-C breaks off once they are done."""

    def write(self, data: Any) -> int:
        written = super().write(data)
        signal.raise_signal(signal.SIGINT)
        return written


def test_what_ctrl_c_breaks_off_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = Appender(tmp_path / "log")
    with monkeypatch.context() as patch:
        patch.setattr(appender, "_file", Interrupted(tmp_path / "log", "a"))
        appender.add(b"row\n")
        with pytest.raises(KeyboardInterrupt):
            appender.flush()
    appender.close()
    assert (tmp_path / "log").read_bytes() == b"row\n"


def test_a_fork_of_a_killed_process_holds_no_lock(tmp_path: Path) -> None:
    """An environment may have forked it."""
    script = (
        "import os, sys, time, pathlib\n"
        "from a3c_exp.run.files import exclusive_folder\n"
        "with exclusive_folder(pathlib.Path(sys.argv[1])):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        os.close(1)\n"
        "        time.sleep(60)\n"
        "    print(child, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True
    )
    child = int(killed.stdout)
    try:
        with (
            exclusive_folder(tmp_path),
            pytest.raises(FolderLockedError),
            exclusive_folder(tmp_path),
        ):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
