"""The text of RESULTS.md, from the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median

from a3c_exp.common.estimates import average, estimate, median_reached, spread
from a3c_exp.run import markdown
from study.entries import Goals, Recorded
from study.records import Record

COLUMNS = (
    " | seeds | greedy return: IQM [95 %] | mean | worst, best seed | wanted | reached | solved | steps to it "
    "| seconds to it | steps/s | staleness | machine | zoo A2C | zoo PPO"
)
PRESET_COLUMNS = (
    "system | source | what it reports | seeds | greedy return: IQM [95 %] | of the best kept | drawn return "
    "| training return | solved | seconds to it | ended by | seconds | steps | steps/s | staleness | machine"
)

PREAMBLE = """\
# Learning

Written by `make learn` from the records in [results/](results/): trained with the settings that `env=<name>` ships,
the final policy then played greedily over {episodes} episodes with seeds of their own. IQM: the interquartile mean
over seeds without the lowest and the highest quarter (of three seeds or fewer, the mean), with its 95 % bootstrap
interval. Of two or three seeds that interval is their range, and settles nothing. Seeds "2 of 5": the rest has not
been run yet, and may change the result. A bar is for the mean over seeds, or for the worst seed if it says
so; the interval is not considered. Solved: 100 training episodes in a row, at least one of each environment
among all so far, have had a mean of the environment's `reward_threshold`, if it has one. Steps and seconds (of
training) until then are medians over all seeds, "never" if half of them never did, with the range of those that did.
Seconds and steps/s are of the machine whose number a row has (below its table; its raw environments are timed in
[bench/RESULTS.md](bench/RESULTS.md)), and depend on how busy it was: one command has taken up to five times as long
there. They are orders of magnitude; speeds that are compared are timed side by side in bench/RESULTS.md.
Staleness: updates of others between a worker's pull and its push, mean of the run. Zoo: what rl-baselines3-zoo
reports, one run each, mean and deviation of the reward, after how many steps (LunarLander in version 2); greedily, but
for Atari games, where its actions are drawn. Experiments on the way to these settings are in
[docs/tuning.md](docs/tuning.md).

```sh
make learn
make learn ENV=cartpole
make presets
```
"""
PRESETS = """\
Written by `make presets`. Each preset is trained to its own end, or to that in its row, with the settings of its source
(the head of its file in [conf/experiment/](conf/experiment/) names the differences). Greedy return: of the final
policy, and of the parameters kept because evaluation beside training found them best (`best.ckpt`; mean and worst
seed), both in the same fresh episodes; of `shared_adam_lunar_continuous` they end after 300 steps, as in training; of
`dppo_cartpole` and `dppo_cluster_cartpole` after 500, while training has no limit. Drawn return: of the final policy
with actions that are drawn, as some sources test it; in parentheses each seed's lowest episode (of 100; of
`ga3c_cartpole` of 18, as its source does).
Training return: the mean of the last 100 training episodes, actions drawn as they are in training, mean over the seeds
with its 95 % bootstrap interval;
solved: that mean has reached the preset's `reward_threshold`; ended by: the rule that ended training, with the number
of runs where they differ, and "-" in older records; `worker_return`: workers have left by their own mean return, all or
most of them. Seconds, steps and steps/s of training are medians.
"""

FULL_LENGTH = "At their full length (here they are shortened; a rate that falls does so within the shortened run):"

CURVES = """\
## Curves

A line a run over steps and over minutes of training, a row an environment, from the records in
[{folder}/]({folder}/). Minutes are those of the machine of the record.

