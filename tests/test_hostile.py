"""Runs' folders and files that come from anyone: what of them counts only if the user names it
again, and what they would do to harm, which is watched for and does not happen."""

from __future__ import annotations

import copy
import itertools
import os
import shutil
import socket
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from refusals import Refuses, refused
from runs import SCRIPTED, put, train
from tensorboard.plugin_util import markdown_to_safe_html

import a3c_exp
from a3c_exp import evaluate
from a3c_exp.__main__ import main
from a3c_exp.common.trust import is_plain
from a3c_exp.envs import Gym
from a3c_exp.errors import exit_code
from a3c_exp.export import __main__ as export
from a3c_exp.report import __main__ as report
from a3c_exp.report.report import _file_name
from a3c_exp.run import checkpoint
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
    "report": lambda words: report.main(words[:1]),
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
    whole = yaml.safe_load((run / "config.yaml").read_text())
    for key, value in changes.items():
        put(whole, key, value)
    (run / "config.yaml").write_text(yaml.safe_dump(whole, allow_unicode=True))


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

NEEDS_TRUST = "may write files or connect"


class TestWrappers:
    @pytest.mark.parametrize("name", [name for name in COMMANDS if name != "report"])
    def test_that_write_files_count_only_if_they_are_trusted(
        self, name: str, run: Path, here: Path, refuses: Refuses
    ) -> None:
        configure(run, {"env.wrappers": FILMING, "env.kwargs.render_mode": "rgb_array"})
        (here / "work").mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(here / "work")
            line = refuses([str(run), OURS], "env.wrappers", FILMING, main=COMMANDS[name])
            assert "trust=[env.wrappers]" in line
            assert not (here / "films").exists() and list(Path().iterdir()) == []
            if name == "load":  # the others take seconds
                assert COMMANDS[name]([str(run), OURS, "trust=[env.wrappers]"]) == 0
                assert (here / "films").is_dir(), "the user wants it"

    def test_that_only_convert_count(self) -> None:
        entries = (
            "FlattenObservation",
            {"TimeLimit": {"max_episode_steps": 5}},
            {"mine:Wrapper": {"mode": "a b"}},
        )
        assert Gym(id="x", wrappers=entries).settings_to_trust() == {}
        for harmful in ("HumanRendering", {"mine:Wrapper": {"file": "../notes"}}):
            assert Gym(id="x", wrappers=("ClipAction", harmful)).settings_to_trust() != {}

    @pytest.mark.parametrize(
        "change",
        [
            "env={max_episode_steps: 4, kwargs: {}, wrappers: ???}",
            "env={kwargs: '${oc.create:{lengths: [4]}}'}",
        ],
    )
    def test_a_mapping_that_is_merged_trusts_what_it_names_alone(
        self, change: str, run: Path, refuses: Refuses
    ) -> None:
        """It leaves the folder's wrappers and file names in place."""
        configure(run, {"env.wrappers": FILMING, "env.kwargs.failure": "./nan"})
        changed = [f"from={run}", OURS, "hydra.run.dir=again", change]
        assert NEEDS_TRUST in refuses(changed, "env.kwargs.failure", "./nan")
        refuses([*changed, "trust=[env.kwargs]"], "env.wrappers")
        assert not Path("again").exists()


class TestAddresses:
    def test_of_a_cluster_are_not_connected_to_unless_they_are_given_again(
        self, run: Path, refuses: Refuses
    ) -> None:
        resume = [f"resume={run}", "total_steps=32", OURS]
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            address = f"127.0.0.1:{server.getsockname()[1]}"
            configure(
                run, {"backend": {"_target_": "a3c_exp.backends.ray.Ray", "address": address}}
            )
            assert NEEDS_TRUST in refuses(resume, "backend.address", address)
            with pytest.raises(BlockingIOError):
                server.accept()
        for given in (f"backend.address={address}", "trust=[backend.address]"):
            assert "does not answer" in refuses([*resume, given], "backend.address"), (
                "it is asked now"
            )
        configure(run, {"backend.address": "auto"})
        assert NEEDS_TRUST in refuses(resume, "backend.address", "auto")
        whole = "backend={_target_: a3c_exp.backends.ray.Ray, address: '127.0.0.1:1'}"
        assert "does not answer" in refuses([*resume, whole], "backend.address"), (
            "a backend of the user's own"
        )


