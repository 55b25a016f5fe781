"""The report on runs: its tables, its charts and its page, put together."""

from __future__ import annotations

import base64
import csv
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from a3c_exp.errors import FolderError, printable
from a3c_exp.report.charts import MOST_CURVES, band, learning_curves, scatter
from a3c_exp.report.ranking import EXPLANATION, Runs, comparison, rank, table
from a3c_exp.report.runs import RUN_NUMBERS, Axis, RecordedRun, group, swept
from a3c_exp.run import markdown
from a3c_exp.run.files import write_bytes, write_text
from a3c_exp.run.run_folder import begins_with

PAGE = "index.html"
RUNS_TABLE = "runs.csv"
CURVES_TABLE = "curves.csv"
RUN_COLUMNS = ("folder", "environment", "configuration", "seed", "stop_reason", *RUN_NUMBERS)
CURVE_COLUMNS = ("environment", "configuration", "axis", "x", "runs", "iqm", "low", "high")

CAPTION = """\
Interquartile mean over runs, with its 95 % bootstrap band; dotted: the return that counts as \
solved. A run that has ended keeps its last return; a thin line is a run that is unfinished."""
CHOICE = (
    "Only the first {most} of {count} configurations, in the order of their rank: "
    "curves.csv has all."
)
SCATTER = (
    "The {score} over {key}, a point for each run: runs whose settings differ otherwise "
    "too are apart by colour."
)

# The first lines of a page.
MARK = """\
<!DOCTYPE html>
<meta charset="utf-8">
<meta name="generator" content="a3c_exp.report">
"""
# The policy forbids the page everything that it does not bring along.
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


class Chart(NamedTuple):
    """A chart of a report, a PNG. name: for its file."""

    name: str
    png: bytes
    caption: str


@dataclass(frozen=True)
class Report:
    """The report on some runs.

    left_out: folders of other runs, with the reason.
    curve: see `rank`.
    """

    runs: list[RecordedRun]
    left_out: dict[Path, str]
    curve: str | None = None

    @cached_property
    def ranked(self) -> dict[str, dict[str, Runs]]:
        """Return the configurations of each environment, in the order of their rank."""
        return {
            env: rank(configurations, self.curve)
            for env, configurations in group(self.runs).items()
        }

    def text(self) -> str:
        """Return the tables as Markdown, with what else there is to say."""
        parts = []
        for env, ranked in self.ranked.items():
            rows = table(ranked, self.curve)
            cells = ([_markdown_cell(text) for text in row.values()] for row in rows)
            parts.append(f"{env}:\n\n{markdown.table(list(rows[0]), cells)}\n")
            parts += [f"{line}\n" for line in comparison(ranked, self.curve)]
        parts += [EXPLANATION.format(score=self._score), ""]
        return "\n".join([*parts, *self._origin(), *self._missing()])

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
        lines.append(f"Commit {', '.join(sorted(commits))}; {origin}.")
        return lines

    def _missing(self) -> list[str]:
        return [f"Left out: {folder}: {reason}" for folder, reason in self.left_out.items()]

    def write(self, folder: Path) -> None:
        """Write the report into `folder`: the tables, then the charts, and the page last.

        Raises OSError, and ImportError without matplotlib.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._write_tables(folder)
        parts = [MARK, HEAD, element("h1", "Report"), element("p", *self._origin())]
        for number, (env, configurations) in enumerate(self.ranked.items(), 1):
            parts += [element("h2", env), html_table(table(configurations, self.curve))]
            parts.append(element("p", *comparison(configurations, self.curve)))
            for chart in self._charts(configurations):
                name = f"{number}_{_file_name(env)}_{_file_name(chart.name)}.png"
                write_bytes(folder / name, chart.png)
                parts.append(html_image(chart.png, chart.caption))
        parts.append(element("p", EXPLANATION.format(score=self._score), *self._missing()))
        write_text(folder / PAGE, "".join(parts))

    def _charts(self, configurations: Mapping[str, Runs]) -> Iterator[Chart]:
        """Yield the charts of an environment: learning curves, and a scatter plot of each setting
        that was swept. Raises ImportError without matplotlib."""
        runs = [run for alike in configurations.values() for run in alike]
        if any(len(run.curve.steps) for run in runs):
            caption = CAPTION
            count = len(configurations)
            if count > MOST_CURVES:
                caption += f" {CHOICE.format(most=MOST_CURVES, count=count)}"
            yield Chart("curves", learning_curves(configurations), caption)

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
        write_table(folder / RUNS_TABLE, RUN_COLUMNS, runs)
        write_table(folder / CURVES_TABLE, CURVE_COLUMNS, points)


def check_own(folder: Path) -> None:
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
    for path in (page, table, folder / CURVES_TABLE, *folder.glob("[1-9]*_*_*.png")):
        if os.path.lexists(path):
            raise FolderError(folder, f"has a file that is not of a report: {path.name}")


def _band_rows(runs: Runs) -> Iterator[list[object]]:
    """Yield the last columns of curves.csv, for a configuration."""
    axes: tuple[Axis, ...] = ("steps", "seconds")
    for axis in axes:
        mean = band(runs, axis)
        if mean is None:
            continue
        for row in np.stack([mean.x, mean.middle, mean.low, mean.high], axis=1):
            x, *values = (float(f"{value:.6g}") for value in row)
            yield [axis, x, mean.runs, *values]


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    cells = ([_without_formula(cell) for cell in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows([columns, *cells])
    write_text(path, text.getvalue())


def _without_formula(cell: object) -> object:
    """Return a cell that no spreadsheet takes for a formula. Texts may come from a stranger's
    folder."""
    if isinstance(cell, int | float | None) or str(cell)[:1] not in ("=", "+", "-", "@"):
        return cell
    return f"'{cell}"


def _markdown_cell(text: str) -> str:
    """Return a text in a Markdown table."""
    return printable(text).replace("\n", "\\n").replace("|", "\\|")


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:100]


# Parts of an HTML page that holds everything of a report and needs no network. Every text is
# escaped.


def element(tag: str, *texts: str) -> str:
    """Return each text as an element: a heading (h1, h2) or a paragraph (p)."""
    return "".join(f"<{tag}>{escape(text)}</{tag}>\n" for text in texts)


def html_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return a table. rows: cells by column, at least one."""
    lines = [element("th", *rows[0]), *(element("td", *row.values()) for row in rows)]
    return "<table>\n" + "".join(f"<tr>\n{line}</tr>\n" for line in lines) + "</table>\n"


def html_image(png: bytes, caption: str) -> str:
    """Return an image with its caption, which also stands for it where it cannot be seen."""
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return f'<p><img alt="{escape(caption)}" src="{source}"></p>\n{element("p", caption)}'
