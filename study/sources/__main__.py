"""`python -m study.sources NAME`: run the algorithm of a source over its seeds, those without a record."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from study.runs import ROOT
from study.sources import records

FOLDER = ROOT / "results" / "sources"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. A record is written after each seed, so an interrupted command can be repeated."""
    parser = argparse.ArgumentParser(prog="python -m study.sources", description="A source's algorithm, literally.")
    parser.add_argument("name", choices=records.SOURCES)
    parser.add_argument("--seeds", type=int, help="so many seeds, instead of the source's own number")
    flags = parser.parse_args(arguments)
    seeds = records.SOURCES[flags.name].seeds if flags.seeds is None else flags.seeds
    for seed in range(seeds):
        lines = records.read(FOLDER, flags.name)
        if any(line.seed == seed for line in lines):
            continue
        line = records.train(flags.name, seed)
        records.write(FOLDER, flags.name, [*lines, line])
        greedy = "" if line.greedy_return is None else f", greedy return {line.greedy_return:.1f}"
        print(f"{flags.name}, seed {seed}: last hundred {line.last_100:.1f}{greedy}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
