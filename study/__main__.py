"""`python -m study`: train the runs without a record, then write RESULTS.md from results/.

A recorded run is not repeated. An interrupted study continues, and so does the run that was interrupted.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from a3c_exp.errors import ConfigError
from a3c_exp.run import files
from study import curves, scaling
from study.document import document
from study.entries import SECTIONS, Entry, Recorded
from study.records import Results
from study.runs import EPISODES, ROOT, RunFailedError
from study.sources import records as sources

RECORDS, DOCUMENT = ROOT / "results", ROOT / "RESULTS.md"
RUNS = ROOT / "outputs" / "study"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0; 1 if a run failed; 2 for bad arguments or records; 130 after Ctrl-C."""
    entries = {entry.name: entry for section in SECTIONS.values() for entry in section}
    environments = sorted({entry.env for entry in entries.values()})
    parser = argparse.ArgumentParser(prog="python -m study", description="Learning over seeds; writes RESULTS.md.")
    parser.add_argument("--env", choices=environments, help="only the entries of this environment")
    parser.add_argument("--presets", action="store_true", help="the presets, instead of the environments")
    parser.add_argument("--only", choices=entries, action="append", metavar="NAME", help="only this entry; any number")
    parser.add_argument("--table", action="store_true", help="train nothing: write RESULTS.md from the records")
    flags = parser.parse_args(arguments)
    # Presets are a study of their own.
    names = flags.only or [name for name, entry in entries.items() if flags.presets == (entry.source is not None)]
    chosen = [entries[name] for name in names if flags.env in (None, entries[name].env)]
    if not chosen:
        print("study: no entry fits these arguments; presets are run with --presets", file=sys.stderr)
        return 2
    if importlib.util.find_spec("matplotlib") is None:
        print("study: it needs matplotlib: pip install -e '.[bench]'", file=sys.stderr)
        return 2
    failures: list[str] = []
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if not flags.table:
            for entry in chosen:  # before hours of training
                Results(RECORDS, entry.name).check(entry.recipe.settings())
            for entry in chosen:
                failures += train(entry)
        write()
    except KeyboardInterrupt:
        print("interrupted: the same command continues", file=sys.stderr)
        return 130
    except ConfigError as error:
        print(f"study: {error}", file=sys.stderr)
        return 2
    for failure in failures:
        print(failure, file=sys.stderr)
    return int(bool(failures))


def train(entry: Entry) -> list[str]:
    """Train the seeds without a record. Returns a line for each failure."""
    failures = []
    results = Results(RECORDS, entry.name)
    for seed in range(entry.seeds):
        records = results.read()
        if any(record.seed == seed for record in records):
            continue
        print(f"{entry.name}, seed {seed}: ", end="", flush=True)
        run = RUNS / f"{entry.name}_s{seed}"
        try:
            record = entry.recipe.run(seed, run)
        except RunFailedError as failure:
            print("failed")
            failures.append(f"{entry.name}, seed {seed}: {failure}")
            continue
        if entry.curve:
            curves.keep(run, RECORDS / "curves" / f"{entry.name}_s{seed}.csv")
        results.write(entry.recipe.settings(), [*records, record])
        solved = "-" if record.solved_seconds is None else f"{record.solved_seconds:.1f} s"
        print(f"greedy return {record.greedy_return:.1f}, solved after {solved}, {record.seconds:.1f} s in all")
    return failures


def write() -> None:
    """Write RESULTS.md and its figures from all records, each with the settings that were recorded with it."""
    found = {heading: [recorded(entry) for entry in section] for heading, section in SECTIONS.items()}
    by_name = {each.entry.name: each for section in found.values() for each in section}
    folder, shown = RECORDS / "curves", dict[str, dict[str, list[Path]]]()
    for each in by_name.values():
        if each.entry.curve and each.records:
            kept = [folder / f"{each.entry.name}_s{record.seed}.csv" for record in each.records]
            shown.setdefault(each.entry.env, {})[each.entry.title] = kept
    figure = folder / "curves.svg"
    if shown:
        curves.draw(shown, figure)
    others = [scaling.section({name: each.records for name, each in by_name.items()})]
    others.append(sources.section(RECORDS / "sources"))
    others += curves.reports(folder, {name: each.settings for name, each in by_name.items()})
    place = figure.relative_to(DOCUMENT.parent) if shown else None
    files.write_text(DOCUMENT, document(found, EPISODES, place, [text for text in others if text]))


def recorded(entry: Entry) -> Recorded:
    """An entry with its records."""
    results = Results(RECORDS, entry.name)
    return Recorded(entry, results.read(), results.settings())


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
