"""Runs that are there already, and what their settings stood for when they began."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from refusals import Refuses
from runs import QUICK, config, content, summary

import a3c_exp
from a3c_exp import compose
from a3c_exp.__main__ import main
from a3c_exp.cli.existing import saved_runs
from a3c_exp.config import builder
from a3c_exp.config.builder import load_final
from a3c_exp.core.run_view import RunView
from a3c_exp.run.files import RunOutput
from a3c_exp.run.recorders.stop_rules import StopRules
from a3c_exp.run.run_folder import config_text

AUTO = [*[text for text in QUICK if not text.startswith("workers")], "workers=auto"]


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what `workers=auto` stands for."""
    return lambda number: monkeypatch.setattr(builder, "cores_of_a_run", lambda: number)


def saved(run: str = "run") -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(Path(run, "config.yaml").read_text())
    return read


class TestWhatSettingsStoodFor:
    @pytest.fixture(autouse=True)
    def run_on_two_cores(self, here: Path, cores: Any) -> None:
        cores(2)
        assert main([*AUTO, "hydra.run.dir=run"]) == 0
        cores(1)

    def test_is_kept_by_a_run_that_goes_on_where_auto_is_another_number(self) -> None:
        before = saved()
        assert (before["workers"], before["typed"]["workers"]) == (2, "auto")
        Path("run/summary.json").unlink()  # as if it had been killed
        assert main([*AUTO, "hydra.run.dir=run", "existing=resume"]) == 0
        assert summary(Path("run"))["resumed"] == 1
        assert saved() == before
        assert main(["resume=run", "total_steps=128"]) == 0
        assert saved() == before | {"total_steps": 128}

    def test_is_another_setting_than_what_is_typed(self, refuses: Refuses) -> None:
        line = refuses(
            [*AUTO, "workers=2", "hydra.run.dir=run", "existing=resume"], "hydra.run.dir"
        )
        assert "workers=auto there, 2 here" in line

    def test_changes_where_a_resumed_run_is_given_another(self) -> None:
        assert main(["resume=run", "total_steps=128", "workers=3"]) == 0
        assert saved()["workers"] == 3
        assert "workers" not in saved()["typed"]
        assert main(["resume=run", "total_steps=192", "workers=auto"]) == 0
        assert (saved()["workers"], saved()["typed"]["workers"]) == (1, "auto")

    def test_is_what_a_copy_has(self) -> None:
        assert main(["from=run", "hydra.run.dir=copy"]) == 0
        a3c_exp.train(saved(), "again")
        assert saved("copy") == saved("again") == saved("run")

    def test_is_not_known_of_a_run_of_before(self) -> None:
        """Its config.yaml says auto, which is then what it is here."""
        before = saved()
        del before["typed"]
        before["env"]["normalize_observations"] = before["workers"] = before["log"]["every"] = (
            "auto"
        )
        Path("run/config.yaml").write_text(yaml.safe_dump(before))
        Path("run/summary.json").unlink()
        assert main([*AUTO, "hydra.run.dir=run", "existing=resume"]) == 0
        assert saved()["workers"] == 1


class TestFinal:
    def test_leaves_nothing_to_find_out(self, here: Path, cores: Any) -> None:
        cores(3)
        final, _ = load_final(compose(["env=gym", "env.id=CartPole-v1", "init_from=first"]))
        assert final["workers"] == 3
        assert final["env"]["normalize_observations"] is False
        assert final["init_from"] == str(here / "first")
        assert final["log"] == {"every": None}
        assert final["typed"] == dict.fromkeys(
            ("workers", "env.normalize_observations", "log.every"), "auto"
        )
        cores(1)
        assert load_final(final)[0] == final

    def test_changes_nothing_that_is_plain(self) -> None:
        plain = config(log__every=None)
        assert load_final(plain)[0] == plain


