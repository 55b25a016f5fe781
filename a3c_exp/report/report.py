"""The report on runs: its tables and pictures, put together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from a3c_exp.common.reading import UnreadableError
from a3c_exp.errors import printable
from a3c_exp.report import charts
from a3c_exp.report.bands import band, by_seconds, by_steps, normalized_returns, profiles
from a3c_exp.report.episodes import Episodes, read_episodes
from a3c_exp.report.page import PAGE, Page, write_picture, write_table
from a3c_exp.report.ranking import COLUMNS, EXPLANATION, Ranked, cells, comparison, improvement, rank
from a3c_exp.report.runs import Groups, RecordedRun, group
from a3c_exp.run import markdown
from a3c_exp.run.files import bytes_text, write_text

RUN_COLUMNS = (
    "folder", "environment", "configuration", "seed", "stop_reason", "steps", "seconds", "final_return", "best_return",
    "solved_steps", "solved_seconds", "steps_per_second", "staleness", "bytes",
)  # fmt: skip
CURVE_COLUMNS = ("environment", "configuration", "axis", "x", "runs", "iqm", "low", "high")

MOST_EPISODE_PLOTS = 3

CURVES_CAPTION = """\
Interquartile mean over runs, with its 95 % bootstrap band; dotted: the return that counts as solved. A run that has
ended keeps its last return; a thin line is a run that is unfinished."""
PROFILE_CAPTION = """\
The share of runs above each return, with its 95 % stratified bootstrap band. Returns are normalised in each
environment: 0 is the lowest final return of any run here, 1 the highest."""
EPISODES_CAPTION = """\
Training episodes of the first run of each of the first configurations, from episodes.csv: every return and the mean of
100 episodes (left), the mean of the last 10 episodes of each worker (middle), and lengths (right)."""


@dataclass(frozen=True, slots=True)
class Report:
    """What is reported. left_out: folders of runs, with the reason. random: by environment, the mean return of random
    actions, where it was asked for."""

    runs: list[RecordedRun]
    left_out: dict[Path, str]
    random: Mapping[str, float]

    @property
    def ranked(self) -> dict[str, list[Ranked]]:
        """The configurations of each environment, in the order of their rank."""
        groups: Groups = group(self.runs)
        return {env: rank(configurations) for env, configurations in groups.items()}

    def text(self) -> str:
        """The tables as Markdown, with what else there is to say."""
        parts = []
        for env, ranked in self.ranked.items():
            parts.append(
                f"{env}:\n\n{markdown.table(COLUMNS, ([_cell(text) for text in cells(each)] for each in ranked))}\n"
            )
            parts += [f"{line}\n" for line in self._remarks(env, ranked)]
        return "\n".join([*parts, *self._origin(), *self._missing()])

    def _remarks(self, env: str, ranked: Sequence[Ranked]) -> Iterator[str]:
        sentence = comparison(ranked[0], ranked[1]) if len(ranked) > 1 else None
        if sentence:
            yield sentence
        if env in self.random:
            yield f"Random actions have a mean return of {self.random[env]:.1f}."

    def _origin(self) -> list[str]:
        summaries = [run.summary for run in self.runs if run.ended]
        commits = sorted({str(summary.get("commit")) for summary in summaries}) or ["unknown"]
        machines = [summary.get("machine") or {} for summary in summaries]
        processors = sorted(
            {f"{machine.get('processor')}, {machine.get('usable_cores')} cores" for machine in machines}
        )
        unfinished = sum(not run.ended for run in self.runs)
        state = f"Size on disk: {bytes_text(sum(run.size for run in self.runs))}; runs: {len(self.runs)}"
        state += f", {unfinished} unfinished: going on, or killed" if unfinished else ""
        return [f"{state}.", f"Commit {', '.join(commits)}; {'; '.join(processors) or 'unknown machine'}."]

    def _missing(self) -> list[str]:
        return [f"Left out: {folder}: {reason}" for folder, reason in self.left_out.items()]

    def write(self, folder: Path) -> list[str]:
        """Write the report into `folder`. Returns a line for each run whose episodes could not be drawn.

        The tables come first, then the pictures, and the page last. Raises OSError, and ImportError without matplotlib.
        """
        folder.mkdir(parents=True, exist_ok=True)
        ranked = self.ranked
        names = list(dict.fromkeys(each.name for configurations in ranked.values() for each in configurations))
        self._write_tables(folder, ranked)
        page = Page(f"Report on {len(self.runs)} run{'s' if len(self.runs) > 1 else ''}")
        problems: list[str] = []
        for line in self._origin():
            page.paragraph(line)
        for number, (env, configurations) in enumerate(ranked.items(), 1):
            page.heading(env)
            page.table(COLUMNS, map(cells, configurations))
            for line in self._remarks(env, configurations):
                page.paragraph(line)
            name = f"{number}_{_file_name(env)}"
            _add_curves(page, folder, name, env, configurations, names)
            problems += _add_episodes(page, folder, name, env, configurations)
        if len(ranked) > 1:
            _add_profiles(page, folder, ranked, names)
        page.paragraph(" ".join(EXPLANATION.split()), note=True)
        if left_out := [*self._missing(), *problems]:
            page.heading("Left out")
            page.items(line.removeprefix("Left out: ") for line in left_out)
        write_text(folder / PAGE, page.html())
        return problems

    def _write_tables(self, folder: Path, ranked: Mapping[str, Sequence[Ranked]]) -> None:
        every = [(env, each) for env, configurations in ranked.items() for each in configurations]
        write_table(folder / "ranking.csv", ("environment", *COLUMNS), ((env, *cells(each)) for env, each in every))
        write_table(
            folder / "runs.csv", RUN_COLUMNS, (_row(env, each.name, run) for env, each in every for run in each.runs)
        )
        write_table(folder / "curves.csv", CURVE_COLUMNS, (row for env, each in every for row in _points(env, each)))


def _row(env: str, name: str, run: RecordedRun) -> tuple[object, ...]:
    return (
        run.folder, env, name, run.seed, run.stop_reason, run.steps, run.seconds, run.final_return, run.best_return,
        run.solved_steps, run.solved_seconds, run.steps_per_second, run.staleness, run.size,
    )  # fmt: skip


def _points(env: str, ranked: Ranked) -> Iterator[tuple[object, ...]]:
    for label, axis in (("steps", by_steps), ("seconds", by_seconds)):
        mean = band(ranked.runs, axis)
        if mean is not None:
            for x, middle, low, high in zip(mean.x, mean.middle, mean.low, mean.high, strict=True):
                yield env, ranked.name, label, f"{x:.6g}", mean.runs, f"{middle:.6g}", f"{low:.6g}", f"{high:.6g}"


def _add_curves(page: Page, folder: Path, name: str, env: str, ranked: Sequence[Ranked], names: Sequence[str]) -> None:
    if any(len(run.curve.steps) for each in ranked for run in each.runs):
        caption = CURVES_CAPTION
        caption += _shown_of(len(ranked), "curves.csv has all")
        _add(
            page, folder, f"{name}_curves", charts.learning_curves(ranked, names), f"Learning curves of {env}", caption
        )
    else:
        page.paragraph("No episode has ended yet: there is no curve.")


def _add_profiles(page: Page, folder: Path, ranked: Mapping[str, Sequence[Ranked]], names: Sequence[str]) -> None:
    scores = normalized_returns(ranked)
    if not scores:
        return
    page.heading("All environments")
    first_two = list(scores.items())[:2]
    if len(first_two) == 2:
        page.paragraph(improvement(*first_two))
    pictures = charts.performance_profiles(profiles(scores), names)
    caption = PROFILE_CAPTION + _shown_of(len(scores), "ranking.csv has all")
    _add(page, folder, "profile", pictures, "Performance profiles", caption)


def _shown_of(configurations: int, elsewhere: str) -> str:
    """A note on configurations that a picture leaves out, and how to see them; empty if there are none."""
    if configurations <= charts.MOST_CURVES:
        return ""
    return f"""
        Only the first {charts.MOST_CURVES} of {configurations} configurations, in the order of their rank; {elsewhere}.
        To choose others, name the folders of their runs: python -m a3c_exp.report <run> <run> ... to=<folder>."""


def _add_episodes(page: Page, folder: Path, name: str, env: str, ranked: Sequence[Ranked]) -> list[str]:
    """Returns a line for each run whose episodes cannot be read."""
    chosen: list[tuple[str, Episodes]] = []
    problems = []
    for each in ranked[:MOST_EPISODE_PLOTS]:
        run = each.runs[0]
        try:
            episodes = read_episodes(run.folder)
        except (OSError, UnreadableError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            problems.append(f"Left out: {run.folder}: its episodes cannot be read: {reason}")
            continue
        if len(episodes.returns):
            chosen.append((f"{each.name}, seed {run.seed}", episodes))
    if chosen:
        plots = charts.episode_plots(chosen)
        _add(page, folder, f"{name}_episodes", plots, f"Training episodes of {env}", EPISODES_CAPTION)
    return problems


def _add(page: Page, folder: Path, name: str, pictures: dict[str, bytes], text: str, caption: str) -> None:
    write_picture(folder, name, pictures)
    page.picture(pictures[charts.LIGHT.suffix], pictures[charts.DARK.suffix], text, " ".join(caption.split()))


def _cell(text: str) -> str:
    """A text in a Markdown table."""
    return printable(text).replace("\n", "\\n").replace("|", "\\|")


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:100]
