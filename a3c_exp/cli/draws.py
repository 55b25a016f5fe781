"""Numbers that are drawn for a sweep: `optimizer.learning_rate=loguniform(1e-4,1e-2,20)`.

Hydra's parser reads the annotations, so they are not postponed here.
"""

from math import inf, log
from typing import Any

import numpy as np
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Sweep

MOST_DRAWS = 10_000


def loguniform(low: Any, high: Any, count: Any = None, seed: Any = 0) -> Sweep:
    """`count` numbers between `low` and `high` whose logarithms are uniform, as in figure 2 of Mnih
    et al. 2016.

    They have five digits, and depend on this `seed` alone, not on that of the runs. A larger count
    begins with the numbers of a smaller one. Without a count it is the range itself, for a search.
    Raises ValueError.
    """
    numbers = all(type(each) in (int, float) for each in (low, high))
    counted = type(count) is type(seed) is int and 0 < count <= MOST_DRAWS
    if not (numbers and 0 < low < high < inf and (counted or count is None)):
        raise ValueError(
            f"it is loguniform(low,high,count) with 0 < low < high and at most {MOST_DRAWS:,} draws"
        )
    if count is None:
        return IntervalSweep(start=float(low), end=float(high), tags={"log"})
    drawn = np.random.default_rng(abs(seed)).uniform(log(low), log(high), count)
    return ChoiceSweep(list=[float(f"{number:.5g}") for number in np.exp(drawn)])
