"""Signals during a run: what they ask for, and whose handlers stay."""

from __future__ import annotations

import os
import signal

import pytest

from a3c_exp.run.interruption import Interruption, interruptions


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR2])
def test_it_is_noted_which_signal_interrupted(number: int) -> None:
    noted = Interruption()
    with interruptions(noted):
        send(number)
        assert noted.signal == number
        send(signal.SIGTERM)
        assert noted.signal == number, "the first one counts"


def test_a_second_ctrl_c_breaks_in() -> None:
    with interruptions(Interruption()):
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


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
    """submitit ends the process in it, and has the job queued again. SIGUSR1 is left to it alone."""
    noted, received, inside = Interruption(), list[int](), list[int]()
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


def test_handlers_are_restored() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    with interruptions(Interruption()):
        pass
    assert [signal.getsignal(number) for number in numbers] == before
