"""Whether a run still has what it had reached: a policy may collapse, and never learn again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from a3c_exp.common.arrays import Vector

LOST_SHARE = 2 / 3
"""Of what a run had gained, the share whose loss counts as a collapse. On the way up, good runs
lose half of it for a while (evidence/results/curves)."""
LASTING_SHARE = 0.1
"""A run says that it has collapsed once it has been so for this share of its total steps, or for as
many steps as it took to reach the peak, if these are fewer: returns go up and down at first."""


@dataclass(slots=True)
class ReturnPeak:
    """The highest mean return of training episodes, and whether the run has fallen from it.

    highest: the highest mean; None before the first.
    steps: the run's environment steps when it was reached.
    deviation: the standard deviation of the returns of that mean.
    base: the lowest mean before the highest.
    lowest: the lowest mean so far.
    fallen_at: the run's environment steps at which it fell; None if it stands.
    """

    highest: float | None = None
    steps: int = 0
    deviation: float = 0.0
    base: float = 0.0
    lowest: float = 0.0
    fallen_at: int | None = None

    def add(self, returns: Vector, steps: int) -> None:
        """Add the mean of the last returns [E]. steps: the run's environment steps by now."""
        mean = float(returns.mean())
        if self.highest is None:
            self.lowest = mean

        self.lowest = min(self.lowest, mean)
        if self.highest is None or mean >= self.highest:
            self.highest = mean
            self.steps = steps
            self.deviation = float(returns.std())
            self.base = self.lowest

        # A gain within the spread of the returns themselves may be chance.
        gain = self.highest - self.base
        has_fallen = gain > self.deviation and self.highest - mean > LOST_SHARE * gain
        if not has_fallen:
            self.fallen_at = None
        elif self.fallen_at is None:
            self.fallen_at = steps

    def has_collapsed(self, steps: int, total_steps: int) -> bool:
        """Return whether the run has been far below its peak for a while.

        steps: the run's environment steps by now.
        total_steps: those that it is to make.
        """
        if self.fallen_at is None:
            return False
        lasting = min(LASTING_SHARE * total_steps, self.steps)
        return steps - self.fallen_at >= lasting

    def state(self) -> dict[str, Any]:
        """Return the content of a checkpoint."""
        return asdict(self)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state()`."""
        for field in fields(self):
            setattr(self, field.name, state[field.name])
