"""What a run has done so far, and what of it is written for TensorBoard and for metrics.csv."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import metadata as hparams_metadata

from a3c_exp.events import Episodes, Event, Metric
from a3c_exp.metrics import Tally, Writer, hparams

CONFIG = {"seed": 3, "returns": {"_target_": "a3c_exp.returns.NStep", "n": 5}, "critic_returns": None}
CONFIG_TEXT = "seed: 3\nreturns:\n  n: 5\n"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def episodes(returns: list[float], ends: list[int] | None = None) -> Episodes:
    count = len(returns)
    ends = list(range(count)) if ends is None else ends
    return Episodes(np.array(returns, np.float64), np.full(count, 7, np.int64), np.array(ends, np.int64))


def event(worker: int = 0, returns: list[float] | None = None, ends: list[int] | None = None, **fields: Any) -> Event:
    return Event(worker, episodes=episodes(returns or [], ends), **fields)


# -- Tally: totals ---------------------------------------------------------------------------------


def test_totals_are_sums_over_all_events_of_all_workers() -> None:
    tally = Tally()
    tally.add(event(0, [1.0, 2.0], updates=3, rejected=1, steps=60))
    tally.add(event(1, [3.0], updates=2, steps=40))
    assert (tally.updates, tally.rejected, tally.steps, tally.episodes) == (5, 1, 100, 3)


def test_staleness_is_told_of_the_window_and_of_the_run() -> None:
    tally = Tally()
    assert (tally.staleness_mean, tally.staleness_max) == (None, None)
    tally.add(event(updates=3, staleness=Counter({0: 2, 9: 1})))
    first = tally.window()
    assert (first["async/staleness_mean"], first["async/staleness_max"]) == (3, 9)
    tally.add(event(updates=1, staleness=Counter({1: 1})))
    second = tally.window()
    assert (second["async/staleness_mean"], second["async/staleness_max"]) == (1, 1)
    assert (tally.staleness_mean, tally.staleness_max) == (2.5, 9)


# -- Tally: the window -----------------------------------------------------------------------------


def test_a_windows_metrics_are_means_over_its_updates_however_these_were_merged() -> None:
    one, three = Event(0), Event(0)
    one.add({"entropy": 1.0})
    for value in (2.0, 3.0, 6.0):
        three.add({"entropy": value})
    tally = Tally()
    tally.add(one)
    tally.add(three)
    assert tally.window()["train/entropy"] == 3.0


def test_a_window_forgets_the_one_before() -> None:
    tally = Tally()
    tally.add(event(metrics={"entropy": Metric.of(1.0)}, updates=1))
    tally.window()
    tally.add(event(metrics={"entropy": Metric.of(5.0)}, updates=1))
    assert tally.window()["train/entropy"] == 5.0
    empty = tally.window()
    assert "train/entropy" not in empty
    assert "async/staleness_mean" not in empty
    assert "rollout/ep_rew_mean" not in empty
    assert empty["train/n_updates"] == 2


def test_a_quantity_without_a_value_does_not_spoil_the_mean_of_the_others() -> None:
    tally = Tally()
    for value in (0.5, math.nan, 0.7):
        tally.add(event(metrics={"explained_variance": Metric.of(value)}))
    assert tally.window()["train/explained_variance"] == pytest.approx(0.6)


def test_a_metric_with_a_place_of_its_own_keeps_it() -> None:
    tally = Tally()
    tally.add(event(metrics={"ga3c/lag": Metric.of(2.0), "entropy": Metric.of(1.0)}))
    assert {"ga3c/lag", "train/entropy"} <= tally.window().keys()


def test_speed_is_that_of_the_window_and_seconds_those_of_the_run() -> None:
    clock = Clock()
    tally = Tally(clock=clock)
    tally.add(event(steps=1000))
    clock.now += 10
    assert tally.window()["time/steps_per_second"] == 100
    tally.add(event(steps=1000))
    clock.now += 2
    assert tally.window()["time/steps_per_second"] == 500
    assert tally.seconds == 12


def test_a_window_carries_the_fields_names() -> None:
    clock = Clock()
    tally = Tally(clock=clock)
    measured = ("policy_loss", "value_loss", "entropy", "grad_norm", "learning_rate", "explained_variance")
    metrics = {name: Metric.of(1.0) for name in measured}
    tally.add(event(0, [10.0], updates=1, steps=20, metrics=metrics, staleness=Counter([2])))
    clock.now += 1
    assert tally.window() == {
        "rollout/ep_rew_mean": 10,
        "rollout/ep_len_mean": 7,
        "rollout/episodes": 1,
        **{f"train/{name}": 1 for name in measured},
        "train/n_updates": 1,
        "train/rejected_updates": 0,
        "async/staleness_mean": 2,
        "async/staleness_max": 2,
        "time/steps_per_second": 20,
    }


# -- Tally: the last 100 episodes ------------------------------------------------------------------


def test_the_mean_return_is_over_the_last_100_episodes() -> None:
    tally = Tally()
    means = [(tally.mean_return, tally.mean_return_100)]
    for returns in ([1000.0] * 50, [0.0] * 60 + [10.0] * 40):
        tally.add(event(0, returns, ends=[tally.episodes] * len(returns)))
        means.append((tally.mean_return, tally.mean_return_100))
    assert means == [(None, None), (1000, None), (4, 4)]


def test_an_event_may_bring_more_than_100_episodes() -> None:
    tally = Tally()
    tally.add(event(0, [float(i) for i in range(38_000)]))
    assert tally.episodes == 38_000
    assert tally.mean_return_100 == np.mean(range(37_900, 38_000))


def test_the_last_100_are_those_that_ended_last_not_those_of_the_worker_heard_last() -> None:
    tally = Tally()
    tally.add(event(0, [1.0] * 100, ends=list(range(0, 200, 2))))
    tally.add(event(1, [3.0] * 100, ends=list(range(1, 200, 2))))
    assert tally.mean_return_100 == 2  # 50 of each


def test_a_worker_that_goes_on_while_its_update_is_under_way_may_date_episodes_back() -> None:
    """As on GA3C and on a cluster, where the run's steps do not count that update yet."""
    tally = Tally()
    tally.add(event(0, [1.0] * 60, ends=[*range(10, 60), *range(30, 40)]))
    tally.add(event(1, [3.0] * 60, ends=list(range(45, 105))))
    assert tally.mean_return_100 == pytest.approx((60 * 3 + 40 * 1) / 100)
    assert tally._ends == sorted(tally._ends)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.floats(-1e3, 1e3)), min_size=1, max_size=150),
    st.lists(st.integers(1, 40), min_size=150, max_size=150),
)
def test_the_last_100_do_not_depend_on_how_episodes_were_packed_into_events(
    ended: list[tuple[int, float]], sizes: list[int]
) -> None:
    """ended: worker and return of each episode, by end step. Events of one worker arrive in order, packs vary."""
    queues: dict[int, list[tuple[int, float]]] = {}
    for end, (worker, value) in enumerate(ended):
        queues.setdefault(worker, []).append((end, value))
    tally = Tally()
    for size in sizes:
        for worker, queue in queues.items():
            pack, queues[worker] = queue[:size], queue[size:]
            if pack:
                tally.add(event(worker, [value for _, value in pack], [end for end, _ in pack]))
    assert tally.episodes == len(ended)
    assert tally.mean_return == pytest.approx(np.mean([value for _, value in ended[-100:]]))


