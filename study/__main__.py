"""`python -m study`: train the runs without a record, then write RESULTS.md from results/.

A recorded run is not repeated while its settings are the same. An interrupted study continues, and so does the run that
was interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from a3c_exp.errors import ConfigError
from a3c_exp.run import files
from study import curves, scaling
from study.document import document
from study.entries import Entry, RunFailedError
from study.records import Results
from study.runs import EPISODES, ROOT
from study.sources import records as sources
from study.table import SECTIONS, WORKERS

RECORDS, DOCUMENT = ROOT / "results", ROOT / "RESULTS.md"
RUNS = ROOT / "outputs" / "study"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0; 1 if a run failed; 2 for bad arguments or records; 130 after Ctrl-C."""
    flags = _parser().parse_args(arguments)
    entries = list({entry.name: entry for section in SECTIONS.values() for entry in section}.values())
    if flags.only:
        entries = [entry for entry in entries if entry.name in flags.only]
    else:  # presets are a study of their own
        entries = [entry for entry in entries if flags.presets == (entry.source is not None)]
    chosen = [entry for entry in entries if flags.env in (None, entry.env)]
    if not chosen:
        print("study: no entry fits these arguments; presets are run with --presets", file=sys.stderr)
        return 2
    failures: list[str] = []
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        for entry in chosen:  # before hours of training
            Results(RECORDS, entry.name).read(entry.recipe.settings())
        if not flags.table:
            for entry in chosen:
                failures += train(entry, entry.seeds if flags.seeds is None else flags.seeds)
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


def train(entry: Entry, seeds: int) -> list[str]:
    """Train the seeds without a record. Returns a line for each failure."""
    failures = []
    results, settings = Results(RECORDS, entry.name), entry.recipe.settings()
    for seed in range(seeds):
        records = results.read(settings)
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
        results.write(settings, sorted([*records, record], key=lambda record: record.seed))
        solved = "-" if record.solved_seconds is None else f"{record.solved_seconds:.1f} s"
        print(f"greedy return {record.greedy_return:.1f}, solved after {solved}, {record.seconds:.1f} s in all")
    return failures


def write() -> None:
    """Write RESULTS.md and its figure from all records that fit the present settings."""
    outdated = _outdated()
    for name, settings in outdated.items():
        print(f"{name}: its records have other settings ({', '.join(settings)}) and are left out", file=sys.stderr)
    found = {
        heading: [(entry, Results(RECORDS, entry.name).read(entry.recipe.settings())) for entry in section]
        for heading, section in SECTIONS.items()
    }
    drawn = dict[str, dict[str, list[Path]]]()
    for entry, records in (line for section in found.values() for line in section):
        if entry.curve and records:
            kept = [RECORDS / "curves" / f"{entry.name}_s{record.seed}.csv" for record in records]
            drawn.setdefault(entry.env, {})[entry.title] = kept
    picture = RECORDS / "curves" / "curves.svg"
    if drawn:
        try:
            curves.draw(drawn, picture)
        except ImportError:
            print(f"{picture.name} is not drawn again: it needs matplotlib, pip install -e '.[bench]'", file=sys.stderr)
    else:
        picture.unlink(missing_ok=True)
    shown = picture.relative_to(DOCUMENT.parent) if picture.exists() else None
    by_workers = {count: Results(RECORDS, entry.name).read(entry.recipe.settings()) for count, entry in WORKERS.items()}
    others = [scaling.section(by_workers)] if by_workers[1] else []
    others += [sources.section(RECORDS / "sources"), *_reports()]
    files.write_text(DOCUMENT, document(found, EPISODES, shown, set(outdated), others))


def _reports() -> list[str]:
    """The reports on learning curves, drawn anew where there is matplotlib; none without it."""
    configs = {entry.name: entry.recipe.settings() for section in SECTIONS.values() for entry in section}
    try:
        return curves.reports(RECORDS / "curves", configs)
    except ImportError:
        print("reports are left out: they need matplotlib, pip install -e '.[bench]'", file=sys.stderr)
        return []


def _outdated() -> dict[str, list[str]]:
    """Entries whose settings are not those of their records any more, and which settings."""
    entries = {entry.name: entry for section in SECTIONS.values() for entry in section}
    changes = {name: Results(RECORDS, name).changes(entry.recipe.settings()) for name, entry in entries.items()}
    return {name: settings for name, settings in changes.items() if settings}


def _parser() -> argparse.ArgumentParser:
    names = list(dict.fromkeys(entry.name for section in SECTIONS.values() for entry in section))
    environments = sorted({entry.env for section in SECTIONS.values() for entry in section})
    parser = argparse.ArgumentParser(prog="python -m study", description="Learning over seeds; writes RESULTS.md.")
    parser.add_argument("--env", choices=environments, help="only the entries of this environment")
    parser.add_argument("--presets", action="store_true", help="the presets, instead of the environments")
    parser.add_argument("--only", choices=names, action="append", metavar="NAME", help="only this entry; any number")
    parser.add_argument("--seeds", type=_count, help="so many seeds, instead of each entry's own number")
    parser.add_argument("--table", action="store_true", help="train nothing: write RESULTS.md from the records")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, not {text!r}")
    return int(text)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
