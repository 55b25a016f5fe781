"""The program `a3c-exp`: its commands under one name."""

from __future__ import annotations

import pytest
from refusals import refused

from a3c_exp.cli.program import COMMANDS, command


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
