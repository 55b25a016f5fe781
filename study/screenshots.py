"""`python -m study.screenshots`: the pictures of dashboards in docs/, of a real sweep. Needs matplotlib and Chromium.

Trains a sweep of twelve small runs, shows it in TensorBoard and in the report of `python -m a3c_exp.report`, and writes
what a browser without a window draws.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from study.runs import ROOT

DOCS = ROOT / "docs"
SWEEP = (
    "-m", "env=cartpole", "returns=gae,n_step", "optimizer.learning_rate=1e-3,3e-3", "seed=0,1,2",
    "backend=serial", "workers=2", "total_steps=300000", "stop.mean_return=null", "eval.every=50000",
)  # fmt: skip
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DASHBOARDS = {"hparams": "hparams", "custom_scalars": "custom_scalars", "runs": "timeseries"}
"""Pages of TensorBoard, by the name of the picture."""
SIZE, LONG = (1400, 900), (1240, 1250)
PATIENCE_SECONDS = 60.0
SETTLE_MILLISECONDS = 20_000
"""Of the page's own time, before the picture is taken. It does not count what TensorBoard draws in another thread, so
`forceSVG` lets it draw in the page itself."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m study.screenshots", description=(__doc__ or "").partition(":")[2])
    parser.add_argument("--to", type=Path, default=DOCS, help="another folder to write")
    parser.add_argument("--sweep", type=Path, help="show the runs in this folder, and train none")
    flags = parser.parse_args(arguments)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"study.screenshots needs one of {', '.join(BROWSERS)}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as temporary:
        sweep = flags.sweep or train(Path(temporary) / "sweep")
        report = Path(temporary) / "report"
        execute("a3c_exp.report", str(sweep), f"to={report}")
        page = (report / "index.html").as_uri()
        shoot(browser, page, flags.to / "report.png", LONG)
        shoot(browser, page, flags.to / "report_dark.png", LONG, "--blink-settings=preferredColorScheme=0")
        with tensorboard(sweep) as address:
            for name, dashboard in DASHBOARDS.items():
                shoot(browser, f"{address}/?forceSVG=true#{dashboard}", flags.to / f"tensorboard_{name}.png", SIZE)
    return 0


def train(folder: Path) -> Path:
    """Train the sweep in `folder`."""
    execute("a3c_exp", *SWEEP, f"hydra.sweep.dir={folder}")
    return folder


def execute(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)


@contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """TensorBoard on a folder; yields its address once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{address}/data/runs")
        yield address
    finally:
        process.terminate()
        process.wait()


def wait_for(address: str) -> None:
    """Wait until the address answers with runs. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(address) as answer:
                if len(answer.read()) > len("[]\n"):
                    return
        except OSError:
            pass
        time.sleep(0.5)
    raise TimeoutError(f"{address} does not answer")


def shoot(browser: str, address: str, target: Path, size: tuple[int, int], *flags: str) -> None:
    """Write what the browser draws of a page."""
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser, "--headless", *as_root, "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
                f"--window-size={size[0]},{size[1]}", f"--virtual-time-budget={SETTLE_MILLISECONDS}", *flags,
                f"--screenshot={target.absolute()}", address,
            ],
            check=True, stderr=subprocess.DEVNULL, timeout=PATIENCE_SECONDS,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