class TestTexts:
    @pytest.mark.parametrize(
        ("kwargs", "key", "value"),
        [
            ({"failure": "./nan"}, "failure", "./nan"),
            ({"files": {"/etc/passwd": 1}}, "files./etc/passwd", 1),
        ],
    )
    def test_that_may_name_a_file_count_only_if_they_are_trusted(
        self, kwargs: dict[str, Any], key: str, value: object, run: Path, refuses: Refuses
    ) -> None:
        configure(run, {"env.kwargs": {"lengths": [4], **kwargs}})
        command = [str(run), "episodes=1", OURS]
        assert NEEDS_TRUST in refuses(command, f"env.kwargs.{key}", value, main=evaluate.main)
        if key == "failure":
            assert evaluate.main([*command, "trust=[env.kwargs]"]) == 0

    def test_of_plain_words_are_harmless(self) -> None:
        harmful = [
            "/etc",
            "a.b",
            "host:80",
            "~",
            ["ok", {"x": "C:\\"}],
            [{"/etc": 1}],
            "two\nlines",
        ]
        assert [value for value in harmful if is_plain(value)] == []
        assert is_plain([None, "rgb_array", ["SFFF", "FHFG"], {"a": [1, "b c"]}])

    def test_trust_is_a_list(self, run: Path, refuses: Refuses) -> None:
        refuses([f"resume={run}", OURS, "trust=env.wrappers"], "trust", "env.wrappers")


class TestLinks:
    @pytest.mark.parametrize(
        ("name", "place", "arguments"),
        [
            ("resume", "checkpoints/latest.ckpt.partial", []),
            ("resume", "trace.json", []),
            ("evaluate", "videos", ["video=true"]),
            ("export", "policy.onnx", []),
            ("report", "report", []),
        ],
    )
    def test_that_lead_out_of_the_folder_are_not_written_through(
        self,
        name: str,
        place: str,
        arguments: list[str],
        run: Path,
        here: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        elsewhere = here / "mine"
        elsewhere.write_text("precious")
        configure(run, {"env.kwargs.render_mode": "rgb_array"})
        (run / place).symlink_to(elsewhere)
        assert COMMANDS[name]([str(run), OURS, *arguments]) == 2
        assert f"has a link that leads out of it: {place}" in capsys.readouterr().err
        assert elsewhere.read_text() == "precious"

    def test_inside_it_are_followed(self, run: Path) -> None:
        (run / "checkpoints").rename(run / "kept")
        (run / "checkpoints").symlink_to("kept")
        assert main([f"resume={run}", "total_steps=32", OURS]) == 0


def test_a_configuration_of_the_users_own_is_trusted(tmp_path: Path) -> None:
    train(tmp_path, SCRIPTED, total_steps=64, env__kwargs={"failure": "./raise"})
    assert "trust=[env.kwargs.failure]" in refused(
        lambda: a3c_exp.load(tmp_path, ["scripted"]), "env.kwargs.failure"
    )


@pytest.mark.parametrize(
    ("env", "key"),
    [({"wrappers": FILMING}, "eval.env.wrappers"), ({"id": "intruder:Env-v0"}, "eval.env.id")],
)
def test_what_evaluations_would_do_counts_as_what_training_would(
    env: dict[str, Any], key: str, run: Path
) -> None:
    """An evaluation that records films to a place that its folder names, or imports a module."""
    configure(run, {"eval.env": env})
    Path("intruder.py").write_text(INTRUDER)
    refused(lambda: a3c_exp.load(run, plugins=["scripted"]), key)
    assert not (run.parent.parent / "films").exists() and not Path("harmed").exists()


# -- checkpoints -----------------------------------------------------------------------------------


def latest(run: Path) -> Path:
    return run / "checkpoints" / "latest.ckpt"


class TestBombs:
    def test_an_entry_that_would_unpack_to_100_gigabytes_is_refused_unread(self, run: Path) -> None:
        with zipfile.ZipFile(latest(run), "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("bomb.npy", b"0" * 1000)
            # of the directory, which is written when it closes
            archive.getinfo("bomb.npy").file_size = 100 * 2**30
        line = refused(lambda: checkpoint.load(latest(run)), "folder")
        assert f"has {latest(run).stat().st_size:,} bytes, and would unpack to 107,374,1" in line

    def test_entries_that_share_their_bytes_are_refused(self, run: Path) -> None:
        with zipfile.ZipFile(latest(run), "a") as archive:
            entry = archive.getinfo("store/parameters.npy")
            for number in range(1000):
                again = copy.copy(entry)
                again.filename = f"{number}.npy"
                archive.filelist.append(again)
            archive.writestr("last", b"")
        assert " bytes, and would unpack to " in refused(
            lambda: checkpoint.load(latest(run)), "folder"
        )

    def test_a_file_with_holes_that_is_larger_than_the_memory_is_refused(self, run: Path) -> None:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        os.truncate(latest(run), 2 * memory)
        assert f"has {2 * memory:,} bytes, and may have {memory:,}" in refused(
            lambda: checkpoint.load(latest(run)), "folder"
        )


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
    shown = markdown_to_safe_html(header(config).value[0].tensor.string_val[0])
    assert "<script" not in shown and "<img" not in shown
    assert "&lt;script&gt;" in shown
