"""The program `a3c-exp`, and runs with the settings of another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from runs import QUICK

import a3c_exp
import a3c_exp.__main__ as training
from a3c_exp.cli.program import COMMANDS, command
from a3c_exp.errors import ConfigError

ROOT = Path(__file__).parents[1]
SCRIPT = f"""#!{sys.executable}
import sys
from a3c_exp.cli.program import main
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the program on the path as pip installs it."""
    program = tmp_path / "bin" / "a3c-exp"
    program.parent.mkdir()
    program.write_text(SCRIPT)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.slow
def test_it_trains_with_worker_processes(installed: Path) -> None:
    """Workers may import the main module again, which is the program here."""
    words = ["backend=processes", "workers=2", "total_steps=200", "eval.every=null", "hydra.run.dir=run"]
    done = subprocess.run(["a3c-exp", "train", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((installed / "run" / "summary.json").read_text())["stop_reason"] == "total_steps"


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
    with pytest.raises(ConfigError) as caught:
        command(["evalute"])
    assert (caught.value.key, caught.value.value) == ("command", "evalute") and "'evaluate'" in caught.value.problem


# from=<run>


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, in a folder of its own."""
    folder = tmp_path_factory.mktemp("from") / "first"
    changes = ["gamma=0.9", "env=acrobot", "optimizer.max_grad_norm=7"]
    assert training.main([*QUICK, *changes, f"hydra.run.dir={folder}"]) == 0
    return folder


def configuration(run: Path) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((run / "config.yaml").read_text())
    return read


def test_a_saved_configuration_runs_again(first: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    adam = "optimizer={_target_: a3c_exp.optimizers.Adam, learning_rate: 1e-3}"
    changes = ["seed=5", "returns=n_step", "returns.n=7", "critic_returns=gae", adam]
    assert training.main([f"from={first}", *changes, f"hydra.run.dir={second}"]) == 0
    before, after = configuration(first), configuration(second)
    assert after["returns"] == {"_target_": "a3c_exp.returns.NStep", "n": 7}
    assert after["critic_returns"]["_target_"] == "a3c_exp.returns.GAE"
    assert after["optimizer"] == {"_target_": "a3c_exp.optimizers.Adam", "learning_rate": 1e-3}, "it is written out"
    unchanged = before.keys() - {"seed", "returns", "critic_returns", "optimizer"}
    assert {key: before[key] for key in unchanged} == {key: after[key] for key in unchanged}
    assert (before["seed"], after["seed"]) == (0, 5)
    assert json.loads((second / "summary.json").read_text())["steps"] == 64


def test_a_run_again_has_a_new_folder(first: Path, here: Path) -> None:
    assert training.main([f"from={first}", "seed=2"]) == 0
    [folder] = (here / "outputs").iterdir()
    assert folder.name.endswith("_s2")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["from=nowhere"], "from = 'nowhere': must be the"),
        (["from="], "from = '': must be one"),
        (["from=FIRST", "-m", "seed=1,2"], "from = 'FIRST': cannot go with"),
        (["from=FIRST", "seed=1,2"], "seed = '1,2': cannot go with"),
        (["from=FIRST", "~env"], "env = None: cannot go with"),
        (["from=FIRST", "hydra.job.chdir=true"], "hydra.job.chdir = True: cannot go with"),
        (["from=FIRST", "sed=1"], "sed = 1: is no setting"),
        (["from=FIRST", "returns=gea"], "returns = 'gea': is no option:"),
        (["from=FIRST", "gamma=${nothing}"], "gamma = '${nothing}': cannot be resolved:"),
        (["from=FIRST", "hydra.run.dir=FIRST"], "hydra.run.dir ="),
    ],
)
def test_what_cannot_run_again_is_one_line(
    words: list[str], complaint: str, first: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert training.main([word.replace("FIRST", str(first)) for word in words]) == 2
    error = capfd.readouterr().err
    assert error.startswith(f"a3c_exp: {complaint}".replace("FIRST", str(first)))
    assert error.count("\n") == 1
    assert list(here.iterdir()) == []


def test_python_takes_the_configuration_itself(first: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train takes the content of a config"):
        a3c_exp.train([f"from={first}"])
    assert a3c_exp.train(configuration(first), tmp_path / "second").exit_code == 0
