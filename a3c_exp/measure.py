"""Measure the times that `backend=simulated` needs, on this machine.

    python -m a3c_exp.measure env=lunar workers=64

One worker trains for ten seconds, in a process of its own, with the settings
that are given. The last line that is printed is a command, which simulates the
run with all its workers in the times that this one has taken. The machine has
to be idle. Nothing is written.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from a3c_exp.errors import ConfigError, exit_code, leave, printable

SECONDS = 10.0
PULLS = 1000


class Times(NamedTuple):
    """Milliseconds of one worker, as `Simulated` has them."""

    step_ms: float
    gradient_ms: float
    push_ms: float
    pull_ms: float


def main(arguments: Sequence[str]) -> int:
    if not arguments or not {"-h", "--help"}.isdisjoint(arguments):
        print((__doc__ or "").strip())
        return 0 if arguments else 2
    return exit_code(lambda: _command(arguments))


def _command(overrides: Sequence[str]) -> int:
    times = measure(overrides)
    settings = [f"backend.{name}={value:.3g}" for name, value in times._asdict().items()]
    words = [*_without_backend(overrides), "backend=simulated", *settings]
    print(printable(shlex.join(["python", "-m", "a3c_exp", *words])))
    return 0


def _without_backend(overrides: Sequence[str]) -> list[str]:
    return [word for word in overrides if not word.startswith(("backend=", "backend."))]


def measure(overrides: Sequence[str], seconds: float = SECONDS) -> Times:
    """Return the times of one worker of `python -m a3c_exp <overrides>` on the backend `processes`.

    seconds: of training. Raises ConfigError, and RunError if the worker fails.
    """
    # Only now: importing torch takes seconds, which --help need not wait for.
    from a3c_exp import compose
    from a3c_exp.config.builder import check, load_final
    from a3c_exp.core.cpu import one_thread
    from a3c_exp.core.events import Event
    from a3c_exp.core.experiment import RunContext, store_spec

    words = [*_without_backend(overrides), "backend=processes", "workers=1"]
    _, experiment = load_final(compose(words))
    total = Event(0)
    with one_thread():
        network, space = check(experiment, draw=True)
        store = experiment.backend.store(store_spec(experiment, network, space))
        store.initialize(network.vector)
        context = RunContext(
            experiment=replace(experiment, callbacks=()), measures=frozenset({"time"})
        )
        with closing(experiment.backend.run(context, store)) as events:
            reports = (event for event in events if event is not None)
            next(reports, None)  # it has the time in which the environments were made
            for report in reports:
                total.merge(report)
                if store.training_seconds >= seconds and total.steps:
                    store.stop()

        began = time.perf_counter()
        for _ in range(PULLS):
            store.pull(0, network.vector)
        pull_ms = 1000 * (time.perf_counter() - began) / PULLS

    if not total.steps:
        problem = "must be enough for several updates, to measure them"
        raise ConfigError("total_steps", experiment.total_steps, problem)
    pushes = total.metrics["seconds/push"].count
    parts = {
        name.partition("/")[2]: 1000 * metric.sum
        for name, metric in total.metrics.items()
        if name.startswith("seconds/")
    }
    steps = total.steps / experiment.envs_per_worker
    return Times(
        step_ms=(parts["environment"] + parts["acting"]) / steps,
        gradient_ms=(parts["returns"] + parts["gradient"] + parts["waiting"]) / pushes,
        push_ms=max(0.0, parts["push"] / pushes - pull_ms),
        pull_ms=pull_ms,
    )


if __name__ == "__main__":
    sys.exit(leave(main(sys.argv[1:])))
