"""A cluster that is started for one run, on loopback, and what is refused before it is started."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from runs import BANDIT, command, kill_all, latest, processes, train_config, wait_until
from test_ray import SECONDS, actors, on_ray

from a3c_exp.backends.ray import cluster
from a3c_exp.backends.ray.cluster import restrict_to_loopback
from a3c_exp.config.builder import load_experiment
from a3c_exp.errors import ConfigError, RunError

# 127.0.0.1 as the kernel writes it, and the same within IPv6.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}


class TestALocalCluster:
    """Started for one run, on loopback, and ended with it."""

    @pytest.fixture(autouse=True)
    def _started(self, tmp_path: Path) -> Iterator[None]:
        """A program that trains, and the mark in the environment of its processes.

        TMPDIR is short: Ray's sockets lie there, and their paths may have no more than 107
        characters.
        """
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as self.temporary:
            self.mark = f"A3C_EXP_TEST={tmp_path}"
            self.folder = tmp_path / "run"
            arguments = command(
                self.folder, BANDIT, "ray", "workers=1", "total_steps=1e12", "checkpoint.every=1000"
            )
            # RAY_ADDRESS is a cluster that the run does not ask for.
            variables = {
                "A3C_EXP_TEST": str(tmp_path),
                "TMPDIR": self.temporary,
                "RAY_ADDRESS": "127.0.0.1:1",
            }
            self.process = subprocess.Popen(arguments, cwd=tmp_path, env=os.environ | variables)
            try:
                wait_until(self.has_updates, SECONDS)
                yield
            finally:
                self.process.kill()
                kill_all(self.mark)

    def has_updates(self) -> bool:
        assert self.process.poll() is None
        table = self.folder / "metrics.csv"
        return table.exists() and len(table.read_text().splitlines()) > 2

    def test_listens_on_loopback_only_and_ends_by_a_signal(self) -> None:
        assert listening(processes(self.mark)) <= LOOPBACK
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(SECONDS) == 128 + signal.SIGTERM
        wait_until(lambda: not processes(self.mark), SECONDS)
        assert os.listdir(self.temporary) == []
        assert latest(self.folder)["store"]["steps"] > 0

    @pytest.mark.slow
    def test_whose_head_is_killed_ends_the_run_saved(self) -> None:
        (head,) = (
            pid
            for pid in processes(self.mark)
            if "gcs_server" in Path(f"/proc/{pid}/comm").read_text()
        )
        os.kill(head, signal.SIGKILL)
        assert self.process.wait(SECONDS) == 1
        summary = json.loads((self.folder / "summary.json").read_text())
        assert summary["stop_reason"] == "failed" and summary["error"].startswith("gcs_server")
        assert latest(self.folder)["store"]["steps"] == summary["steps"] > 0

    @pytest.mark.slow
    def test_leaves_no_process_behind_when_the_driver_is_killed(self) -> None:
        """Ray's own helpers need most of it."""

        def actors_of_the_run() -> list[int]:
            return actors("WorkerActor", self.mark) + actors("ParameterServer", self.mark)

        assert len(actors_of_the_run()) == 2
        self.process.kill()
        wait_until(lambda: not actors_of_the_run(), SECONDS)
        wait_until(lambda: not processes(self.mark), 180)


def listening(pids: list[int]) -> set[str]:
    """The addresses at which these processes accept connections."""
    sockets = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                link = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor))
            except OSError:
                continue
            sockets |= {link[1]} if link else set()
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets}


def test_ray_must_be_restricted_to_this_machine_before_it_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    restrict_to_loopback()  # as it was when these tests were collected
    monkeypatch.delenv("RAY_AUTH_MODE")
    with pytest.raises(RunError, match="import it later"):
        restrict_to_loopback()


def refused(address: str) -> ConfigError:
    with pytest.raises(ConfigError, match="not answer") as caught:
        load_experiment(on_ray(backend={"address": address}))
    assert (caught.value.key, caught.value.value) == ("backend.address", address)
    return caught.value


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:port", "127.0.0.1:99999"])
def test_an_address_that_does_not_answer_is_refused_at_once(address: str) -> None:
    refused(address)


def test_a_server_that_is_no_cluster_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections, so that Ray itself would try for a quarter of an hour and heed no
    signal."""
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 1)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            assert "within 1 s" in str(refused(f"127.0.0.1:{server.server_port}"))
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
def test_a_signal_while_ray_starts_ends_the_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray would replace the handlers, in the main thread by an exit, and in C by an abort 3 s
    later."""
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    init = ray.init

    def interrupted(**settings: object) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        monkeypatch.undo()  # Ray itself calls `init` again where it is asked for something before
        return init(**settings)

    monkeypatch.setattr(ray, "init", interrupted)
    done = train_config(on_ray(), tmp_path)
    assert (done.exit_code, done.summary["stop_reason"]) == (128 + signal.SIGTERM, "interrupted")
    assert latest(tmp_path)["store"]["steps"] == 0
