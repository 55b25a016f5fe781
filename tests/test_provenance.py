"""The provenance of a result in summary.json."""

from __future__ import annotations

import json
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import a3c_exp
from a3c_exp.run import provenance

look_up = provenance.commit.__wrapped__  # type: ignore[attr-defined]  # conftest.py remembers what it returns
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *arguments: str) -> str:
    identity = [
        "-c",
        "user.name=Test",
        "-c",
        "user.email=test@example.org",
        "-c",
        "commit.gpgsign=false",
    ]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit of a package, which `provenance` takes itself to be in."""
    for name in ("package/__init__.py", "conf/config.yaml", "RESULTS.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.setattr(a3c_exp, "__file__", str(tmp_path / "package" / "__init__.py"))
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    return tmp_path


@needs_git
@pytest.mark.parametrize(
    ("changed", "suffix"),
    [("conf/config.yaml", "-dirty"), ("RESULTS.md", "")],
)
def test_the_commit_is_that_of_the_checkout_and_changes_of_what_computes_are_told(
    changed: str, suffix: str, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(checkout / "elsewhere"))  # as inside a git hook
    assert look_up() == commit
    (checkout / changed).write_text("changed")
    assert look_up() == commit + suffix


@needs_git
def test_a_package_installed_inside_another_repository_has_no_commit(checkout: Path) -> None:
    git(checkout, "rm", "--cached", "--quiet", "-r", "package")
    git(checkout, "commit", "--quiet", "--message", "of another project")
    assert look_up() is None


def test_a_wheel_says_the_commit_that_it_was_built_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(a3c_exp, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "COMMIT").write_text("abc-dirty\n")
    assert look_up() == "abc-dirty"


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert look_up() is None


def test_versions_and_the_machine_are_described_in_json() -> None:
    versions, machine = provenance.versions(), provenance.machine()
    assert versions["python"] == platform.python_version()
    assert versions["numpy"] == np.__version__
    assert {"a3c-exp", "torch", "gymnasium"} <= versions.keys()
    assert machine["cores"] and machine["usable_cores"] and machine["processor"]
    assert isinstance(machine["memory_bytes"], int) and machine["memory_bytes"] > 2**28
    json.dumps([versions, machine, look_up(), provenance.command_line()])


def test_the_command_can_be_pasted_into_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "a b", "n=[1,2]", "it's"])
    assert shlex.split(provenance.command_line()) == sys.orig_argv
