"""Makes the modules of this folder importable: here, and in every process that a test starts.

Children of multiprocessing get a copy of sys.path; programs that a test starts by command line only get the
environment. The scripted environments (scripted.py) are therefore there for both, as 'scripted:Scripted-v0' with
plugins=[scripted].
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = str(Path(__file__).parent)

if HERE not in sys.path:
    sys.path.insert(0, HERE)
if HERE not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Makes parameter servers without Ray (servers.Cluster), and ends them."""
    from servers import Cluster

    made: list[Cluster] = []

    def make(*arguments: Any, **settings: Any) -> Cluster:
        made.append(Cluster(*arguments, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()
