"""A cluster that is started for one run, on loopback, and what is refused before one is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import BANDIT, command, latest, processes, wait_until
from test_ray import actors, on_ray

from a3c_exp.backends.ray.cluster import on_loopback
from a3c_exp.config.builder import load_experiment
from a3c_exp.errors import ConfigError, RunError
from a3c_exp.run.trainer import run


class TestALocalCluster:
    """Started for one run, on loopback, and gone with it."""

    @pytest.fixture(autouse=True)
    def _short(self) -> Iterator[None]:
        """Ray's sockets lie where temporary files do, and their paths may be no longer than 107 characters."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as self.temporary:
            yield

    def start(self, folder: Path, *overrides: str) -> tuple[subprocess.Popen[str], str]:
        mark = f"A3C_EXP_TEST={folder}"
        arguments = command(folder / "run", BANDIT, "ray", "workers=1", "total_steps=1e12", *overrides)
        environment = os.environ | dict([mark.split("=", 1)]) | {"TMPDIR": self.temporary}
        return subprocess.Popen(arguments, cwd=folder, env=environment, text=True, stderr=subprocess.PIPE), mark

    def updates(self, folder: Path) -> bool:
        table = folder / "run" / "metrics.csv"
        return table.exists() and len(table.read_text().splitlines()) > 2

    def test_listens_on_loopback_alone_and_ends_by_ctrl_c(self, tmp_path: Path) -> None:
        process, mark = self.start(tmp_path, "checkpoint.every=1000")
        try:
            wait_until(lambda: self.updates(tmp_path) or process.poll() is not None, 120)
            assert listening(processes(mark)) <= LOOPBACK
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
        wait_until(lambda: not processes(mark), 30)
        assert os.listdir(self.temporary) == []
        assert latest(tmp_path / "run")["store"]["steps"] > 0

    def test_a_driver_that_is_killed_leaves_no_actor_behind(self, tmp_path: Path) -> None:
        process, mark = self.start(tmp_path)

        def ours() -> set[int]:
            return {*actors("WorkerActor", mark), *actors("ParameterServer", mark)}

        try:
            wait_until(lambda: self.updates(tmp_path) or process.poll() is not None, 120)
            assert len(ours()) == 2
            process.kill()
            wait_until(lambda: not ours(), 60)
        finally:
            for pid in processes(mark):
                os.kill(pid, signal.SIGKILL)

    @pytest.mark.slow
    def test_and_after_a_minute_nothing_at_all(self, tmp_path: Path) -> None:
        """Ray's own helpers take their time."""
        process, mark = self.start(tmp_path)
        try:
            wait_until(lambda: self.updates(tmp_path) or process.poll() is not None, 120)
            assert os.listdir(self.temporary) != []
        finally:
            process.kill()
        wait_until(lambda: not processes(mark), 180)
        assert os.listdir(self.temporary) == []


# 127.0.0.1 as the kernel writes it, and the same within IPv6.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}


def listening(pids: list[int]) -> set[str]:
    """The addresses at which these processes wait for callers."""
    sockets = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor))
            except OSError:
                continue
            sockets |= {found[1]} if found else set()
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets}


def test_ray_is_told_to_stay_on_this_machine_before_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    on_loopback()  # it was told, when these tests were collected
    monkeypatch.delenv("RAY_AUTH_MODE")
    with pytest.raises(RunError, match=r"import it later, or set .*RAY_AUTH_MODE=token"):
        on_loopback()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1", "127.0.0.1:port", "127.0.0.1:99999"])
def test_an_address_where_nobody_answers_is_refused_at_once(address: str) -> None:
    with pytest.raises(ConfigError, match=r"backend.address = .*must be 'local', 'auto' or host:port .*not answer"):
        load_experiment(on_ray(backend={"address": address}))


def test_sigterm_while_ray_starts_ends_the_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray has a handler of its own meanwhile, which turns the signal into SystemExit."""
    import ray

    def interrupted(**_: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ray, "init", interrupted)
    done = run(on_ray(), tmp_path)
    assert (done.exit_code, done.summary["stop_reason"]) == (128 + signal.SIGTERM, "interrupted")
    assert latest(tmp_path)["store"]["steps"] == 0


def test_epochs_on_a_copy_need_an_algorithm_with_epochs() -> None:
    with pytest.raises(ConfigError, match=r"backend.local_epochs = True: must be false with A3C"):
        load_experiment(on_ray(backend={"local_epochs": True}))
