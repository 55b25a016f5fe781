"""Cases of faults: how they are drawn and tried, and what the table says of them."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from evidence.bench.peers import UnavailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a case.

    happened: in a few words, which the table counts. lost: figures by name, of which the table has
        the largest.
    fault: what is not as it should be; empty if all is.
    """

    happened: str
    lost: Mapping[str, float] = field(default_factory=dict)
    fault: str = ""


Case = Callable[[random.Random, int, Path], Outcome]
"""Causes a fault in an empty folder, drawn by the generator. The number of the case chooses what is
taken in turns."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a kind of fault, and how often it is tried."""

    title: str
    times: int
    case: Case


def try_row(name: str, row: Row, times: int, seed: int, keep: Path) -> list[Outcome]:
    """Try so many cases. The folder of each that is not as it should be stays below `keep`."""
    outcomes = list[Outcome]()
    for number in range(times):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            folder = Path(place)
            try:
                outcome = row.case(random.Random(f"{seed}/{name}/{number}"), number, folder)
            except UnavailableError as reason:
                outcome = Outcome(happened=f"not tried ({reason})")
            except Exception:  # a case that cannot be judged is none that has passed
                outcome = Outcome(happened="not judged", fault=traceback.format_exc())

            if outcome.fault:
                target = keep / f"{name}_{number}"
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(folder, target, symlinks=True, ignore=shutil.ignore_patterns("t"))
                (target / "fault").write_text(
                    f"{outcome.happened}: {outcome.fault}\n", encoding="utf-8"
                )
                print(
                    f"{name} {number}: {outcome.happened}: {target}/fault",
                    file=sys.stderr,
                    flush=True,
                )

        outcomes.append(outcome)

    return outcomes


def cells(row: Row, outcomes: list[Outcome]) -> list[str]:
    """Return the cells of a row: fault, times tried, what happened, what was lost."""
    happened = ", ".join(
        f"{words} {count:,}"
        for words, count in Counter(outcome.happened for outcome in outcomes).items()
    )
    wrong = sum(bool(outcome.fault) for outcome in outcomes)
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.lost)
    most = {name: max(outcome.lost.get(name, 0.0) for outcome in outcomes) for name in names}
    lost = ", ".join(f"{name} {figure:,.1f}".removesuffix(".0") for name, figure in most.items())

    return [
        row.title,
        f"{len(outcomes):,}",
        happened + (f"; WRONG: {wrong:,}" if wrong else ""),
        lost or "nothing",
    ]
