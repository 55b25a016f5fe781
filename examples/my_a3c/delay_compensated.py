from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from a3c_exp.common.arrays import Floats
from a3c_exp.common.ranges import NotNegative
from a3c_exp.optimizers import RMSProp


@dataclass(frozen=True, kw_only=True)
class DelayCompensated(RMSProp):
    """DC-ASGD, Zheng et al. 2017 (arXiv 1609.08326), with RMSProp's step.

    g <- g + compensation g^2 (parameters - pulled)
    adaptive: the compensation is divided by the root of the mean square of the gradients.
    """

    compensation: NotNegative = 2.0
    adaptive: bool = True

    def compensate(
        self, gradient: Floats, parameters: Floats, pulled: Floats, state: Floats
    ) -> Floats:
        square = gradient * gradient
        curvature = self.compensation * square
        if self.adaptive:
            mean_square = self.decay * state[0] + (1 - self.decay) * square
            curvature /= np.sqrt(mean_square + 1e-7)
        return gradient + curvature * (parameters - pulled)
