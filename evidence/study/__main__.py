"""`python -m evidence.study`: train the runs without a record, then write RESULTS.md from
evidence/results/.

`python -m evidence.study --scaling` and the like train those of a figure. A recorded run is not
repeated. An interrupted study continues, and so does the run that was interrupted.
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
from evidence.study import curves, figures
from evidence.study.document import document
from evidence.study.entries import SECTIONS, Entry, Recorded
from evidence.study.runs import EPISODES, ROOT, RunFailedError
from evidence.study.sources import records as sources

RECORDS = ROOT / "evidence" / "results"
DOCUMENT = ROOT / "RESULTS.md"
RUNS = ROOT / "outputs" / "study"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0; 1 if a run failed; 2 for bad arguments or records; 130 after
    Ctrl-C."""
    entries = {entry.name: entry for section in SECTIONS.values() for entry in section}
    environments = sorted({entry.env for entry in entries.values()})
    parser = argparse.ArgumentParser(
        prog="python -m evidence.study", description="Learning over seeds; writes RESULTS.md."
    )
    parser.add_argument("--env", choices=environments, help="only the entries of this environment")
    parser.add_argument(
        "--presets", action="store_true", help="the presets, instead of the environments"
    )
    parser.add_argument(
        "--only",
        choices=entries,
        action="append",
        metavar="NAME",
        help="only this entry; any number",
    )
    for name, figure in figures.FIGURES.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(
            option,
            action="append_const",
            dest="figures",
            const=figure,
            help=f"the figure on {name}",
        )
    parser.add_argument(
        "--table", action="store_true", help="train nothing: write RESULTS.md from the records"
    )
    flags = parser.parse_args(arguments)
    # Presets are a study of their own.
    names = flags.only or [
        name for name, entry in entries.items() if flags.presets == (entry.source is not None)
    ]
    chosen = [entries[name] for name in names if flags.env in (None, entries[name].env)]
    if flags.figures:
        chosen = [
            entry
            for figure in flags.figures
            for entry in figures.entries(figure, RECORDS, flags.env)
        ]
    if not chosen:
        print(
            "study: no entry fits these arguments; presets are run with --presets", file=sys.stderr
        )
        return 2
    if importlib.util.find_spec("matplotlib") is None:
        print("study: it needs matplotlib: pip install -e '.[bench]'", file=sys.stderr)
        return 2
    failures: list[str] = []
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if not flags.table:
            for entry in chosen:  # before hours of training
                entry.results(RECORDS).check(entry.recipe.settings())
            # a study that is interrupted has some of all
            for seed in range(max(entry.seeds for entry in chosen)):
                for entry in chosen:
                    failures += train(entry, seed)
        write()
        print(f"{DOCUMENT}: written from the records")
    except KeyboardInterrupt:
        print("interrupted: the same command continues", file=sys.stderr)
        return 130
    except ConfigError as error:
        print(f"study: {error}", file=sys.stderr)
        return 2
    for failure in failures:
        print(failure, file=sys.stderr)
    return int(bool(failures))


def train(entry: Entry, seed: int) -> list[str]:
    """Train a seed of an entry that has no record of it. Returns a line if that fails."""
    if seed >= entry.seeds or any(record.seed == seed for record in entry.records(RECORDS)):
        return []
    print(f"{entry.name}, seed {seed}: ", end="", flush=True)
    run = RUNS / f"{entry.name}_s{seed}"
    try:
        record = entry.recipe.run(seed, run)
    except RunFailedError as failure:
        print("failed")
        return [f"{entry.name}, seed {seed}: {failure}"]
    if entry.curve:
        curves.keep(run, entry.curve_file(RECORDS, seed))
    results = entry.results(RECORDS)
    results.write(entry.recipe.settings(), [*results.read(), record])
    score = record.last_100 if record.greedy_return is None else record.greedy_return
    solved = "-" if record.solved_seconds is None else f"{record.solved_seconds:.1f} s"
    print(f"return {score}, solved after {solved}, {record.seconds:.1f} s in all")
    return []


def write() -> None:
    """Write RESULTS.md and its figures from all records, each with the settings that were recorded
    with it."""
    found = {
        heading: [recorded(entry) for entry in section] for heading, section in SECTIONS.items()
    }
    by_name = {each.entry.name: each for section in found.values() for each in section}
    folder = RECORDS / "curves"
    shown = dict[str, dict[str, list[Path]]]()
    for each in by_name.values():
        if each.entry.curve and each.records:
            kept = [each.entry.curve_file(RECORDS, record.seed) for record in each.records]
            shown.setdefault(each.entry.env, {})[each.entry.title] = kept
    figure = folder / "curves.svg"
    if shown:
        curves.draw(shown, figure)
    others = [*figures.sections(RECORDS), sources.section(RECORDS / "sources")]
    others += curves.reports(folder, {name: each.settings for name, each in by_name.items()})
    place = figure.relative_to(DOCUMENT.parent) if shown else None
    files.write_text(DOCUMENT, document(found, EPISODES, place, [text for text in others if text]))


def recorded(entry: Entry) -> Recorded:
    """An entry with its records."""
    return Recorded(entry, entry.records(RECORDS), entry.results(RECORDS).settings())


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
