"""What commands leave alone, and what they refuse to write over, in folders that users name."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path

import pytest
from refusals import Refuses, refused
from runs import QUICK, config, content, train_config

from a3c_exp import evaluate
from a3c_exp.__main__ import main
from a3c_exp.cli.existing import find_action
from a3c_exp.report import __main__ as report
from a3c_exp.run.run_folder import own_files

EVENT_FILE = "events.out.tfevents.1700000000.host.example.12.0"
WRITTEN = [
    "config.yaml",
    "summary.json",
    "episodes.csv",
    "metrics.csv",
    "metrics.csv.partial",
    "train.log",
    "trace.json",
    EVENT_FILE,
    "checkpoints/latest.ckpt",
    "checkpoints/best.ckpt.partial",
    "checkpoints/step_64.ckpt",
    "videos/64.mp4",
    "videos/64.part.mp4",
]
"""Names that a run gives to its files."""

OTHERS = [
    *(f"{name}{end}" for name in WRITTEN for end in (".bak", ".mine", ".before_tuning", ".old")),
    "events.out.tfevents.mine",
    "checkpoints/step_064.ckpt",
    "checkpoints/final.ckpt",
    "videos/best.mp4",
    "metrics_of_before.csv",
]
"""Names that it never gives."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    callbacks = [{"_target_": "a3c_exp.callbacks.Profile"}]
    train_config(config(callbacks=callbacks, checkpoint__every=80, eval__every=80), folder)
    return folder


@pytest.fixture
def run(finished: Path, here: Path) -> Path:
    return Path(shutil.copytree(finished, here / "run"))


def put(folder: Path, name: str, text: str = "precious") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_names_of_all_that_a_run_writes_are_known(run: Path) -> None:
    assert {str(path.relative_to(run)) for path in own_files(run)} == set(content(run))


def test_a_users_own_files_are_not_a_runs(here: Path) -> None:
    for name in (*WRITTEN, *OTHERS):
        put(here, name)
    assert {str(path.relative_to(here)) for path in own_files(here)} == set(WRITTEN)


@pytest.mark.parametrize("existing", ["restart", "resume"])
def test_a_run_that_begins_anew_deletes_only_what_the_one_before_has_written(
    existing: str, here: Path
) -> None:
    """With `resume`, as in a sweep, it does after one that failed."""
    command = [*QUICK, "hydra.run.dir=run", f"existing={existing}"]
    assert main(command) == 0
    run = here / "run"
    summary = json.loads((run / "summary.json").read_text())
    put(run, "summary.json", json.dumps(summary | {"stop_reason": "failed"}))
    for name in OTHERS:
        put(run, name)
    stale = [put(run, name) for name in ("trace.json", EVENT_FILE, "checkpoints/step_7.ckpt")]
    assert main(command) == 0
    assert [name for name in OTHERS if content(run).get(name) != b"precious"] == []
    assert not any(path.exists() for path in stale)


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("existing", ["refuse", "resume", "restart"])
def test_a_file_of_another_program_under_a_name_of_a_run_is_refused(
    name: str, existing: str, tmp_path: Path
) -> None:
    put(tmp_path, name)
    refused(lambda: find_action(tmp_path, config(), existing), "folder", str(tmp_path))


# A run that cannot begin anew is not lost.


def test_a_restart_that_is_refused_has_deleted_nothing(here: Path, refuses: Refuses) -> None:
    """A folder has the name of a file that it would delete."""
    assert main([*QUICK, "hydra.run.dir=run"]) == 0
    (here / "run" / "checkpoints" / "best.ckpt").mkdir()
    before = content(here / "run")
    line = refuses([*QUICK, "hydra.run.dir=run", "existing=restart"], "hydra.run.dir")
    assert "checkpoints/best.ckpt" in line
    assert content(here / "run") == before


