"""The command works from a wheel and from an editable install, each with its configuration
files."""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

CHECKOUT = Path(__file__).resolve().parents[1]
TRAIN = ["backend=serial", "workers=1", "total_steps=64", "eval.every=null", "hydra.run.dir=run"]

pytest.importorskip(
    "hatchling", reason="builds the package without fetching anything: pip install -e '.[dev]'"
)


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints, called from `cwd` by a shell that knows nothing of this checkout."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME")
    }
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fresh_python(folder: Path) -> Path:
    """The interpreter of a new environment that has this one's packages, but not what is installed
    as editable here."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    packages = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder
    ).strip()
    # Folders in a .pth file are searched, their own .pth files (editable installs) are not
    # followed.
    borrowed = {
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        *site.getsitepackages(),
    }
    (Path(packages) / "borrowed.pth").write_text("\n".join(sorted(borrowed)))
    return python


def install(python: Path, *what: str) -> None:
    run(
        *(
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ),
        *("--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed", *what),
        cwd=python.parent,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        str(folder),
        cwd=CHECKOUT,
    )
    (made,) = folder.glob("*.whl")
    return made


def test_a_wheel_carries_every_configuration_file_inside_the_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    files = [path.relative_to(CHECKOUT) for path in (CHECKOUT / "conf").rglob("*.yaml")]
    assert {name for name in names if name.endswith(".yaml")} == {
        f"a3c_exp/{file}" for file in files
    }
    assert "a3c_exp/py.typed" in names
    assert [name for name in names if name.startswith("hydra_plugins/")] == [
        "hydra_plugins/a3c_exp_sweeps.py"
    ], "other packages have theirs in the same namespace"
    assert {name.partition("/")[0] for name in names} == {
        "a3c_exp",
        "hydra_plugins",
        wheel.name.rsplit("-", 3)[0] + ".dist-info",
    }


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_wheel_knows_the_commit_that_it_was_built_from(wheel: Path) -> None:
    head = run("git", "rev-parse", "HEAD", cwd=CHECKOUT).strip()
    noted = zipfile.ZipFile(wheel).read("a3c_exp/COMMIT").decode().strip()
    assert noted.removesuffix("-dirty") == head


def test_outside_the_environment_a_command_says_in_one_line_where_the_packages_are(
    tmp_path: Path,
) -> None:
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False, symlinks=True)
    (tmp_path / "a3c_exp").symlink_to(CHECKOUT / "a3c_exp")
    command = [str(bare / "bin" / "python"), "-m", "a3c_exp.report", "outputs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert str(bare) in done.stderr


def test_every_pinned_version_takes_all_promised_versions_of_python() -> None:
    """As far as it is installed: its metadata say what it takes, down to the bug-fix release."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    promised = [
        f"{classifier.rpartition(' ')[2]}.0"
        for classifier in project["classifiers"]
        if classifier.startswith("Programming Language :: Python ::")
    ]
    assert "3.11.0" in promised
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (CHECKOUT / "constraints.txt").read_text(), re.M))
    refusals = {}
    for name, version in pins.items():
        with suppress(PackageNotFoundError):
            package = distribution(name)
            takes = SpecifierSet(",".join(package.metadata.get_all("Requires-Python") or ()))
            is_pinned = package.version.partition("+")[0] == version
            if is_pinned and not all(map(takes.contains, promised)):
                refusals[name] = str(takes)
    assert refusals == {}


@pytest.mark.slow
@pytest.mark.parametrize("editable", [False, True])
def test_it_runs_from_a_wheel_and_from_an_editable_install(
    editable: bool, wheel: Path, tmp_path: Path
) -> None:
    """With the configuration files of the wheel, or with the checkout's own."""
    python = fresh_python(tmp_path / "venv")
    install(python, *(["--editable", str(CHECKOUT)] if editable else [str(wheel)]))
    packages = list((tmp_path / "venv").glob("lib/python*/site-packages/a3c_exp"))
    assert len(packages) == (0 if editable else 1)
    conf = CHECKOUT / "conf" if editable else packages[0] / "conf"
    where = "from a3c_exp.cli.startup import conf_folder; print(conf_folder())"
    assert Path(run(python, "-c", where, cwd=tmp_path).strip()) == conf.resolve()
    assert "processes" in run(python, "-m", "a3c_exp", "--hydra-help", cwd=tmp_path)
    run(python, "-m", "a3c_exp", *TRAIN, cwd=tmp_path)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] >= 64
