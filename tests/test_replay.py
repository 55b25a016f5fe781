"""Recorded runs are replayed bit for bit; their orders are read with all checks."""

from __future__ import annotations

import csv
import os
import pdb
import shutil
import signal
import struct
import subprocess
import sys
import threading
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from backend_runs import PPO, SARSA
from refusals import Refuses, refused
from runs import (
    BANDIT,
    CORRIDOR,
    LINUX,
    TARGET,
    command,
    config,
    content,
    kill_all,
    latest,
    same,
    summary,
    train_config,
    wait_until,
)
from stores import make_store, ones, push

import a3c_exp
from a3c_exp.__main__ import main
from a3c_exp.callbacks import Callback, RunView
from a3c_exp.config.builder import load_final
from a3c_exp.config.saved import read_config
from a3c_exp.core.order import Kind, Order, row_words, rows_of
from a3c_exp.errors import leaves_debugger
from a3c_exp.run import provenance
from a3c_exp.run.order_file import read_order
from a3c_exp.run.run_folder import ORDER_FILE
from a3c_exp.run.session import Run

LINEAR = {"_target_": "a3c_exp.schedules.Linear", "start": 1.0, "end": 0.0}
LSTM = {"_target_": "a3c_exp.networks.Lstm", "hidden_size": 8}
RECORDED: dict[str, Any] = {
    "lock": True,
    "record": "order",
    "workers": 3,
    "total_steps": 1600,
    "schedule": LINEAR,
}

RUNS: dict[str, dict[str, Any]] = {
    "falling rate": {},
    "normalized, continuous actions": {
        "env": TARGET,
        "env__kwargs": {"length": 7},
        "env__normalize_observations": True,
        "env__normalize_rewards": True,
        "optimizer": {"_target_": "a3c_exp.optimizers.RMSProp", "learning_rate": 1e-2},
    },
    "lstm": {"env__kwargs": {"length": 3}, "network": LSTM},
    "v-trace": {"returns": {"_target_": "a3c_exp.returns.VTrace"}},
    "fresh gradients": {"fresh_gradients": True},
    "acer": {
        "env__kwargs": {"length": 3},
        "algorithm": {"_target_": "a3c_exp.algorithms.ACER"},
        "returns": {"_target_": "a3c_exp.returns.Retrace"},
        "memory": {"capacity": 500, "draw": "poisson", "ratio": 1.5},
        "network": {"_target_": "a3c_exp.networks.Lstm", "hidden_size": 8},
    },
    "dqn": {
        "env": CORRIDOR,
        "algorithm": {"_target_": "a3c_exp.algorithms.DQN", "target_every": 50},
        "returns": {"_target_": "a3c_exp.returns.NStep", "n": 2},
        "memory": {"capacity": 500, "sample": "transitions", "min_size": 40, "ratio": 0.75},
        "epsilon": 0.5,
    },
    "a memory": {
        "returns": {"_target_": "a3c_exp.returns.VTrace"},
        "memory": {"capacity": 500, "ratio": 1.5, "draw": "poisson"},
    },
    "ppo that stops early": {
        "algorithm": PPO,
        "algorithm__target_kl": 0.01,
        "returns": "a3c_exp.returns.GAE",
    },
    "sarsa, one environment": {
        "env": CORRIDOR,
        "algorithm": SARSA,
        "returns": {"_target_": "a3c_exp.returns.NStep", "n": 1},
        "epsilon": {"_target_": "a3c_exp.schedules.EpsilonByWorker"},
        "envs_per_worker": 1,
    },
    "state of each worker": {"optimizer_state": "per_worker", "optimizer__staleness_power": 0.5},
}


