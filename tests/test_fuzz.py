"""Wrong input drawn at random: a small part of `python -m bench.fuzz`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is not installed: it belongs to the checkout

from a3c_exp.cli.hydra_compose import hydra_session
from bench import fuzz


def test_overrides_at_random_are_accepted_or_refused_in_one_line(tmp_path: Path) -> None:
    with hydra_session() as hydra:
        outcomes = fuzz.try_all("overrides", fuzz.Overrides(hydra), 12, 1, tmp_path)
    assert set(outcomes) <= {"accepted", "one line"}, sorted(tmp_path.iterdir())
    assert len(outcomes) == 2, "both happen"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fuzz.finished_run(tmp_path_factory.mktemp("fuzz") / "run")


@pytest.mark.parametrize("name", fuzz.FILES)
def test_a_damaged_file_is_used_or_refused_in_one_line(name: str, whole: Path, tmp_path: Path) -> None:
    outcomes = fuzz.try_all(name, fuzz.DamagedFile(whole, name), 2, 1, tmp_path)
    assert set(outcomes) <= {"ran", "one line", "left out by name"}, sorted(tmp_path.iterdir())


# The command itself.


def raises(rng: random.Random, folder: Path) -> str:
    raise KeyError("of the program")


def goes_on(rng: random.Random, folder: Path) -> str:
    while True:
        pass


def runs_code(rng: random.Random, folder: Path) -> str:
    (folder / fuzz.CANARY).touch()
    return "ran"


def says_much(rng: random.Random, folder: Path) -> str:
    return fuzz.ended("one\ntwo\n")


@pytest.mark.parametrize(
    ("case", "outcome"),
    [(raises, "traceback"), (goes_on, "no end"), (runs_code, "code ran"), (says_much, "unclear line")],
)
def test_what_must_not_happen_is_counted_and_kept(
    case: fuzz.Case, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "SECONDS", 1)
    assert fuzz.try_all("kind", case, 1, 0, tmp_path) == {outcome: 1}
    assert (tmp_path / "kind_0").is_dir()
