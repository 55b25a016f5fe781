"""Runs' folders that come from anyone: what of them counts only if the user names it again."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from refusals import refused
from runs import SCRIPTED, train

import a3c_exp
from a3c_exp.__main__ import main
from a3c_exp.cli import evaluate
from a3c_exp.common.trust import is_plain
from a3c_exp.envs import Gym
from a3c_exp.errors import ConfigError, exit_code
from a3c_exp.export import __main__ as export
from a3c_exp.report import __main__ as report

OURS = "plugins=[scripted]"
FILMING: list[Any] = [{"RecordVideo": {"video_folder": "../films"}}]


def load(folder: str, *arguments: str) -> int:
    """`a3c_exp.load`, with the arguments that a command has and with its exit code."""
    lists = {name: value[1:-1].split(",") for name, value in (text.split("=", 1) for text in arguments)}
    a3c_exp.load(folder, **lists)
    return 0


COMMANDS: dict[str, Callable[..., int]] = {
    "resume": lambda folder, *more: main([f"resume={folder}", "total_steps=32", *more]),
    "from": lambda folder, *more: main([f"from={folder}", "hydra.run.dir=again", *more]),
    "evaluate": lambda folder, *more: evaluate.main([folder, "episodes=1", *more]),
    "export": lambda folder, *more: export.main([folder, "steps=8", *more]),
    "load": lambda folder, *more: exit_code(lambda: load(folder, *more)),
    "report": lambda folder, *more: report.main([folder]),
}


@pytest.fixture(scope="module", autouse=True)
def finished(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A run, of which `stranger` makes copies."""
    global RUN
    RUN = train(tmp_path_factory.mktemp("run"), SCRIPTED, total_steps=16, env__kwargs={"lengths": [4]}).folder


RUN = Path()


def stranger(folder: Path, **settings: Any) -> Path:
    """The folder of a run with settings that somebody has written into its configuration."""
    shutil.copytree(RUN, folder)
    whole = yaml.safe_load((folder / "config.yaml").read_text())
    for name, value in settings.items():
        whole[name] |= value
    (folder / "config.yaml").write_text(yaml.safe_dump(whole))
    return folder


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """The last line of stderr."""
    return capsys.readouterr().err.splitlines()[-1]


