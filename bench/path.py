"""`python -m bench.path [CHECKOUT]`: files, records and frames that one update passes through.

What is profiled: a run on CartPole with one worker of the serial backend, 4 environments and rollouts of 64 steps,
without evaluations. Its clock moves on so fast that every update gets a point of the curves. Calls are counted from the
moment when metrics.jsonl (in earlier checkouts metrics.csv) has got its fourth point to the moment when it has got its
fifth. That is one whole update: the worker's pull, rollout, gradient and push, and the way of its event to the event
file and to metrics.jsonl. Start-up and shut-down lie outside. Only the main thread is profiled.

    files     files below a3c_exp/ with a Python function that is called meanwhile
    records   dataclasses and named tuples of the package of which an instance is constructed meanwhile
    frames    the most functions below a3c_exp/ that are on the stack at once, from `a3c_exp.train` on; and how many of
              these are the worker's, inside the last function of the backend

A comprehension or generator expression counts as the function that it is in this version of Python. The counts depend
on no name inside the package (but the worker's frames on `backend` in a file's path), so that the same definition
holds for checkouts before and after a change.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.checkout import HERE, ChildError, checked, run_child


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0, 1 where the run fails, or 2 for a bad argument."""
    parser = argparse.ArgumentParser(prog="python -m bench.path", description="Files, records and frames of an update.")
    parser.add_argument("checkout", nargs="?", default=str(HERE), help="of this repository (default: this one)")
    place = parser.parse_args(arguments).checkout
    try:
        found = way(checked(place))
    except ValueError as error:
        print(f"bench.path: {error}", file=sys.stderr)
        return 2
    except ChildError as error:
        print(f"bench.path: the run in {place} failed: {error}", file=sys.stderr)
        return 1
    for kind, names in found.items():
        print(f"{len(names)} {kind}" + (f", {of_worker(names)} of them the worker's" if kind == "frames" else ""))
        print("".join(f"  {name}\n" for name in names), end="")
    return 0


def way(checkout: Path) -> dict[str, list[str]]:
    """The names of the `files`, `records` and `frames` of an update. Raises ChildError."""
    with tempfile.TemporaryDirectory() as folder:
        run_child(checkout, "path", folder)
        found: dict[str, list[str]] = json.loads((Path(folder) / "path.json").read_text(encoding="utf-8"))
    return found


def of_worker(frames: Sequence[str]) -> int:
    """Number of frames, outermost first, inside the last one of a backend's file."""
    backends = [place for place, frame in enumerate(frames) if "/backend" in frame.partition(":")[0]]
    return len(frames) - 1 - backends[-1] if backends else 0


if __name__ == "__main__":
    sys.exit(main())
