"""A plugin that makes a disk slow: every write of the curves and of episodes.csv takes 200 ms longer.

It stands for a file system on a network, in a run with plugins=[bench.slow_disk].
"""

from __future__ import annotations

import time

from a3c_exp.run.files import Appender

SECONDS = 0.2
_flush = Appender.flush


def _flush_slowly(self: Appender) -> None:
    time.sleep(SECONDS)
    _flush(self)


Appender.flush = _flush_slowly  # type: ignore[method-assign]
