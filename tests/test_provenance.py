"""The provenance of a result in summary.json."""

from __future__ import annotations

import json
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import a3c_exp
from a3c_exp.run import provenance

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit of a package, which `provenance` takes itself to be in."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(a3c_exp, "__file__", str(package / "__init__.py"))
    git(tmp_path, "init", "--quiet")
    return tmp_path


@needs_git
def test_the_commit_is_that_of_the_checkout_whatever_the_working_directory(checkout: Path) -> None:
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "one")
    assert provenance.commit() == git(checkout, "rev-parse", "HEAD")


@needs_git
def test_changes_since_the_commit_are_reported(checkout: Path) -> None:
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "one")
    (checkout / "package" / "__init__.py").write_text("changed = True")
    assert provenance.commit() == git(checkout, "rev-parse", "HEAD") + "-dirty"


@needs_git
def test_changes_of_what_computes_nothing_are_not(checkout: Path) -> None:
    """A table of results that is written anew, for one."""
    (checkout / "conf").mkdir()
    (checkout / "conf" / "config.yaml").write_text("seed: 0")
    (checkout / "RESULTS.md").write_text("old")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "one")
    (checkout / "RESULTS.md").write_text("new")
    assert provenance.commit() == git(checkout, "rev-parse", "HEAD")
    (checkout / "conf" / "config.yaml").write_text("seed: 1")
    assert provenance.commit() == git(checkout, "rev-parse", "HEAD") + "-dirty"


@needs_git
def test_a_package_installed_inside_another_repository_has_no_commit(checkout: Path) -> None:
    (checkout / "other.txt").write_text("of another project")
    git(checkout, "add", "other.txt")
    git(checkout, "commit", "--quiet", "--message", "one")
    assert provenance.commit() is None


@needs_git
def test_a_repository_named_by_the_environment_is_not_taken_for_ours(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "one")
    commit = git(checkout, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(checkout / "elsewhere"))  # as inside a git hook
    assert provenance.commit() == commit


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert provenance.commit() is None


def test_versions_name_python_and_the_libraries() -> None:
    versions = provenance.versions()
    assert versions["python"] == platform.python_version()
    assert versions["numpy"] == np.__version__
    assert {"a3c-exp", "torch", "gymnasium"} <= versions.keys()


def test_the_machine_is_described() -> None:
    machine = provenance.machine()
    assert machine["cores"]
    assert machine["usable_cores"]
    assert machine["processor"]
    assert isinstance(machine["memory_bytes"], int)
    assert machine["memory_bytes"] > 2**28


def test_all_of_it_can_be_written_as_json() -> None:
    json.dumps([provenance.versions(), provenance.machine(), provenance.commit(), provenance.command()])


def test_the_command_can_be_pasted_into_a_shell() -> None:
    code = "from a3c_exp.run import provenance; print(provenance.command())"
    shown = subprocess.run([sys.executable, "-c", code, "a b", "n=[1,2]"], capture_output=True, text=True, check=True)
    assert shlex.split(shown.stdout) == [sys.executable, "-c", code, "a b", "n=[1,2]"]
    assert re.fullmatch(r"[^\n]+\n", shown.stdout)
