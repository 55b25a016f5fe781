from __future__ import annotations

import math
from dataclasses import dataclass

from a3c_exp.schedules import Schedule


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Half a cosine wave from 1 to 0 (Loshchilov and Hutter 2017, arXiv 1608.03983, equation 5,
    without restarts)."""

    def __call__(self, progress: float) -> float:
        return (1 + math.cos(math.pi * min(progress, 1.0))) / 2
