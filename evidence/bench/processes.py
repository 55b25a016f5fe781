"""Processes of runs, found in /proc. Linux only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def read_process(pid: int, name: str) -> str:
    """Return the content of a file about a process; empty if the process has ended, or is another
    user's."""
    try:
        return (PROC / str(pid) / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def tree(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    yield pid
    for children in (PROC / str(pid) / "task").glob("*/children"):
        with suppress(OSError):
            for child in children.read_text().split():
                yield from tree(int(child))


def marked(mark: str) -> list[int]:
    """Return the living processes whose environment has `mark`, NAME=value."""
    pids = [int(path.name) for path in PROC.glob("[0-9]*")]
    return [pid for pid in pids if mark in read_process(pid, "environ").split("\0")]


def worker_pids(run: int) -> list[int]:
    """Return the worker processes of a run, in the order in which they were started: children of
    its fork server."""
    servers = [pid for pid in tree(run) if "forkserver" in read_process(pid, "cmdline")]
    return sorted(pid for server in servers for pid in tree(server) if pid != server)
