"""Devices for tests of GA3C: the CPU, and a GPU if there is one."""

from __future__ import annotations

import pytest
import torch

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
every_device = pytest.mark.parametrize("device", [torch.device("cpu"), pytest.param(torch.device("cuda"), marks=GPU)])
