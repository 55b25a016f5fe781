"""A cluster that is started for one run, on loopback, and what is refused before it is started."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

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
    def _temporary(self) -> Iterator[None]:
        """A short TMPDIR: Ray's sockets lie there, and their paths may have no more than 107 characters."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as self.temporary:
            yield

    def start(self, folder: Path, *overrides: str) -> tuple[subprocess.Popen[str], str]:
        """A program that trains, and the mark in the environment of its processes."""
        mark = f"A3C_EXP_TEST={folder}"
        arguments = command(folder / "run", BANDIT, "ray", "workers=1", "total_steps=1e12", *overrides)
        elsewhere = {"TMPDIR": self.temporary, "RAY_ADDRESS": "127.0.0.1:1"}  # a cluster that the run does not ask for
        environment = os.environ | dict([mark.split("=", 1)]) | elsewhere
        return subprocess.Popen(arguments, cwd=folder, env=environment, text=True, stderr=subprocess.PIPE), mark

    def wait_for_updates(self, folder: Path, process: subprocess.Popen[str]) -> None:
        table = folder / "run" / "metrics.csv"

        def has_updates() -> bool:
            assert process.poll() is None, process.communicate()[1]
            return table.exists() and len(table.read_text().splitlines()) > 2

        wait_until(has_updates, SECONDS)

    def test_listens_on_loopback_only_and_ends_by_ctrl_c(self, tmp_path: Path) -> None:
        process, mark = self.start(tmp_path, "checkpoint.every=1000")
        try:
            self.wait_for_updates(tmp_path, process)
            assert listening(processes(mark)) <= LOOPBACK
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 130
        finally:
            process.kill()
        wait_until(lambda: not processes(mark), SECONDS)
        assert os.listdir(self.temporary) == []
        assert latest(tmp_path / "run")["store"]["steps"] > 0

    def test_leaves_no_actor_behind_when_the_driver_is_killed(self, tmp_path: Path) -> None:
        process, mark = self.start(tmp_path)

        def own_actors() -> set[int]:
            return {*actors("WorkerActor", mark), *actors("ParameterServer", mark)}

        try:
            self.wait_for_updates(tmp_path, process)
            assert len(own_actors()) == 2
            process.kill()
            wait_until(lambda: not own_actors(), SECONDS)
        finally:
            process.kill()
            kill_all(mark)

    @pytest.mark.slow
    def test_leaves_nothing_behind_after_a_minute(self, tmp_path: Path) -> None:
        """Ray's own helpers need most of it."""
        process, mark = self.start(tmp_path)
        try:
            self.wait_for_updates(tmp_path, process)
            assert os.listdir(self.temporary) != []
        finally:
            process.kill()
        wait_until(lambda: not processes(mark), 180)
        assert os.listdir(self.temporary) == []


def listening(pids: list[int]) -> set[str]:
    """The addresses at which these processes accept connections."""
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


def test_ray_must_be_restricted_to_this_machine_before_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    restrict_to_loopback()  # as it was when these tests were collected
    monkeypatch.delenv("RAY_AUTH_MODE")
    with pytest.raises(RunError, match=r"import it later, or set .*RAY_AUTH_MODE=token"):
        restrict_to_loopback()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1", "127.0.0.1:port", "127.0.0.1:99999"])
def test_an_address_that_does_not_answer_is_refused_at_once(address: str) -> None:
    with pytest.raises(ConfigError, match=r"backend.address = .*must be 'local', 'auto' or host:port .*not answer"):
        load_experiment(on_ray(backend={"address": address}))


class TestAServerThatIsNoCluster:
    """It accepts connections, so that Ray itself would try for a quarter of an hour and heed no signal."""

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            self.address = f"127.0.0.1:{server.server_port}"
            yield
            server.shutdown()
            thread.join()

    def probes(self) -> list[int]:
        """Processes that ask this server."""
        found = []
        for pid in processes(""):
            with suppress(OSError):
                found += [pid] if self.address in Path(f"/proc/{pid}/cmdline").read_text() else []
        return found

    def signal_during_a_probe(self, number: int) -> None:
        """Signal this process as soon as there is one."""

        def signal_then() -> None:
            wait_until(self.probes, seconds=60)
            os.kill(os.getpid(), number)

        threading.Thread(target=signal_then).start()

    def test_is_refused_in_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cluster, "ANSWER_SECONDS", 2)
        with pytest.raises(ConfigError, match=r"backend.address = .*does not answer as a cluster does, within 2 s$"):
            load_experiment(on_ray(backend={"address": self.address}))
        assert not self.probes()

    def test_gives_way_to_ctrl_c(self) -> None:
        """Whatever handler it has: imports put it off."""
        noted: list[int] = []
        before = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
        try:
            self.signal_during_a_probe(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                load_experiment(on_ray(backend={"address": self.address}))
            signal.raise_signal(signal.SIGINT)
            assert noted == [signal.SIGINT], "the handler is back"
        finally:
            signal.signal(signal.SIGINT, before)
        assert not self.probes()

    def test_that_has_taken_the_place_of_one_gives_way_to_signals_too(self, tmp_path: Path) -> None:
        """The configuration was checked before, as that of a sweep's last run is."""
        self.signal_during_a_probe(signal.SIGTERM)
        done = train_config(on_ray(backend={"address": self.address}), tmp_path)
        assert (done.exit_code, done.summary["stop_reason"]) == (128 + signal.SIGTERM, "interrupted")
        assert done.summary["wall_seconds"] < cluster.ANSWER_SECONDS
        assert not self.probes()

    def test_that_has_taken_the_place_of_one_ends_the_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cluster, "ANSWER_SECONDS", 1)
        done = train_config(on_ray(backend={"address": self.address}), tmp_path)
        assert done.exit_code == 1
        assert "there is no Ray cluster: it does not answer as a cluster does" in done.summary["error"]


def test_sigterm_while_ray_starts_ends_the_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own handler, installed meanwhile, turns the signal into SystemExit."""
    import ray

    def interrupted(**_: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ray, "init", interrupted)
    done = train_config(on_ray(), tmp_path)
    assert (done.exit_code, done.summary["stop_reason"]) == (128 + signal.SIGTERM, "interrupted")
    assert latest(tmp_path)["store"]["steps"] == 0


def test_local_epochs_need_a_minibatch_algorithm() -> None:
    with pytest.raises(ConfigError, match=r"backend.local_epochs = True: must be false with A3C"):
        load_experiment(on_ray(backend={"local_epochs": True}))
