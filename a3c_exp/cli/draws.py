"""Numbers that are drawn for a sweep: `optimizer.learning_rate=loguniform(1e-4,1e-2,20)`.

Hydra's parser reads the annotations, so they are not postponed here.
"""

from math import inf, log
from typing import Any

import numpy as np
from hydra.core.override_parser.types import ChoiceSweep

MOST_DRAWS = 10_000


def loguniform(low: Any, high: Any, count: Any, seed: Any = 0) -> ChoiceSweep:
    """`count` numbers between `low` and `high` whose logarithms are uniform, as in figure 2 of Mnih et al. 2016.

    They have five digits, and depend on this `seed` alone, not on that of the runs. A larger count begins with the
    numbers of a smaller one. Raises ValueError.
    """
    numbers = all(type(each) in (int, float) for each in (low, high))
    if not (numbers and 0 < low < high < inf and type(count) is type(seed) is int and 0 < count <= MOST_DRAWS):
        raise ValueError(f"it is loguniform(low,high,count) with 0 < low < high and at most {MOST_DRAWS:,} draws")
    drawn = np.random.default_rng(abs(seed)).uniform(log(low), log(high), count)
    return ChoiceSweep(list=[float(f"{number:.5g}") for number in np.exp(drawn)])
