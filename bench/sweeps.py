"""`python -m bench.sweeps`: sweeps with two runs at once, against one run after the other. Needs the extra `sweep`.

Of CartPole, the seconds that eight runs take from the command to its end, in alternating pairs: two at once over one
after the other. The share of the machine's processor time that is in use one after the other bounds this ratio from
below; other programs count too. Of LunarLander, the training steps per second of two runs at once together, over those
of one alone. Last the seconds until the first of a hundred runs starts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench.checkout import HERE

CARTPOLE = ["env=cartpole", "backend=processes", "stop.mean_return=null", "seed=range(8)"]
LUNAR = ["env=lunar", "backend=processes", "stop.mean_return=null", "eval.every=null"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.sweeps", description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400_000, help="of each CartPole run; LunarLander has half of it")
    parser.add_argument("--runs", type=int, default=100, help="jobs of the sweep whose start is timed")
    flags = parser.parse_args(arguments)
    steps = f"total_steps={flags.steps}"
    ratios, shares = [], []
    for _ in range(flags.pairs):
        busy, total = processor_time()
        apart, _ = sweep(*CARTPOLE, steps)
        now_busy, now_total = processor_time()
        shares.append((now_busy - busy) / (now_total - total))
        together, _ = sweep(*CARTPOLE, steps, "jobs=2")
        ratios.append(together / apart)
        print(f"CartPole, 8 runs: {apart:.1f} s one after the other, {together:.1f} s two at once", flush=True)
    print(f"ratio: {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    share = median(shares)
    print(f"processor time in use one after the other: {share:.0%}, so the ratio is at best {share:.2f}")
    lunar = [*LUNAR, f"total_steps={flags.steps // 2}"]
    _, alone = sweep(*lunar, "seed=0")
    _, both = sweep(*lunar, "seed=0,1", "jobs=2")
    print(f"LunarLander: {sum(alone):,.0f} steps/s alone, {sum(both):,.0f} two at once: {sum(both) / sum(alone):.3f}")
    print(f"first of {flags.runs} runs after {seconds_to_first(flags.runs):.1f} s")
    return 0


def processor_time() -> tuple[int, int]:
    """Processor time of all cores since the machine started: in use, and in total. Linux only.

    Usage of child processes would leave workers out, since nobody waits for their parent, the fork server.
    """
    line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, line.split()[1:9])
    busy = user + nice + system + irq + softirq + steal
    return busy, busy + idle + iowait


def sweep(*words: str) -> tuple[float, list[float]]:
    """Seconds that a sweep takes, and the training steps per second of its runs."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = [sys.executable, "-m", "a3c_exp", f"sweep={folder}/sweep", *words]
        subprocess.run(command, cwd=HERE, check=True, stderr=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
        paths = sorted(Path(folder).glob("sweep/*/summary.json"))
        return seconds, [float(json.loads(path.read_text())["steps_per_second"]) for path in paths]


def seconds_to_first(runs: int) -> float:
    """Seconds from the command to the line of the first run, in a sweep of so many, less those in a sweep of one."""
    return _seconds_to_line(runs) - _seconds_to_line(1)


def _seconds_to_line(runs: int) -> float:
    rest = max(1, runs // 4)
    words = ["backend=serial", "returns=gae,n_step", "optimizer.learning_rate=1e-3,1e-2", f"seed=range({rest})"]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = [sys.executable, "-m", "a3c_exp", f"sweep={folder}/sweep", *(words if runs > 1 else ["seed=0"])]
        program = subprocess.Popen(command, cwd=HERE, stderr=subprocess.PIPE, text=True)
        assert program.stderr is not None
        next(line for line in program.stderr if line.startswith("1 of "))
        seconds = time.perf_counter() - start
        program.kill()
        program.communicate()
        return seconds


if __name__ == "__main__":
    sys.exit(main())
