"""What sweeps rest on: cores that count, checkpoints that stay, and what tells jobs and their starter apart."""

from __future__ import annotations

import multiprocessing
import os
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from runs import LINUX, latest, same, train

from a3c_exp.backends import forkserver
from a3c_exp.cli import journal
from a3c_exp.cli.journal import Outcome, new_journal
from a3c_exp.core import cpu
from a3c_exp.run import checkpoint as checkpoint_format
from a3c_exp.run.files import bytes_text, exclusive_folder, keeping_copy, size_of, write_text


@LINUX
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 4),
        ({"cpu.max": "max 100000"}, 4),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu.max": "damaged"}, 4),
    ],
)
def test_a_containers_quota_counts(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(cpu, "CGROUPS", tmp_path)
    monkeypatch.setattr(cpu, "_own_groups", lambda: [("", "/here"), ("cpu,cpuacct", "/here")])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert cpu.usable_cores() == cores


def test_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "usable_cores", lambda: 8)
    with cpu.cores_shared(3):
        assert cpu.cores_of_a_run() == 2
    with cpu.cores_shared(20):
        assert cpu.cores_of_a_run() == 1
    assert cpu.cores_of_a_run() == 8


@pytest.mark.parametrize(
    ("keep", "evaluate", "left"),
    [
        ("both", 80, {"latest.ckpt", "best.ckpt"}),
        ("latest", 80, {"latest.ckpt"}),
        ("best", 80, {"best.ckpt"}),
        ("best", None, {"latest.ckpt"}),
        ("none", 80, set()),
    ],
)
def test_a_finished_run_leaves_the_checkpoints_that_are_to_be_kept(
    keep: str, evaluate: int | None, left: set[str], tmp_path: Path
) -> None:
    train(tmp_path, checkpoint={"every": 40, "keep": keep}, eval={"every": evaluate, "episodes": 1})
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == left


def test_while_a_run_goes_on_there_is_the_checkpoint_before_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[dict[str, object]] = []
    folder = tmp_path / "checkpoints"
    original = checkpoint_format.save

    def save(path: Path, state: dict[str, object]) -> None:
        if len(saved) > 1:
            assert same(latest(tmp_path), saved[-1])
            assert same(checkpoint_format.load(folder / "previous.ckpt"), saved[-2])
        original(path, state)
        saved.append(latest(tmp_path))

    monkeypatch.setattr(checkpoint_format, "save", save)
    train(tmp_path, checkpoint={"every": 40})
    assert len(saved) >= 3
    assert {path.name for path in folder.iterdir()} == {"latest.ckpt"}


def test_a_failed_run_leaves_all_its_checkpoints(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"env__kwargs": {"fails_at": 20}, "env__on_error": "stop"}
    run = train(tmp_path, "scripted:Scripted-v0", checkpoint={"every": 8, "keep": "none"}, **settings)
    assert run.exit_code == 1
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"latest.ckpt"}


def test_a_copy_that_is_kept_is_not_changed_and_counts_once(tmp_path: Path) -> None:
    file, copy = tmp_path / "file", tmp_path / "copy"
    with keeping_copy(file, copy):
        write_text(file, "one")
    assert not copy.exists()
    with keeping_copy(file, copy):
        assert size_of(tmp_path) == 3
        write_text(file, "other")
    assert copy.read_text() == "one"
    assert size_of(tmp_path) == 8
    assert [bytes_text(size) for size in (0, 950, 34_500_000)] == ["0 B", "950 B", "34.5 MB"]


def test_a_copy_and_its_file_are_never_the_same_version(tmp_path: Path) -> None:
    """Otherwise damage to the one file would be damage to both, if the run is killed then."""
    file, copy = tmp_path / "file", tmp_path / "copy"
    for version in ("one", "two", "three"):
        with keeping_copy(file, copy):
            write_text(file, version)
            assert not copy.exists() or not copy.samefile(file)
    assert (file.read_text(), copy.read_text()) == ("three", "two")
    with pytest.raises(OSError, match="full"), keeping_copy(file, copy):
        assert copy.read_text() == "two"
        raise OSError("the disk is full")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "three", "copy": "two"}


def test_a_journal_holds_outcomes_and_the_first_signal(tmp_path: Path) -> None:
    (tmp_path / ".jobs" / "of_a_killed_process").mkdir(parents=True)
    (tmp_path / ".jobs" / "of_a_living_process").mkdir()
    with exclusive_folder(tmp_path / ".jobs" / "of_a_living_process"), new_journal(tmp_path) as begun:
        assert sorted(path.name for path in (tmp_path / ".jobs").iterdir()) == sorted(
            [begun.folder.name, "of_a_living_process"]
        )
        begun.begin(3)
        assert begun.has_begun(3)
        assert begun.outcome(3) is None
        begun.end(3, Outcome("ended", "total_steps"))
        assert begun.outcome(3) == Outcome("ended", "total_steps")
        begun.forget(3)
        assert not begun.has_begun(3)
        begun.stop(2)
        begun.stop(15)
        assert begun.stop_signal() == 2
    assert [path.name for path in (tmp_path / ".jobs").iterdir()] == ["of_a_living_process"]


@pytest.mark.parametrize("theft", ["removed", "locked", "with the place"])
def test_a_journal_is_begun_while_another_process_cleans_up(
    theft: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is locked, another start on the same folder takes it for that of a process that was killed."""
    made: list[Path] = []
    thefts = iter([theft])
    with ExitStack() as others:

        def make(dir: Path) -> str:
            stolen = next(thefts, None)
            if stolen == "with the place":
                dir.rmdir()
            made.append(Path(mkdtemp(dir=dir)))
            if stolen == "removed":
                made[0].rmdir()
            elif stolen == "locked":
                others.enter_context(exclusive_folder(made[0]))
            return str(made[-1])

        monkeypatch.setattr(journal, "mkdtemp", make)
        with new_journal(tmp_path) as begun:
            assert begun.folder == made[-1]
            begun.begin(0)
            assert begun.has_begun(0)
    assert next(thefts, None) is None


def tell_parent(writer: Connection) -> None:
    writer.send(os.getppid())


def tell_parents(writer: Connection) -> None:
    forkserver.ensure_running()
    child = forkserver.context().Process(target=tell_parent, args=(writer,))
    child.start()
    child.join()
    writer.send(os.getppid())
    writer.send(forkserver.has_died(0.0))


def test_a_process_that_was_forked_from_the_server_uses_the_same_one() -> None:
    """So runs at once import torch once, and not once for each of them and for each of their servers."""
    forkserver.ensure_running()
    reader, writer = forkserver.context().Pipe(duplex=False)
    with forkserver.without_main():
        process = forkserver.context().Process(target=tell_parents, args=(writer,))
        process.start()
    assert reader.poll(60)
    assert reader.recv() == reader.recv() != os.getpid()
    assert reader.recv() is False
    process.join()


def test_a_start_method_that_only_joblib_knows_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: "loky")
    monkeypatch.setattr(multiprocessing, "set_start_method", lambda method, force: chosen.append(method))
    forkserver.ensure_running()
    assert chosen == ["forkserver"]
