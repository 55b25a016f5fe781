"""W&B and MLflow, offline: every point of the curves is there once, also after a resumption."""

from __future__ import annotations

import json
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from runs import QUICK, config, train_config

import a3c_exp
import a3c_exp.__main__ as program
from a3c_exp.callbacks import Callback, RunView
from a3c_exp.config.builder import load_experiment
from a3c_exp.run.metrics import read_points

Curves = dict[str, list[tuple[int, float]]]

EVERY: dict[str, Any] = {"eval__every": 80, "checkpoint__every": 80, "checkpoint__last": 9}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is sent to the makers of these packages, and nothing is written outside of the test's
    folder."""
    for name, value in {
        "WANDB_ERROR_REPORTING": "false",
        "DO_NOT_TRACK": "1",
        "WANDB_SILENT": "true",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb_home"))
    monkeypatch.chdir(tmp_path)


def curves(folder: Path) -> Curves:
    """The points of a run by their names, as metrics.csv has them."""
    points_by_name: Curves = defaultdict(list)
    for point in read_points(folder / "metrics.csv"):
        for name in point.keys() - {"step", "wall_seconds"}:
            points_by_name[name].append((int(point["step"]), point[name]))
    return {name: sorted(points) for name, points in points_by_name.items()}


def sent(first: Curves, folder: Path, is_cut: bool) -> Curves:
    """What a tracker has of a run that was resumed: of a part that was lost, what came first."""
    last = max(step for points in first.values() for step, _ in points) if is_cut else -1
    points_by_name = {
        name: [point for point in points if point[0] > last]
        for name, points in curves(folder).items()
    }
    return {
        name: sorted((first[name] if is_cut else []) + points)
        for name, points in points_by_name.items()
    }


def cut(folder: Path) -> None:
    """Leave a finished run as a kill after its first save would: the tracker has later points."""
    first, *_ = sorted(
        (folder / "checkpoints").glob("step_*.ckpt"), key=lambda path: len(path.name)
    )
    for path in (folder / "checkpoints").iterdir():
        if path != first:
            path.unlink()
    (folder / "summary.json").unlink()


# W&B.


def records(path: Path) -> Iterator[Any]:
    """The records of a file of W&B: a log in the format of LevelDB, in blocks of 32 KiB, after 7
    bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = path.read_bytes()
    offset = 7
    parts = b""
    while offset < len(data):
        left = 32768 - offset % 32768
        if left < 7:
            offset += left
            continue
        _, length, kind = struct.unpack("<IHB", data[offset : offset + 7])
        if offset + 7 + length > len(data):
            return
        parts += data[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def of_kind(folder: Path, kind: str) -> list[Any]:
    """The records of a kind in all files of a run, once W&B's process has written their ends."""
    records_found = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        waiting = time.monotonic() + 30
        while not (every := list(records(path))) or every[-1].WhichOneof("record_type") != "exit":
            assert time.monotonic() < waiting
            time.sleep(0.02)
        records_found += [
            getattr(record, kind) for record in every if record.WhichOneof("record_type") == kind
        ]
    return records_found


def rows(folder: Path) -> list[dict[str, Any]]:
    history = of_kind(folder, "history")
    return [
        {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.item}
        for record in history
    ]


@pytest.mark.parametrize(
    ("backend", "is_cut"), [("serial", False), ("serial", True), ("processes", False)]
)
def test_wandb_has_every_point_once_also_of_a_resumed_run(
    backend: str, is_cut: bool, tmp_path: Path
) -> None:
    pytest.importorskip("wandb", reason="W&B: pip install 'a3c-exp[wandb]'")
    tracker = {
        "_target_": "a3c_exp.callbacks.Wandb",
        "mode": "offline",
        "checkpoints": "best",
        "tags": ["mine"],
    }
    media = [{"_target_": "a3c_exp.callbacks.Histograms", "points": 1}]
    run_config = config(backend=backend, workers=2, callbacks=[tracker, *media], **EVERY)
    train_config(run_config, tmp_path)
    first = curves(tmp_path)
    if is_cut:
        cut(tmp_path)
    train_config(run_config | {"total_steps": 320}, tmp_path, resume=True)
    sent_curves: Curves = defaultdict(list)
    for row in rows(tmp_path):
        for name, value in row.items():
            if (
                not name.startswith(("_", "train/gradients/", "train/parameters/"))
                and name != "global_step"
            ):
                sent_curves[name].append((row["global_step"], value))
    assert {name: sorted(points) for name, points in sent_curves.items()} == sent(
        first, tmp_path, is_cut
    )
    histogram_steps = [
        row["global_step"] for row in rows(tmp_path) if "train/parameters/actor/_type" in row
    ]
    assert histogram_steps == [step for step, _ in sorted(sent_curves["train/n_updates"])]
    numbers = [row["_step"] for row in rows(tmp_path)]
    assert numbers == sorted(set(numbers))  # of one run, whose second part is appended
    begun = of_kind(tmp_path, "run")
    assert len({record.run_id for record in begun}) == 1
    assert {record.display_name for record in begun} == {tmp_path.name}
    configured = {record.key: json.loads(record.value_json) for record in begun[0].config.update}
    assert configured["total_steps"] == 160 and configured["env"]["id"] == run_config["env"]["id"]
    assert {record.name for record in of_kind(tmp_path, "artifact")} == {f"{begun[0].run_id}-best"}
    summary = {
        record.key: record.value_json
        for part in of_kind(tmp_path, "summary")
        for record in part.update
    }
    assert summary["stop_reason"] == '"total_steps"'


def test_wandb_without_a_login_asks_nothing_and_is_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="W&B: pip install 'a3c-exp[wandb]'")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # where nobody listens
    train_config(config(callbacks=[{"_target_": "a3c_exp.callbacks.Wandb"}]), tmp_path)
    assert "W&B is offline" in (tmp_path / "train.log").read_text()
    assert [record.project for record in of_kind(tmp_path, "run")] == ["a3c_exp"]


