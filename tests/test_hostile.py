"""Runs' folders and files that come from anyone: what of them counts only if the user names it
again, and what they would do to harm, which is watched for and does not happen."""

from __future__ import annotations

import ast
import itertools
import re
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium.wrappers
import pytest
import yaml
from refusals import Refuses, refused
from runs import SCRIPTED, put, train
from tensorboard.plugin_util import markdown_to_safe_html

import a3c_exp
from a3c_exp import callbacks, evaluate
from a3c_exp.__main__ import main
from a3c_exp.common.trust import ACTING_OUTSIDE
from a3c_exp.exit_codes import exit_code
from a3c_exp.export import __main__ as export
from a3c_exp.report.report import _file_name
from a3c_exp.run.event_file import header

OURS = "plugins=[scripted]"
FILMING: list[Any] = [{"RecordVideo": {"video_folder": "../films"}}]


def load(folder: str, *arguments: str) -> int:
    """`a3c_exp.load`, with the arguments that a command has."""
    lists = {
        name: value[1:-1].split(",") for name, value in (text.split("=", 1) for text in arguments)
    }
    a3c_exp.load(folder, **lists)
    return 0


def exported(words: list[str]) -> int:
    pytest.importorskip("onnxruntime", reason="pip install 'a3c-exp[onnx]'")
    return export.main([words[0], "steps=8", *words[1:]])


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "resume": lambda words: main([f"resume={words[0]}", "total_steps=32", *words[1:]]),
    "from": lambda words: main([f"from={words[0]}", "hydra.run.dir=again", *words[1:]]),
    "evaluate": lambda words: evaluate.main([words[0], "episodes=1", *words[1:]]),
    "export": exported,
    "load": lambda words: exit_code(lambda: load(*words)),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(folder, SCRIPTED, total_steps=16, env__kwargs={"lengths": [4]})
    return folder


@pytest.fixture
def run(finished: Path, here: Path) -> Path:
    """A copy of it to tamper with, in the current folder."""
    return Path(shutil.copytree(finished, here / "run"))


def configure(run: Path, changes: Mapping[str, Any]) -> None:
    """Write values into a run's config.yaml, by their dotted keys."""
    run_config = yaml.safe_load((run / "config.yaml").read_text())
    for key, value in changes.items():
        put(run_config, key, value)
    (run / "config.yaml").write_text(yaml.safe_dump(run_config, allow_unicode=True))


