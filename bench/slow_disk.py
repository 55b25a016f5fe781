"""A plugin that makes a disk slow: every write of the curves and of episodes.csv takes 200 ms longer.

It stands for a file system on a network, in a run with plugins=[bench.slow_disk].
"""

from __future__ import annotations

import time

from a3c_exp.run.curves import Appender

SECONDS = 0.2
_write = Appender.write


def _write_slowly(self: Appender, piece: bytes) -> None:
    time.sleep(SECONDS)
    _write(self, piece)


Appender.write = _write_slowly  # type: ignore[method-assign]
