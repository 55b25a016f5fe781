from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from a3c_exp.common.arrays import Floats
from a3c_exp.errors import require
from a3c_exp.optimizers import Optimizer


@dataclass(frozen=True, kw_only=True)
class Lion(Optimizer):
    """Lion, Chen et al. 2023 (arXiv 2302.06675, algorithm 2).

    parameters <- parameters - rate (sign(b1 m + (1 - b1) g) + weight_decay parameters)
    m <- b2 m + (1 - b2) g
    """

    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            all(0 <= beta < 1 for beta in self.betas),
            "betas",
            self.betas,
            "two numbers from 0 to less than 1",
        )

    @property
    def state_rows(self) -> int:
        """The mean of the gradient."""
        return 1

    def direction(self, state: Floats, gradient: Floats, scratch: Floats, t: int) -> Floats:
        first, second = self.betas
        mean: Floats = state[0]
        np.sign(first * mean + (1 - first) * gradient, out=scratch)
        mean *= second
        mean += (1 - second) * gradient
        return scratch

    def step(
        self, parameters: Floats, state: Floats, gradient: Floats, rate: float | Floats, t: int
    ) -> None:
        if self.weight_decay:
            parameters *= 1 - rate * self.weight_decay
        super().step(parameters, state, gradient, rate, t)