def test_a_restart_that_finds_no_room_has_deleted_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUICK, "hydra.run.dir=run"]) == 0
    before = content(here / "run")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        assert main([*QUICK, "hydra.run.dir=run", "existing=restart"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "cannot be written" in capsys.readouterr().err
    assert content(here / "run") == before


# A folder in a file's place, and the reverse.


@pytest.mark.parametrize("name", ["config.yaml", "metrics.csv.partial", "train.log", "checkpoints"])
def test_what_is_not_what_a_run_writes_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if path.suffix:
        path.mkdir()
    else:
        path.touch()
    refused(lambda: find_action(tmp_path, config(), "continue"), "folder", str(tmp_path))


@pytest.mark.parametrize("words", [["hydra.run.dir=run"], ["sweep=.", "hydra.sweep.subdir=run"]])
def test_what_is_no_folder_has_no_run(words: list[str], here: Path, refuses: Refuses) -> None:
    (here / "run").touch()
    refuses([*QUICK, *words], words[0].partition("=")[0])


# Other commands.


@pytest.mark.parametrize(
    "name", ["index.html", "runs.csv", "curves.csv", "1_CartPole-v1_curves.png"]
)
@pytest.mark.parametrize("to", ["report", "site"])
def test_a_report_replaces_no_file_of_another_program(
    name: str, to: str, run: Path, refuses: Refuses
) -> None:
    words = [str(run), *([f"to={to}"] if to == "site" else [])]
    folder = run / "report" if to == "report" else Path(to)
    put(folder, name)
    refuses(words, "to", str(folder), main=report.main)
    assert content(folder) == {name: b"precious"}


def test_a_report_replaces_an_earlier_one_and_leaves_all_else(run: Path) -> None:
    """Its tables alone are one too: without matplotlib there is no page."""
    pytest.importorskip("matplotlib")
    folder = run / "report"
    assert report.main([str(run)]) == 0
    (folder / "curves.csv").write_text("of before")
    others = [put(folder, name) for name in ("index.html.bak", "runs.mine.csv", "figure.png")]
    assert report.main([str(run)]) == 0
    assert (folder / "curves.csv").read_text() != "of before"
    assert all(path.read_text() == "precious" for path in others)
    (folder / "index.html").unlink()
    assert report.main([str(run)]) == 0
    assert (folder / "index.html").exists()


def test_a_page_in_place_of_a_reports_own_is_not_replaced(run: Path, refuses: Refuses) -> None:
    assert report.main([str(run)]) == 0
    page = put(run / "report", "index.html")
    refuses([str(run)], "to", main=report.main)
    assert page.read_text() == "precious"


@pytest.mark.parametrize("name", ["policy.onnx", "mine.onnx"])
def test_an_export_replaces_earlier_ones_alone(name: str, run: Path, refuses: Refuses) -> None:
    onnx = pytest.importorskip("onnx", reason="pip install 'a3c-exp[onnx]'")
    pytest.importorskip("onnxruntime")
    from a3c_exp.export import __main__ as export

    path = run / name
    words = [str(run), "steps=8", "plugins=[scripted]"]
    words += [] if name == "policy.onnx" else [f"file={path}"]
    for text in ("precious", ""):
        path.write_text(text)
        refuses(words, "file", str(path), main=export.main)
        assert path.read_text() == text
    path.unlink()
    assert export.main(words) == 0
    path.write_bytes(path.read_bytes())
    assert export.main(words) == 0
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, path)  # as by another program
    refuses(words, "file", str(path), main=export.main)


@pytest.mark.parametrize("place", ["report", "videos", "policy.onnx"])
def test_a_place_that_is_taken_is_refused_by_every_command(
    place: str, run: Path, refuses: Refuses
) -> None:
    from a3c_exp.export import __main__ as export

    words = [str(run), "plugins=[scripted]"]
    match place:
        case "report":
            (run / place).touch()
            refuses(words[:1], "to", words[0], main=report.main)
        case "videos":
            (run / place).touch()
            refuses([*words, "video=true"], "video", words[0], main=evaluate.main)
        case _:
            pytest.importorskip("onnxruntime", reason="pip install 'a3c-exp[onnx]'")
            (run / place).mkdir()
            refuses(words, "run", words[0], main=export.main)


def test_a_list_of_a_sweep_that_is_not_hydras_is_not_replaced(here: Path, refuses: Refuses) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    sweep = ["-m", *QUICK, "hydra/launcher=joblib", "hydra.launcher.n_jobs=1", "sweep=mine"]
    path = put(here / "mine", "multirun.yaml", "title: precious\n")
    refuses(sweep, "sweep", main=main)
    assert path.read_text() == "title: precious\n"
    path.unlink()
    assert main(sweep) == 0
    assert main(sweep) == 0, "it is Hydra's now"
