"""The tables of entries, from their records, as the pages of evidence/results/ show them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

from a3c_exp.common.estimates import decimals, estimate, median_reached, spread
from a3c_exp.run import markdown
from evidence.study import tables
from evidence.study.entries import Goals, Recorded
from evidence.study.records import Record, average

COLUMNS = (
    " | seeds | greedy return: IQM [95 %] | mean | worst, "
    "best seed | wanted | reached | solved | steps to it "
    "| seconds to it | steps/s | staleness | machine | zoo A2C | zoo PPO"
)
PRESET_COLUMNS = (
    "system | source | what it reports | seeds | greedy return: "
    "IQM [95 %] | of the best kept | sampled return "
    "| training return | solved | seconds to it | ended by | seconds | steps | steps/s "
    "| staleness | machine"
)

FULL_LENGTH = (
    "At their full length (here they are shortened; "
    "a rate that falls does so within the shortened run):"
)


def section(heading: str, note: str, lines: Sequence[Recorded], machines: Mapping[str, int]) -> str:
    """Return a section: its text, table, commands and machines. machines: see `machines`."""
    table = markdown.table(*grid(lines, machines))
    parts = [f"## {heading}", note, table, _origin(lines, machines)]
    return "\n\n".join(filter(None, parts)) + "\n"


def machines(lines: Sequence[Recorded]) -> dict[str, int]:
    """Return the machines of records with their numbers, the first one 1."""
    names = sorted({record.machine for line in lines for record in line.records})
    return {name: number for number, name in enumerate(names, 1)}


def contents(page: str, path: str) -> str:
    """Return a line of links to a page and to its sections. path: of the page."""
    title, *headings = re.findall(r"^##? (.+)$", page, re.MULTILINE)
    links = " · ".join(f"[{heading}]({path}#{_anchor(heading)})" for heading in headings)
    return f"- **[{title}]({path})**: {links}"


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-")


def grid(lines: Sequence[Recorded], machines: Mapping[str, Any]) -> tables.Grid:
    """Return the table of entries, all of them presets or none. machines: what stands for each."""
    are_presets = all(line.entry.source for line in lines)
    head_line, cells = (PRESET_COLUMNS, _preset_cells) if are_presets else (COLUMNS, _cells)
    columns = head_line.split(" | ")

    rows = []
    for line in lines:
        entry = line.entry
        head = [entry.title, *((entry.source.name, entry.source.reports) if entry.source else ())]
        blank = [f"0 of {entry.seeds}, not run yet", *[""] * (len(columns) - len(head) - 1)]
        where = ", ".join(
            str(number) for number in sorted({machines[record.machine] for record in line.records})
        )
        rows.append([*head, *(cells(line, where) if line.records else blank)])

    return columns, rows


def _cells(line: Recorded, machines: str) -> list[str]:
    entry, records = line.entry, line.records
    greedy = _greedy(records)
    digits = decimals(greedy)
    return [
        entry.seeds_of(records),
        estimate(greedy),
        f"{mean(greedy):.{digits}f}",
        f"{min(greedy):.{digits}f}, {max(greedy):.{digits}f}",
        *(_wanted(entry.goals, greedy, records) if entry.goals else ("", "")),
        _solved(line),
        spread([record.solved_steps for record in records], 0),
        spread([record.solved_seconds for record in records], 1),
        f"{median(record.steps_per_second for record in records):,.0f}",
        _staleness(records),
        machines,
        *(entry.published or ("", "")),
    ]


def _preset_cells(line: Recorded, machines: str) -> list[str]:
    records = line.records
    trained = [record.last_100 for record in records if record.last_100 is not None]
    best = [record.best_return for record in records if record.best_return is not None]
    return [
        line.entry.seeds_of(records),
        estimate(_greedy(records)),
        f"{mean(best):.1f}, {min(best):.1f}" if best else "-",
        _drawn(records),
        f"{estimate(trained, average)}, {min(trained):.1f}"
        if len(trained) > 1
        else estimate(trained, average),
        _solved(line),
        spread([record.solved_seconds for record in records], 1),
        _ends(records),
        *(
            f"{median(getattr(record, name) for record in records):,.0f}"
            for name in ("seconds", "steps", "steps_per_second")
        ),
        _staleness(records),
        machines,
    ]


def _greedy(records: Sequence[Record]) -> list[float]:
    return [record.greedy_return for record in records if record.greedy_return is not None]


def _drawn(records: Sequence[Record]) -> str:
    """Return the mean return of episodes with sampled actions, with its interval, and the lowest
    one of each seed."""
    means = [record.drawn_return for record in records if record.drawn_return is not None]
    lowest = [record.drawn_lowest for record in records if record.drawn_lowest is not None]
    shown = ", ".join(f"{value:.0f}" for value in lowest)
    return f"{estimate(means, average)} ({shown})" if means else "-"


def _ends(records: Sequence[Record]) -> str:
    """Return the reasons that ended the runs, with their number where there are several."""
    reasons = Counter(
        f"`{record.stop_reason}`" if record.stop_reason else "-" for record in records
    )
    return ", ".join(
        f"{reason}" + f" {count}" * (len(reasons) > 1) for reason, count in reasons.most_common()
    )


def _solved(line: Recorded) -> str:
    solved = sum(record.solved_steps is not None for record in line.records)
    has_threshold = line.settings.get("reward_threshold", True) is not None
    return f"{solved} of {len(line.records)}" if has_threshold else "no threshold"


def _staleness(records: Sequence[Record]) -> str:
    staleness = [record.staleness_mean for record in records if record.staleness_mean is not None]
    return f"{mean(staleness):.2f}" if staleness else ""


def _wanted(goals: Goals, greedy: Sequence[float], records: Sequence[Record]) -> tuple[str, str]:
    """Return what an entry is to reach, and which of it is reached."""
    goals_reached = [("mean", f">= {goals.greedy_return:g}", mean(greedy) >= goals.greedy_return)]
    if goals.worst_seed is not None:
        goals_reached.append(("worst", f">= {goals.worst_seed:g}", min(greedy) >= goals.worst_seed))

    if goals.seconds is not None:
        time = median_reached([record.solved_seconds for record in records])
        goals_reached.append(("solved", f"<= {goals.seconds:g} s", time <= goals.seconds))

    wanted = ", ".join(f"{name} {bar}" for name, bar, _ in goals_reached)
    return wanted, ", ".join("yes" if reached else "no" for *_, reached in goals_reached)


def _origin(lines: Sequence[Recorded], machines: Mapping[str, int]) -> str:
    """Return the commands, machines and dates of a table."""
    parts = [
        "Each with `seed=0`, `seed=1` and so on:",
        "",
        "```sh",
        *(line.entry.recipe.command for line in lines),
        "```",
    ]
    sources = [line.entry.source for line in lines if line.entry.source]
    full_length = [source.full for source in sources if source.full]
    if full_length:
        parts += ["", FULL_LENGTH, "", "```sh", *full_length, "```"]

    records = [record for line in lines for record in line.records]
    if records:
        here = {record.machine for record in records}
        used = "; ".join(f"{number}: {name}" for name, number in machines.items() if name in here)
        dates = sorted({record.date for record in records})
        parts += ["", f"Machine {used}. {dates[0]} to {dates[-1]}."]

    return "\n".join(parts)
