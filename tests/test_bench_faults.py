"""Faults in whole runs: a small part of `python -m bench.faults`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from runs import LINUX

sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is not installed: it belongs to the checkout

from bench.damage import flip_bits
from bench.faults import __main__ as command
from bench.faults import killing
from bench.faults.bits import Checkpoint, Damage, cut_end
from bench.faults.cases import Case, Outcome, Row, try_row
from bench.faults.killing import Kill


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_a_run_killed_at_a_random_moment_of_its_training_is_resumed_by_the_same_command(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(killing, "PHASES", ("training",))
    row = Row("killed", 1, Kill(backend))
    (outcome,) = try_row(backend, row, 1, 0, tmp_path)
    assert (outcome.happened, outcome.fault) == ("training: resumed", "")


@pytest.mark.parametrize(("damage", "happened"), [(flip_bits, {"refused", "read as it was"}), (cut_end, {"refused"})])
def test_a_damaged_checkpoint_is_refused_or_read_as_it_was(damage: Damage, happened: set[str], tmp_path: Path) -> None:
    outcomes = try_row("bits", Row("", 50, Checkpoint(damage)), 50, 0, tmp_path)
    assert {outcome.happened for outcome in outcomes} == happened
    assert not any(outcome.fault for outcome in outcomes)


# The command itself.


def fails(rng: random.Random, number: int, folder: Path) -> Outcome:
    (folder / "output").write_text("what it said")
    return Outcome(happened="resumed", lost={"most steps": rng.randrange(5, 10)}, fault="a fault")


def breaks(rng: random.Random, number: int, folder: Path) -> Outcome:
    raise ValueError("of the case")


@pytest.mark.parametrize(("case", "fault"), [(fails, "resumed: a fault"), (breaks, "ValueError: of the case")])
def test_a_case_that_ends_badly_is_counted_and_kept(
    case: Case, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "ROWS", {"disk": Row("a full disk", 3, case), "stop": Row("not asked for", 3, case)})
    assert command.main(["--only", "disk", "--times", "2", "--keep", str(tmp_path)]) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"disk_0", "disk_1"}
    assert fault in (tmp_path / "disk_1" / "fault").read_text()
    *_, line = capsys.readouterr().out.splitlines()
    assert line.startswith("| a full disk | 2 | ")
    assert "; WRONG: 2 |" in line
