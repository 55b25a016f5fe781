"""A report on runs: tables, learning curves and comparisons, over the seeds of
each configuration.

    python -m a3c_exp.report outputs/<sweep> [more folders] [to=<folder>]
                             [rank=eval]

Every folder is searched for runs, and `report/` in the first one is written:
index.html (one page with everything), learning curves as PNG, tables as CSV.
to=<folder> writes it elsewhere. The tables are printed too. Configurations are
ranked by their final return; with rank=eval by the mean return of the last
evaluation, with rank=success_rate by the last value of the curve
rollout/success_rate, with rank=eval/success_rate by that of an evaluation. Runs
may still be going on. Runs that failed or cannot be read are left out and
named; the exit code is then 1.
Runs that differ only in their seed are one configuration, named by the settings
in which configurations differ. The curves and the page need the extra `report`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from a3c_exp.common.reading import expanded
from a3c_exp.errors import exit_code, named, printable
from a3c_exp.report.report import PAGE, Report, check_own
from a3c_exp.report.runs import find_curve, find_runs
from a3c_exp.run.run_folder import check_places, locate_run

FOLDER = "report"


def main(arguments: Sequence[str]) -> int:
    options = {}
    folders = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and name in ("to", "rank"):
            options[name] = value
        else:
            folders.append(Path(argument))
    wants_help = not {"-h", "--help"}.isdisjoint(arguments)
    if not folders or wants_help:
        print((__doc__ or "").strip())
        return 0 if wants_help else 2
    return exit_code(lambda: _command(folders, options.get("to"), options.get("rank")))


def _command(folders: Sequence[Path], to: str | None, curve: str | None) -> int:
    """Print and write the report.

    to: the folder to write; None: in the first one of `folders`.
    curve: to rank by; None: by final returns.
    """
    with named("run"):
        folders = [locate_run(folder) for folder in folders]
    target = expanded(to) if to else folders[0] / FOLDER
    with named("to"):
        if not to:
            check_places(folders[0], FOLDER)
        check_own(target)

    runs, left_out = find_runs(folders)
    report = Report(runs, left_out, None if curve is None else find_curve(runs, curve))
    print(printable(report.text()))
    try:
        report.write(target)
    except ImportError:
        problem = (
            "only the tables are written: the curves and the page need matplotlib: "
            "pip install 'a3c-exp[report]'"
        )
        print(printable(f"a3c_exp: {target}: {problem}"), file=sys.stderr)
        return 1
    print(printable(f"Report: {target / PAGE}"))
    return int(bool(report.left_out))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