class TestWrappers:
    @pytest.mark.parametrize("name", [name for name in COMMANDS if name != "report"])
    def test_that_write_files_count_only_if_they_are_trusted(
        self, name: str, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = stranger(here / "outputs" / "run", env={"wrappers": FILMING, "kwargs": {"render_mode": "rgb_array"}})
        work = here / "work"
        work.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(work)
            assert COMMANDS[name](str(run), OURS) == 2
            assert not (here / "films").exists() and list(work.iterdir()) == []
            line = complaint(capsys)
            assert line.startswith("a3c_exp: env.wrappers = [{'RecordVideo': {'video_folder': '../films'}}]: ")
            assert line.endswith("allow it with trust=[env.wrappers]")
            if name == "load":  # the others take seconds
                assert COMMANDS[name](str(run), OURS, "trust=[env.wrappers]") == 0
                assert (here / "films").is_dir(), "the user wants it"

    def test_that_only_convert_count(self) -> None:
        entries = ("FlattenObservation", {"TimeLimit": {"max_episode_steps": 5}}, {"mine:Wrapper": {"mode": "a b"}})
        assert Gym(id="x", wrappers=entries).settings_to_trust() == {}
        for harmful in ("HumanRendering", {"mine:Wrapper": {"file": "../notes"}}):
            assert Gym(id="x", wrappers=("ClipAction", harmful)).settings_to_trust() != {}

    @pytest.mark.parametrize(
        "change",
        ["env={max_episode_steps: 4, kwargs: {}, wrappers: ???}", "env={kwargs: '${oc.create:{lengths: [4]}}'}"],
    )
    def test_a_mapping_that_is_merged_trusts_what_it_names_alone(
        self, change: str, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It leaves the folder's wrappers and file names in place."""
        run = stranger(here / "run", env={"wrappers": FILMING, "kwargs": {"lengths": [4], "failure": "./nan"}})
        changed = [f"from={run}", OURS, "hydra.run.dir=again", change]
        assert main(changed) == 2
        assert complaint(capsys).startswith("a3c_exp: env.kwargs.failure = './nan': may write files or connect")
        assert main([*changed, "trust=[env.kwargs]"]) == 2
        assert complaint(capsys).startswith("a3c_exp: env.wrappers = ")
        assert not (here / "again").exists()


class TestAddresses:
    def test_of_a_cluster_are_not_connected_to_unless_they_are_given_again(
        self, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            address = f"127.0.0.1:{server.getsockname()[1]}"
            run = stranger(here / "run", backend={"_target_": "a3c_exp.backends.ray.Ray", "address": address})
            assert main([f"resume={run}", "total_steps=32", OURS]) == 2
            assert complaint(capsys).startswith(f"a3c_exp: backend.address = '{address}': may write files or co")
            with pytest.raises(BlockingIOError):
                server.accept()
        for given in (f"backend.address={address}", "trust=[backend.address]"):
            assert main([f"resume={run}", "total_steps=32", OURS, given]) == 2
            assert "does not answer" in complaint(capsys), "it is asked now"

    def test_that_are_plain_words_are_addresses_too(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run = stranger(here / "run", backend={"_target_": "a3c_exp.backends.ray.Ray", "address": "auto"})
        assert main([f"from={run}", OURS]) == 2
        assert complaint(capsys).startswith("a3c_exp: backend.address = 'auto': may write files or connect")
        mapping = "backend={_target_: a3c_exp.backends.ray.Ray, address: '127.0.0.1:1'}"
        assert main([f"resume={run}", "total_steps=32", OURS, mapping]) == 2
        assert "may write files or connect" not in complaint(capsys), "a backend that is given whole is the user's own"


class TestTexts:
    @pytest.mark.parametrize(
        ("kwargs", "text"),
        [({"failure": "./nan"}, "failure = './nan'"), ({"files": {"/etc/passwd": 1}}, "files./etc/passwd = 1")],
    )
    def test_that_may_name_a_file_count_only_if_they_are_trusted(
        self, kwargs: dict[str, Any], text: str, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = stranger(here / "run", env={"kwargs": {"lengths": [4], **kwargs}})
        assert evaluate.main([str(run), "episodes=1", OURS]) == 2
        assert complaint(capsys).startswith(f"a3c_exp: env.kwargs.{text}: may write files or connect")
        if "failure" in kwargs:
            assert evaluate.main([str(run), "episodes=1", OURS, "trust=[env.kwargs]"]) == 0

    def test_of_plain_words_are_harmless(self) -> None:
        harmful = ["/etc", "a.b", "host:80", "~", ["ok", {"x": "C:\\"}], [{"/etc": 1}], "two\nlines"]
        assert [value for value in harmful if is_plain(value)] == []
        assert is_plain([None, "rgb_array", ["SFFF", "FHFG"], {"a": [1, "b c"]}])

    def test_trust_is_a_list(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([f"resume={stranger(here / 'run')}", OURS, "trust=env.wrappers"]) == 2
        assert "trust = 'env.wrappers': must be a list" in complaint(capsys)


class TestLinks:
    @pytest.mark.parametrize(
        ("name", "place", "arguments"),
        [
            ("resume", "checkpoints/latest.ckpt.partial", []),
            ("resume", "metrics.jsonl.partial", []),
            ("evaluate", "videos", ["video=true"]),
            ("export", "policy.onnx", []),
            ("report", "report", []),
        ],
    )
    def test_that_lead_out_of_the_folder_are_not_written_through(
        self, name: str, place: str, arguments: list[str], here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        elsewhere = here / "mine"
        elsewhere.write_text("precious")
        run = stranger(here / "run", env={"kwargs": {"render_mode": "rgb_array"}})
        (run / place).symlink_to(elsewhere)
        assert COMMANDS[name](str(run), OURS, *arguments) == 2
        assert f"has a link that leads out of it: {place}" in complaint(capsys)
        assert elsewhere.read_text() == "precious"

    def test_inside_it_are_followed(self, here: Path) -> None:
        run = stranger(here / "run")
        (run / "checkpoints").rename(run / "kept")
        (run / "checkpoints").symlink_to("kept")
        assert main([f"resume={run}", "total_steps=32", OURS]) == 0


def test_a_configuration_of_the_users_own_is_trusted(tmp_path: Path) -> None:
    whole = a3c_exp.compose(["env=gym", f"env.id={SCRIPTED}", OURS, "backend=serial", "workers=1", "total_steps=64"])
    whole["env"] |= {"wrappers": FILMING[:0], "kwargs": {"failure": "./raise"}}
    assert a3c_exp.train(whole, tmp_path / "run").summary["stop_reason"] == "total_steps"
    with pytest.raises(ConfigError, match=r"trust=\[env.kwargs.failure\]"):
        a3c_exp.load(tmp_path / "run", plugins=["scripted"])


def test_what_evaluations_would_do_counts_as_what_training_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that came from anyone, whose evaluation records films to a place that it names, or imports a module."""
    monkeypatch.chdir(tmp_path)
    run = train(tmp_path / "run").folder
    whole = yaml.safe_load((run / "config.yaml").read_text())
    for env, key in (
        ({"wrappers": [{"RecordVideo": {"video_folder": "films"}}]}, "eval.env.wrappers"),
        ({"id": "intruder:Env-v0"}, "eval.env.id"),
    ):
        whole["eval"]["env"] = env
        (run / "config.yaml").write_text(yaml.safe_dump(whole))
        (tmp_path / "intruder.py").write_text("open('imported', 'w')")
        refused(lambda: a3c_exp.load(run, plugins=["scripted"]), key)
    assert not (tmp_path / "films").exists() and not (tmp_path / "imported").exists()
