"""`python -m evidence.study`: train the runs without a record, then write RESULTS.md and the pages
of evidence/results/ from the records there.

`python -m evidence.study --scaling` and the like train those of a figure. A recorded run is not
repeated. An interrupted study continues, and so does the run that was interrupted.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from a3c_exp.errors import ConfigError
from a3c_exp.run import files
from evidence.study import cluster, corrections, curves, document, figures, findings, tables
from evidence.study.entries import SECTIONS, Entry, Recorded
from evidence.study.runs import EPISODES, ROOT, RunFailedError, interrupt
from evidence.study.sources import records as sources
from evidence.study.text import text, wrapped

RECORDS = ROOT / "evidence" / "results"
DOCUMENT = ROOT / "RESULTS.md"
RUNS = ROOT / "outputs" / "study"
NOTES = {"MiniGrid": "minigrid", "MuJoCo's robots": "mujoco"}
"""Texts below the headings of tables."""
BY_HAND = {"cluster": cluster, "corrections": corrections}
"""Figures whose section and tables a module of their own writes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0; 1 if a run failed; 2 for bad arguments or records; 130 after
    Ctrl-C."""
    entries = {entry.name: entry for section in SECTIONS.values() for entry in section}
    flags = _flags(entries, arguments)
    chosen = _chosen(entries, flags)
    problem = _problem(flags, chosen)
    if problem is not None:
        print(f"study: {problem}", file=sys.stderr)
        return 2

    failures: list[str] = []
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if flags.show:
            for line in shown(flags):
                print(line)
            return 0

        if not flags.table:
            for entry in chosen:  # before hours of training
                entry.results(RECORDS).check(entry.recipe.settings())
            # a study that is interrupted has some of all
            seeds = range(max(entry.seeds for entry in chosen))
            tasks = [(entry, seed) for seed in seeds for entry in chosen]
            print(f"at most {len(tasks)} runs, without those that have a record: {RUNS}/*.log")
            failures = train_all(tasks, flags.jobs)

        write()
        print(f"{DOCUMENT}: written from the records")
        for line in shown(flags):
            print(line)
    except KeyboardInterrupt:
        print("interrupted: the same command continues", file=sys.stderr)
        return 130
    except ConfigError as error:
        print(f"study: {error}", file=sys.stderr)
        return 2

    for failure in failures:
        print(failure, file=sys.stderr)
    return int(bool(failures))


def _flags(entries: Mapping[str, Entry], arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m evidence.study",
        description="Learning over seeds; writes RESULTS.md, and the pages of evidence/results/.",
    )
    environments = sorted({entry.env for entry in entries.values()})
    parser.add_argument("--env", choices=environments, help="only the entries of this environment")
    parser.add_argument(
        "--presets", action="store_true", help="the presets, instead of the environments"
    )
    parser.add_argument(
        "--only",
        choices=entries,
        action="extend",
        nargs="+",
        metavar="NAME",
        help="only these entries",
    )
    for name, figure in figures.FIGURES.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            action="append_const",
            dest="figures",
            const=figure,
            help=f"the figure on {name}",
        )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="runs at once, of figures without seconds"
    )
    parser.add_argument(
        "--table", action="store_true", help="train nothing: write the pages from the records"
    )
    parser.add_argument(
        "--show",
        action="store_true",
        help="train and write nothing: print the numbers of --only and of figures from the records",
    )
    return parser.parse_args(arguments)


def _chosen(entries: Mapping[str, Entry], flags: argparse.Namespace) -> list[Entry]:
    """Return the entries that the flags ask for. Presets are a study of their own."""
    if flags.figures or flags.only:
        points = [
            entry
            for figure in flags.figures or ()
            for entry in figures.entries(figure, RECORDS, flags.env)
        ]
        only = [entries[name] for name in flags.only or ()]
        return points + [entry for entry in only if flags.env in (None, entry.env)]

    return [
        entry
        for entry in entries.values()
        if flags.presets == (entry.source is not None) and flags.env in (None, entry.env)
    ]


def _problem(flags: argparse.Namespace, chosen: Sequence[Entry]) -> str | None:
    """Return why these arguments cannot be followed, as a line; None if they can."""
    if flags.show and not (flags.figures or flags.only):
        return "--show needs a figure or --only"
    if not chosen and flags.figures:
        panels = [panel for figure in flags.figures for panel in figure.panels]
        environments = sorted({panel.env for panel in panels})
        return f"--env {flags.env} must be one of {', '.join(environments)} with this figure"
    if not chosen:
        return "no entry fits these arguments; presets are run with --presets"
    compares_seconds = not flags.figures or any(figure.timed for figure in flags.figures)
    compares_seconds |= bool(flags.only)
    if flags.jobs < 1 or (flags.jobs > 1 and compares_seconds):
        allowed = "1, or a larger whole number with figures that compare no seconds"
        return f"--jobs {flags.jobs} must be {allowed}"
    if importlib.util.find_spec("matplotlib") is None:
        return "it needs matplotlib: pip install -e '.[bench]'"
    return None


def train_all(tasks: Sequence[tuple[Entry, int]], jobs: int) -> list[str]:
    """Train entries with seeds, so many runs at once. Returns a line for each that fails."""
    if jobs == 1:  # in this thread, which a signal interrupts
        return [line for entry, seed in tasks for line in train(entry, seed)]
    with ThreadPoolExecutor(jobs) as pool:
        trained = [pool.submit(train, entry, seed) for entry, seed in tasks]
        try:
            return [line for future in trained for line in future.result()]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            interrupt()
            raise


def train(entry: Entry, seed: int) -> list[str]:
    """Train a seed of an entry that has no record of it. Returns a line if that fails."""
    if seed >= entry.seeds or any(record.seed == seed for record in entry.records(RECORDS)):
        return []
    name = f"{entry.name}, seed {seed}"
    run = RUNS / f"{entry.name}_s{seed}"

    try:
        record = entry.recipe.run(seed, run)
    except RunFailedError as failure:
        print(f"{name}: failed", flush=True)
        return [f"{name}: {failure}"]

    if entry.curve:
        entry.curves(RECORDS).add(seed, run)
    entry.results(RECORDS).add(entry.recipe.settings(), record)
    score = record.last_100 if record.greedy_return is None else record.greedy_return
    solved = "-" if record.solved_seconds is None else f"{record.solved_seconds:.1f} s"
    outcome = f"return {score}, solved after {solved}, {record.seconds:.1f} s in all"
    print(f"{name}: {outcome}", flush=True)

    return []


def shown(flags: argparse.Namespace) -> Iterator[str]:
    """Yield the rows of the figures and of the entries that the flags name, a cell a line."""
    grids: list[tables.Grid] = []
    for figure in flags.figures or ():
        module = BY_HAND.get(figure.name, figures)
        grids += figures.grids(figure, RECORDS) if module is figures else module.grids(RECORDS)

    entries = {entry.name: entry for section in SECTIONS.values() for entry in section}
    for name in flags.only or ():
        line = recorded(entries[name])
        machines = {machine: machine for machine in document.machines([line])}
        columns, [[title, *cells]] = document.grid([line], machines)
        grids.append((columns, [[f"{name}: {title}", *cells]]))

    for columns, rows in grids:
        for title, *cells in rows:
            yield title
            named = zip(columns[1:], cells, strict=True)
            yield from (f"  {column}: {cell}" for column, cell in named if cell)


def write() -> None:
    """Write RESULTS.md, the pages and their figures from all records, each with the settings that
    were recorded with it."""
    numbers = findings.names(RECORDS)
    sections = {
        heading: [recorded(entry) for entry in entries] for heading, entries in SECTIONS.items()
    }
    by_name = {line.entry.name: line for lines in sections.values() for line in lines}
    machines = document.machines([*by_name.values()])

    tables_of: dict[bool, list[str]] = {False: [], True: []}
    for heading, lines in sections.items():
        note = wrapped(text(NOTES[heading], **numbers)) if heading in NOTES else ""
        section = document.section(heading, note, lines, machines)
        tables_of[lines[0].entry.source is not None].append(section)

    pages = {
        "learning": [*tables_of[False], *curves.reports(RECORDS, by_name)],
        "presets": [
            *tables_of[True],
            sources.section(RECORDS / sources.TABLE),
            curves.section(RECORDS, by_name),
        ],
        "methods": figures.sections(RECORDS, "methods"),
        "workers": [
            *figures.sections(RECORDS, "workers"),
            cluster.section(RECORDS),
            corrections.section(RECORDS),
        ],
    }

    contents = []
    for name, parts in pages.items():
        path = RECORDS / f"{name}.md"
        page = "\n".join([text(f"page_{name}", episodes=EPISODES), *filter(None, parts)])
        files.write_text(path, page)
        contents.append(document.contents(page, path.relative_to(DOCUMENT.parent).as_posix()))

    sentences = wrapped(text("findings", **numbers))
    paper = text("paper", **numbers).rstrip()
    failures = text("failures", **numbers).rstrip()
    front = text(
        "results",
        findings=sentences,
        paper=paper,
        failures=failures,
        contents="\n".join(contents),
    )
    files.write_text(DOCUMENT, front)


def recorded(entry: Entry) -> Recorded:
    """Return an entry with its records."""
    return Recorded(entry, entry.records(RECORDS), entry.results(RECORDS).settings())


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
