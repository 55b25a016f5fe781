"""A report on runs: tables, learning curves and comparisons, over the seeds of
each configuration.

    python -m a3c_exp.report outputs/<sweep> [more folders] [to=<folder>]
                             [rank=eval] [axis=episodes] [format=pdf]

Every folder is searched for runs, and `report/` in the first one is written:
index.html (one page with everything), learning curves, tables as CSV and for
LaTeX. to=<folder> writes it elsewhere. The tables are printed too.
Configurations are ranked by their final return; with rank=eval by the mean
return of the last evaluation, with rank=success_rate by the last value of the
curve rollout/success_rate, with rank=eval/success_rate by that of an evaluation.
axis=episodes plots curves over episodes instead of steps. format=svg or
format=pdf sets the format of the charts' files (default png). Runs may still be
going on. Runs that failed or cannot be read are left out and named; the exit
code is then 1.
Runs that differ only in their seed are one configuration, named by the settings
in which configurations differ. The curves and the page need the extra `report`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from a3c_exp.common.reading import expanded
from a3c_exp.errors import ConfigError, did_you_mean, either, named, printable, require
from a3c_exp.exit_codes import ExitCode, exit_code
from a3c_exp.report.charts import FILE_FORMATS
from a3c_exp.report.report import PAGE, Report, check_is_report
from a3c_exp.report.runs import Axis, find_curve, find_runs
from a3c_exp.run.run_folder import check_names, locate_run

FOLDER = "report"


OPTIONS: Mapping[str, Sequence[str]] = {
    "to": (),
    "rank": (),
    "axis": ("steps", "episodes"),
    "format": tuple(FILE_FORMATS),
}
"""Options, with the values that are allowed; none for any."""


def main(arguments: Sequence[str]) -> int:
    options = {}
    folders = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and name in OPTIONS:
            options[name] = value
        else:
            folders.append(Path(argument))

    wants_help = not {"-h", "--help"}.isdisjoint(arguments)
    if not folders or wants_help:
        print((__doc__ or "").strip())
        return ExitCode.DONE if wants_help else ExitCode.REFUSED
    return exit_code(lambda: _report(folders, options))


def _report(folders: Sequence[Path], options: Mapping[str, str]) -> int:
    """Print and write the report. options: see OPTIONS."""
    for name, value in options.items():
        if choices := OPTIONS[name]:
            require(value in choices, name, value, either(choices))

    for folder in folders:
        name, equals, value = str(folder).partition("=")
        if equals and name.isidentifier() and not folder.exists():
            raise ConfigError(name, value, f"is no option: {did_you_mean(name, OPTIONS)}")

    with named("run"):
        folders = [locate_run(folder) for folder in folders]
    to = options.get("to")
    target = expanded(to) if to else folders[0] / FOLDER
    with named("to"):
        if not to:
            check_names(folders[0], FOLDER)
        check_is_report(target)

    runs, left_out = find_runs(folders)
    curve = find_curve(runs, options["rank"]) if "rank" in options else None
    axis: Axis = "episodes" if options.get("axis") == "episodes" else "steps"
    report = Report(runs, left_out, curve, axis)

    print(printable(report.text()))
    try:
        report.write(target, options.get("format", "png"))
    except ImportError:
        problem = (
            "only the tables are written: the curves and the page need more packages: "
            "pip install 'a3c-exp[report]'"
        )
        print(printable(f"a3c_exp: {target}: {problem}"), file=sys.stderr)
        return ExitCode.FAILED

    print(printable(f"Report: {target / PAGE}"))
    return ExitCode.FAILED if report.left_out else ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
