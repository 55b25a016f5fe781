"""The program `a3c-exp`: its commands under one name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import refused

from a3c_exp.cli.program import COMMANDS, command

ROOT = Path(__file__).parents[1]
SCRIPT = """
import sys
from a3c_exp.cli.program import main
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.mark.slow
def test_it_trains_with_worker_processes(tmp_path: Path) -> None:
    """Workers may import the main module again, which is the program here: a script, as pip installs it."""
    (tmp_path / "a3c-exp").write_text(SCRIPT)
    words = ["backend=processes", "workers=2", "total_steps=200", "eval.every=null", "hydra.run.dir=run"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    call = [sys.executable, "a3c-exp", "train", *words]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stop_reason"] == "total_steps"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_that_of_its_module(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command([name, "--help"]) == 0
    module = "a3c_exp" if name == "train" else f"a3c_exp.{name}"
    assert f"python -m {module} " in capsys.readouterr().out


def test_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert command([]) == 2
    assert command(["--help"]) == 0
    assert capsys.readouterr().out.count("a3c-exp evaluate outputs/<run>") == 2


def test_a_command_that_there_is_not_is_refused() -> None:
    assert "'evaluate'" in refused(lambda: command(["evalute"]), "command", "evalute")
