"""The study over seeds: what it keeps, what it does not do twice, and how it counts."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest
from PIL import Image
from refusals import refused
from runs import QUICK, wait_until

import a3c_exp
from a3c_exp.__main__ import main
from a3c_exp.cli.hydra_compose import compose_jobs, to_container
from a3c_exp.cli.hydra_session import hydra_session
from a3c_exp.config.builder import load_final
from a3c_exp.errors import ConfigError
from a3c_exp.run import files

# evidence is not installed: it belongs to the checkout
sys.path.insert(0, str(Path(__file__).parent.parent))

from evidence.study import __main__ as study
from evidence.study import (
    cluster,
    corrections,
    curves,
    figures,
    film,
    maps,
    runs,
    screenshots,
    tables,
)
from evidence.study.entries import SECTIONS, Entry, Goals
from evidence.study.records import Record, Results, read_rows
from evidence.study.runs import ROOT, RunFailedError, Training
from evidence.study.sources import __main__ as sources
from evidence.study.sources import a3c, records

SMALL = (
    "env=cartpole",
    "backend=serial",
    "workers=1",
    "envs_per_worker=2",
    "total_steps=64",
    "eval.every=null",
)


def test_a_film_plays_at_the_speed_of_the_environment(tmp_path: Path) -> None:
    run = a3c_exp.train([*SMALL[1:], "env=lunar"], folder=tmp_path / "run")
    target = tmp_path / "film.gif"
    film.main([str(run.folder), "--target", str(target)])
    with Image.open(target) as image:
        assert image.format == "GIF" and image.size == (420, 280)
        assert image.info["duration"] == 40, "two steps of 50 a second"
    assert target.stat().st_size < 1_000_000


def test_a_film_of_doom_is_in_color_and_stops_in_time(tmp_path: Path) -> None:
    pytest.importorskip("vizdoom", reason="Doom: pip install 'a3c-exp[doom]'")
    pytest.importorskip("cv2", reason="Doom: pip install 'a3c-exp[doom]'")
    known = "env.normalize_observations=[128,64]"
    run = a3c_exp.train([*SMALL[1:], "env=doom", known], folder=tmp_path / "run")
    target = tmp_path / "film.gif"
    film.main([str(run.folder), "--every", "1", "--seconds", "0.4", "--target", str(target)])
    with Image.open(target) as image:
        assert image.size == (420, 315) and 1 <= getattr(image, "n_frames", 1) <= 4
        red, green, blue = np.asarray(image.convert("RGB"), float).mean((0, 1))
        assert red > 1.1 * blue and green > 1.1 * blue, "brown walls"


# Records.


def test_the_records_of_this_checkout_give_its_pages_and_nothing_is_composed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = dict[Path, str]()
    monkeypatch.setattr(a3c_exp, "compose", pytest.fail)
    monkeypatch.setattr(curves, "draw", lambda *_: None)
    monkeypatch.setattr(curves, "draw_report", lambda *_: None)
    monkeypatch.setattr(figures, "draw", lambda *_: None)
    monkeypatch.setattr(curves, "save", lambda *_: None)
    monkeypatch.setattr(files, "write_text", written.__setitem__)
    assert study.main(["--table"]) == 0
    assert {path.name for path in written} == {
        "RESULTS.md",
        "learning.md",
        "presets.md",
        "methods.md",
        "workers.md",
    }
    assert written == {path: path.read_text() for path in written}


def test_a_command_of_the_first_page_prints_the_numbers_beside_it() -> None:
    """Those that it says of another's work, in the column "it reports", are not its own."""
    page = (ROOT / "RESULTS.md").read_text()
    findings = re.findall(r"^\d+\. (.*?)```sh\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\|[^|]*\|[^|]*\| ([^|]*) \| `(.*)` \|$", page, re.MULTILINE)
    assert len(findings) == 10 and len(rows) >= 10

    entries = {entry.name: entry for section in SECTIONS.values() for entry in section}
    for sentence, command in [*findings, *rows]:
        flags = study._flags(entries, shlex.split(command)[3:])
        assert flags.show
        printed = numbers("\n".join(study.shown(flags)))
        assert numbers(re.sub(r"\(\S+\)|`.*?`", "", sentence)) - printed == set(), command


