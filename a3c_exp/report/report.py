"""The report on runs: its tables, its pictures and its page, put together."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from a3c_exp.errors import printable
from a3c_exp.report.bands import band
from a3c_exp.report.charts import MOST_CURVES, learning_curves, scatter
from a3c_exp.report.page import Page
from a3c_exp.report.ranking import EXPLANATION, Ranked, cells, comparison, rank
from a3c_exp.report.runs import Axis, RecordedRun, group, swept
from a3c_exp.run import markdown
from a3c_exp.run.files import write_bytes, write_text

PAGE = "index.html"

RUN_COLUMNS = [
    *("folder", "environment", "configuration", "seed", "stop_reason", "steps", "seconds", "final_return"),
    *("best_return", "solved_steps", "solved_seconds", "steps_per_second", "staleness"),
]
CURVE_COLUMNS = ("environment", "configuration", "axis", "x", "runs", "iqm", "low", "high")

CAPTION = """\
Interquartile mean over runs, with its 95 % bootstrap band; dotted: the return that counts as solved. A run that has
ended keeps its last return; a thin line is a run that is unfinished."""
SCATTER = "One point a run: runs whose settings differ otherwise too are apart by colour."
CHOICE = """\
Only the first {most} of {count} configurations, in the order of their rank; curves.csv has all. To choose others, name
the folders of their runs: python -m a3c_exp.report <run> <run> ... to=<folder>."""


@dataclass(frozen=True, slots=True)
class Report:
    """What is reported. left_out: folders of runs, with the reason. curve: see `rank`."""

    runs: list[RecordedRun]
    left_out: dict[Path, str]
    curve: str | None = None

    @property
    def ranked(self) -> dict[str, list[Ranked]]:
        """The configurations of each environment, in the order of their rank."""
        return {env: rank(configurations, self.curve) for env, configurations in group(self.runs).items()}

    def text(self) -> str:
        """The tables as Markdown, with what else there is to say."""
        parts = []
        for env, ranked in self.ranked.items():
            rows = [cells(each) for each in ranked]
            table = markdown.table(list(rows[0]), ([_cell(text) for text in row.values()] for row in rows))
            parts += [f"{env}:\n\n{table}\n", *(f"{line}\n" for line in comparison(ranked))]
        return "\n".join([*parts, *self._origin(), *self._missing()])

    def _origin(self) -> list[str]:
        summaries = [run.summary for run in self.runs if run.ended]
        commits = sorted({str(summary.get("commit")) for summary in summaries}) or ["unknown"]
        machines = [summary["machine"] for summary in summaries if isinstance(summary.get("machine"), dict)]
        processors = sorted({f"{each.get('processor')}, {each.get('usable_cores')} cores" for each in machines})
        unfinished = sum(not run.ended for run in self.runs)
        state = f", {unfinished} unfinished: going on, or killed" if unfinished else ""
        origin = f"Commit {', '.join(commits)}; {'; '.join(processors) or 'unknown machine'}."
        return [f"Runs: {len(self.runs)}{state}.", origin]

    def _missing(self) -> list[str]:
        return [f"Left out: {folder}: {reason}" for folder, reason in self.left_out.items()]

    def write(self, folder: Path) -> None:
        """Write the report into `folder`: the tables, then the pictures, and the page last.

        Raises OSError, and ImportError without matplotlib.
        """
        folder.mkdir(parents=True, exist_ok=True)
        ranked = self.ranked
        self._write_tables(folder, ranked)
        page = Page(f"Report on {len(self.runs)} run{'s' if len(self.runs) > 1 else ''}")
        page.paragraphs(*self._origin())
        for number, (env, configurations) in enumerate(ranked.items(), 1):
            page.heading(env)
            page.table([cells(each) for each in configurations])
            page.paragraphs(*comparison(configurations))
            if any(len(run.curve.steps) for each in configurations for run in each.runs):
                picture = learning_curves(configurations)
                write_bytes(folder / f"{number}_{_file_name(env)}_curves.png", picture)
                page.picture(picture, f"Learning curves of {env}", _caption(len(configurations)))
            else:
                page.paragraphs("No episode has ended yet: there is no curve.")
            runs = [run for each in configurations for run in each.runs if run.score(self.curve) is not None]
            for key, values in swept(runs, MOST_CURVES).items():
                picture = scatter(runs, key, values, self.curve)
                write_bytes(folder / f"{number}_{_file_name(env)}_{_file_name(key)}.png", picture)
                page.picture(picture, f"Scores of {env} over {key}", SCATTER)
        score = "final return" if self.curve is None else f"last value of {self.curve}"
        page.paragraphs(" ".join(EXPLANATION.format(score=score).split()), *self._missing())
        write_text(folder / PAGE, page.html())

    def _write_tables(self, folder: Path, ranked: Mapping[str, Sequence[Ranked]]) -> None:
        every = [(env, each) for env, configurations in ranked.items() for each in configurations]
        rows = (
            [run.folder, env, each.name, *(getattr(run, column) for column in RUN_COLUMNS[3:])]
            for env, each in every
            for run in each.runs
        )
        write_table(folder / "runs.csv", RUN_COLUMNS, rows)
        write_table(folder / "curves.csv", CURVE_COLUMNS, (row for env, each in every for row in _points(env, each)))


def _points(env: str, ranked: Ranked) -> Iterator[list[object]]:
    """Rows of curves.csv."""
    axes: tuple[Axis, ...] = ("steps", "seconds")
    for axis in axes:
        mean = band(ranked.runs, axis)
        if mean is not None:
            for x, middle, low, high in zip(mean.x, mean.middle, mean.low, mean.high, strict=True):
                yield [env, ranked.name, axis, f"{x:.6g}", mean.runs, f"{middle:.6g}", f"{low:.6g}", f"{high:.6g}"]


def _caption(configurations: int) -> str:
    """The caption of a picture, with how to see the configurations that it leaves out."""
    others = CHOICE.format(most=MOST_CURVES, count=configurations) if configurations > MOST_CURVES else ""
    return " ".join(f"{CAPTION} {others}".split())


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *(map(_without_formula, row) for row in rows)])
    write_text(path, text.getvalue())


def _without_formula(cell: object) -> object:
    """A cell that no spreadsheet takes for a formula. Names may come from a stranger's folder."""
    text = str(cell)
    if not text.startswith(("=", "+", "-", "@")):
        return cell
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return cell


def _cell(text: str) -> str:
    """A text in a Markdown table."""
    return printable(text).replace("\n", "\\n").replace("|", "\\|")


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:100]