@dataclass(kw_only=True)
class Halving(Callback):
    """Halves the learning rate after each 400 steps."""

    def on_tick(self, run: RunView) -> None:
        run.set_multipliers(learning_rate=0.5 ** (run.steps // 400), entropy=0.1)


def record(folder: Path, backend: str, **settings: Any) -> Run:
    settings = RECORDED | settings
    return a3c_exp.train(config(settings.pop("env", BANDIT), backend, **settings), folder)


def replay(folder: Path, *words: str, code: int = 0) -> Path:
    """Replay the run in a folder by the command, and return the replay's folder."""
    place = folder.with_name(f"{folder.name}_again")
    done = main([f"replay={folder}", f"hydra.run.dir={place}", "plugins=[scripted]", *words])
    assert done == code
    return place


def episodes(folder: Path) -> dict[str, list[tuple[str, ...]]]:
    """The episodes of each worker, in its own order."""
    found = defaultdict[str, list[tuple[str, ...]]](list)
    with open(folder / "episodes.csv", newline="") as file:
        for row in csv.DictReader(file):
            found[row["worker"]].append((row["step"], row["return"], row["length"]))
    return found


def assert_equal(one: Path, other: Path) -> None:
    """Assert that two runs have the same parameters, optimizer state, counters and episodes."""
    store = latest(one)["store"]
    assert store["version"] > 60
    assert same(store, latest(other)["store"])
    assert episodes(one) == episodes(other)


def end_of_log(folder: Path) -> str:
    return (folder / "train.log").read_text()


ON_PROCESSES = ("falling rate", "normalized, continuous actions", "v-trace")


@pytest.mark.parametrize(
    ("backend", "name"),
    [*(("threads", name) for name in RUNS), *(("processes", name) for name in ON_PROCESSES)],
)
def test_a_recorded_run_is_replayed_bit_for_bit(name: str, backend: str, tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", backend, **RUNS[name]).folder
    again = replay(recorded)
    assert_equal(recorded, again)
    updates = summary(recorded)["updates"]
    assert f"{updates} of {updates} updates, equal" in end_of_log(again)
    assert summary(again)["staleness_mean"] == summary(recorded)["staleness_mean"]


def test_the_replay_of_a_run_on_serial_is_equal_too(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", "serial").folder
    assert_equal(recorded, replay(recorded))


def test_the_replay_of_workers_that_share_processes_is_equal_too(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", "processes", workers=5, backend__processes=2).folder
    assert_equal(recorded, replay(recorded))


def test_the_replay_of_workers_that_begin_and_never_push_is_equal_too(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", "serial", workers=5, total_steps=16).folder
    store = latest(recorded)["store"]
    assert not store["applied_gradients"][:5].all()
    assert same(store, latest(replay(recorded))["store"])


def test_recording_changes_nothing(tmp_path: Path) -> None:
    one = record(tmp_path / "one", "serial").folder
    other = record(tmp_path / "other", "serial", record=None).folder
    assert_equal(one, other)
    assert not (other / ORDER_FILE).exists()


def test_an_update_takes_at_most_16_bytes(tmp_path: Path) -> None:
    run = record(tmp_path / "run", "processes", total_steps=20_000)
    size = (run.folder / ORDER_FILE).stat().st_size
    assert size - 4000 < 16 * run.summary["updates"]  # the configuration is at its beginning


class TestARunThatWasCut:
    @LINUX
    def test_by_sigkill_is_replayed_beyond_its_last_checkpoint(self, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        words = [
            *("lock=true", "record=order", "workers=3", "total_steps=1e8"),
            "checkpoint.every=500",
        ]
        mark = f"A3C_EXP_TEST={folder}"
        process = subprocess.Popen(
            command(folder, BANDIT, "processes", *words),
            env=os.environ | {"A3C_EXP_TEST": str(folder)},
        )
        try:
            wait_until(lambda: list(folder.glob("checkpoints/step_*.ckpt")))
            process.send_signal(signal.SIGKILL)
            process.wait()
        finally:
            kill_all(mark)

        again = replay(folder)
        saved = latest(folder)["store"]["version"]
        followed = latest(again)["store"]["version"]
        assert followed >= saved > 0
        assert f"{followed:,} of {followed:,} updates, equal" in end_of_log(again)
        assert summary(again)["stop_reason"] == "order"

    def test_and_resumed_is_replayed_through(self, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        normalized: dict[str, Any] = {"env": TARGET, "env__kwargs": {"length": 7}, "algorithm": PPO}
        normalized |= {"env__normalize_observations": True, "returns": "a3c_exp.returns.GAE"}
        record(folder, "processes", **normalized, stop__max_episodes=40)
        whole = config(**RECORDED | normalized)
        whole["backend"] = {"_target_": "a3c_exp.backends.processes.Processes"}
        train_config(whole, folder, resume=True)
        assert len(read_order(folder).sessions) == 2
        again = replay(folder)
        assert same(latest(folder)["store"], latest(again)["store"])

    def test_and_resumed_with_other_settings_is_replayed_up_to_there(self, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        record(folder, "processes", total_steps=800)
        saved = latest(folder)["store"]
        train_config(config(backend="processes", **RECORDED), folder, resume=True)
        again = replay(folder)
        assert same(saved["parameters"], latest(again)["store"]["parameters"])
        assert "total_steps=1600 in place of 800" in end_of_log(again)


def test_a_damaged_order_is_set_aside_when_its_run_is_resumed(
    copied: Path, refuses: Refuses
) -> None:
    path = copied / ORDER_FILE
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    assert main([f"resume={copied}", "plugins=[scripted]", "total_steps=640"]) == 0
    assert path.with_name("order.bin.old").read_bytes() == data
    (line,) = (line for line in end_of_log(copied).splitlines() if "order.bin.old" in line)
    assert "damaged" in line and line.count("order.bin ") == 1
    refuses([f"replay={copied}", "plugins=[scripted]"], "replay", str(copied))


def test_a_frame_of_an_unknown_kind_is_refused(copied: Path) -> None:
    path = copied / ORDER_FILE
    frame = struct.pack("<III", 3, 0, 0)
    checksum = zlib.crc32(frame, read_order(copied).checksum)
    path.write_bytes(path.read_bytes() + frame[:8] + checksum.to_bytes(4, "little"))
    assert "order.bin is damaged" in refused(lambda: read_order(copied), "folder", str(copied))


def test_a_replaced_worker_is_replayed_too(tmp_path: Path) -> None:
    faults = {"env": "faulty:Faulty-v0", "env__kwargs": {"fault": "kill", "at": 60}}
    plugins = ["scripted", "faulty"]
    run = record(tmp_path / "run", "processes", **faults, plugins=plugins, backend__max_restarts=3)
    assert run.summary["restarts"] >= 3
    again = replay(run.folder, "plugins=[scripted,faulty]")
    # the last episodes of a worker that was killed are known to the replay alone
    assert same(latest(run.folder)["store"], latest(again)["store"])


def test_what_a_callback_multiplies_is_replayed_without_it(tmp_path: Path) -> None:
    callback = {"_target_": "test_replay.Halving"}
    plugins = ["scripted", "test_replay"]
    # so many steps that the run does not end before the callback's turn
    steps = 16_000
    run = record(
        tmp_path / "run", "threads", callbacks=[callback], plugins=plugins, total_steps=steps
    )
    orders = read_order(run.folder).sessions[0].rows
    assert sum(row.kind is Kind.MULTIPLIERS for row in orders) > 1
    one, other = (latest(folder)["store"] for folder in (run.folder, replay(run.folder)))
    # the last ones may have been set after the last pull
    assert same(one | {"multipliers": None}, other | {"multipliers": None})


class TestOneThingChanged:
    def test_keeps_the_order_of_the_workers(self, tmp_path: Path) -> None:
        recorded = record(tmp_path / "run", "processes").folder
        again = replay(recorded, "optimizer.staleness_power=0.5")
        store = latest(recorded)["store"]
        changed = latest(again)["store"]
        assert not same(store["parameters"], changed["parameters"])
        # rollouts have equal lengths, so even the steps are those of the recorded run
        assert same(store["applied_gradients"], changed["applied_gradients"])
        assert "0 pulls and pushes were passed over" in end_of_log(again)

    def test_may_pull_more_or_less_than_the_order_has(self, tmp_path: Path) -> None:
        vtrace = record(tmp_path / "vtrace", "processes", **RUNS["v-trace"]).folder
        plain = record(tmp_path / "plain", "processes").folder
        for recorded, returns in ((vtrace, "n_step"), (plain, "vtrace")):
            again = replay(recorded, f"returns={returns}")
            updates = summary(recorded)["updates"]
            assert summary(again)["updates"] == updates

    @pytest.mark.parametrize(
        "word", ["workers=2", "envs_per_worker=2", "seed=3", "rollout_length=2", "backend=serial"]
    )
    def test_is_nothing_that_the_order_is_of(
        self, word: str, a_recorded_run: Path, refuses: Refuses
    ) -> None:
        refuses([f"replay={a_recorded_run}", "plugins=[scripted]", word], word.partition("=")[0])


@pytest.fixture(scope="module")
def a_recorded_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recorded") / "run", "threads", total_steps=320).folder


@pytest.fixture
def copied(a_recorded_run: Path, tmp_path: Path) -> Path:
    """A copy of a recorded run, which a test may spoil."""
    return shutil.copytree(a_recorded_run, tmp_path / "run")


class TestAnOrderThatCannotBeUsed:
    def refuse(self, folder: Path, refuses: Refuses, words: str) -> None:
        before = content(folder)
        line = refuses([f"replay={folder}", "plugins=[scripted]"], "replay", str(folder))
        assert words in line
        assert content(folder) == before

    def test_since_there_is_none(self, copied: Path, refuses: Refuses) -> None:
        (copied / ORDER_FILE).unlink()
        self.refuse(copied, refuses, "record=order")

    def test_since_it_is_cut(self, copied: Path, refuses: Refuses) -> None:
        path = copied / ORDER_FILE
        path.write_bytes(path.read_bytes()[:-20])
        self.refuse(copied, refuses, "cut")
        shutil.rmtree(copied / "checkpoints")
        self.refuse(copied, refuses, "cut")

    def test_since_it_was_edited(self, copied: Path, refuses: Refuses) -> None:
        path = copied / ORDER_FILE
        data = bytearray(path.read_bytes())
        data[-40] ^= 1
        path.write_bytes(data)
        self.refuse(copied, refuses, "edited")

    def test_since_it_is_of_another_version(self, copied: Path, refuses: Refuses) -> None:
        path = copied / ORDER_FILE
        path.write_bytes(path.read_bytes().replace(b"order 1\n", b"order 7\n", 1))
        self.refuse(copied, refuses, "version 7")

    def test_since_it_is_of_another_configuration(self, copied: Path, refuses: Refuses) -> None:
        path = copied / "config.yaml"
        path.write_text(path.read_text().replace("gamma: 0.9", "gamma: 0.8"))
        self.refuse(copied, refuses, "gamma=0.9")


def test_other_versions_are_told_first(
    copied: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(provenance, "versions", lambda: {"torch": "0.1"})
    again = replay(copied)
    log = end_of_log(again)
    assert "torch" in log.partition("training A3C")[0]


def test_a_replay_that_differs_says_where(copied: Path, tmp_path: Path) -> None:
    whole = read_config(copied, ["scripted"])
    whole |= {"seed": 5, "record": None}
    whole["backend"] = {"_target_": "a3c_exp.run.replay.Replay", "folder": str(copied)}
    run = train_config(whole, tmp_path / "again")
    assert run.exit_code == 1
    assert "differs from the recorded run after update 0 of" in run.summary["error"]


def test_settings_of_the_order_may_be_named_as_they_are(copied: Path) -> None:
    again = replay(copied, f"seed={read_config(copied, ['scripted'])['seed']}")
    assert "updates, equal" in end_of_log(again)


def test_a_push_to_break_at_that_does_not_come_is_told(copied: Path) -> None:
    again = replay(copied, "backend.break_at=99999")
    assert "backend.break_at=99,999" in end_of_log(again)


def test_pushes_to_break_at_count_from_one(copied: Path, refuses: Refuses) -> None:
    refuses([f"replay={copied}", "plugins=[scripted]", "backend.break_at=0"], "backend.break_at", 0)


def test_a_replay_is_not_resumed(copied: Path, refuses: Refuses) -> None:
    again = replay(copied)
    refuses([f"resume={again}", "total_steps=1e6"], "resume", str(again))


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"lock": False}, "lock=false"),
        ({"update": "sync", "lock": True}, "update=sync"),
        ({"backend": "ga3c", "lock": True}, "backend=ga3c"),
    ],
)
def test_what_has_no_order_is_refused(settings: dict[str, Any], word: str) -> None:
    whole = config(workers=2, record="order", **settings)
    assert word in refused(lambda: load_final(whole), "record", "order")


class TestGlobalGenerators:
    SETTINGS: ClassVar[dict[str, Any]] = {"env": "scripted:Drawing-v0"}

    def test_are_each_worker_s_own_on_processes(self, tmp_path: Path) -> None:
        run = record(tmp_path / "run", "processes", **self.SETTINGS)
        assert_equal(run.folder, replay(run.folder))

    @pytest.mark.parametrize(
        "backend", [("threads", {}), ("processes", {"backend__processes": 1})], ids=lambda b: b[0]
    )
    def test_are_refused_where_workers_shared_them(
        self, backend: tuple[str, dict[str, int]], tmp_path: Path
    ) -> None:
        name, settings = backend
        run = record(tmp_path / "run", name, **self.SETTINGS, **settings)
        again = replay(run.folder, code=1)
        assert "global generators" in summary(again)["error"]


def test_a_debugger_begins_before_the_rollout_of_a_push(
    a_recorded_run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stops: list[int] = []
    again = tmp_path / "again"

    def stop() -> None:
        stops.append(len(stops))

    monkeypatch.setattr("builtins.breakpoint", stop)
    words = [f"replay={a_recorded_run}", f"hydra.run.dir={again}", "plugins=[scripted]"]
    assert main([*words, "backend.break_at=7"]) == 0
    assert len(stops) == 1
    assert "updates, equal" in end_of_log(again)


@pytest.mark.parametrize("typed", ["q", "import scripted\nb scripted.Bandit.step\nc\nq"])
def test_to_quit_the_debugger_interrupts_the_replay(
    typed: str, a_recorded_run: Path, tmp_path: Path
) -> None:
    """In the replay, and inside an environment, which is not blamed for it.

    Ray, once a test has imported it, has put a debugger of its own in the place of Python's.
    """
    again = tmp_path / "again"
    words = [f"replay={a_recorded_run}", f"hydra.run.dir={again}", "plugins=[scripted]"]
    done = subprocess.run(
        [sys.executable, "-m", "a3c_exp", *words, "backend.break_at=7"],
        input=f"{typed}\n",
        env={name: value for name, value in os.environ.items() if name != "PYTHONBREAKPOINT"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "(Pdb)" in done.stdout, done.stderr
    assert done.returncode == 130, done.stderr
    assert summary(again)["stop_reason"] == "interrupted"
    assert "Traceback" not in done.stderr and "resume=" not in done.stderr


def test_the_debugger_of_python_3_14_is_left_by_an_exit_of_its_own() -> None:
    code = compile("raise SystemExit(1)", pdb.__file__, "exec")
    with pytest.raises(SystemExit) as caught:
        exec(code)
    assert leaves_debugger(caught.value)
    with pytest.raises(SystemExit) as caught:
        sys.exit(1)
    assert not leaves_debugger(caught.value)


def test_the_latest_run_to_replay_is_the_last_recorded_one(
    a_recorded_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.chdir(tmp_path)
    refuses(["replay=latest"], "replay", "latest")
    shutil.copytree(a_recorded_run, "outputs/run")
    for _ in range(2):  # the second time a replay is the last run
        assert main(["replay=latest", "plugins=[scripted]"]) == 0
    assert len(list(Path("outputs").iterdir())) == 3


class TestTheRing:
    @pytest.fixture(autouse=True)
    def is_small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("a3c_exp.core.order._RING", 1000)

    def test_gives_rows_back_in_their_order(self) -> None:
        order = make_order()
        rows = [(Kind.PULL, 3, ()), (Kind.CHECKSUM, 2, (7,)), (Kind.PUSH, 65_535, ())]
        for kind, worker, extra in rows:
            order.add(kind, worker, extra)
        assert rows_of(order.take()) == rows
        assert len(order.take()) == 0

    def test_may_be_lapped_many_times(self) -> None:
        order = make_order()
        for _ in range(7):
            for number in range(300):
                order.wait_for_room()
                order.add(Kind.CHECKSUM, 1, (number,))
            numbers = [row.extra[0] for row in rows_of(order.take())]
            assert numbers == list(range(300))

    def test_lets_workers_wait_until_there_is_room(self) -> None:
        order = make_order()
        while True:
            waiting = threading.Thread(target=order.wait_for_room, daemon=True)
            waiting.start()
            waiting.join(0.02)
            if waiting.is_alive():
                break
            for _ in range(100):
                order.add(Kind.PULL, 0)
        order.take()
        waiting.join(10)
        assert not waiting.is_alive()

    def test_has_the_row_of_an_update_that_a_checkpoint_saw(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = make_store(lock=True, record="order")
        order = store.order
        assert order is not None
        seen = threading.Event()
        add = order.add

        def add_once_seen(kind: Kind, worker: int, extra: Sequence[int] = ()) -> None:
            if kind is Kind.PUSH:
                assert seen.wait(10)
            add(kind, worker, extra)

        monkeypatch.setattr(order, "add", add_once_seen)
        pushing = threading.Thread(target=push, args=(store, 0, ones()), daemon=True)
        pushing.start()
        wait_until(lambda: store.version == 1)

        # it looks, and sleeps: the push goes on
        monkeypatch.setattr("a3c_exp.core.order.time.sleep", lambda seconds: seen.set())
        order.wait_for(store.state()["version"])
        assert rows_of(order.take())[-1].kind is Kind.PUSH
        pushing.join(10)


def make_order(workers: int = 3) -> Order:
    arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in Order.specs(workers).items()}
    return Order(arrays)


def test_words_that_are_no_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="cut"):
        rows_of(np.array(row_words(Kind.CHECKSUM, 1), np.uint32))
    with pytest.raises(ValueError, match="Kind"):
        rows_of(np.zeros(1, np.uint32))
