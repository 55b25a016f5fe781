"""`python -m evidence.bench.path [CHECKOUT]`: what one update passes through, and what the
overrides of a command do.

An update: a run on CartPole with one worker of the serial backend, 4 environments and rollouts of
64 steps, without evaluations. Its clock moves on so fast that every update gets a point of the
curves. Calls are counted from the moment when metrics.csv has got its fourth point to the moment
when it has got its fifth: the worker's pull, rollout,
gradient and push, and the way of its event to the thread that writes both files. Start-up and
shut-down lie outside.

    files      files below a3c_exp/ with a Python function that is called meanwhile
    records    dataclasses and named tuples of the package of which an instance is constructed
               meanwhile
    frames     the most functions below a3c_exp/ that are on the stack at once, from `a3c_exp.train`
               on; and how many of these are the worker's, inside the last function of the backend

Overrides: the same run by `python -m a3c_exp`, from its arguments to the first call of the worker.
One override has a value that nothing else has.

    overrides  functions below a3c_exp/ of which an argument or a local variable is or holds that
               override: its text, also in a record, or its value in a list or a mapping, but not in
               a component that was built from it

Only the main thread is profiled. The counts depend on hardly a name inside the package (on
`backend` in a file's path, and on `Worker` in core/worker.py), so that the same definition holds
for checkouts before and after a change.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from evidence.bench.checkout import HERE, ChildError, checked, run_child


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0, 1 where the run fails, or 2 for a bad argument."""
    parser = argparse.ArgumentParser(
        prog="python -m evidence.bench.path", description="What an update and overrides pass."
    )
    parser.add_argument(
        "checkout", nargs="?", default=str(HERE), help="of this repository (default: this one)"
    )
    place = parser.parse_args(arguments).checkout
    try:
        found = way(checked(place))
    except (ValueError, ChildError) as error:
        print(f"evidence.bench.path: {error}", file=sys.stderr)
        return 1 if isinstance(error, ChildError) else 2
    for kind, names in found.items():
        print(
            f"{len(names)} {kind}"
            + (f", {of_worker(names)} of them the worker's" if kind == "frames" else "")
        )
        print("".join(f"  {name}\n" for name in names), end="")
    return 0


def way(checkout: Path) -> dict[str, list[str]]:
    """The names of the `files`, `records` and `frames` of an update, and of the `overrides` of a
    start.

    Raises ChildError.
    """
    found: dict[str, list[str]] = {}
    for command in ("update", "start"):
        with tempfile.TemporaryDirectory() as folder:
            run_child(checkout, command, folder)
            found |= json.loads((Path(folder) / "found.json").read_text(encoding="utf-8"))
    return found


def of_worker(frames: Sequence[str]) -> int:
    """Number of frames, outermost first, inside the last one of a backend's file."""
    backends = [
        place for place, frame in enumerate(frames) if "/backend" in frame.partition(":")[0]
    ]
    return len(frames) - 1 - backends[-1] if backends else 0


if __name__ == "__main__":
    sys.exit(main())
