"""The best policy of a run so far, as evaluations find it."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

from a3c_exp.errors import ConfigError
from a3c_exp.run import checkpoint
from a3c_exp.run.evaluator import EvalResult
from a3c_exp.run.run_folder import BEST, CHECKPOINTS


class BestPolicy:
    """The mean return of the best evaluation so far; None before the first."""

    def __init__(self) -> None:
        self.mean_return: float | None = None

    def is_better(self, result: EvalResult, *, equal_counts: bool = False) -> bool:
        """Note an evaluation, and return whether it is the best so far. equal_counts: also if it equals the best."""
        mean, best = result.mean_return, self.mean_return
        better = not math.isnan(mean) and (best is None or mean > best or (equal_counts and mean == best))
        if better:
            self.mean_return = mean
        return better

    def resume(self, mean_return: float | None, folder: Path) -> None:
        """Continue from a checkpoint. A run that was killed may have found a better policy after it last saved its
        state: that policy is not to be overwritten by a worse one."""
        self.mean_return = mean_return
        with suppress(ConfigError):
            best = checkpoint.load(folder / CHECKPOINTS / BEST)["best_eval_return"]
            self.mean_return = best if mean_return is None else max(best, mean_return)
