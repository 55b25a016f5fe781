"""`python -m evidence.bench.faults`: faults that are caused in whole runs, and a table of what
happened and what was lost.

    python -m evidence.bench.faults                              every row, 40 minutes on two cores
    python -m evidence.bench.faults --only kill --times 2        the rows of a fault, two cases each
    python -m evidence.bench.faults --only kill_ray --seed 1     one row, other cases

The same seed draws the same cases. What is not as it should be stays in outputs/faults, and the
exit code is 1. Linux only: processes are found in /proc.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from a3c_exp.run import markdown
from evidence.bench.damage import flip_bits
from evidence.bench.faults.bits import Checkpoint, Latest, cut_end
from evidence.bench.faults.cases import Row, cells, try_row
from evidence.bench.faults.disks import FullDisk
from evidence.bench.faults.killing import Kill, KillParent, Stop
from evidence.bench.faults.program import BACKENDS

KILLS = {
    f"kill_{name}": Row(f"SIGKILL of all processes, {name}", 25, Kill(name)) for name in BACKENDS
}
PARENTS = {
    f"parent_{name}": Row(f"SIGKILL of the main process, {name}", 5, KillParent(name))
    for name in BACKENDS
}
ROWS: dict[str, Row] = {
    **KILLS,
    **PARENTS,
    "disk": Row("a full disk", 20, FullDisk()),
    "bits_flip": Row("a checkpoint with one bit changed", 4000, Checkpoint(flip_bits)),
    "bits_cut": Row("a checkpoint that is cut off", 200, Checkpoint(cut_end)),
    "bits_latest": Row("a killed run's `latest.ckpt` damaged", 5, Latest()),
    "stop": Row("SIGSTOP of a worker, then SIGCONT", 9, Stop()),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 1 if a case has ended badly."""
    parser = argparse.ArgumentParser(
        prog="python -m evidence.bench.faults", description="Faults caused in whole runs."
    )
    names = list(dict.fromkeys([*(name.partition("_")[0] for name in ROWS), *ROWS]))
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help=f"of {', '.join(names)}"
    )
    parser.add_argument(
        "--times", type=int, help="cases of each row (default: as docs/reliability.md says)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the cases (default 0)")
    parser.add_argument(
        "--keep", type=Path, default=Path("outputs/faults"), help="folder for cases that end badly"
    )
    flags = parser.parse_args(arguments)
    wrong = 0
    print(markdown.table(("fault", "times tried", "what happened", "what was lost")), flush=True)

    for name, row in ROWS.items():
        if flags.only and name not in flags.only and name.partition("_")[0] not in flags.only:
            continue
        outcomes = try_row(name, row, flags.times or row.times, flags.seed, flags.keep.absolute())
        wrong += sum(bool(outcome.fault) for outcome in outcomes)
        print(markdown.row(cells(row, outcomes)), flush=True)

    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