# -- Tally: the goal -------------------------------------------------------------------------------


def test_a_goal_is_not_judged_before_100_episodes_have_ended() -> None:
    tally = Tally(environments=1)
    tally.add(event(0, [500.0] * 99, envs_ended=1))
    assert not tally.reached(475)
    tally.add(event(0, [500.0], [99], envs_ended=1))
    assert tally.reached(475)
    assert not tally.reached(500.1)


def test_a_goal_is_not_judged_before_every_environment_has_ended_an_episode() -> None:
    tally = Tally(environments=4)
    tally.add(event(0, [500.0] * 200, envs_ended=2))
    tally.add(event(1, [500.0] * 200, envs_ended=1))
    assert not tally.reached(475)
    tally.add(event(1, [500.0], [200], envs_ended=2))
    assert tally.reached(475)


# -- Tally: checkpoints ----------------------------------------------------------------------------


def test_a_restored_tally_goes_on_as_if_nothing_had_happened() -> None:
    clock = Clock()
    tally = Tally(environments=1, clock=clock)
    tally.add(event(0, [float(i) for i in range(150)], updates=7, rejected=2, steps=900, staleness=Counter({3: 7})))
    clock.now += 30
    later = Clock()
    restored = Tally(environments=1, clock=later)
    restored.restore(tally.state())
    for one in (tally, restored):
        one.add(event(0, [9.0], [200], updates=1, steps=10, staleness=Counter([1])))
    clock.now += 5
    later.now += 5
    assert restored.summary() == tally.summary()
    assert restored.state().keys() == tally.state().keys()
    assert restored.mean_return == tally.mean_return
    assert restored.window()["time/steps_per_second"] == 2  # of what came after the restoration


