"""Provenance of a result, for summary.json: commit, versions, machine and command line."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import a3c_exp
from a3c_exp.core.cpu import usable_cores

LIBRARIES = ("a3c-exp", "torch", "numpy", "gymnasium", "hydra-core", "omegaconf", "tensorboard")


def commit() -> str | None:
    """The git commit of this package's checkout, with "-dirty" if tracked files of the package or
    of conf/ differ.

    Other files of the checkout change no result. Of a wheel, the commit that it was built from,
    which hatch_build.py has noted. None without git.
    """
    package = Path(a3c_exp.__file__).parent
    if _git(package, "ls-files", "--error-unmatch", "--", "__init__.py") is None:
        noted = package / "COMMIT"
        return noted.read_text().strip() if noted.exists() else None
    folders = [package, package.parent / "conf"]
    sources = [str(folder) for folder in folders if folder.is_dir()]
    options = ("--porcelain=v2", "--branch", "--no-ahead-behind", "--untracked-files=no")
    status = _git(package, "status", *options, "--", *sources) or ""
    head = re.search(r"^# branch\.oid (\w+)", status, re.MULTILINE)
    differs = re.search(r"^[^#]", status, re.MULTILINE)
    return head and head[1] + ("-dirty" if differs else "")


def _git(folder: Path, *arguments: str) -> str | None:
    # Inside a git hook the environment names another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    with suppress(OSError, subprocess.TimeoutExpired):
        call = ["git", "--no-optional-locks", *arguments]
        done = subprocess.run(
            call,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=5,
        )
        return done.stdout.strip() if done.returncode == 0 else None
    return None


def versions() -> dict[str, str | None]:
    """Versions of Python and of the libraries that a result depends on; None for one that is not
    installed."""
    numbers: dict[str, str | None] = {
        "python": platform.python_version(),
        **dict.fromkeys(LIBRARIES),
    }
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            numbers[name] = metadata.version(name)
    return numbers


def machine() -> dict[str, str | int | None]:
    """System, architecture, processor, cores (all, and those this process may use) and memory in
    bytes."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def _processor() -> str | None:
    """The processor's name; None if the system does not report it."""
    with suppress(OSError):
        cpuinfo = Path("/proc/cpuinfo").read_text()
        if model := re.search(r"^model name\s*:\s*(.+)", cpuinfo, re.MULTILINE):
            return model[1].strip()
    return platform.processor() or None


def command_line() -> str:
    """The command line of this process, quoted for a shell."""
    return shlex.join(sys.orig_argv)