def test_the_runs_of_a_sweep_share_a_group(tmp_path: Path, in_process: None) -> None:
    """Also one that is resumed outside of the sweep."""
    pytest.importorskip("wandb", reason="W&B: pip install 'a3c-exp[wandb]'")
    tracker = "callbacks=[{_target_:a3c_exp.callbacks.Wandb,mode:offline}]"
    assert program.main([*QUICK, tracker, "seed=1,2", "sweep=mine"]) == 0
    assert program.main(["resume=mine/seed-1", "total_steps=128", tracker]) == 0
    groups = [
        [record.run_group for record in of_kind(folder, "run")]
        for folder in sorted(Path("mine").glob("seed-*"))
    ]
    assert [set(record) for record in groups] == [{"mine"}, {"mine"}] and len(groups[0]) > len(
        groups[1]
    )


# MLflow.


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One for all tests: MLflow takes seconds to make a database."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.mark.parametrize(
    ("backend", "is_cut"), [("serial", False), ("serial", True), ("processes", False)]
)
def test_mlflow_has_every_point_once_also_of_a_resumed_run(
    backend: str, is_cut: bool, tmp_path: Path, store: str
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow: pip install 'a3c-exp[mlflow]'")
    tracker = {
        "_target_": "a3c_exp.callbacks.Mlflow",
        "tracking_uri": store,
        "checkpoints": "both",
        "name": f"{backend}, {is_cut}",
    }
    media = [{"_target_": "a3c_exp.callbacks.Histograms", "points": 1}]
    run_config = config(backend=backend, workers=2, callbacks=[tracker, *media], **EVERY)
    done = [train_config(run_config, tmp_path)]
    first = curves(tmp_path)
    if is_cut:
        cut(tmp_path)
    done.append(train_config(run_config | {"total_steps": 320}, tmp_path, resume=True))
    client = mlflow.MlflowClient(store)
    experiment = client.get_experiment_by_name("a3c_exp")
    (run,) = [
        record
        for record in client.search_runs([experiment.experiment_id])
        if record.info.run_name == f"{backend}, {is_cut}"
    ]
    histories = {
        name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics
    }
    curves_of_run = {
        name: sorted((record.step, record.value) for record in points)
        for name, points in histories.items()
    }
    summaries = {
        name: curves_of_run.pop(name) for name in list(curves_of_run) if name.startswith("summary/")
    }
    assert curves_of_run == sent(first, tmp_path, is_cut)
    assert [value for _, value in summaries["summary/steps"]] == [
        record.summary["steps"] for record in done
    ]
    assert (run.data.params["total_steps"], run.data.params["env.id"]) == (
        "160",
        run_config["env"]["id"],
    )
    assert run.info.status == "FINISHED"
    files = {
        record.path
        for folder in ("", "checkpoints")
        for record in client.list_artifacts(run.info.run_id, folder)
    }
    assert {
        "config.yaml",
        "summary.json",
        "checkpoints/best.ckpt",
        "checkpoints/latest.ckpt",
    } <= files


def test_points_that_a_server_refuses_are_a_warning(tmp_path: Path, store: str) -> None:
    """MLflow takes no name with two slashes in a row: the run goes on, and all else is there."""
    mlflow = pytest.importorskip("mlflow", reason="MLflow: pip install 'a3c-exp[mlflow]'")
    tracker = {"_target_": "a3c_exp.callbacks.Mlflow", "tracking_uri": store, "name": "refused"}
    naming = {"_target_": f"{__name__}.Naming"}
    done = train_config(
        config(callbacks=[tracker, naming], plugins=["scripted", __name__]), tmp_path
    )
    assert done.summary["stop_reason"] == "total_steps"
    assert "has refused 1 points" in (tmp_path / "train.log").read_text()
    client = mlflow.MlflowClient(store)
    experiment = client.get_experiment_by_name("a3c_exp")
    (run,) = [
        record
        for record in client.search_runs([experiment.experiment_id])
        if record.info.run_name == "refused"
    ]
    assert run.data.metrics["train/n_updates"] == done.summary["updates"]


@dataclass(kw_only=True)
class Naming(Callback):
    """Logs a curve whose name MLflow refuses."""

    def on_trained(self, run: RunView) -> None:
        run.log({"mine//value": 1.0})


# Without them.


@pytest.mark.parametrize(
    ("name", "found"), [("wandb", ModuleSpec("wandb", None)), ("mlflow", None)]
)
def test_a_missing_package_is_one_line_and_no_matter_to_who_evaluates(
    name: str, found: ModuleSpec | None, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of the package's name, such as W&B makes, is no package: Python finds a namespace
    there."""
    folder = a3c_exp.train(QUICK, here / "run").folder
    text = (folder / "config.yaml").read_text()
    listed = f"callbacks:\n- _target_: a3c_exp.callbacks.{name.capitalize()}\n"
    (folder / "config.yaml").write_text(text.replace("callbacks: []\n", listed))
    monkeypatch.setattr("importlib.util.find_spec", lambda package: found)
    assert f"a3c-exp[{name}]" in refused(
        lambda: load_experiment(a3c_exp.compose([*QUICK, f"callbacks=[{name}]"])),
        "callbacks[0]._target_",
        f"a3c_exp.callbacks.{name.capitalize()}",
    )
    assert a3c_exp.load(folder).act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
