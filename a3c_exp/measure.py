"""Measure the times that `backend=simulated` needs, on this machine.

    python -m a3c_exp.measure env=lunar workers=64

One worker trains for ten seconds, in a process of its own, with the settings
that are given. The command that is printed simulates the run with all its
workers, in the times that this one has taken. The machine has to be idle.
Nothing is written.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from a3c_exp.errors import ConfigError, printable
from a3c_exp.exit_codes import ExitCode, exit_code, leave

if TYPE_CHECKING:  # --help need not wait until torch is imported
    from a3c_exp.core.events import Event
    from a3c_exp.core.experiment import Experiment
    from a3c_exp.core.store import SharedStore

TRAINING_SECONDS = 10.0
PULLS = 1000


class Times(NamedTuple):
    """Milliseconds of one worker: see `Simulated`."""

    step_ms: float
    gradient_ms: float
    push_ms: float
    pull_ms: float


def main(arguments: Sequence[str]) -> int:
    if not arguments or not {"-h", "--help"}.isdisjoint(arguments):
        print((__doc__ or "").strip())
        return ExitCode.DONE if arguments else ExitCode.REFUSED
    return exit_code(lambda: _command(arguments))


def _command(overrides: Sequence[str]) -> int:
    """Print the command of the simulated run."""
    words = [word for word in overrides if not word.startswith(("backend=", "backend."))]
    times = measure_times(words, TRAINING_SECONDS)
    settings = [f"backend.{name}={value:.3g}" for name, value in times._asdict().items()]
    print(
        printable(shlex.join(["python", "-m", "a3c_exp", *words, "backend=simulated", *settings]))
    )
    return ExitCode.DONE


def measure_times(overrides: Sequence[str], seconds: float) -> Times:
    """Return the times of one worker of a run on the backend `processes`.

    overrides: of the run, without a backend. seconds: of training.
    Raises ConfigError, and RunError if the worker fails.
    """
    from a3c_exp import compose
    from a3c_exp.config.builder import check, load_final
    from a3c_exp.core.cpu import one_thread
    from a3c_exp.core.experiment import store_spec

    # a quorum is of the workers that are simulated
    config = compose([*overrides, "backend=processes", "workers=1", "quorum=all"])
    _, experiment = load_final(config)
    with one_thread():
        network, space = check(experiment, draw=True)
        store = experiment.backend.store(store_spec(experiment, network, space))
        store.initialize(network.vector)
        total = _summed_reports(experiment, store, seconds)

        began = time.perf_counter()
        for _ in range(PULLS):
            store.pull(0, network.vector)
        pull_ms = 1000 * (time.perf_counter() - began) / PULLS

    def milliseconds(*parts: str) -> float:
        return 1000 * sum(total.metrics[f"seconds/{part}"].sum for part in parts)

    pushes = total.metrics["seconds/push"].count
    return Times(
        step_ms=milliseconds("environment", "acting") * experiment.envs_per_worker / total.steps,
        gradient_ms=milliseconds("returns", "gradient", "waiting") / pushes,
        push_ms=max(0.0, milliseconds("push") / pushes - pull_ms),  # a pull is a part of it
        pull_ms=pull_ms,
    )


def _summed_reports(experiment: Experiment, store: SharedStore, seconds: float) -> Event:
    """Train for so many seconds, and return the sum of the worker's reports but for the first one,
    which has the time in which the environments were made."""
    from a3c_exp.core.events import Event
    from a3c_exp.core.experiment import RunContext

    total = Event(0)
    context = RunContext(experiment=replace(experiment, callbacks=()), measures=frozenset({"time"}))
    with closing(experiment.backend.run(context, store)) as events:
        reports = (event for event in events if event is not None)
        next(reports, None)
        for report in reports:
            total.merge(report)
            if store.training_seconds >= seconds and total.steps:
                store.stop()

    if not total.steps:
        problem = "must be enough for several updates, to measure them"
        raise ConfigError("total_steps", experiment.total_steps, problem)
    return total


if __name__ == "__main__":
    sys.exit(leave(main(sys.argv[1:])))
