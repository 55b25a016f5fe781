"""Histograms, images, texts and videos: what TensorBoard reads back, and the callbacks that log
them."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from refusals import refused
from runs import BACKENDS, SCRIPTED, config, latest, train, train_config
from scripted import Image, Scripted
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from a3c_exp.callbacks import Callback, RunView
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.experiment import build_network
from a3c_exp.run.metrics import read_points
from a3c_exp.run.policy import Recorder

VIDEOS = {"_target_": "a3c_exp.callbacks.Videos"}


def tensors(folder: Path) -> dict[str, list[tuple[int, NDArray[Any]]]]:
    """What is no number of TensorBoard's file: steps and arrays by name."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    return {
        name: [
            (each.step, tensor_util.make_ndarray(each.tensor_proto))
            for each in events.Tensors(name)
        ]
        for name in events.Tags()["tensors"]
        if name.startswith(("mine/", "train/parameters/", "workers/", "eval/first_frame"))
    }


@dataclass(kw_only=True)
class Showing(Callback):
    """Logs one of each kind at the end."""

    def on_trained(self, run: RunView) -> None:
        run.log_histogram("mine/numbers", [[0.0, 1.0], [np.nan, 1.0]])
        run.log_histogram("mine/nearly_equal", [1.0, 1.0 + 2**-50])
        run.log_image("mine/image", np.arange(24, dtype=np.uint8).reshape(2, 4, 3))
        run.log_text("mine/text", "**bold**")
        run.log_image("mine/gray", np.zeros((2, 4), np.uint8))


def test_tensorboard_reads_histograms_images_and_texts(tmp_path: Path) -> None:
    done = train(
        tmp_path, callbacks=[{"_target_": f"{__name__}.Showing"}], plugins=["scripted", __name__]
    )
    found = tensors(tmp_path)
    ((step, histogram),) = found["mine/numbers"]
    assert step == done.summary["steps"]
    # left, right, count
    assert histogram[:, 2].sum() == 3 and (histogram[0, 0], histogram[-1, 1]) == (0, 1)
    assert found["mine/nearly_equal"][0][1][:, 2].sum() == 2
    ((_, image),) = found["mine/image"]
    assert list(image[:2]) == [b"4", b"2"]
    pillow = pytest.importorskip("PIL.Image")
    pixels = np.asarray(pillow.open(io.BytesIO(image[2])))
    assert (pixels == np.arange(24).reshape(2, 4, 3)).all()
    ((_, text),) = found["mine/text"]
    assert text.item() == b"**bold**"
    assert "mine/gray is uint8 [2, 4]" in (tmp_path / "train.log").read_text()


@pytest.mark.parametrize("backend", BACKENDS)
def test_histograms_of_parameters_by_group(backend: str, tmp_path: Path) -> None:
    histograms = {"_target_": "a3c_exp.callbacks.Histograms", "points": 1}
    run_config = config(backend=backend, callbacks=[histograms], eval__every=80)
    train_config(run_config, tmp_path)
    found = tensors(tmp_path)
    network, _ = build_network(load_experiment(run_config))
    for name, parameters in network.parameter_groups().items():
        sizes = [histogram[:, 2].sum() for _, histogram in found[f"train/parameters/{name}"]]
        assert sizes and set(sizes) == {sum(each.numel() for each in parameters)}
    (_, last) = found["train/parameters/actor"][-1]
    updates = [histogram[:, 2].sum() for _, histogram in found["workers/staleness"]]
    assert sum(updates) == latest(tmp_path)["store"]["version"], "each in one histogram"
    final = latest(tmp_path)["store"]["parameters"]
    assert final.min() - 1e-6 <= last[0, 0] and last[-1, 1] <= final.max() + 1e-6


def test_a_run_of_few_points_has_histograms_of_its_first_and_its_end(tmp_path: Path) -> None:
    histograms = {"_target_": "a3c_exp.callbacks.Histograms"}
    done = train(tmp_path, callbacks=[histograms], log__every=40)
    points = [
        point for point in read_points(tmp_path / "metrics.csv") if "train/n_updates" in point
    ]
    assert 1 < len(points) < 10
    first, last = (step for step, _ in tensors(tmp_path)["train/parameters/actor"])
    assert first == points[0]["step"] and last == done.summary["steps"]


def test_a_part_without_parameters_has_no_histogram(tmp_path: Path) -> None:
    histograms = {"_target_": "a3c_exp.callbacks.Histograms", "points": 1}
    train_config(
        config(callbacks=[histograms], network__shared=True, network__hidden_sizes=[]), tmp_path
    )
    assert {name for name in tensors(tmp_path) if name.startswith("train/parameters/")} == {
        "train/parameters/actor",
        "train/parameters/critic",
    }


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_a_video_of_each_evaluation(backend: str, tmp_path: Path) -> None:
    """It is of the evaluated episodes themselves: a run with it evaluates as one without."""
    pytest.importorskip("moviepy")
    settings: dict[str, Any] = {
        "backend": backend,
        "env__kwargs": {"lengths": [12]},
        "eval__every": 80,
    }
    done = train(tmp_path / "film", SCRIPTED, callbacks=[VIDEOS], **settings)
    films = sorted((tmp_path / "film" / "videos").iterdir())
    assert [film.read_bytes()[4:8] for film in films] == [b"ftyp"] * len(films) and films
    frames = tensors(tmp_path / "film")["eval/first_frame"]
    assert len(frames) == len(films) and list(frames[0][1][:2]) == [b"6", b"4"]
    assert (
        done.summary["best_eval_return"]
        == train(tmp_path / "none", SCRIPTED, **settings).summary["best_eval_return"]
    )


