"""Files that are never found half written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from a3c_exp.run.files import atomic_write, write_text


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    write_text(path, "old")

    def fail(file: IO[bytes]) -> None:
        file.write(b"half of the n")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        atomic_write(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_behind_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    (tmp_path / "note.txt.partial").write_text("half of a much longer thing, from before")
    write_text(path, "zwei: ü")
    assert path.read_text(encoding="utf-8") == "zwei: ü"
    assert list(tmp_path.iterdir()) == [path]


FULL_DISK = """
import resource, sys
from pathlib import Path
from a3c_exp.run.files import Appender, write_text

folder = Path(sys.argv[1])
write_text(folder / "note.txt", "old")
appender = Appender(folder / "log")

def append(piece):
    appender.add(piece)
    appender.flush()

append(b"whole\\n" * 10)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
for attempt in (lambda: append(b"x" * 90), lambda: write_text(folder / "note.txt", "n" * 200)):
    try:
        attempt()
    except OSError as error:
        print(type(error).__name__, len((folder / "log").read_bytes()))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
append(b"y" * 90)
"""


def test_what_does_not_fit_leaves_nothing_of_itself_behind_and_is_written_later(tmp_path: Path) -> None:
    """The limit on the size of files stands in for a full disk: a write beyond it stops half-way, the next fails."""
    done = subprocess.run([sys.executable, "-c", FULL_DISK, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "OSError 60\nOSError 60\n"
    assert (tmp_path / "log").read_bytes() == b"whole\n" * 10 + b"x" * 90 + b"y" * 90
    assert (tmp_path / "note.txt").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"log", "note.txt"}
