"""An environment's own numbers: from the `info` of an episode's last step to curves, tables and
reports."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics
from refusals import refused
from runs import SCRIPTED, config, episode_table, latest, told, train, train_config
from scripted import Scripted, vector

from a3c_exp import evaluate
from a3c_exp.core.events import MOST_NAMES, Episodes, Event
from a3c_exp.envs import EnvBatch, Gym, SyncEnvBatch, VectorEnvBatch
from a3c_exp.envs.info import InfoNumbers, final_infos, number_columns
from a3c_exp.errors import FolderError
from a3c_exp.run import checkpoint
from a3c_exp.run.metrics import read_points
from a3c_exp.run.statistics import RunStatistics

# Every third episode has no numbers but that of its last step, and a name appears and disappears.
INFOS: list[dict[str, Any]] = [{"is_success": True, "level": 0.5}, {"is_success": False}, {}]
LENGTHS = [3, 4, 2, 5]


def episodes(*rows: dict[str, float], first: int = 0) -> Episodes:
    """Episodes that end one step after another, with these numbers."""
    count = len(rows)
    ends = first + np.arange(count)
    return Episodes(np.ones(count), np.full(count, 7), ends, numbers=number_columns(rows))


# -- batches --------------------------------------------------------------------------------


def played(batch: EnvBatch, steps: int) -> list[tuple[int, dict[str, Any]]]:
    """The index and the info of each episode that ended."""
    batch.reset()
    infos_found = []
    for _ in range(steps):
        step = batch.step(np.zeros(batch.count, np.int64))
        infos = step.final_info or {}
        assert set(infos) <= set(np.flatnonzero(step.episode_over).tolist())
        infos_found += [
            (index, dict(infos.get(index, {})))
            for index in np.flatnonzero(step.episode_over).tolist()
        ]
    batch.close()
    return infos_found


@pytest.mark.parametrize(
    "kind", ["python", "limited", "wrapped", "NextStep", "SameStep", "Disabled"]
)
def test_every_batch_gives_the_info_of_the_step_that_ended_an_episode(kind: str) -> None:
    """Not that of the reset after it, and of that environment alone. A time limit may have ended
    it."""
    kwargs: dict[str, Any] = {"lengths": LENGTHS, "infos": INFOS}
    if kind in ("python", "limited"):
        limit = 4 if kind == "limited" else None
        batch: EnvBatch = Gym(id=SCRIPTED, kwargs=kwargs, max_episode_steps=limit).make(2, [0, 1])
    elif kind == "wrapped":
        batch = SyncEnvBatch(
            [RecordEpisodeStatistics(Scripted(**kwargs)) for _ in range(2)], [0, 1]
        )
    else:
        batch = VectorEnvBatch(vector(2, kind, **kwargs), [0, 1])
    all_infos = played(batch, 30)
    for index in range(2):
        infos = [info for env, info in all_infos if env == index]
        assert len(infos) > 5
        for number, info in enumerate(infos):
            turn = index + number
            length = min(LENGTHS[turn % 4], 4 if kind == "limited" else 99)
            info.pop("episode", None)
            assert info == {**INFOS[turn % 3], "moment": length}


def test_a_step_without_an_end_and_environments_without_numbers_have_none() -> None:
    batch = Gym(id=SCRIPTED, kwargs={"lengths": [2], "infos": INFOS}).make(1, [0])
    batch.reset()
    assert batch.step(np.zeros(1, np.int64)).final_info is None
    assert batch.step(np.zeros(1, np.int64)).final_info is not None
    assert all(info == {} for _, info in played(Gym(id=SCRIPTED).make(2, [0, 1]), 9))


def test_an_environment_may_empty_the_mapping_at_its_next_reset() -> None:
    class Reusing(Scripted):
        shared: dict[str, Any] = {}  # noqa: RUF012 - one mapping for all steps

        def reset(self, **kwargs: Any) -> Any:
            self.shared.clear()
            return super().reset(**kwargs)[0], self.shared

        def step(self, action: Any) -> Any:
            *answer, info = super().step(action)
            self.shared.update(info)
            return *answer, self.shared

    assert played(SyncEnvBatch([Reusing(infos=INFOS)], [0]), 3) == [(0, {**INFOS[0], "moment": 3})]


def test_an_info_that_is_no_mapping_is_no_fault() -> None:
    class Silent(Scripted):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], None

    assert played(SyncEnvBatch([Silent()], [0]), 3) == [(0, {})]


def test_infos_of_native_vectors_may_lack_masks() -> None:
    """Arrays without a mask; a number for all; lists of different lengths."""
    ended = np.array([False, True])
    assert final_infos({"score": np.array([1.0, 2.0]), "speed": 3.0}, ended) == {
        1: {"score": 2.0, "speed": 3.0}
    }
    assert final_infos({"path": [[1], [1, 2]]}, ended) == {1: {"path": [1, 2]}}
    assert final_infos({"x": 1}, np.zeros(2, np.bool_)) is None


# -- the choice -----------------------------------------------------------------------------


def test_numbers_and_truth_values_are_chosen_and_the_rest_is_told_once() -> None:
    chosen = InfoNumbers(None)
    good = {
        "is_success": np.True_,
        "n": 3,
        "x": np.float32(0.5),
        "zero_d": np.array(2.5),
        "a/b-c.d_1": 1.0,
    }
    quiet = {"episode": {"r": 1.0}, "TimeLimit.truncated": True, "final_obs": np.zeros(2), "_n": 1}
    bad: dict[Any, Any] = {
        "trace": np.zeros(3),
        "nan": math.nan,
        "huge": 10**400,
        "text": "x",
        "nested": {"a": 1.0},
    }
    names: dict[Any, Any] = {
        "two words": 1.0,
        "a,b": 1.0,
        "": 1.0,
        5: 1.0,
        "ep_rew_mean": 1.0,
        "step": 1,
        "x" * 101: 1,
    }
    assert chosen.of({**quiet, **good}) == {
        "is_success": 1,
        "n": 3,
        "x": 0.5,
        "zero_d": 2.5,
        "a/b-c.d_1": 1,
    }
    assert chosen.warnings() == ()
    assert chosen.of({**bad, **names, **good, "x": 7})["x"] == 7
    [warning] = chosen.warnings()
    assert (
        all(name in warning for name in ("'huge'", "'nan' (nan)", "'two words' (1.0)"))
        and "\n" not in warning
    )
    assert "trace" not in warning and "text" not in warning, (
        "nobody expects a curve of what is no number"
    )
    chosen.of({**good, "other": math.nan})
    assert chosen.warnings() == (), "once, whatever comes later"


@pytest.mark.parametrize("success", [True, np.True_, 1, 1.0])
def test_a_truth_value_that_some_episodes_lack_is_told_once(success: Any) -> None:
    """Its mean would be 1. One that each episode has, and a number, are no news."""
    always = {"crashed": False}
    chosen = InfoNumbers(None)
    for number in range(4):
        chosen.of(always | ({"is_success": success, "time": 7.0} if number % 2 else {}))
        lines = chosen.warnings()
        assert len(lines) == (number == 1), "at the first episode that differs"
        for line in lines:
            assert "is_success (1 of 2)" in line and "crashed" not in line


@pytest.mark.parametrize("other", [{"level": 0.5}, {}])
def test_a_run_warns_of_a_flag_that_is_sent_on_success_alone(
    other: dict[str, Any], tmp_path: Path
) -> None:
    """Also where the other episodes have no info at all."""
    infos = [{"is_success": True} | other, other]
    train(tmp_path, SCRIPTED, env__kwargs={"infos": infos}, envs_per_worker=1)
    log = (tmp_path / "train.log").read_text().splitlines()
    lines = [line for line in log if "some episodes only" in line]
    assert len(lines) == 1 and "is_success" in lines[0]


def test_the_first_20_names_stay_chosen() -> None:
    chosen = InfoNumbers(None)
    assert list(chosen.of({f"n{i}": i for i in range(30)})) == [f"n{i}" for i in range(20)]
    assert "'n20' (20)" in chosen.warnings()[0]
    assert chosen.of({f"m{i}": i for i in range(100)} | {"n3": 1}) == {"n3": 1}


def test_a_list_chooses_and_says_what_is_not_there() -> None:
    chosen = InfoNumbers(["b", "episode", "sucess", "text"])
    numbers = chosen.of({"a": 1.0, "b": 2.0, "trace": np.zeros(3), "episode": 4, "text": "x"})
    assert numbers == {"b": 2.0, "episode": 4.0}
    [warning] = chosen.warnings()
    assert "'sucess' (None)" in warning and "'text' ('x')" in warning and "trace" not in warning
    none = InfoNumbers([])
    assert none.of({"a": 1.0, "trace": np.zeros(3)}) == {} and none.warnings() == ()


@pytest.mark.parametrize("name", ["two words", "return", "", "a//b"])
def test_a_name_that_no_curve_or_column_can_have_is_refused(name: str) -> None:
    refused(lambda: Gym(id=SCRIPTED, info_keys=("fine", name)), "info_keys", name)


# -- episodes and statistics ----------------------------------------------------------------


def test_episodes_with_other_names_merge_and_means_are_over_those_that_have_one() -> None:
    merged = episodes({"a": 1.0, "is_success": 1.0}, {"a": 2.0}).merge(
        episodes({"b": 5.0, "is_success": 0.0})
    )
    np.testing.assert_array_equal(merged.numbers["a"], [1, 2, np.nan])
    np.testing.assert_array_equal(merged.numbers["b"], [np.nan, np.nan, 5])
    assert merged.means() == {"a": 1.5, "b": 5, "success_rate": 0.5}
    for number in range(2 * MOST_NAMES):  # of several workers, each with names of its own
        merged = merged.merge(episodes({f"n{number}": 1.0}))
    assert len(merged.numbers) == MOST_NAMES


def test_curves_have_the_mean_over_the_last_100_episodes() -> None:
    statistics = RunStatistics()
    statistics.add(Event(0, episodes=episodes(*[{"success": 1.0, "old": 1.0}] * 50)))
    assert statistics.window(0)["rollout/success_rate"] == 1
    assert "rollout/success_rate" not in statistics.window(0), "no episode has ended since"
    statistics.add(
        Event(
            0,
            episodes=episodes(
                *[{"success": 0.0}] * 60, *[{"success": 1.0, "x": 3.0}] * 40, first=50
            ),
        )
    )
    assert statistics.window(0)["rollout/success_rate"] == 0.4
    assert statistics.summary()["rollout"] == {"success_rate": 0.4, "x": 3}
    restored = RunStatistics()
    restored.restore(statistics.state())
    for one in (statistics, restored):
        one.add(Event(0, episodes=episodes(*[{"x": 4.0}] * 10, first=150)))
    assert restored.summary()["rollout"] == statistics.summary()["rollout"]
    assert restored.summary()["rollout"] == pytest.approx({"success_rate": 40 / 90, "x": 3.2})


# -- episodes.csv ---------------------------------------------------------------------------


def test_the_first_episodes_decide_the_columns_of_the_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "episodes.csv"
    table = episode_table(tmp_path)
    table.on_episodes(told(1.0), 0, episodes({"a": 0.5}, {"b": 2.0}))
    table.on_episodes(told(2.0), 1, episodes({"b": 1e-9, "late": 1.0}, first=2))
    table.close(True)
    head = "step,worker,return,length,seconds,a,b\n0,0,1,7,1.000,0.5,\n1,0,1,7,1.000,,2\n"
    assert path.read_text() == f"{head}2,1,1,7,2.000,,1e-09\n"
    assert len(caplog.messages) == 1 and "late" in caplog.messages[0]
    resumed = episode_table(tmp_path, 2)
    resumed.on_episodes(told(3.0), 0, episodes({"late": 3.0, "b": 4.0}, first=5))
    resumed.close(True)
    assert path.read_text() == f"{head}5,0,1,7,3.000,,4\n"


# -- whole runs -----------------------------------------------------------------------------


INFORMED: dict[str, Any] = {"env__kwargs": {"lengths": [3], "infos": INFOS}}


@pytest.mark.parametrize("backend", ["serial", "processes", "ga3c"])
def test_a_run_leaves_them_everywhere(backend: str, tmp_path: Path) -> None:
    settings = {"backend__device": "cpu"} if backend == "ga3c" else {}
    run_config = config(
        SCRIPTED,
        backend,
        total_steps=400,
        eval__every=200,
        eval__episodes=3,
        **INFORMED,
        **settings,
    )
    done = train_config(run_config, tmp_path)
    wanted = {"success_rate", "level", "moment"}
    assert set(done.summary["rollout"]) == wanted
    assert set(json.loads((tmp_path / "summary.json").read_text())["rollout"]) == wanted
    assert done.summary["rollout"]["success_rate"] == pytest.approx(0.5, abs=0.1)
    assert done.summary["rollout"]["level"] == 0.5 and done.summary["rollout"]["moment"] == 3
    curves: dict[str, float] = {}
    for point in read_points(tmp_path / "metrics.csv"):
        curves |= point
    assert {f"rollout/{name}" for name in wanted} <= curves.keys()
    assert curves["eval/moment"] == 3 and 0 <= curves["eval/success_rate"] <= 1
    head, *rows = (tmp_path / "episodes.csv").read_text().splitlines()
    assert head.startswith("step,worker,return,length,seconds,")
    assert set(head.split(",")[5:]) == {"is_success", "level", "moment"}
    assert len(rows) == done.summary["episodes"]


def test_a_run_tells_once_what_it_leaves_out(tmp_path: Path) -> None:
    infos = [{"level": 1.0, "note": "x", "bad": float("nan")}]
    done = train(tmp_path, SCRIPTED, workers=3, env__kwargs={"lengths": [3], "infos": infos})
    assert done.summary["rollout"] == {"level": 1, "moment": 3}
    assert (tmp_path / "train.log").read_text().count(
        "left out of the info of an episode: 'bad' (nan)"
    ) == 1


def test_info_keys_chooses_in_training_and_in_evaluation(tmp_path: Path) -> None:
    done = train(tmp_path, SCRIPTED, eval__every=100, env__info_keys=["level"], **INFORMED)
    assert done.summary["rollout"] == {"level": 0.5}
    curves = {name for point in read_points(tmp_path / "metrics.csv") for name in point}
    assert "eval/level" in curves and not curves & {"eval/moment", "rollout/success_rate"}


def test_what_info_keys_names_has_a_column_though_the_first_episodes_lack_it(
    tmp_path: Path,
) -> None:
    infos: list[dict[str, Any]] = [{}, {}, {"late": 2.0}]
    train(tmp_path, SCRIPTED, env__info_keys=["late"], env__kwargs={"lengths": [3], "infos": infos})
    head, *rows = (tmp_path / "episodes.csv").read_text().splitlines()
    assert head.endswith(",seconds,late") and {row.rpartition(",")[2] for row in rows} == {"", "2"}


def test_a_resumed_run_goes_on_with_them_and_a_damaged_checkpoint_is_refused(
    tmp_path: Path,
) -> None:
    run_config = config(SCRIPTED, **INFORMED)
    train_config(run_config, tmp_path)
    path = tmp_path / "checkpoints" / "latest.ckpt"
    state = latest(tmp_path)
    assert set(state["statistics"]["recent_names"]) == {"is_success", "level", "moment"}
    again = train_config(run_config | {"total_steps": 168}, tmp_path, resume=True)
    assert again.summary["rollout"]["moment"] == 3
    damaged = {**state, "statistics": {**state["statistics"], "recent_numbers": np.zeros((3, 1))}}
    checkpoint.save(path, damaged)
    with pytest.raises(FolderError):
        train_config(run_config | {"total_steps": 168}, tmp_path, resume=True)


def test_evaluate_prints_their_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    infos = [{"is_success": True}, {"is_success": False}]
    train(tmp_path / "run", SCRIPTED, env__kwargs={"lengths": [3], "infos": infos})
    for folder in (tmp_path / "run", tmp_path):  # the run alone, and as one of a sweep
        assert evaluate.main([str(folder), "episodes=16", "plugins=[scripted]"]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert "success_rate 0." in last and "moment 3" in last
