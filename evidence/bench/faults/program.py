"""A run as a user starts it, all of whose processes carry a mark: what it has written, and what it
leaves behind."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from a3c_exp.errors import ConfigError
from a3c_exp.run.checkpoint import load_state
from a3c_exp.run.metrics import STEP, read_points
from a3c_exp.run.run_folder import CHECKPOINTS, LATEST, METRICS_FILE, SUMMARY_FILE
from evidence.bench.checkout import HERE
from evidence.bench.processes import marked

EVERY = 4000
"""Steps between two checkpoints."""
TOTALS = {"serial": 60_000, "processes": 300_000, "ga3c": 100_000, "ray": 60_000}
"""Steps of a run on each backend. It trains for some seconds."""
MOST_SECONDS = 300.0
"""After so many a run counts as one that does not end."""
_SMALL = (
    "env=cartpole workers=2 envs_per_worker=4 rollout_length=8 "
    "stop.mean_return=null eval.every=null"
)
_SMALL += f" checkpoint.every={EVERY} existing=resume"
BACKENDS = {
    name: (*_SMALL.split(), f"backend={name}", f"total_steps={total}")
    for name, total in TOTALS.items()
}
"""The overrides of a run on each backend."""
SHARED_MEMORY = Path("/dev/shm")


class Program:
    """A run in `folder`/run. The same command begins it and continues it.

    settings: overrides, the folder left out. prefix: a command that starts the run's.
    Its output is in `folder`/output, its temporary files in `folder`/t.
    """

    process: subprocess.Popen[bytes]

    def __init__(self, folder: Path, settings: Sequence[str], prefix: Sequence[str] = ()) -> None:
        # short: sockets' paths have 107 characters at most
        self.folder, self.temporary = folder / "run", folder / "t"
        self.mark = f"A3C_EXP_FAULTS={folder}"
        self._output = folder / "output"
        self._command = [
            *prefix,
            sys.executable,
            "-m",
            "a3c_exp",
            f"hydra.run.dir={self.folder}",
            *settings,
        ]
        self._memory = set(os.listdir(SHARED_MEMORY))

    def start(self) -> None:
        """Begin the run, or continue it."""
        self.temporary.mkdir(exist_ok=True)
        environment = os.environ | dict([self.mark.split("=", 1)]) | {"TMPDIR": str(self.temporary)}
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(HERE), os.environ.get("PYTHONPATH")])
        )

        with open(self._output, "ab") as output:
            self.process = subprocess.Popen(
                self._command, env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    def wait(self) -> int | None:
        """Wait for its end; its exit code. If it does not end, it is killed, and the answer is
        None."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(MOST_SECONDS)
        self.kill()
        return None

    def wait_until(self, condition: Callable[[], Any]) -> None:
        """Wait for a condition; no longer than the run goes on."""
        deadline = time.monotonic() + MOST_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline and not condition():
            time.sleep(0.005)

    def kill(self) -> None:
        """Kill every process of the run, the main process first."""
        self.process.kill()
        while pids := marked(self.mark):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

        self.process.wait()

    def seconds_to_end(self, most: float) -> float:
        """Return the seconds until no process of the run is left; `most` if some are."""
        begun = time.monotonic()
        while marked(self.mark) and time.monotonic() < begun + most:
            time.sleep(0.05)
        return time.monotonic() - begun

    @property
    def output(self) -> str:
        """Return everything that it has said."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    @property
    def steps(self) -> int:
        """Return the steps in its curves, which get a point twice a second."""
        return max(
            (int(point[STEP]) for point in read_points(self.folder / METRICS_FILE)), default=0
        )

    @property
    def latest(self) -> Path:
        return self.folder / CHECKPOINTS / LATEST

    def saved_steps(self) -> int | None:
        """Return the steps in its latest checkpoint; None without one. Raises ConfigError for one
        that cannot be used."""
        return int(load_state(self.latest)["store"]["steps"]) if self.latest.exists() else None

    def summary(self) -> dict[str, Any]:
        """summary.json; empty without one."""
        with suppress(OSError):
            return dict(json.loads((self.folder / SUMMARY_FILE).read_text(encoding="utf-8")))
        return {}

    def finish(self) -> str:
        """Start it once more, and wait for its end. What is not as it should be; empty if all
        is."""
        self.start()
        return self.fault(self.wait())

    def fault(self, code: int | None, reason: str = "total_steps") -> str:
        """Return what is not as it should be of a run that has ended with an exit code; empty if
        all is."""
        if code is None:
            return "does not end"
        summary, faults = self.summary(), list[str]()
        if code or summary.get("stop_reason") != reason:
            faults.append(
                f"exit code {code}, ended by {summary.get('stop_reason')}: {self.output[-1000:]}"
            )

        try:
            steps = self.saved_steps()
        except ConfigError as error:
            steps = None
            faults.append(str(error))

        if steps is None or steps != summary.get("steps"):
            faults.append(f"{summary.get('steps')} steps in {SUMMARY_FILE}, {steps} in {LATEST}")
        if not self._is_in_order():
            faults.append(f"{METRICS_FILE} is not in order")
        faults += [f"half a file is left: {path.name}" for path in self.folder.rglob("*.partial")]
        faults += [f"a traceback: {self.output[-1000:]}"] if "Traceback" in self.output else []

        return "; ".join(faults)

    def _is_in_order(self) -> bool:
        """Return whether steps, and times in rows about updates, rise in metrics.csv.

        A row about an evaluation has the step of the policy and the time of its result.
        """
        with open(self.folder / METRICS_FILE, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        seconds = [float(row["wall_seconds"]) for row in rows if row.get("train/n_updates")]
        steps = [float(row["step"]) for row in rows]
        return seconds == sorted(seconds) and steps == sorted(steps)

    def left_behind(self, *, files: bool) -> list[str]:
        """Return what stays in /dev/shm since the start without a living process that has mapped
        it; with `files` in the temporary folder too."""
        new = {
            name for name in os.listdir(SHARED_MEMORY) if (SHARED_MEMORY / name).is_file()
        } - self._memory
        for maps in Path("/proc").glob("[0-9]*/maps") if new else ():
            with suppress(OSError):
                text = maps.read_text(encoding="utf-8", errors="replace")
                new = {name for name in new if f"{SHARED_MEMORY}/{name}" not in text}

        stays = [f"left behind: {SHARED_MEMORY}/{name}" for name in new]
        return stays + [f"left behind: {path}" for path in self.temporary.iterdir() if files]