def numbers(text: str) -> set[str]:
    """Numbers with a decimal point or a thousands separator, as they are written."""
    return set(re.findall(r"-?\d+(?:,\d{3})+(?:\.\d+)?|-?\d+\.\d+", text))


def test_every_record_belongs_to_a_row_or_to_a_point() -> None:
    folder = ROOT / "evidence" / "results"
    entries = [entry for section in SECTIONS.values() for entry in section]
    known = {(entry.kind, entry.name) for entry in entries}
    for figure in figures.FIGURES.values():
        for machine in figures.machines(figure, folder):
            for panel in figure.panels:
                points = figures.points(figure, panel, folder, machine)
                known |= {(p.entry.kind, p.entry.table or p.entry.name) for p in points}
                known |= {(p.entry.kind, p.entry.name) for p in points}

    tables_of_runs = [*folder.glob("*.csv"), *(folder / "curves").glob("*.csv")]
    recorded = {
        (path.stem, row["record"])
        for path in tables_of_runs
        if path.stem != "sources"
        for row in tables.read(path)
    }
    assert recorded - known == set()
    pictures = {path.name for path in (folder / "curves").iterdir() if path.suffix != ".csv"}
    pages = "".join(page.read_text() for page in folder.glob("*.md"))
    assert {name for name in pictures if f"](curves/{name})" not in pages} == set()


def test_the_records_of_this_checkout_have_commands_that_run_today() -> None:
    for one in [entry for section in SECTIONS.values() for entry in section]:
        kept = one.results(ROOT / "evidence" / "results").read()
        today = f"{one.recipe.command} "
        before = today.replace("-m evidence.", "-m ")  # in records that are older than this folder
        assert all(record.command.startswith((today, before)) for record in kept), one.name


def test_a_row_is_added_in_the_place_of_its_key_and_leaves_all_others_as_they_were(
    tmp_path: Path,
) -> None:
    table = tmp_path / "new" / "table.csv"
    key = ("record", "seed")
    for record, seed, value in (("b", 0, 0.1), ("a", 10, 2), ("a", 9, "x"), ("b", 0, 0.25)):
        tables.put(table, [{"record": record, "seed": seed, "value": value}], key)
    assert table.read_text() == "record,seed,value\na,9,x\na,10,2\nb,0,0.25\n"
    tables.put(table, [{"record": "c", "seed": 0, "later": 3}], key)
    lines = table.read_text().splitlines()
    assert lines == ["record,seed,value,later", "a,9,x,", "a,10,2,", "b,0,0.25,", "c,0,,3"]


