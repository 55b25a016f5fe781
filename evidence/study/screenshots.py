"""`python -m evidence.study.screenshots`: the images of TensorBoard in docs/, of a sweep of eight
runs.

Needs Chromium or Chrome (Debian: `apt-get install chromium`). TensorBoard listens on this machine
alone, and ends with the command.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from PIL import Image

from evidence.study.runs import ROOT

SWEEP = (
    "env=cartpole workers=4 total_steps=80000 eval.every=10000 stop.mean_return=null "
    "returns=gae,n_step optimizer.learning_rate=0.002,0.005 seed=0,1"
)
RUNS = 8
LAST_CURVE = "eval/mean_reward"
"""A curve that a run has got once TensorBoard has read its file."""
PAGES = {
    "tensorboard.png": ("custom_scalars", (1600, 1580)),
    "tensorboard_hparams.png": ("hparams", (1800, 560)),
}
"""Pages of TensorBoard, and their width and height in pixels, by the image in docs/."""
COLORS = 128
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OFFLINE = "--no-first-run --disable-background-networking --disable-component-update --disable-sync"
PATIENCE_SECONDS = 60.0


def main(arguments: Sequence[str] | None = None) -> None:
    argparse.ArgumentParser("python -m evidence.study.screenshots", description=__doc__).parse_args(
        arguments
    )
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"one of these programs is needed: {', '.join(BROWSERS)}")

    with tempfile.TemporaryDirectory() as folder:
        sweep = Path(folder, "sweep")
        words = [*SWEEP.split(), "jobs=2", f"sweep={sweep}"]
        subprocess.run([sys.executable, "-m", "a3c_exp", "-m", *words], cwd=ROOT, check=True)

        with tensorboard(sweep, RUNS) as address:
            for image, (page, size) in PAGES.items():
                path = ROOT / "docs" / image
                shoot(browser, f"{address}#{page}", size, path)
                print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


@contextmanager
def tensorboard(folder: Path, runs: int) -> Iterator[str]:
    """Give the address of a TensorBoard that has read so many runs in `folder`."""
    words = ["--logdir", folder.name, "--host", "localhost", "--port", "0", "--load_fast=false"]
    command = [sys.executable, "-m", "tensorboard.main", *words]

    with subprocess.Popen(command, cwd=folder.parent, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = map(re.compile(r"http://localhost:\d+/").search, process.stderr)
            address = next(line[0] for line in lines if line)
            wait_for_runs(address, runs)
            yield address
        finally:
            process.terminate()


def wait_for_runs(address: str, runs: int) -> None:
    """Wait until TensorBoard has read the runs. Raises TimeoutError after PATIENCE_SECONDS."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        with urlopen(f"{address}data/plugin/scalars/tags") as answer:
            curves = json.load(answer)
        if sum(LAST_CURVE in names for names in curves.values()) == runs:
            return
        time.sleep(0.5)

    raise TimeoutError(f"TensorBoard has not read {runs} runs")


def shoot(browser: str, address: str, size: tuple[int, int], path: Path) -> None:
    """Write what a browser shows at an address as a PNG of few colors."""
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as profile:
        width, height = size
        options = ["--headless", "--disable-gpu", "--hide-scrollbars", *OFFLINE.split(), *as_root]
        options += [f"--user-data-dir={profile}", "--virtual-time-budget=20000"]
        options += [f"--window-size={width},{height}", f"--screenshot={path}"]
        command = [browser, *options, address]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS * 2)

    with Image.open(path) as image:
        few = image.convert("RGB").quantize(COLORS)
    few.save(path, optimize=True)


if __name__ == "__main__":
    main()
