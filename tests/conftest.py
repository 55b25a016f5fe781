"""Makes the modules of this folder importable: here, and in every process that a test starts.

Children of multiprocessing get a copy of sys.path; programs that a test starts by command line only get the
environment. The scripted environments (scripted.py) are therefore there for both, as 'scripted:Scripted-v0' with
plugins=[scripted].
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)

if HERE not in sys.path:
    sys.path.insert(0, HERE)
if HERE not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take minutes begin first: where files run side by side, the last one then is a short one."""
    longest = ("test_ray.py", "test_faults.py", "test_docs.py")
    items.sort(key=lambda item: longest.index(item.path.name) if item.path.name in longest else len(longest))
