"""`python -m evidence.study.sources NAME`: run the algorithm of a source over its seeds, those
without a record."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from evidence.study.records import add_row, read_rows
from evidence.study.runs import ROOT
from evidence.study.sources import records

TABLE = ROOT / "evidence" / "results" / records.TABLE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. A record is written after each seed, so an interrupted command can be
    repeated."""
    parser = argparse.ArgumentParser(
        prog="python -m evidence.study.sources", description="A source's algorithm, literally."
    )
    parser.add_argument("name", choices=records.SOURCES)

    name = parser.parse_args(arguments).name
    for seed in range(records.SOURCES[name].seeds):
        if any(line.seed == seed for line in read_rows(TABLE, records.Line, name)):
            continue
        line = records.train(name, seed)
        add_row(TABLE, name, line)
        greedy = "" if line.greedy_return is None else f", greedy return {line.greedy_return:.1f}"
        print(f"{name}, seed {seed}: last hundred {line.last_100:.1f}{greedy}", flush=True)

    return 0


if __name__ == "__main__":
    sys.exit(main())
