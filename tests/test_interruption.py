"""Signals during a run: what they ask for, and whose handlers stay."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runs import LINUX, QUICK, wait_until

from a3c_exp.common.signals import ENDING, BreaksIn, Interruption, interruptions
from a3c_exp.run.files import RunOutput


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", ENDING)
def test_it_is_noted_which_signal_interrupted(number: int) -> None:
    noted = Interruption()
    with interruptions(noted):
        send(number)
        assert noted.signal == number
        send(signal.SIGTERM)
        assert noted.signal == number, "the first one counts"


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptions(Interruption()):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_ctrl_c_breaks_into_no_write(tmp_path: Path) -> None:
    noted = Interruption()

    def write() -> None:
        send(signal.SIGINT)
        send(signal.SIGINT)
        (tmp_path / "file").touch()

    with interruptions(noted):
        RunOutput(tmp_path, noted).write("file", write)
    assert (tmp_path / "file").exists() and noted.breaks_in is BreaksIn.SECOND_CTRL_C


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_third_signal_breaks_into_a_write_that_does_not_return(
    number: int, tmp_path: Path
) -> None:
    """What comes after it is written."""
    noted = Interruption()
    output = RunOutput(tmp_path, noted)

    def write() -> None:
        for _ in range(3):
            send(number)
        signal.pause()

    with interruptions(noted):
        output.write("file", write)
        output.write("other", (tmp_path / "other").touch)
    assert output.unwritten == {"file"}
    assert (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("breaks_in", "number", "breaking"),
    [
        (BreaksIn.NOTHING, signal.SIGINT, {}),
        (BreaksIn.SECOND_CTRL_C, signal.SIGINT, {2: (130,)}),
        (BreaksIn.SECOND_CTRL_C, signal.SIGTERM, {}),
        (BreaksIn.ANY_SIGNAL, signal.SIGTERM, {1: (143,)}),
    ],
)
def test_a_signal_breaks_in_where_it_may_and_once(
    breaks_in: BreaksIn, number: int, breaking: dict[int, tuple[int, ...]]
) -> None:
    broken_in = {}
    with interruptions(Interruption(breaks_in=breaks_in)):
        for count in (1, 2, 3):
            try:
                send(number)
            except KeyboardInterrupt as interrupt:
                broken_in[count] = interrupt.args
    assert broken_in == breaking


def test_sigusr1_asks_for_a_checkpoint_alone_and_preemption_counts_also_after_sigterm() -> None:
    """Slurm may send SIGTERM and SIGUSR2."""
    noted = Interruption()
    with interruptions(noted):
        send(signal.SIGUSR1)
        assert noted.save_requested and noted.signal is None
        send(signal.SIGTERM)
        send(signal.SIGUSR2)
    assert noted.signal == signal.SIGUSR2


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_programs_own_handler_of_preemption_is_called_once_the_run_is_saved(number: int) -> None:
    """submitit ends the process in it, and has the job queued again. SIGUSR1 is left to it
    alone."""
    noted = Interruption()
    received = list[int]()
    inside = list[int]()
    before = signal.signal(number, lambda signum, _: received.append(signum))
    try:
        with interruptions(noted):
            send(number)
            inside += received
        with interruptions(Interruption()):
            pass
    finally:
        signal.signal(number, before)
    assert received == [number]
    assert inside == ([number] if number == signal.SIGUSR1 else [])
    assert noted.signal == (None if number == signal.SIGUSR1 else number)


def start(*words: str, folder: Path) -> subprocess.Popen[str]:
    """The program, as nohup starts it: SIGHUP is ignored."""
    command = [sys.executable, "-m", "a3c_exp", *QUICK, *words]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGHUP, before)


@LINUX
@pytest.mark.parametrize("number", [each for each in ENDING if each != signal.SIGHUP])
def test_a_signal_while_the_program_starts_ends_it_without_a_trace(
    number: int, tmp_path: Path
) -> None:
    program = start(folder=tmp_path)
    status = Path(f"/proc/{program.pid}/status")

    def handles_sigxcpu() -> bool:
        caught = re.search(r"SigCgt:\s*(\w+)", status.read_text())
        assert caught is not None
        return bool(int(caught[1], 16) >> (signal.SIGXCPU - 1) & 1)

    wait_until(handles_sigxcpu)
    program.send_signal(signal.SIGHUP)  # it was ignored, and stays so
    program.send_signal(number)
    assert program.communicate(timeout=60)[1] == ""
    assert program.returncode == (75 if number == signal.SIGUSR2 else 128 + number)
    assert not list(tmp_path.iterdir())


def test_a_signal_that_a_callback_of_a_weak_reference_swallows_comes_again() -> None:
    """Python's imports have such callbacks."""
    script = (
        "import os, signal, time, weakref\n"
        "from a3c_exp.common import signals\n"
        "from a3c_exp.exit_codes import exit_code\n"
        "def interrupted():\n"
        "    kept = {1}\n"
        "    watch = weakref.ref(kept, lambda _: os.kill(os.getpid(), signal.SIGTERM))\n"
        "    del kept\n"
        "    time.sleep(60)\n"
        "signals.end_early()\n"
        "os._exit(exit_code(interrupted))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert (ended.stderr, ended.returncode) == ("", 128 + signal.SIGTERM)


def test_a_signal_while_an_environment_is_made_is_none_of_its_errors(tmp_path: Path) -> None:
    made = (
        "class Env(gymnasium.Env):\n    def __init__(self):\n        os.kill(os.getpid(), "
        "signal.SIGTERM)\n"
    )
    (tmp_path / "ending.py").write_text(
        f"import os, signal, gymnasium\n{made}gymnasium.register('Ending-v0', Env)\n"
    )
    program = start("plugins=[ending]", "env=gym", "env.id=Ending-v0", folder=tmp_path)
    assert program.communicate(timeout=60)[1] == ""
    assert program.returncode == 128 + signal.SIGTERM
