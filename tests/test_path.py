"""The way of an update is counted: files, records and frames."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is not installed: it belongs to the checkout

from bench import path
from bench.checkout import HERE

PACKAGE = {
    "conf/config.yaml": "",
    "a3c_exp/__init__.py": """
from a3c_exp import start
from a3c_exp.backend import Backend

def train(overrides, folder):
    start.start()
    folder.mkdir()
    with open(folder / "metrics.csv", "w") as file:
        file.write("step\\n")
        for update in range(8):
            Backend().run(file, 256 * update)
""",
    "a3c_exp/start.py": """
from dataclasses import dataclass

@dataclass
class Setup:
    step: int

def start():
    return Setup(0)
""",
    "a3c_exp/backend.py": """
from a3c_exp.worker import Plain, learn

class Backend:
    def run(self, file, step):
        Plain()
        file.write(f"{learn(step)}\\n")
        file.flush()
""",
    "a3c_exp/worker.py": """
from dataclasses import dataclass
from typing import NamedTuple

@dataclass(frozen=True)
class Rollout:
    steps: int

class Pulled(NamedTuple):
    version: int

class Plain:
    def __init__(self):
        pass

def learn(step):
    return pull(step).version

def pull(step):
    return Pulled(Rollout(step).steps)
""",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_is_called_between_two_points_is_counted(checkout: Path) -> None:
    assert path.way(checkout) == {
        "files": ["a3c_exp/backend.py", "a3c_exp/worker.py"],
        "records": ["a3c_exp.worker.Pulled", "a3c_exp.worker.Rollout"],
        "frames": [
            "a3c_exp/__init__.py:train",
            "a3c_exp/backend.py:Backend.run",
            "a3c_exp/worker.py:learn",
            "a3c_exp/worker.py:pull",
        ],
    }


def test_the_counts_are_printed_with_their_lists(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert path.main([str(checkout)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line[0] != " "] == ["2 files", "2 records", "4 frames, 2 of them the worker's"]
    assert len(lines) == 3 + 2 + 2 + 4


def test_an_update_of_this_checkout_is_counted() -> None:
    found = path.way(HERE)
    assert all((HERE / name).is_file() for name in found["files"])
    assert any(name.startswith("a3c_exp/networks/") for name in found["files"])
    assert any(name.endswith(".Rollout") for name in found["records"])
    assert found["frames"][0] == "a3c_exp/__init__.py:train"
    assert 0 < path.of_worker(found["frames"]) < len(found["frames"])


def test_a_folder_that_is_no_checkout_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert path.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