![The mean return of 100 training episodes over the steps and over the minutes of training]({picture})
"""


def document(
    sections: Mapping[str, Sequence[Recorded]],
    episodes: int,
    picture: Path | None = None,
    others: Sequence[str] = (),
) -> str:
    """The whole text.

    picture: figure of the curves, relative to RESULTS.md; None for none. others: sections after the tables.
    """
    parts = [PREAMBLE.format(episodes=episodes)]
    seen = sorted({record.machine for lines in sections.values() for line in lines for record in line.records})
    machines = {machine: number for number, machine in enumerate(seen, 1)}
    for heading, lines in sections.items():
        preface = f"{PRESETS}\n" if _are_presets(lines) else ""
        parts.append(f"## {heading}\n\n{preface}{_table(lines, machines)}\n\n{_origin(lines, machines)}\n")
    parts.extend(others)
    if picture is not None:
        parts.append(CURVES.format(picture=picture.as_posix(), folder=picture.parent.as_posix()))
    return "\n".join(parts)


def _are_presets(lines: Sequence[Recorded]) -> bool:
    return all(line.entry.source for line in lines)


def _table(lines: Sequence[Recorded], machines: Mapping[str, int]) -> str:
    head_line, cells = (PRESET_COLUMNS, _preset_cells) if _are_presets(lines) else (COLUMNS, _cells)
    columns = head_line.split(" | ")
    rows = []
    for line in lines:
        entry = line.entry
        head = [entry.title, *((entry.source.name, entry.source.reports) if entry.source else ())]
        blank = [f"0 of {entry.seeds}, not run yet", *[""] * (len(columns) - len(head) - 1)]
        where = ", ".join(str(number) for number in sorted({machines[record.machine] for record in line.records}))
        rows.append([*head, *(cells(line, where) if line.records else blank)])
    return markdown.table(columns, rows)


def _cells(line: Recorded, machines: str) -> list[str]:
    entry, records = line.entry, line.records
    greedy = [record.greedy_return for record in records]
    return [
        _seeds(line),
        estimate(greedy),
        f"{mean(greedy):.1f}",
        f"{min(greedy):.1f}, {max(greedy):.1f}",
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
        _seeds(line),
        estimate([record.greedy_return for record in records]),
        f"{mean(best):.1f}, {min(best):.1f}" if best else "-",
        _drawn(records),
        estimate(trained, average),
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


def _drawn(records: Sequence[Record]) -> str:
    """The mean return of episodes with drawn actions, and the lowest one of each seed."""
    means = [record.drawn_return for record in records if record.drawn_return is not None]
    lowest = [record.drawn_lowest for record in records if record.drawn_lowest is not None]
    return f"{mean(means):.1f} ({', '.join(f'{value:.0f}' for value in lowest)})" if means else "-"


def _ends(records: Sequence[Record]) -> str:
    """The reasons that ended the runs, with their number where there are several."""
    reasons = Counter(f"`{record.stop_reason}`" if record.stop_reason else "-" for record in records)
    return ", ".join(f"{reason}" + f" {count}" * (len(reasons) > 1) for reason, count in reasons.most_common())


def _seeds(line: Recorded) -> str:
    count, wanted = len(line.records), line.entry.seeds
    return f"{count}" if count == wanted else f"{count} of {wanted}"


def _solved(line: Recorded) -> str:
    solved = sum(record.solved_steps is not None for record in line.records)
    has_threshold = line.settings.get("reward_threshold", True) is not None
    return f"{solved} of {len(line.records)}" if has_threshold else "no threshold"


def _staleness(records: Sequence[Record]) -> str:
    staleness = [record.staleness_mean for record in records if record.staleness_mean is not None]
    return f"{mean(staleness):.2f}" if staleness else ""


def _wanted(goals: Goals, greedy: Sequence[float], records: Sequence[Record]) -> tuple[str, str]:
    """What an entry is to reach, and which of it is reached."""
    found = [("mean", f">= {goals.greedy_return:g}", mean(greedy) >= goals.greedy_return)]
    if goals.worst_seed is not None:
        found.append(("worst", f">= {goals.worst_seed:g}", min(greedy) >= goals.worst_seed))
    if goals.seconds is not None:
        time = median_reached([record.solved_seconds for record in records])
        found.append(("solved", f"<= {goals.seconds:g} s", time <= goals.seconds))
    wanted = ", ".join(f"{what} {bar}" for what, bar, _ in found)
    return wanted, ", ".join("yes" if reached else "no" for *_, reached in found)


def _origin(lines: Sequence[Recorded], machines: Mapping[str, int]) -> str:
    """Commands, commits and machines of a table."""
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
        commits = sorted({record.commit for record in records})
        here = {record.machine for record in records}
        named = [f"{number}: {machine}" for machine, number in machines.items() if machine in here]
        dates = sorted({record.date for record in records})
        parts += ["", f"Machine {'; '.join(named)}. {dates[0]} to {dates[-1]}; commits {', '.join(commits)}."]
    return "\n".join(parts)
