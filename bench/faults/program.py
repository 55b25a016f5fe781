"""A run as a user starts it, all of whose processes carry a mark: what it has written, and what it leaves behind."""

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

import numpy as np

from a3c_exp.errors import ConfigError
from a3c_exp.run.run_folder import CHECKPOINTS, LATEST, METRICS_FILE, SUMMARY_FILE
from a3c_exp.run.saved_state import load_state
from bench.checkout import HERE
from bench.faults import hooks
from bench.processes import marked, read_process

EVERY = 4000
"""Steps between two checkpoints."""
TOTALS = {"serial": 60_000, "processes": 300_000, "ga3c": 100_000, "ray": 60_000}
"""Steps of a run on each backend. It trains for some seconds."""
MOST_SECONDS = 300.0
"""After so many a run counts as one that does not end."""
_SMALL = "env=cartpole workers=2 envs_per_worker=4 rollout_length=8 stop.mean_return=null eval.every=null"
_SMALL += f" checkpoint.every={EVERY} plugins=[{hooks.__name__}] existing=resume"
BACKENDS = {name: (*_SMALL.split(), f"backend={name}", f"total_steps={total}") for name, total in TOTALS.items()}
"""The overrides of a run on each backend."""
SHARED_MEMORY = Path("/dev/shm")


def _shared_memory() -> set[str]:
    return set(os.listdir(SHARED_MEMORY))


class Program:
    """A run in `folder`/run. The same command begins it and continues it.

    settings: overrides, the folder left out. prefix: a command that starts the run's.
    Its output is in `folder`/output, its temporary files in `folder`/t.
    """

    def __init__(self, folder: Path, settings: Sequence[str], prefix: Sequence[str] = ()) -> None:
        self.folder, self.temporary = folder / "run", folder / "t"  # short: sockets' paths have 107 characters at most
        self.mark = f"A3C_EXP_FAULTS={folder}"
        self._place, self._steps, self._prefix = folder, folder / "steps", prefix
        self._command = [sys.executable, "-m", "a3c_exp", f"hydra.run.dir={self.folder}", *settings]
        self._environment = os.environ | dict([self.mark.split("=", 1)])
        self._environment |= {"TMPDIR": str(self.temporary), hooks.STEPS: str(self._steps)}
        self._environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        self._memory = _shared_memory()
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0

    def start(self) -> subprocess.Popen[bytes]:
        """Begin the run, or continue it; its main process."""
        self.temporary.mkdir(exist_ok=True)
        self._steps.unlink(missing_ok=True)
        with open(self._place / "output", "ab") as output:
            self.process = subprocess.Popen(
                [*self._prefix, *self._command], env=self._environment, stdout=output, stderr=subprocess.STDOUT
            )
        self.started_at = time.monotonic()
        return self.process

    def wait(self, seconds: float = MOST_SECONDS) -> int | None:
        """Wait for its end; its exit code, or None if it goes on."""
        assert self.process is not None
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def wait_until(self, condition: Callable[[], Any], seconds: float = MOST_SECONDS) -> bool:
        """Wait for a condition. False if the run ended before, or has not met it in time."""
        assert self.process is not None
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    def cpu_seconds(self) -> float:
        """Processor time of the main process. On a busy machine too it tells how far the start is."""
        assert self.process is not None
        stat = read_process(self.process.pid, "stat").rpartition(")")[2].split()
        return sum(map(int, stat[11:13])) / os.sysconf("SC_CLK_TCK") if stat else 0.0

    def kill(self) -> None:
        """Kill every process of the run, the main process first."""
        assert self.process is not None
        self.process.kill()
        while pids := marked(self.mark):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self.process.wait()

    def seconds_to_end(self, most: float) -> float:
        """Seconds until no process of the run is left; `most` if some are."""
        begun = time.monotonic()
        while marked(self.mark) and time.monotonic() < begun + most:
            time.sleep(0.05)
        return time.monotonic() - begun

    @property
    def output(self) -> str:
        """Everything that it has said."""
        return (self._place / "output").read_text(encoding="utf-8", errors="replace")

    @property
    def steps(self) -> int:
        """Steps that the run knew of last."""
        with suppress(OSError, ValueError, IndexError):  # it has none yet
            return int(np.fromfile(self._steps, np.int64)[0])
        return 0

    @property
    def latest(self) -> Path:
        return self.folder / CHECKPOINTS / LATEST

    def saved_steps(self) -> int | None:
        """The steps in its latest checkpoint; None without one. Raises ConfigError for one that cannot be used."""
        return int(load_state(self.latest)["store"]["steps"]) if self.latest.exists() else None

    def summary(self) -> dict[str, Any]:
        """summary.json; empty without one."""
        with suppress(OSError):
            return dict(json.loads((self.folder / SUMMARY_FILE).read_text(encoding="utf-8")))
        return {}

    def finish(self) -> str:
        """Start it once more, and wait for its end. What is not as it should be; empty if all is."""
        self.start()
        code = self.wait()
        if code is None:
            self.kill()
            return "does not end"
        return self.fault(code)

    def fault(self, code: int, reason: str = "total_steps") -> str:
        """What is not as it should be of a run that has ended; empty if all is."""
        summary, faults = self.summary(), list[str]()
        if code or summary.get("stop_reason") != reason:
            faults.append(f"exit code {code}, ended by {summary.get('stop_reason')}: {self.output[-1000:]}")
        try:
            steps = self.saved_steps()
        except ConfigError as error:
            steps = None
            faults.append(str(error))
        if steps is None or steps != summary.get("steps"):
            faults.append(f"{summary.get('steps')} steps in {SUMMARY_FILE}, {steps} in {LATEST}")
        if any(values != sorted(values) for values in (self.column("wall_seconds"), self.column("step", updates=True))):
            faults.append(f"{METRICS_FILE} is not in order")
        faults += [f"half a file is left: {path.name}" for path in self.folder.rglob("*.partial")]
        faults += [f"a traceback: {self.output[-1000:]}"] if "Traceback" in self.output else []
        return "; ".join(faults)

    def column(self, name: str, *, updates: bool = False) -> list[float]:
        """A column of metrics.csv, without empty cells.

        updates: only of rows about updates. A row about an evaluation has the step of the policy, which others have
        left behind meanwhile.
        """
        with open(self.folder / METRICS_FILE, newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row.get("train/n_updates") or not updates]
        return [float(row[name]) for row in rows if row.get(name)]

    def left_memory(self) -> set[str]:
        """Files in /dev/shm that are new since the start, and that no living process has mapped."""
        new = {name for name in _shared_memory() - self._memory if (SHARED_MEMORY / name).is_file()}
        for maps in Path("/proc").glob("[0-9]*/maps") if new else ():
            with suppress(OSError):
                text = maps.read_text(encoding="utf-8", errors="replace")
                new = {name for name in new if f"{SHARED_MEMORY}/{name}" not in text}
        return new

    def left_files(self) -> list[str]:
        """Temporary files of the run."""
        return sorted(path.name for path in self.temporary.iterdir())
