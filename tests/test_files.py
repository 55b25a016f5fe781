"""Files that are never found half written."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runs import LINUX

from a3c_exp.run.files import Appender, FolderLockedError, exclusive_folder, write_text


@LINUX
def test_a_file_is_on_disk_before_it_takes_the_old_ones_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_does_not_fit_leaves_nothing_of_itself_behind_and_is_written_later(tmp_path: Path) -> None:
    """The limit on the size of files stands in for a full disk: a write beyond it stops half-way, the next fails."""
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
    killed = subprocess.run([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True)
    child = int(killed.stdout)
    try:
        with exclusive_folder(tmp_path), pytest.raises(FolderLockedError), exclusive_folder(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