def test_after_a_restoration_every_environment_must_end_an_episode_again() -> None:
    tally = Tally(environments=2)
    tally.add(event(0, [500.0] * 100, envs_ended=2))
    assert tally.reached(475)
    restored = Tally(environments=2)
    restored.restore(tally.state())
    assert restored.mean_return_100 == 500
    assert not restored.reached(475)
    restored.add(event(0, [500.0], [100], envs_ended=2))
    assert restored.reached(475)


# -- Writer ----------------------------------------------------------------------------------------


def writer(folder: Path, purge_step: int | None = None) -> Writer:
    return Writer(folder, CONFIG_TEXT, config=CONFIG, purge_step=purge_step)


def read(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in read(folder).Scalars(name)]


def table(folder: Path) -> list[dict[str, str]]:
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_tensorboard_and_the_table_get_the_same(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.log(100, {"rollout/ep_rew_mean": 1.5, "train/n_updates": 5}, 0.25)
    w.log(200, {"rollout/ep_rew_mean": 2.5, "train/n_updates": 9}, 0.5)
    w.close()
    assert curve(tmp_path, "rollout/ep_rew_mean") == [(100, 1.5), (200, 2.5)]
    assert table(tmp_path) == [
        {"step": "100", "wall_seconds": "0.25", "rollout/ep_rew_mean": "1.5", "train/n_updates": "5"},
        {"step": "200", "wall_seconds": "0.5", "rollout/ep_rew_mean": "2.5", "train/n_updates": "9"},
    ]


def test_the_dashboard_opens_with_reward_losses_and_entropy_side_by_side(tmp_path: Path) -> None:
    writer(tmp_path).close()
    content = read(tmp_path).Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    row = layout_pb2.Layout.FromString(content).category[0]
    assert [chart.title for chart in row.chart] == ["Reward", "Losses", "Entropy"]
    assert list(row.chart[1].multiline.tag) == ["^train/policy_loss$", "^train/value_loss$"]


def test_the_config_is_shown_as_text_verbatim(tmp_path: Path) -> None:
    writer(tmp_path).close()
    shown = read(tmp_path).Tensors("config")[0].tensor_proto.string_val[0].decode()
    assert shown == "    seed: 3\n    returns:\n      n: 5"


def test_the_runs_own_event_file_has_its_hyperparameters_and_no_experiment_record(tmp_path: Path) -> None:
    """An experiment record would hide the columns of other runs."""
    writer(tmp_path).close()
    found = {tag: data.content for tag, data in hparams_content(tmp_path).items()}
    assert set(found) == {hparams_metadata.SESSION_START_INFO_TAG, hparams_metadata.SESSION_END_INFO_TAG}
    start = hparams_metadata.parse_session_start_info_plugin_data(found[hparams_metadata.SESSION_START_INFO_TAG])
    assert start.hparams["returns"].string_value == "NStep"
    assert start.hparams["returns.n"].number_value == 5


def hparams_content(folder: Path) -> dict[str, Any]:
    accumulator = read(folder)
    tags = [tag for tag in accumulator.Tags()["tensors"] if tag.startswith("_hparams_")]
    return {tag: accumulator.SummaryMetadata(tag).plugin_data for tag in tags}


def test_a_run_that_did_not_end_may_still_succeed_when_it_is_resumed(tmp_path: Path) -> None:
    """TensorBoard keeps the first record of how a session ended, so a failed one leaves none."""
    writer(tmp_path).close(success=False)
    assert set(hparams_content(tmp_path)) == {hparams_metadata.SESSION_START_INFO_TAG}
    writer(tmp_path, purge_step=0).close(success=True)
    assert hparams_metadata.SESSION_END_INFO_TAG in hparams_content(tmp_path)


def test_hyperparameters_are_flat_columns_and_what_is_null_has_none() -> None:
    config = {
        "seed": 0,
        "lock": False,
        "returns": {"_target_": "a3c_exp.returns.NStep", "n": None},
        "network": {"_target_": "a3c_exp.networks.ActorCritic", "body": {"_target_": "my.MLP", "sizes": [64, 64]}},
        "critic_returns": None,
    }
    assert hparams(config) == {
        "seed": 0,
        "lock": False,
        "returns": "NStep",
        "network": "ActorCritic",
        "network.body": "MLP",
        "network.body.sizes": "[64, 64]",
    }


def test_a_resumed_run_is_one_line_without_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    w = writer(tmp_path)
    for step in (100, 200, 300, 400):
        w.log(step, {"rollout/ep_rew_mean": step}, step / 100)
    w.close(success=False)
    w = writer(tmp_path, purge_step=200)
    for step in (250, 350, 450):
        w.log(step, {"rollout/ep_rew_mean": step}, step / 100)
    w.close()
    steps = [100, 200, 250, 350, 450]
    assert curve(tmp_path, "rollout/ep_rew_mean") == [(step, step) for step in steps]
    assert [int(row["step"]) for row in table(tmp_path)] == steps


def test_a_run_resumed_several_times_within_a_second_is_still_read_in_order(tmp_path: Path) -> None:
    for session in range(12):
        w = writer(tmp_path, purge_step=session * 10 if session else None)
        w.log(session * 10 + 5, {"x/y": session}, 0)
        w.log(session * 10 + 15, {"x/y": -1}, 0)  # beyond the checkpoint from which the next session goes on
        w.close()
    assert curve(tmp_path, "x/y") == [(session * 10 + 5, session) for session in range(12)] + [(125, -1)]


def test_a_name_that_comes_later_gets_a_column_and_old_rows_a_gap(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.log(1, {"train/entropy": 0.5}, 0.1)
    w.log(1, {"eval/mean_reward": 9.0}, 0.2)
    w.log(2, {"train/entropy": 0.25}, 0.3)
    w.close()
    assert [(row["train/entropy"], row["eval/mean_reward"]) for row in table(tmp_path)] == [
        ("0.5", ""),
        ("", "9.0"),
        ("0.25", ""),
    ]


@pytest.mark.parametrize("damage", [b"300,0.3", b"300,0.3,1,2,3\n", b"\xff\x00,1,2\n", b"\n", b"x,y,z\n"])
def test_a_row_that_was_left_broken_is_dropped_when_a_run_is_resumed(tmp_path: Path, damage: bytes) -> None:
    w = writer(tmp_path)
    w.log(100, {"train/entropy": 0.5}, 0.1)
    w.close(success=False)
    with open(tmp_path / "metrics.csv", "ab") as file:
        file.write(damage)
    w = writer(tmp_path, purge_step=1000)
    w.log(1100, {"train/entropy": 0.25}, 0.2)
    w.close()
    assert [row["step"] for row in table(tmp_path)] == ["100", "1100"]


def test_numbers_that_are_not_finite_are_written_as_such(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.log(1, {"train/value_loss": math.inf, "train/policy_loss": math.nan}, 0.0)
    w.close()
    assert curve(tmp_path, "train/value_loss") == [(1, math.inf)]
    assert table(tmp_path)[0]["train/policy_loss"] == "nan"


FULL_DISK = """
import json, resource, sys
from pathlib import Path
from a3c_exp.metrics import Writer

writer = Writer(Path(sys.argv[1]), "", config={})
full = resource.RLIM_INFINITY
written, refused = [], []
for step in range(60):
    # From step 20 to 39 no file may grow beyond what the table and the event file have by then.
    if step == 20:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, full))
    if step == 40:
        resource.setrlimit(resource.RLIMIT_FSIZE, (full, full))
    try:
        values = {"train/entropy": step, "train/value_loss": 1 / 3}
        writer.log(step, values | ({"eval/mean_reward": 1.0} if step >= 30 else {}), step / 7)
        written.append(step)
    except OSError as error:
        refused.append(step)
writer.close()
print(json.dumps([written, refused]))
"""


def test_a_full_disk_damages_nothing_and_writing_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """The limit on the size of files stands in for the full disk: a write beyond it stops half-way and fails."""
    done = subprocess.run([sys.executable, "-c", FULL_DISK, tmp_path], capture_output=True, text=True, check=True)
    written, refused = json.loads(done.stdout)
    assert refused
    assert set(refused) <= set(range(20, 40))
    assert set(range(20)) | set(range(40, 60)) <= set(written)
    assert set(written) <= {step for step, _ in curve(tmp_path, "train/entropy")}
    rows = table(tmp_path)
    assert [int(row["step"]) for row in rows] == written
    assert all(row["train/entropy"] == row["step"] for row in rows)
    assert rows[-1]["eval/mean_reward"] == "1.0"
