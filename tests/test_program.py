"""The script `a3c-exp`, as pip installs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = """
import sys
from a3c_exp.__main__ import main
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.mark.slow
def test_it_trains_with_worker_processes(tmp_path: Path) -> None:
    """Workers may import the main module again, which is the script here."""
    (tmp_path / "a3c-exp").write_text(SCRIPT)
    words = ["backend=processes", "workers=2", "total_steps=200", "eval.every=null", "hydra.run.dir=run"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    call = [sys.executable, "a3c-exp", *words]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stop_reason"] == "total_steps"