def refusal(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The line in which a run's folder is refused, by evaluate and by a new run with its settings
    alike."""
    for code in (evaluate.main([str(run), OURS]), main([f"from={run}", OURS])):
        assert code == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == second
    return first


# -- configurations that name code -----------------------------------------------------------------

PLACES = ("env", "network", "network.encoder", "critic_returns", "backend")
CODE: dict[str, dict[str, Any]] = {
    "os.system": {"command": "touch harmed"},
    "subprocess.Popen": {"args": ["touch", "harmed"]},
    "builtins.eval": {"source": "open harmed"},
    "torch.load": {"f": "harm"},
    "a3c_exp.run.files.os.mkdir": {"path": "harmed"},
}


@pytest.mark.parametrize(("place", "target"), list(zip(PLACES, itertools.cycle(CODE))))
def test_no_code_is_called_that_a_configuration_names(
    target: str, place: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if place == "network.encoder":
        configure(run, {"network": {"_target_": "a3c_exp.networks.Lstm", "hidden_size": 8}})
    configure(run, {place: {"_target_": target, **CODE[target]}})
    ours = target.startswith("a3c_exp.")
    problem = (
        "cannot be imported: "
        if ours
        else "must be a class of a3c_exp, or of a package that you allow"
    )
    assert refusal(run, capsys).startswith(f"a3c_exp: {place}._target_ = '{target}': {problem}")
    assert not Path("harmed").exists()


def test_arguments_of_an_environment_are_data_whatever_they_name(run: Path) -> None:
    configure(run, {"env.kwargs.failure": {"_target_": "os.system", "command": "touch harmed"}})
    assert evaluate.main([str(run), OURS, "episodes=1"]) == 0
    assert not Path("harmed").exists()


INTRUDER = """
from pathlib import Path
Path("harmed").touch()
"""


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"network._target_": "intruder.Network"},
            "network._target_ = 'intruder.Network': must be a class of a3c_exp",
        ),
        (
            {"env.id": "intruder:Env-v0"},
            "env.id = 'intruder:Env-v0': imports intruder: allow it with plugins=[",
        ),
        (
            {"env.engine": "intruder:make"},
            "env.engine = 'intruder:make': imports intruder: allow it with plugins=[",
        ),
        (
            {"env.wrappers": ["intruder:Wrapper"]},
            "env.wrappers = 'intruder:Wrapper': imports intruder: allow it with",
        ),
    ],
)
def test_a_package_that_lies_there_is_imported_only_as_a_plugin(
    changes: dict[str, Any],
    line: str,
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("intruder.py").write_text(INTRUDER)
    monkeypatch.syspath_prepend(str(Path.cwd()))  # as `python -m` does
    configure(run, {"plugins": ["scripted", "intruder"], **changes})
    assert refusal(run, capsys).startswith(f"a3c_exp: {line}")
    assert not Path("harmed").exists()
    assert evaluate.main([str(run), "plugins=[scripted,intruder]"]) == 2
    assert Path("harmed").exists(), "the user wants it"
    del sys.modules["intruder"]


# -- settings that act beyond the folder
# ------------------------------------------------------------

NAME_AGAIN = "name it again"


class TestWrappers:
    @pytest.mark.parametrize("name", ["resume", "from"])
    def test_that_write_files_count_only_if_they_are_named_again(
        self, name: str, run: Path, here: Path, refuses: Refuses
    ) -> None:
        configure(run, {"env.wrappers": FILMING, "env.kwargs.render_mode": "rgb_array"})
        (here / "work").mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(here / "work")
            words = [str(run), OURS]
            line = refuses(words, "env.wrappers", FILMING, main=COMMANDS[name])
            assert NAME_AGAIN in line
            other = "env.wrappers=[{RecordVideo:{video_folder:elsewhere}}]"
            if name == "resume":
                refuses([*words, other], "env.wrappers", main=COMMANDS[name])
            assert not (here / "films").exists() and list(Path().iterdir()) == []
            again = "env.wrappers=[{RecordVideo:{video_folder:../films}}]"
            assert COMMANDS[name]([*words, again]) == 0
            assert (here / "films").is_dir(), "the user wants it"

    @pytest.mark.parametrize(
        ("name", "key"), [("evaluate", "env"), ("export", "eval.env"), ("load", "env")]
    )
    def test_that_write_files_do_not_count_for_who_plays_the_policy(
        self, name: str, key: str, run: Path, here: Path
    ) -> None:
        configure(run, {f"{key}.wrappers": FILMING, "env.kwargs.render_mode": "rgb_array"})
        assert COMMANDS[name]([str(run), OURS]) == 0
        assert not (here.parent / "films").exists()

    def test_of_gymnasium_that_write_or_open_windows_are_known(self) -> None:
        acting = set()
        for file in Path(gymnasium.wrappers.__file__).parent.glob("*.py"):
            text = file.read_text()
            for node in ast.parse(text).body:
                source = ast.get_source_segment(text, node) or ""
                if isinstance(node, ast.ClassDef) and re.search(
                    r"os\.makedirs|pygame|\bopen\(", source
                ):
                    acting.add(node.name)
        assert acting | {"Mlflow", "Wandb"} == set(ACTING_OUTSIDE)

    def test_a_mapping_that_is_merged_names_what_it_has_alone(
        self, run: Path, refuses: Refuses
    ) -> None:
        """It leaves the folder's wrappers in place."""
        configure(run, {"env.wrappers": FILMING})
        change = "env={max_episode_steps: 4, kwargs: {}}"
        refuses([f"from={run}", OURS, "hydra.run.dir=again", change], "env.wrappers", FILMING)
        assert not Path("again").exists()


class TestCallbacks:
    def test_that_connect_are_the_trackers_of_this_package(self) -> None:
        trackers = {
            name
            for name, cls in vars(callbacks).items()
            if isinstance(cls, type) and issubclass(cls, callbacks.Tracker)
        }
        assert trackers == {"Tracker", "Mlflow", "Wandb"}

    def test_that_connect_count_only_if_they_are_named_again(
        self, run: Path, refuses: Refuses
    ) -> None:
        tracker = [{"_target_": "a3c_exp.callbacks.Wandb", "mode": "offline"}]
        configure(run, {"callbacks": tracker})
        resume = [f"resume={run}", "total_steps=32", OURS]
        assert NAME_AGAIN in refuses(resume, "callbacks", tracker)
        assert main([*resume, "callbacks=[]"]) == 0


class TestAddresses:
    def test_of_a_cluster_are_not_connected_to_unless_they_are_named_again(
        self, run: Path, refuses: Refuses
    ) -> None:
        resume = [f"resume={run}", "total_steps=32", OURS]
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            address = f"127.0.0.1:{server.getsockname()[1]}"
            configure(
                run, {"backend": {"_target_": "a3c_exp.backends.ray.Ray", "address": address}}
            )
            assert NAME_AGAIN in refuses(resume, "backend.address", address)
            assert NAME_AGAIN in refuses([*resume, "backend={shards: 2}"], "backend.address")
            assert evaluate.main([str(run), OURS, "episodes=1"]) == 0
            with pytest.raises(BlockingIOError):
                server.accept()
        backend = f"backend={{_target_: a3c_exp.backends.ray.Ray, address: '{address}'}}"
        for word in (f"backend.address={address}", backend):
            assert "does not answer" in refuses([*resume, word], "backend.address"), (
                "it is asked now"
            )


def test_other_texts_are_taken(run: Path) -> None:
    configure(run, {"env.kwargs": {"lengths": [4], "failure": "./nan"}})
    assert evaluate.main([str(run), "episodes=1", OURS]) == 0


def test_what_evaluations_import_counts_as_what_training_imports(run: Path) -> None:
    configure(run, {"eval.env": {"id": "intruder:Env-v0"}})
    Path("intruder.py").write_text(INTRUDER)
    refused(lambda: a3c_exp.load(run, plugins=["scripted"]), "eval.env.id")
    assert not Path("harmed").exists()


# -- texts -----------------------------------------------------------------------------------------

BACKWARDS = "\u202egnp.exe"


def test_printed_settings_leave_a_terminal_alone(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The character has a terminal show what follows from right to left."""
    configure(run, {"env.kwargs": {"failure": BACKWARDS}})
    assert main(["from=run", OURS, "--cfg", "job"]) == 0
    output = capsys.readouterr().out
    assert "\\u202egnp.exe" in output
    assert output.replace("\n", "").isprintable()


@pytest.mark.parametrize("name", ["../../harmed", "..", "a\0b", "\u202e", "", "x" * 1000])
def test_a_picture_of_a_report_has_a_name_in_its_folder(name: str) -> None:
    file = f"1_{_file_name(name)}_curves.png"
    assert Path(file).name == file and file.isascii() and file.isprintable() and len(file) < 255


def test_html_in_settings_is_text_in_tensorboard() -> None:
    script = "<script>alert(1)</script>\n\n<img src=x onerror=alert(1)>"
    config = {"env": {"id": script, "kwargs": {script: script}}}
    markdown = markdown_to_safe_html(header(config).value[0].tensor.string_val[0])
    assert "<script" not in markdown and "<img" not in markdown
    assert "&lt;script&gt;" in markdown
