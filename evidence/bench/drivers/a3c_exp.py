"""This project: the command that a user types, in a process of its own.

Settings: `overrides` of the command. They are those of the preset, but for the goal and the time.
"""

from __future__ import annotations

import json
import time
from typing import Any

from evidence.bench.drivers.watch import Task, run
from evidence.bench.runs import ENDLESS, finished


def train(task: Task) -> dict[str, Any]:
    """Train until the goal, the time or the settings' number of steps ends it."""
    limits = [f"stop.max_seconds={task.seconds}", f"seed={task.seed}"]
    if task.goal is None:
        limits = [*ENDLESS, *limits]
    else:
        limits = [f"stop.mean_return={task.goal}", f"reward_threshold={task.goal}", *limits]

    started = time.time()
    with finished(*task.settings["overrides"].split(), *limits) as folder:
        elapsed = time.time() - started
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))

    seconds = summary["training_seconds"]
    return {
        "steps": summary["steps"],
        "steps_per_second": summary["steps"] / seconds,
        "solved_steps": summary["solved_at_steps"],
        "solved_seconds": summary["solved_at_seconds"],
        "mean_return": summary["mean_return_100"],
        "episodes": summary["episodes"],
        "start_seconds": elapsed - seconds,
    }


if __name__ == "__main__":
    run(train)
