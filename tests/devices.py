"""Devices for tests of GA3C, and an optimizer that no device other than the host can step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from a3c_exp.common.arrays import Floats
from a3c_exp.optimizers import Optimizer

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a GPU")
every_device = pytest.mark.parametrize("device", [torch.device("cpu"), pytest.param(torch.device("cuda"), marks=GPU)])


@dataclass(frozen=True, kw_only=True)
class ArrayLion(Optimizer):
    """Chen et al. 2023 (arXiv 2302.06675, algorithm 2), written for arrays alone."""

    @property
    def state_rows(self) -> int:
        return 1

    def direction(self, state: Floats, gradient: Floats, scratch: Floats, t: int) -> Floats:
        mean: Floats = state[0]
        np.sign(0.9 * mean + 0.1 * gradient, out=scratch)
        mean *= 0.99
        mean += 0.01 * gradient
        return scratch
