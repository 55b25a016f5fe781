"""The comparison of training speed with another checkout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from a3c_exp.algorithms import A3C
from a3c_exp.algorithms.algorithm import has_closed_form
from bench.modules import AutogradA3C, SequentialMlp, TorchMlp
from bench.versus import START, interval, main


def test_the_interval_of_equal_ratios_is_their_value() -> None:
    assert interval([1.5] * 10) == (1.5, 1.5)


def test_the_interval_lies_within_the_ratios_and_holds_the_median() -> None:
    low, high = interval([0.9, 0.95, 1.0, 1.0, 1.05, 1.1])
    assert 0.9 <= low <= 1.0 <= high <= 1.1


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "must be a checkout" in line


@pytest.mark.parametrize("row", ["cartpole_2x16", START])
def test_two_sets_of_settings_of_one_checkout_are_compared(row: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A user's network beside the built-in one, in one pair of short runs."""
    network = ["--set", "plugins=[bench.modules]", "--here", "network={_target_: bench.modules.TorchMlp}"]
    assert main([".", "--only", row, "--pairs", "1", "--seconds", "1", *network]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    ratio = float(line.split()[1])
    assert line.startswith(row)
    assert 0 < ratio < 100


def test_the_modules_that_are_compared_are_equal() -> None:
    """The same parameters give the same features, and a class that overrides the loss has no closed form."""
    torch.manual_seed(0)
    sequential, own_forward = SequentialMlp(4), TorchMlp(4)
    own_forward.layers.load_state_dict(sequential.state_dict())
    x = torch.randn(5, 4)
    assert torch.equal(sequential(x), own_forward(x))
    assert has_closed_form(A3C)
    assert not has_closed_form(AutogradA3C)
