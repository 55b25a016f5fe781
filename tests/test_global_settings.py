"""Environments that change settings of the whole process: the run goes on as without them."""

from __future__ import annotations

import io
import logging
import logging.config
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from runs import config
from scripted import Bandit

import a3c_exp
from a3c_exp.core.cpu import environment
from a3c_exp.envs import Gym
from a3c_exp.exit_codes import exit_code
from a3c_exp.run.console import run_log


class Setting(Bandit):
    """A bandit whose constructor changes how numpy and torch compute."""

    def __init__(self) -> None:
        super().__init__()
        np.seterr(all="raise")
        torch.set_default_dtype(torch.float64)


@pytest.fixture
def setting() -> Iterator[str]:
    """The id of `Setting`. Afterwards, numpy and torch are as before."""
    gymnasium.register("Setting-v0", f"{__name__}:Setting")
    with np.errstate():
        yield "Setting-v0"
    torch.set_default_dtype(torch.float32)
    del gymnasium.registry["Setting-v0"]


def test_a_network_is_of_float32_whatever_torchs_default_is(setting: str, tmp_path: Path) -> None:
    run = a3c_exp.train(config(setting), tmp_path / "run")
    assert run.summary["stop_reason"] == "total_steps"
    assert torch.get_default_dtype() == torch.float64  # on which the environment may rely


def test_a_small_gradient_is_no_error_where_numpy_is_to_raise(setting: str) -> None:
    Gym(id=setting).make(1, [0]).close()
    assert np.square(np.full(1, 1e-30, np.float32)) == 0
    with pytest.raises(FloatingPointError):  # as the environment wants it
        np.divide(np.ones(1), np.zeros(1))


def test_the_log_goes_on_where_logging_is_configured_anew(tmp_path: Path) -> None:
    loggers = logging.root.manager.loggerDict.values()
    before = [(each, each.disabled) for each in loggers if isinstance(each, logging.Logger)]
    with run_log(tmp_path / "train.log", io.StringIO()):
        logging.config.dictConfig({"version": 1})
        logging.getLogger("a3c_exp").warning("worker 1 failed")
    for logger, disabled in before:
        logger.disabled = disabled
    assert "worker 1 failed" in (tmp_path / "train.log").read_text()


class Handling(Bandit):
    """A bandit whose constructor lets SIGTERM end the process at once."""

    def __init__(self) -> None:
        super().__init__()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_a_run_is_saved_although_an_environment_has_set_a_handler(tmp_path: Path) -> None:
    program = """
import gymnasium, os, signal, sys
from runs import config
import a3c_exp
from a3c_exp.callbacks import Callback

class Sending(Callback):
    def on_tick(self, run):
        os.kill(os.getpid(), signal.SIGTERM)

gymnasium.register("Handling-v0", "test_global_settings:Handling")
run = a3c_exp.train(config("Handling-v0"), sys.argv[1], callbacks=[Sending()])
"""
    subprocess.run([sys.executable, "-c", program, tmp_path / "run"], cwd=Path(__file__).parent)
    assert (tmp_path / "run" / "checkpoints" / "latest.ckpt").exists()


def test_a_closed_standard_output_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    assert exit_code(lambda: 0) == 0


@pytest.mark.parametrize("left", ["threading.Thread(target=hang).start()", "atexit.register(hang)"])
def test_a_program_ends_although_a_thread_or_an_exit_handler_does_not(left: str) -> None:
    program = f"""
import atexit, sys, threading
import a3c_exp.exit_codes
from a3c_exp.__main__ import main

hang = threading.Event().wait
{left}
a3c_exp.exit_codes.LEAVING_SECONDS = 0.1
sys.argv[1:] = ["--version"]
sys.exit(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0
    assert "still runs" in ended.stderr


def test_a_variable_that_a_run_has_removed_is_no_error() -> None:
    """An environment may have removed it, in a run that has otherwise ended well."""
    with environment({"A3C_EXP_TEST": "1"}):
        del os.environ["A3C_EXP_TEST"]
    assert "A3C_EXP_TEST" not in os.environ