def test_rows_that_several_commands_add_at_once_are_all_there(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"

    def add(record: int) -> None:
        for seed in range(10):
            tables.put(table, [{"record": f"{record}", "seed": seed}], ("record", "seed"))

    with ThreadPoolExecutor(4) as commands:
        list(commands.map(add, range(4)))
    assert len(tables.read(table)) == 40


def test_records_of_other_settings_are_refused_and_stay(tmp_path: Path) -> None:
    (record,) = next(iter(SECTIONS.values()))[0].records(ROOT / "evidence" / "results")[:1]
    results = Results(tmp_path, "environments", "mine")
    results.add({"gamma": 0.9, "workers": 2}, record)
    results.add({"gamma": 0.5}, replace(record, seed=record.seed + 1))
    assert results.settings() == {"gamma": 0.9, "workers": 2}, "those of the first record"
    results.check({"gamma": 0.9, "workers": 2})
    before = (tmp_path / "environments.csv").read_bytes()
    with pytest.raises(ConfigError, match=r"mine.*gamma") as refusal:
        results.check({"gamma": 0.8, "workers": 2})
    assert refusal.value.key == "results"
    assert (tmp_path / "environments.csv").read_bytes() == before


# What is run.


def test_the_command_trains_plays_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within the time limit of the recipe: all policies fall after 8 steps or later."""
    recipe = Training((*SMALL, "total_steps=1024"), drawn=3, max_episode_steps=7)
    goals = Goals(7.0, worst_seed=1000)
    tiny = Entry("tiny", "environments", "cartpole", "Tiny", recipe, 1, goals, curve=True)
    monkeypatch.setattr(runs, "execute", lambda arguments, log: main(arguments[2:]))
    results = tmp_path / "evidence" / "results"
    monkeypatch.setattr(study, "RECORDS", results)
    monkeypatch.setattr(study, "DOCUMENT", tmp_path / "RESULTS.md")
    monkeypatch.setattr(study, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(study, "SECTIONS", {"One": (tiny,)})
    assert study.main([]) == 0
    assert "tiny, seed 0: return 7.0" in capsys.readouterr().out
    (record,) = tiny.records(results)
    assert (record.seed, record.steps, record.greedy_episodes, record.solved_steps) == (
        0,
        1024,
        100,
        None,
    )
    assert (
        record.greedy_return,
        record.drawn_return,
        record.drawn_lowest,
        record.drawn_episodes,
    ) == (7.0, 7.0, 7.0, 3)
    assert record.stop_reason == "total_steps"
    assert record.command == f"python -m a3c_exp {' '.join(recipe.overrides)} seed=0"
    table = (results / "learning.md").read_text()
    assert "mean >= 7, worst >= 1000 | yes, no | 0 of 1 |" in table
    assert "](curves/curves.svg)" in (results / "presets.md").read_text()
    front = (tmp_path / "RESULTS.md").read_text()
    assert "[One](evidence/results/learning.md#one)" in front
    assert not any(str(tmp_path) in path.read_text() for path in results.glob("*.md"))

    curve = tiny.curves(results).read()[0]
    assert 1 <= len(curve) <= curves.POINTS
    assert np.all(np.diff(curve[:, 0]) > 0)
    assert np.all((curve[:, 2] >= 8) & (curve[:, 2] <= 500)), "CartPole's returns"
    picture = (results / "curves" / "curves.svg").read_bytes()
    assert b"<!-- cartpole: mean return of 100 episodes -->" in picture
    study.write()
    assert (results / "curves" / "curves.svg").read_bytes() == picture, "git sees no change"
    monkeypatch.setattr(study, "SECTIONS", {"One": (replace(tiny, name="other"),)})
    study.write()
    assert "curves.svg" not in (results / "presets.md").read_text(), "nothing has been run"
    assert (results / "curves" / "curves.svg").exists(), "nothing is deleted"


class Meeting:
    """A recipe whose runs wait for another run, and are recorded then."""

    command = "python -m a3c_exp meeting"

    def __init__(self, runs_at_once: int) -> None:
        self.barrier = threading.Barrier(runs_at_once)

    def settings(self) -> dict[str, Any]:
        return {}

    def run(self, seed: int, folder: Path) -> Record:
        self.barrier.wait(timeout=60)
        return replace(record(solved_steps=1), seed=seed)


def record(solved_steps: int | None, seed: int = 0) -> Record:
    """The record of a run, with what the tests do not look at."""
    numbers: dict[str, Any] = dict.fromkeys(("steps", "seconds", "steps_per_second"), 1)
    numbers |= dict.fromkeys(("solved_seconds", "last_100", "staleness_mean", "staleness_max"))
    texts: dict[str, Any] = dict.fromkeys(("date", "commit", "machine", "command"), "")
    return Record(seed=seed, solved_steps=solved_steps, **numbers, **texts)


def test_runs_at_once_are_each_recorded_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "RECORDS", tmp_path)
    recipe: Any = Meeting(runs_at_once=2)
    tasks = [
        (Entry("meeting", "tests", "cartpole", "Meeting", recipe, 4), seed) for seed in range(4)
    ]
    for _ in range(2):
        assert study.train_all(tasks, jobs=2) == []
        assert [run.seed for run in Results(tmp_path, "tests", "meeting").read()] == [0, 1, 2, 3]
        recipe.barrier.abort()


@pytest.mark.parametrize("is_ignored", [False, True])
def test_an_interruption_reaches_the_runs_of_other_threads(
    is_ignored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Ctrl-C is ignored, as after `nohup` in a script."""
    monkeypatch.setattr(runs, "_interrupted", threading.Event())
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN if is_ignored else signal.default_int_handler)
    try:
        interrupt_two_runs(tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt_two_runs(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    code = "import time; print('ready', flush=True); time.sleep(600)"
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(runs.execute, ["-c", code], log)
        wait_until(lambda: log.exists() and "ready" in log.read_text())
        runs.interrupt()
        with pytest.raises(RunFailedError):
            run.result()
        with pytest.raises(RunFailedError):  # one that is about to start
            pool.submit(runs.execute, ["-c", code], log).result()


@pytest.mark.parametrize(("backend", "existing"), [("serial", "restart"), ("threads", "resume")])
def test_a_run_that_was_cut_goes_on_unless_it_would_be_another_one_then(
    backend: str, existing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: list[str] = []
    monkeypatch.setattr(runs, "execute", lambda arguments, log: words.extend(arguments))
    with pytest.raises(FileNotFoundError):  # nothing has been run
        Training((*SMALL, f"backend={backend}")).run(0, tmp_path)
    assert f"existing={existing}" in words


def test_seconds_are_not_compared_between_runs_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--jobs", "2"], ["--scaling", "--jobs", "2"], ["--delay", "--jobs", "0"]):
        assert study.main(words) == 2
        assert "--jobs" in capsys.readouterr().err


def test_a_figure_of_an_environment_that_it_lacks_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert study.main(["--delay", "--env", "acrobot"]) == 2
    line = capsys.readouterr().err
    assert "--env acrobot" in line and "cartpole, lunar" in line


# Figures.


def test_the_exponent_of_the_border_is_that_of_the_largest_rates_that_work() -> None:
    """Rates work up to 0.016 / sqrt(delay), for one seed of three up to twice that."""
    rates = [0.001 * 2**power for power in range(6)]
    runs_of = {
        (rate, delay): [
            record(1000 if rate <= (1 + (seed == 2)) * 0.016 / max(delay, 1) ** 0.5 else None, seed)
            for seed in range(3)
        ]
        for rate in rates
        for delay in (0, 4, 16, 64)
    }
    panel = maps.Map("title", rates, [0, 4, 16, 64], runs_of)
    assert panel.borders() == pytest.approx(
        {delay: 2**0.5 * rate for delay, rate in ((0, 0.016), (4, 0.008), (16, 0.004), (64, 0.002))}
    )
    assert panel.exponent() == pytest.approx(0.5)
    assert panel.finding() == "0.50 (0.50 to 0.50), 3 delays"
    (cells,) = maps.cells(panel)
    assert cells[:3] == ["title", "46 of 72", "0: 0.016, 4: 0.008, 16: 0.004, 64: 0.002"]


def test_a_delay_without_a_border_in_the_map_is_left_out() -> None:
    rates = [0.001, 0.002]
    works = {(0.001, 1): True, (0.002, 1): True, (0.001, 2): False, (0.002, 2): False}
    runs_of = {pair: [record(1000 if solved else None)] for pair, solved in works.items()}
    runs_of[0.001, 3] = [record(1000)]  # the other rate has not been run
    panel = maps.Map("title", rates, [1, 2, 3], runs_of)
    assert panel.borders() == {} and panel.exponent() is None and panel.finding() == "-"


def test_a_map_is_drawn_with_what_there_is(tmp_path: Path) -> None:
    runs_of = {(0.001, 0): [record(50_000), record(None, 1)], (0.002, 0): [record(None)]}
    panel = maps.Map("A title", [0.001, 0.002], [0, 4], runs_of)
    maps.draw([panel], tmp_path / "map.svg")
    picture = (tmp_path / "map.svg").read_text()
    assert "<!-- A title -->" in picture and "<!-- 0/1 -->" in picture


def test_the_map_of_a_sweep_is_drawn_into_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for delay in (0, 2):
        words = ["workers=3", "reward_threshold=1", "env.max_episode_steps=10"]
        a3c_exp.train(
            [*QUICK, *words, f"backend.staleness={delay}", "total_steps=1500"],
            tmp_path / f"{delay}",
        )
    assert maps.main([str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "runs solved: 2 of 2" in shown and "CartPole-v1" in shown
    assert "<!-- CartPole-v1 -->" in (tmp_path / "map.svg").read_text()


def test_a_sweep_without_delays_has_no_map(tmp_path: Path) -> None:
    a3c_exp.train(QUICK, tmp_path / "0")
    refused(lambda: maps.of_sweep(tmp_path), "backend.staleness", None)


def test_the_runs_of_all_figures_can_be_made(tmp_path: Path) -> None:
    """A point of each panel: of its last line."""
    rows = [
        figures.points(figure, panel, tmp_path)
        for figure in figures.FIGURES.values()
        for panel in figure.panels
    ]
    first = [row[-1] for row in rows]
    with hydra_session() as hydra:
        for whole in compose_jobs(
            hydra, [shlex.split(point.entry.recipe.command)[3:] for point in first]
        ):
            load_final(to_container(whole.node))
    assert {point.entry.env for point in first} == {"cartpole", "lunar", "pong"}
    names = [point.entry.name for row in rows for point in row]
    assert len(set(names)) == len(names), "each has a folder"


def test_a_section_counts_planned_seeds_and_speaks_of_the_panels_that_have_runs(
    tmp_path: Path,
) -> None:
    figure = figures.FIGURES["scaling"]
    cartpole, *_, pong = figure.panels
    point, *_ = figures.points(figure, cartpole, tmp_path, "chip-2-cores")
    two_of_ten = replace(point, records=[record(100, seed) for seed in range(2)])
    text = figures._section(figure, [(cartpole, [two_of_ten])], "picture.svg")
    assert "| CartPole | workers=1 | 2 of 10 | 2 of 2 |" in text
    assert pong.note not in text
    assert pong.note in figures._section(figure, [(pong, [two_of_ten])], "picture.svg")


def test_simulated_clusters_are_compared_with_the_paper_and_with_measured_runs(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "evidence" / "results"
    assert cluster.section(folder) == ""

    def keep(figure: str, panel: str, seconds: dict[int, list[float | None]], machine: str) -> None:
        """Write records of the first line of a panel. seconds: until solved, by workers."""
        [row] = [row for row in figures.FIGURES[figure].panels if row.name == panel]
        for point in figures.points(figures.FIGURES[figure], row, folder, machine):
            if point.series == next(iter(row.series or figures.FIGURES[figure].series)):
                for seed, value in enumerate(seconds.get(point.value, [])):
                    new = replace(
                        record(None if value is None else 100, seed),
                        solved_seconds=value,
                        steps_per_second=10.0 * point.value,
                        command=f"{point.entry.recipe.command} seed={seed}",
                    )
                    point.entry.results(folder).add({}, new)

    keep("cluster", "equal", {1: [8.0, 9.0, 7.0], 2: [4.0, 5.0, None], 512: [None] * 3}, "")
    keep("cluster", "methods", {1: [12.0], 2: [6.0], 4: [None], 8: [2.0, 3.0, None]}, "")
    keep("cluster", "lunar", {1: [1.0], 2: [0.5]}, "")
    keep("cluster_measured", "lunar", {1: [2.0], 2: [1.25]}, "chip-2-cores")
    keep("scaling", "lunar", {1: [2.0], 2: [1.25]}, "chip-1-cores")
    text = cluster.section(folder)
    assert "| Workers of equal speed | lock-free | 8.00 | 5.00 (2 of 3) | never (0 of 3) |" in text
    assert "| A3C | simulated | 1 | 2.00 | - | 4.00 (2 of 3 solved) |  |" in text
    assert "| A3C | paper | 1.0 | 2.1 | 3.7 | 6.9 | 12.5 |" in text
    assert "| LunarLander | chip-2-cores | 2 | 1, 1 | 20 | 20 | +0% | 1.2 | 0.5 |" in text
    assert "| LunarLander | chip-1-cores | 2 |" not in text, "they would share a core"
    assert (folder / "curves" / "cluster.svg").exists()


def test_what_pairs_have_in_common_drops_out_of_their_difference() -> None:
    """Runs of a seed share a part of variance 9, and differ by 2 and a part of variance 1 each: an
    unpaired difference has a variance of 20, and that of pairs 2."""
    rng = np.random.default_rng(0)
    common = 3 * rng.normal(size=2000)
    plain, corrected = common + rng.normal(size=(2, 2000))
    compared = corrections.Comparison(corrected + 2, plain)
    assert compared.variance_ratio() == pytest.approx(10, rel=0.1)
    low, high = compared.variance_ratio_interval()
    assert low < 10 < high
    assert np.mean(compared.paired()) == pytest.approx(2, abs=0.1)
    assert np.diff(compared.paired()) == pytest.approx(3.92 * (2 / 2000) ** 0.5, rel=0.1)
    assert np.diff(compared.unpaired()) == pytest.approx(3.92 * (20 / 2000) ** 0.5, rel=0.1)


def test_corrections_are_compared_by_the_seeds_that_all_of_them_have(tmp_path: Path) -> None:
    folder = tmp_path / "evidence" / "results"
    assert corrections.section(folder) == ""
    figure = figures.FIGURES["corrections"]
    for index, point in enumerate(figures.points(figure, figure.panels[0], folder)):
        for seed in range(4 - (index == 2)):
            new = replace(
                record(1000 * seed + 10 * index + seed * (index == 1), seed),
                last_100=100.0 * seed,
                staleness_mean=6.0,
                staleness_max=20,
                machine="a machine",
                command=f"{point.series} of {seed}",
            )
            point.entry.results(folder).add({}, new)

    text = corrections.section(folder)
    title = figure.panels[0].title
    assert f"| {title} | none | 3 | 3 of 3 | 100.0 |  |  |  | 1,000 |  |  |  |" in text
    paired = "+11 [+10, +12]"
    assert f"| {title} | rate / staleness | 3 | 3 of 3 | 100.0 | +0.0 [+0.0, +0.0] |" in text
    assert f"| - | 1,011 | {paired} |" in text
    assert "V-trace of 0" in text and (folder / "curves" / "corrections.svg").exists()


def test_corrections_follow_the_order_of_one_recorded_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = []

    def execute(arguments: Sequence[str], log: Path) -> None:
        logs.append(log.stem)
        assert main(arguments[2:]) == 0

    monkeypatch.setattr(runs, "execute", execute)
    common = (*SMALL, "backend=threads", "workers=2", "lock=true", "record=order")
    records = {}
    for name, changed in (("none", ()), ("root", ("optimizer.staleness_power=0.5",))):
        recipe = runs.Replayed(
            (*common, *changed), common=common, recorded="recorded", changed=changed
        )
        for _ in range(2):  # the second time as if the first one had been cut
            records[name] = recipe.run(3, tmp_path / f"{name}_s3")
    assert logs == ["recorded_s3", "none_s3", "none_s3", "root_s3", "root_s3"]
    assert records["none"].steps == records["root"].steps
    assert records["root"].command.endswith("/recorded_s3 optimizer.staleness_power=0.5")
    assert records["root"].seed == 3


# The sources.


@pytest.mark.parametrize(
    ("last_value", "targets"),
    [(None, [10, 17, 24, 11, 4]), (10.0, [10, 17, 24, 51, 24])],
    ids=["zero", "maximum"],
)
def test_n_step_targets_are_those_of_the_authors_example(
    last_value: float | None, targets: list[float]
) -> None:
    """Its "2 steps" are 2 rewards and then V, which the function of the notebooks calls 3."""
    values = np.arange(5, dtype=np.float32)
    assert a3c.n_step_targets([0, 1, 2, 3, 4], values, 3, 2.0, last_value).tolist() == targets


def test_zero_and_maximum_terms_are_the_same_where_every_episode_ends_with_value_0() -> None:
    zero, maximum = (
        a3c.run(f"threads_n_step_{form}", seed=3, episodes=30) for form in ("zero", "max")
    )
    assert zero == maximum
    assert a3c.run("threads_n_step_zero", seed=4, episodes=30) != zero


def test_command_runs_each_source_once_for_a_seed_and_its_table_shows_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "sources.csv"
    monkeypatch.setattr(sources, "TABLE", table)
    monkeypatch.setattr(
        records, "SOURCES", {name: replace(one, seeds=1) for name, one in records.SOURCES.items()}
    )
    full = records.train
    monkeypatch.setattr(records, "train", lambda name, seed: full(name, seed, episodes=2))
    for name in records.SOURCES:
        assert sources.main([name]) == 0
        (line,) = read_rows(table, records.Line, name)
        assert len(line.returns.split()) == line.episodes >= 2
        assert f"{name}, seed 0: last hundred {line.last_100:.1f}" in capsys.readouterr().out
        assert sources.main([name]) == 0
        assert capsys.readouterr().out == ""
    section = records.section(table)
    assert all(f"| `{name}` |" in section for name in records.SOURCES)


# Images of TensorBoard.


def test_images_are_taken_of_a_tensorboard_that_has_read_the_runs_and_ends(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    assert main([*SMALL[:-1], "eval.every=32", f"hydra.run.dir={run}"]) == 0
    with (
        screenshots.tensorboard(run.parent, 1) as address,
        urlopen(f"{address}data/plugin/custom_scalars/layout") as answer,
    ):
        layout = json.load(answer)
    assert layout["category"][0]["title"] == "Learning"
    with pytest.raises(URLError):
        urlopen(address)
