"""Fixtures, and the import path of this folder's modules: here, and in every process that a test
starts.

Children of multiprocessing get a copy of sys.path; programs started by command line get only the
environment. Both can therefore import scripted.py, as 'scripted:Scripted-v0' with
plugins=[scripted].
"""

from __future__ import annotations

import copy
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.plugins.config_source import ConfigResult
from hypothesis import HealthCheck, settings

from a3c_exp.run import provenance

# No deadline for a drawn example: a machine that stalls for a moment fails no property.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# What a shell starts in the background, or nohup, ignores some of them, and so would the programs
# that tests interrupt.
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of runs are composed and made in a test's own process. Hydra reads each file once, the
# same commit is looked up once, and no run waits for the disk. Programs that tests start do all of
# it.
load_config = FileConfigSource.load_config
loaded: dict[tuple[object, ...], ConfigResult] = {}


def load_once(source: FileConfigSource, config_path: str) -> ConfigResult:
    try:
        found = (Path(source.path) / source._normalize_file_name(config_path)).stat()
    except OSError:
        return load_config(source, config_path)
    key = source.path, source.provider, config_path, found.st_ino, found.st_mtime_ns, found.st_size
    if key not in loaded:
        loaded[key] = load_config(source, config_path)
    return copy.deepcopy(loaded[key])


FileConfigSource.load_config = load_once  # type: ignore[assignment, method-assign]
os.fsync = lambda fd: None
provenance.commit = functools.cache(provenance.commit)

HERE = str(Path(__file__).parent)

if HERE not in sys.path:
    sys.path.insert(0, HERE)
if HERE not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to call the program from. No fork server is started for a command that is
    refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("a3c_exp.cli.execute.prestart", lambda backend: None)
    monkeypatch.setattr("a3c_exp.cli.forked.start_server", lambda: None)
    return tmp_path


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], str]:
    """Registers an environment with gymnasium during a test: (name, what makes it) -> name."""
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    def add(name: str, entry_point: Any) -> str:
        monkeypatch.setitem(gymnasium.registry, name, EnvSpec(name, entry_point=entry_point))
        return name

    return add


@pytest.fixture(scope="module")
def in_process() -> Iterator[None]:
    """The runs of a sweep are made by the test's own process: one of their own imports everything
    for seconds."""
    import a3c_exp.__main__ as program
    from a3c_exp.cli.startup import LABEL

    class Process:
        def __init__(
            self, arguments: list[str], variables: dict[str, str], *, is_forked: bool
        ) -> None:
            with pytest.MonkeyPatch.context() as environment:
                environment.setenv(LABEL, variables[LABEL])
                self.returncode = program.main(arguments)

        def poll(self) -> int:
            return self.returncode

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("a3c_exp.cli.processes.start_process", Process)
        patch.setattr("a3c_exp.cli.forked.start_server", lambda: None)
        yield


@pytest.fixture
def refuses(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Checks that a command prints one line, about a key and, if it is given, a value, and ends
    with exit code 2.

    Returns the line.
    """
    import a3c_exp.__main__ as program

    def check(words: Sequence[str], key: str, value: object = ..., main: Any = program.main) -> str:
        capfd.readouterr()
        assert main(words) == 2
        out, err = capfd.readouterr()
        assert err.startswith(f"a3c_exp: {key} = {'' if value is ... else f'{value!r}: '}")
        assert err.count("\n") == 1
        assert out == ""
        return err

    return check
