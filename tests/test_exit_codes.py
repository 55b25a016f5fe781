"""Exit codes: of runs, and of what ends a command."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from runs import LINUX

from a3c_exp.ending import StopReason
from a3c_exp.errors import ConfigError, RunError
from a3c_exp.exit_codes import exit_code, run_exit_code

WELL: dict[str, Any] = {"signal": None, "error": None, "unwritten": []}


@pytest.mark.parametrize(
    ("summary", "code"),
    [
        ({}, 0),
        ({"error": "failed"}, 1),
        ({"unwritten": ["metrics.csv"]}, 1),
        ({"signal": signal.SIGTERM, "error": "failed"}, 143),
        ({"signal": signal.SIGUSR2}, 75),
    ],
)
def test_the_exit_code_of_a_run_follows_from_its_summary(
    summary: dict[str, Any], code: int
) -> None:
    assert run_exit_code(WELL | summary) == code


def raising(error: BaseException) -> Callable[[], int]:
    def program() -> int:
        raise error

    return program


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("seed", -1, "must be >= 0"), 2),
        (PermissionError(13, "Permission denied", "outputs"), 2),
        (OSError(errno.ENOSPC, "No space left on device", "best.onnx"), 1),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), 1),
        (RunError("a worker failed", StopReason.STALLED), 1),
        (KeyboardInterrupt(75), 75),
        (KeyboardInterrupt(), 130),
        (KeyboardInterrupt("of an environment"), 130),
    ],
)
def test_an_exception_that_ends_a_command_has_an_exit_code(
    error: BaseException, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(raising(error)) == code
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == (0 if isinstance(error, KeyboardInterrupt) else 1)


@LINUX
def test_a_result_that_stdout_has_no_room_for_is_a_failure() -> None:
    command = [sys.executable, "-m", "a3c_exp", "--version"]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, env=buffered, text=True
        )
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