def test_the_folder_of_a_run_is_the_one_that_was_meant_when_it_began(here: Path) -> None:
    """A program, or an environment, may go to another folder meanwhile."""
    (here / "elsewhere").mkdir()

    def leave(*_: object) -> None:
        os.chdir(here / "elsewhere")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StopRules, "on_start", leave)
        a3c_exp.train([*QUICK], "run")
    assert (here / "run" / "summary.json").exists()
    assert not list((here / "elsewhere").iterdir())


def test_a_run_whose_folder_is_renamed_ends_and_writes_nothing_into_the_one_that_takes_its_name(
    here: Path,
) -> None:
    endless = [*QUICK[:-2], "total_steps=1e9", "eval.every=null", "checkpoint.every=200"]
    tick = StopRules.on_tick
    other: dict[str, bytes] = {}

    def rename(rules: StopRules, run: RunView) -> None:
        if not Path("moved").exists() and Path("run/checkpoints/latest.ckpt").exists():
            Path("run").rename("moved")
            main([*QUICK, "seed=7", "hydra.run.dir=run"])
            other.update(content(Path("run")))
        tick(rules, run)

    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(a3c_exp.RunError, match="was renamed"),
    ):
        patch.setattr(StopRules, "on_tick", rename)
        a3c_exp.train(endless, "run")
    assert other == content(Path("run"))
    assert Path("moved/checkpoints/latest.ckpt").exists()
    assert main(["resume=moved", "total_steps=1000"]) == 0


def test_a_folder_that_cannot_be_looked_at_for_a_moment_is_not_lost(tmp_path: Path) -> None:
    """As on a shared file system. The next write tries again."""
    output = RunOutput(tmp_path)
    written = Mock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "stat", Mock(side_effect=OSError(errno.ESTALE, "Stale file handle")))
        output.write("summary.json", written)
    assert (output.lost, output.unwritten, written.called) == (False, {"summary.json"}, False)
    output.write("summary.json", written)
    assert (output.lost, output.unwritten, written.called) == (False, set(), True)


def test_a_copy_of_a_run_does_not_take_its_place(here: Path) -> None:
    final, _ = load_final(compose(QUICK))
    for name in ("seed-0_backup", "seed-0", "seed-1"):
        (here / name).mkdir()
        (here / name / "config.yaml").write_text(config_text(final))
    assert [folder.name for folder in saved_runs(here).values()] == ["seed-0"]


def test_a_run_of_an_earlier_version_with_fewer_settings_goes_on(here: Path) -> None:
    """What its configuration does not say is the default."""
    command = [*QUICK, "hydra.run.dir=run", "existing=resume"]
    assert main(command) == 0
    before = saved()
    del before["env"]["info_keys"], before["callbacks"], before["eval"]["env"]
    Path("run/config.yaml").write_text(yaml.safe_dump(before))
    assert main(command) == 0
    assert main([*command, "env.info_keys=[a]"]) == 2


@pytest.mark.parametrize(
    ("existing", "has_gone"), [("restart", True), ("resume", True), ("resume", False)]
)
def test_a_run_that_cannot_begin_anew_is_not_lost(
    existing: str, has_gone: bool, here: Path, refuses: Refuses
) -> None:
    """The one that it starts from has gone, or has another network now."""
    start = [*QUICK, "init_from=first", "hydra.run.dir=run"]
    assert main([*QUICK, "hydra.run.dir=first"]) == 0 == main(start)
    failed = json.loads(Path("run/summary.json").read_text()) | {"stop_reason": "failed"}
    Path("run/summary.json").write_text(json.dumps(failed))  # it would begin anew
    if has_gone:
        Path("first").rename("moved")
    else:
        assert (
            main([*QUICK, "network.hidden_sizes=[8]", "hydra.run.dir=first", "existing=restart"])
            == 0
        )
    before = content(here / "run")
    refuses([*start, f"existing={existing}"], "init_from")
    assert content(here / "run") == before


def test_a_run_may_begin_anew_from_what_it_has_learned(here: Path) -> None:
    assert main([*QUICK, "hydra.run.dir=run"]) == 0
    assert main([*QUICK, "hydra.run.dir=run", "init_from=run", "existing=restart"]) == 0
    assert saved()["init_from"] == str(here / "run")