def test_a_run_without_evaluations_says_that_it_films_none(tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    train(tmp_path, SCRIPTED, callbacks=[VIDEOS], eval__every=None)
    assert "eval.every=null" in (tmp_path / "train.log").read_text()


def test_a_video_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    (tmp_path / "videos").write_text("in the way")
    done = train(
        tmp_path, SCRIPTED, callbacks=[VIDEOS], env__kwargs={"lengths": [12]}, eval__every=80
    )
    assert done.summary["best_eval_return"] is not None
    assert "videos" in (tmp_path / "train.log").read_text()


def change_size() -> Image:
    return np.zeros((8, 6, 3), np.uint8)


def run_out_of_memory() -> Image:
    raise MemoryError


def leave() -> Image:
    sys.exit(3)


@pytest.mark.parametrize("fault", [change_size, run_out_of_memory, leave])
def test_a_video_that_fails_costs_that_video_alone(
    fault: Callable[[], Image], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has all its evaluations, its best checkpoint, and the videos of the others."""
    pytest.importorskip("moviepy")
    settings: dict[str, Any] = {"env__kwargs": {"lengths": [12]}, "eval__every": 48}
    train(tmp_path / "none", SCRIPTED, **settings)
    drawn = itertools.count()
    # one image at the start, then 12 of the first evaluation: the fault is in the second one
    monkeypatch.setattr(
        Scripted,
        "render",
        lambda env: fault() if next(drawn) == 15 else np.zeros((4, 6, 3), np.uint8),
    )
    train(tmp_path / "film", SCRIPTED, callbacks=[VIDEOS], **settings)
    returns = [
        [
            point["eval/mean_reward"]
            for point in read_points(folder / "metrics.csv")
            if "eval/mean_reward" in point
        ]
        for folder in (tmp_path / "none", tmp_path / "film")
    ]
    assert returns[0] == returns[1] and len(returns[0]) == 4
    assert (tmp_path / "film" / "checkpoints" / "best.ckpt").exists()
    names = [path.name for path in (tmp_path / "film" / "videos").iterdir()]
    assert set(names) == {"48.mp4", "144.mp4", "160.mp4"}
    assert "there is no video 96.mp4" in (tmp_path / "film" / "train.log").read_text()


def test_an_encoder_that_is_too_old_costs_no_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(pytest.importorskip("moviepy"), "ImageSequenceClip")
    done = train(
        tmp_path, SCRIPTED, callbacks=[VIDEOS], env__kwargs={"lengths": [12]}, eval__every=80
    )
    assert done.summary["best_eval_return"] is not None
    assert "ImageSequenceClip" in (tmp_path / "train.log").read_text()


def test_environments_that_cannot_be_drawn_together_are_evaluated_without_a_video(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One image could be drawn at the start. Four windows are too many for the display."""
    pytest.importorskip("moviepy")
    made = Scripted.__init__
    windows = itertools.count()

    def make(env: Scripted, render_mode: str | None = None, **settings: Any) -> None:
        if render_mode is not None and next(windows) == 3:
            raise OSError("no display")
        made(env, render_mode=render_mode, **settings)

    monkeypatch.setattr(Scripted, "__init__", make)
    done = train(
        tmp_path, SCRIPTED, callbacks=[VIDEOS], env__kwargs={"lengths": [12]}, eval__every=10**6
    )
    assert done.summary["best_eval_return"] is not None and not (tmp_path / "videos").exists()
    assert "no display" in (tmp_path / "train.log").read_text()


COLOR = [[[10, 20, 30], [0, 128, 255]]]


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        (np.array(COLOR, np.uint8), COLOR),
        (np.array(COLOR, np.int64), COLOR),
        (np.array(COLOR, np.float32) / 255, COLOR),
        (np.array([[7, 9]], np.uint8), [[[7] * 3, [9] * 3]]),
        (np.array([[[7], [9]]], np.uint8), [[[7] * 3, [9] * 3]]),
        (np.array([[True, False]]), [[[255] * 3, [0] * 3]]),
        (np.array([[[1, 2, 3, 99]]], np.uint8), [[[1, 2, 3]]]),
    ],
)
def test_images_of_any_form_are_filmed(drawn: Any, expected: Any) -> None:
    pytest.importorskip("moviepy")
    recorder = Recorder(Path("film.mp4"))
    recorder(SimpleNamespace(render=lambda: drawn))
    [frame] = recorder._frames
    assert frame.dtype == np.uint8 and frame.tolist() == expected


@pytest.mark.parametrize(
    "drawn",
    [
        None,
        "text",
        [np.array(COLOR, np.uint8)],
        np.array(COLOR, np.float32),
        np.full((2, 2, 3), np.nan),
        np.array(COLOR) - 11,
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((4, 4, 2), np.uint8),
    ],
)
def test_what_is_no_image_is_refused_where_a_video_is_asked_for(drawn: Any) -> None:
    pytest.importorskip("moviepy")
    env: Any = SimpleNamespace(render=lambda: drawn)
    refused(lambda: Recorder(Path("film.mp4"))(env), "video", True)


def test_an_environment_that_cannot_be_drawn_is_evaluated_without_a_video(tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    done = train(tmp_path, callbacks=[VIDEOS], eval__every=80)
    assert done.summary["best_eval_return"] is not None and not (tmp_path / "videos").exists()
    assert (tmp_path / "train.log").read_text().count(
        "callback Videos.on_start failed: ConfigError: id = "
    ) == 1
