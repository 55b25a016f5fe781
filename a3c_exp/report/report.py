"""The report on runs: its tables, its charts and its page, put together."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from a3c_exp.errors import FolderError, printable
from a3c_exp.report.charts import (
    FILE_FORMATS,
    MOST_CURVES,
    UNITS,
    band,
    learning_curves,
    rendered,
    scatter,
)
from a3c_exp.report.ranking import (
    EXPLANATION,
    RecordedRuns,
    comparison,
    improvement_table,
    normalized_table,
    rank,
    ranking_table,
)
from a3c_exp.report.runs import RUN_NUMBERS, Axis, RecordedRun, group, swept
from a3c_exp.report.tables import Rows, latex_table, markdown_cell, markdown_table, write_csv
from a3c_exp.run.files import write_bytes, write_text
from a3c_exp.run.run_folder import begins_with

if TYPE_CHECKING:  # only drawing needs it
    from matplotlib.figure import Figure

PAGE = "index.html"
RUNS_TABLE = "runs.csv"
CURVES_TABLE = "curves.csv"
LATEX_TABLES = "tables.tex"
RUN_COLUMNS = ("folder", "environment", "configuration", "seed", "stop_reason", *RUN_NUMBERS)
CURVE_COLUMNS = ("environment", "configuration", "axis", "x", "runs", "iqm", "low", "high")

CAPTION = """\
Interquartile mean over runs, with its 95 % bootstrap band; dotted: the return that counts as \
solved, or it is named at the edge. A run that has ended keeps its last return; a thin line is a \
run that is unfinished."""
CHOICE = (
    "Only the first {most} of {count} configurations, in the order of their rank: "
    "curves.csv has all."
)
IMPROVEMENT = (
    "probability that a run of the row ends higher than a run of the column "
    "(*: its 95 % interval excludes 0.5)"
)
NORMALIZED = "All environments: final returns, where runs begin with 0 and the threshold is 1"
SCATTER = (
    "The {score} over {key}, a point for each run: runs whose settings differ otherwise "
    "too are apart by colour."
)

MARK = """\
<!DOCTYPE html>
<meta charset="utf-8">
<meta name="generator" content="a3c_exp.report">
"""
"""The first lines of a page."""
HEAD = """\
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>Report</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 75rem; padding: 1.5rem; }
table { border-collapse: collapse; display: block; font-size: 0.9rem; overflow-x: auto; }
th, td { border-bottom: 1px solid #d9d9d9; padding: 0.3rem 0.5rem; text-align: right; }
img { max-width: 100%; }
</style>
"""
"""The policy forbids the page everything that it does not bring along."""
LITERAL = ("autolink", "automail", "backtick", "em_strong", "em_strong2", "link", "reference")
"""What Markdown would make of characters in a name."""


class Chart(NamedTuple):
    """A chart of a report. name: for its file."""

    name: str
    figure: Figure
    caption: str


@dataclass(frozen=True)
class Report:
    """The report on some runs.

    left_out: folders of other runs, with the reason.
    curve: see `rank`.
    axis: of the learning curves, beside that of seconds.
    """

    runs: list[RecordedRun]
    left_out: dict[Path, str]
    curve: str | None = None
    axis: Axis = "steps"

    @cached_property
    def ranked(self) -> dict[str, dict[str, RecordedRuns]]:
        """Return the configurations of each environment, in the order of their rank."""
        return {
            env: rank(configurations, self.curve)
            for env, configurations in group(self.runs).items()
        }

    @cached_property
    def tables(self) -> dict[str, Rows]:
        """Return the tables by title: of each environment, and over all of them."""
        tables: dict[str, Rows] = {}
        for env, ranked in self.ranked.items():
            tables[env] = ranking_table(ranked, self.curve)
            tables[f"{env}, {IMPROVEMENT}"] = improvement_table(ranked, self.curve)

        tables[NORMALIZED] = normalized_table(self.ranked)
        return {title: rows for title, rows in tables.items() if rows}

    def text(self, images: Mapping[str, Sequence[str]] | None = None) -> str:
        """Return the tables as Markdown, with what else there is to say. images: paragraphs that
        follow the table of that title."""
        parts = self._origin()
        for title, rows in self.tables.items():
            parts += [f"## {markdown_cell(title)}", markdown_table(rows)]
            parts += comparison(self.ranked.get(title, {}), self.curve)
            parts += (images or {}).get(title, [])

        parts.append(EXPLANATION.format(score=self._score))
        parts += [f"Left out: {folder}: {reason}" for folder, reason in self.left_out.items()]
        return "\n\n".join(parts)

    @property
    def _score(self) -> str:
        return "final return" if self.curve is None else f"last value of {self.curve}"

    def _origin(self) -> list[str]:
        summaries = [run.summary for run in self.runs if run.summary]
        commits = {str(summary.get("commit") or "unknown") for summary in summaries} or {"unknown"}
        machines = [
            summary["machine"] for summary in summaries if isinstance(summary.get("machine"), dict)
        ]
        processors = {
            f"{machine.get('processor')}, {machine.get('usable_cores')} cores"
            for machine in machines
        }
        origin = "; ".join(sorted(processors)) or "unknown machine"

        lines = [f"Runs: {len(self.runs)}."]
        unfinished = ", ".join(run.folder.name for run in self.runs if not run.ended)
        if unfinished:
            lines.append(f"Unfinished, and counted: {unfinished}.")
        simulated = sum(summary.get("clock") == "simulated" for summary in summaries)
        if simulated:
            lines.append(f"Runs whose seconds are simulated: {simulated}.")
        lines.append(f"Commit {', '.join(sorted(commits))}; {origin}.")

        return lines

    def write(self, folder: Path, file_format: str = "png") -> None:
        """Write the report into `folder`: the tables, then the charts, and the page last.

        file_format: of the charts' files, see FILE_FORMATS.
        Raises OSError, and ImportError without matplotlib.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._write_tables(folder)

        images: dict[str, list[str]] = {}
        for number, (env, configurations) in enumerate(self.ranked.items(), 1):
            images[env] = []
            for chart in self._charts(configurations):
                png = rendered(chart.figure, "png")
                text = base64.b64encode(png).decode()
                images[env] += [f"![{chart.name}](data:image/png;base64,{text})", chart.caption]

                name = f"{number}_{_file_name(env)}_{_file_name(chart.name)}.{file_format}"
                is_png = file_format == "png"
                write_bytes(folder / name, png if is_png else rendered(chart.figure, file_format))

        write_text(folder / PAGE, MARK + HEAD + _html(f"# Report\n\n{self.text(images)}"))

    def _charts(self, configurations: Mapping[str, RecordedRuns]) -> Iterator[Chart]:
        """Yield the charts of an environment: learning curves, and a scatter plot of each setting
        that was swept. Raises ImportError without matplotlib."""
        runs = [run for alike in configurations.values() for run in alike]
        if any(run.curve.returns.size for run in runs):
            caption = CAPTION
            count = len(configurations)
            if count > MOST_CURVES:
                caption += f" {CHOICE.format(most=MOST_CURVES, count=count)}"

            yield Chart("curves", learning_curves(configurations, self.axis), caption)

        scored = [run for run in runs if run.score(self.curve) is not None]
        for key, values in swept(scored, MOST_CURVES).items():
            caption = SCATTER.format(score=self._score, key=key)
            yield Chart(key, scatter(scored, key, values, self.curve), caption)

    def _write_tables(self, folder: Path) -> None:
        runs: list[list[object]] = []
        points: list[list[object]] = []
        for env, configurations in self.ranked.items():
            for name, alike in configurations.items():
                for run in alike:
                    seed = run.settings.get("seed")
                    numbers = run.numbers.values()
                    runs.append([run.folder, env, name, seed, run.stop_reason, *numbers])
                points += ([env, name, *row] for row in _band_rows(alike))

        write_csv(folder / RUNS_TABLE, RUN_COLUMNS, runs)
        write_csv(folder / CURVES_TABLE, CURVE_COLUMNS, points)

        latex = []
        for title, rows in self.tables.items():
            results = [{key: row[key] for key in row if key != "folders"} for row in rows]
            latex.append(f"% {printable(title)}\n{latex_table(results)}\n")
        write_text(folder / LATEX_TABLES, "\n".join(latex))


def _html(text: str) -> str:
    """Return Markdown as HTML, with its names literally."""
    from markdown import Markdown

    converter = Markdown(extensions=["tables"])
    for pattern in LITERAL:
        converter.inlinePatterns.deregister(pattern, strict=False)

    return str(converter.convert(escape(text, quote=False)))


def check_is_report(folder: Path) -> None:
    """Raise FolderError for a folder with a file of another program's that a report would replace.

    A report is known by its page. Where there is none, as without matplotlib, by its table of runs.
    """
    table = folder / RUNS_TABLE
    page = folder / PAGE
    if os.path.lexists(page):
        is_report = begins_with(page, MARK)
    else:
        is_report = begins_with(table, ",".join(RUN_COLUMNS))
    if is_report:
        return

    charts = (path for path in folder.glob("[1-9]*_*_*.*") if path.suffix[1:] in FILE_FORMATS)
    for path in (page, table, folder / CURVES_TABLE, folder / LATEX_TABLES, *charts):
        if os.path.lexists(path):
            raise FolderError(folder, f"has a file that is not of a report: {path.name}")


def _band_rows(runs: RecordedRuns) -> Iterator[list[object]]:
    """Yield the last columns of curves.csv, for a configuration."""
    for axis in UNITS:
        mean = band(runs, axis)
        if mean is None:
            continue

        for row in np.stack([mean.x, mean.middle, mean.low, mean.high], axis=1):
            x, *values = (float(f"{value:.6g}") for value in row)
            yield [axis, x, mean.runs, *values]


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:100]
