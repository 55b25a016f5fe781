"""Playing with what a run has learned: in other programs, on the command line, and as a film."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.vector.utils import concatenate, create_empty_array
from policies import Still
from refusals import Refuses
from runs import CORNERS, CORRIDOR, SCRIPTED, SMALL_CNN, TARGET, content, latest, train
from scripted import Echo

import a3c_exp
from a3c_exp import evaluate
from a3c_exp.core.events import Episodes
from a3c_exp.envs import Gym
from a3c_exp.errors import ConfigError
from a3c_exp.export import __main__ as export
from a3c_exp.run import checkpoint
from a3c_exp.run.policy import PlayedEpisodes, Recorder, evaluate_policy


@pytest.fixture(scope="module")
def corridor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned to walk right, in environments with discrete observations."""
    folder = tmp_path_factory.mktemp("corridor")
    done = train(
        folder, CORRIDOR, envs_per_worker=8, total_steps=4000, eval__every=1000, rollout_length=8
    )
    assert done.summary["best_eval_return"] == pytest.approx(0.96)
    return folder


def test_the_run_that_travels_with_the_repository_is_played_and_stays_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = Path(__file__).parents[1] / "examples" / "runs" / "cartpole"
    before = content(folder)
    assert before.keys() == {"config.yaml", "summary.json", "checkpoints/best.ckpt"}
    assert sum(map(len, before.values())) < 20_000
    assert evaluate.main([str(folder), "episodes=5"]) == 0
    assert "mean return: 500 " in capsys.readouterr().out
    assert content(folder) == before


def test_a_terminal_shows_how_far_it_is(
    corridor: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(evaluate, "SHOWN_STEPS", 1)
    assert evaluate.main([str(corridor), "episodes=2", "plugins=[scripted]"]) == 0
    shown = capsys.readouterr().err
    assert "\r0 of 2 episodes, step 1\x1b[K" in shown and shown.endswith("\r\x1b[K")


class TestThePolicyInAnotherProgram:
    def test_plays_the_environment_itself_to_the_end(self, corridor: Path) -> None:
        """The loop that everybody writes, with the environment's own observations and actions."""
        policy = a3c_exp.load(corridor, plugins=["scripted"])
        env = gymnasium.make("Corridor-v0")
        observation, _ = env.reset(seed=0)
        total = 0.0
        over = False
        while not over:
            action = policy.act(observation)
            assert type(action) is int
            observation, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        assert total == pytest.approx(0.96)

    def test_needs_nothing_of_what_it_was_trained_on(self, tmp_path: Path) -> None:
        train(tmp_path)
        backend = {"_target_": "a3c_exp.backends.ga3c.Ga3c", "device": "cuda"}
        whole = yaml.safe_load((tmp_path / "config.yaml").read_text())
        (tmp_path / "config.yaml").write_text(
            yaml.safe_dump(whole | {"backend": backend, "init_from": "/gone"})
        )
        assert type(a3c_exp.load(tmp_path, plugins=["scripted"]).act(np.zeros(4))) is int

    def test_an_argument_of_another_library_is_answered(self, corridor: Path) -> None:
        policy: Any = a3c_exp.load(corridor, plugins=["scripted"])
        with pytest.raises(TypeError, match=r"'deterministic'.* greedy=False") as caught:
            policy.act(np.zeros(2), deterministic=False)
        assert "\n" not in str(caught.value)

    def test_an_observation_of_another_shape_is_refused(self, tmp_path: Path) -> None:
        train(tmp_path, "Pendulum-v1")
        for observation, word in (
            ([0.0, 1.0], "(2,)"),
            ([[0.0]] * 3, "(1,)"),
            ([[0.0, np.inf, 0.0], [0.0] * 3], "inf at [1]"),
            ([np.nan, 0.0, 0.0], "nan at [0]"),
        ):
            with pytest.raises(ValueError, match=re.escape(word)):
                a3c_exp.load(tmp_path).act(observation)

    def test_an_image_of_other_numbers_than_bytes_is_refused(self, tmp_path: Path) -> None:
        """Fractions would all become 0."""
        train(tmp_path, CORNERS, network=SMALL_CNN)
        policy = a3c_exp.load(tmp_path, plugins=["scripted"])
        image = gymnasium.make(CORNERS).observation_space.sample()
        assert policy.act(image.tolist()) == policy.act(image)
        for wrong in (image / 255, image + np.int64(256)):
            with pytest.raises(ValueError, match=f"{wrong.dtype} that is not in Box"):
                policy.act(wrong)

    @pytest.mark.parametrize(
        ("observations", "observation", "actions"),
        [
            (Discrete(5, start=3), np.int64(4), Discrete(3, start=-1)),
            (MultiDiscrete([2, 3]), np.array([1, 2]), MultiDiscrete(np.array([[2, 3], [4, 5]]))),
            (Box(-1, 1, (3,)), [0.5, 0.5, 0.5], MultiBinary(3)),
            (Box(0, 255, (3,), np.uint8), np.ones(3, np.uint8), Box(-2, 3, (2, 2), np.float64)),
            (MultiBinary(3), np.ones(3, np.int8), Box(0, 1, ())),
        ],
    )
    def test_takes_and_gives_what_the_environment_does(
        self,
        observations: Space[Any],
        observation: Any,
        actions: Space[Any],
        register: Any,
        tmp_path: Path,
    ) -> None:
        name = register("Echo-v0", lambda: Echo(observations, actions, observation))
        train(tmp_path, name, total_steps=16)
        policy = a3c_exp.load(tmp_path)
        env = gymnasium.make(name).unwrapped
        env.reset()
        for greedy in (True, False):
            action = policy.act(observation, greedy=greedy)
            assert actions.contains(action if isinstance(action, int) else np.asarray(action))
            env.step(action)

    @pytest.mark.parametrize(
        "space",
        [
            Box(-1, 1, (3,)),
            Box(-1, 1, ()),
            Discrete(5, start=3),
            MultiDiscrete(np.array([[2, 3], [4, 5]])),
            Box(0, 255, (8, 8, 3), np.uint8),
            Dict({"a": Box(-1, 1, (2,)), "b": Tuple([Discrete(3), MultiBinary(2)])}),
        ],
    )
    def test_acts_on_a_batch_as_on_each_observation(
        self, space: Space[Any], register: Any, tmp_path: Path
    ) -> None:
        space.seed(0)
        name = register("Echo-v0", lambda: Echo(space, Discrete(3), space.sample()))
        image: dict[str, Any] = {"network": SMALL_CNN} if len(space.shape or ()) == 3 else {}
        train(tmp_path, name, total_steps=16, **image)
        policy = a3c_exp.load(tmp_path)
        samples = [space.sample() for _ in range(4)]
        batch: Any = concatenate(space, samples, create_empty_array(space, 4))  # type: ignore[arg-type]
        actions = policy.act(batch)
        assert isinstance(actions, np.ndarray) and actions.shape == (4,)
        assert actions.tolist() == [policy.act(sample) for sample in samples]

    def test_a_batch_with_a_memory_stays_as_large_as_it_is(self, tmp_path: Path) -> None:
        train(tmp_path, TARGET, network={"_target_": "a3c_exp.networks.Lstm"})
        policy = a3c_exp.load(tmp_path, plugins=["scripted"])
        policy.act([[0.5], [0.25]])
        with pytest.raises(ValueError, match="reset"):
            policy.act([0.5])
        policy.reset()
        policy.act([0.5])

    def test_the_method_of_other_libraries_is_answered_by_its_name_here(
        self, tmp_path: Path
    ) -> None:
        train(tmp_path)
        with pytest.raises(TypeError, match=r"Policy\.act"):
            a3c_exp.load(tmp_path, plugins=["scripted"]).predict(np.zeros(4), deterministic=True)

    def test_it_scales_observations_as_in_training(self, tmp_path: Path) -> None:
        train(tmp_path, TARGET, env__normalize_observations=True)
        policy = a3c_exp.load(tmp_path, plugins=["scripted"])
        with_it = policy.act([0.3])
        policy.normalizer = None
        assert policy.act([0.3]) != with_it

    def test_one_with_a_memory_remembers_an_episode_until_it_is_told_of_the_next(
        self, tmp_path: Path
    ) -> None:
        # Little is learned, so that no action is clipped to the bounds, where all of them would be
        # alike.
        network = {"_target_": "a3c_exp.networks.Lstm", "policy_gain": 0.3}
        train(tmp_path, TARGET, network=network, optimizer__learning_rate=1e-5)
        policy, fresh = (a3c_exp.load(tmp_path, plugins=["scripted"]) for _ in range(2))
        seen = [np.array([x], np.float32) for x in (0.5, -0.5, 0.5)]
        first = [policy.act(x) for x in seen]
        assert first[0] != first[2], "the same observation, with something remembered"
        assert policy.act(seen[0]) != first[0]
        policy.reset()
        assert [policy.act(x) for x in seen] == first == [fresh.act(x) for x in seen]

    def test_it_is_the_best_one_or_the_latest_as_asked_for(self, tmp_path: Path) -> None:
        train(tmp_path, TARGET, eval__every=160, total_steps=1600, optimizer__learning_rate=0.5)
        best = checkpoint.load_file(tmp_path / "checkpoints" / "best.ckpt")["store"]["parameters"]
        plugins = ["scripted"]
        assert not np.array_equal(best, latest(tmp_path)["store"]["parameters"])
        for which, expected in (
            (None, best),
            ("best", best),
            ("latest", latest(tmp_path)["store"]["parameters"]),
        ):
            policy = evaluate.load_run(tmp_path, which, plugins).policy  # type: ignore[arg-type]
            np.testing.assert_array_equal(policy._network.vector, expected)
        (tmp_path / "checkpoints" / "best.ckpt").unlink()
        assert evaluate.load_run(tmp_path, plugins=plugins).checkpoint.name == "latest.ckpt"


class TestPlaying:
    def play(self, count: int, episodes: int, vectorized: bool = False, **kwargs: Any) -> Episodes:
        env = Gym(id=SCRIPTED, kwargs=kwargs, vectorized=vectorized).make(count, list(range(count)))
        return evaluate_policy(Still(), env, episodes)  # type: ignore[arg-type]

    @pytest.mark.parametrize("vectorized", [False, True])
    def test_counts_whole_episodes_and_their_own_rewards(self, vectorized: bool) -> None:
        """Each environment plays its share: the first ten to finish would all be of the short
        kind."""
        episodes = self.play(1, 3, vectorized, lengths=(2, 3))
        np.testing.assert_array_equal(episodes.lengths, [2, 3, 2])
        np.testing.assert_array_equal(episodes.returns, [1 + 2, 101 + 102 + 103, 201 + 202])
        episodes = self.play(2, 10, vectorized, lengths=(1, 9), ends=("terminated", "truncated"))
        assert sorted(episodes.lengths) == [1] * 5 + [9] * 5
        assert len(self.play(3, 7, vectorized, lengths=(2,))) == 7

    def test_a_lost_life_is_no_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every step of this environment costs a life: its episodes of five steps are whole all the
        same."""
        env = Gym(id=SCRIPTED, kwargs={"lengths": [5]}).make(2, [0, 0])
        step = env.step

        def costly(actions: Any) -> Any:
            answer = step(actions)
            always = np.ones(2, np.bool_)
            return answer._replace(terminated=always, life_lost=~answer.terminated)

        monkeypatch.setattr(env, "step", costly)
        assert evaluate_policy(Still(), env, 4).lengths.tolist() == [5, 5, 5, 5]  # type: ignore[arg-type]

    def test_one_that_is_cut_is_forgotten(self) -> None:
        env = Gym(id=SCRIPTED, kwargs={"lengths": (0,)}).make(1, [0])
        seen: list[float] = []

        class Ageing(Still):
            """Its state counts the steps that it remembers."""

            def actions(
                self, observations: np.ndarray, state: Any, greedy: bool
            ) -> tuple[np.ndarray, Any]:
                seen.append(0.0 if state is None else float(state[0, 0]))
                return np.zeros(1, np.int64), np.full((1, 1), seen[-1] + 1, np.float32)

        played = evaluate_policy(Ageing(), env, 3, max_steps=5)  # type: ignore[arg-type]
        assert played.lengths.tolist() == [5, 5, 5]
        assert played.cut == 3
        assert seen == [0, 1, 2, 3, 4] * 3

    def test_what_follows_a_cut_is_no_episode(self) -> None:
        """Each of those that count begins with a reset, though other environments play on
        meanwhile."""
        env = Gym(id=SCRIPTED, kwargs={"lengths": (6, 3)}).make(2, [0, 0])
        played = evaluate_policy(Still(), env, 6, max_steps=4)  # type: ignore[arg-type]
        assert sorted(played.lengths) == [3, 3, 4, 4, 4, 4] and played.cut == 4

    def test_one_that_ends_with_its_last_step_is_not_cut_and_they_can_be_stopped(self) -> None:
        env = Gym(id=SCRIPTED, kwargs={"lengths": (5, 6)}).make(1, [0])
        seen: list[tuple[int, int]] = []

        def go_on(ended: int, steps: int) -> bool:
            seen.append((ended, steps))
            return steps < 10

        played = evaluate_policy(Still(), env, 100, max_steps=5, go_on=go_on)  # type: ignore[arg-type]
        assert played.lengths.tolist() == [5, 5]
        assert played.cut == 1
        assert seen[4:] == [(0, 4), (1, 5), (1, 6), (1, 7), (1, 8), (1, 9), (2, 10)]

    def test_a_film_of_what_cannot_be_drawn_is_refused_before_it_is_played(
        self, tmp_path: Path
    ) -> None:
        pytest.importorskip("moviepy")
        blind = SimpleNamespace(render=lambda: None, reset=lambda: np.zeros((1, 1)), count=1)
        recorder = Recorder(tmp_path / "film.mp4")
        with pytest.raises(ConfigError, match=r"^video = True: "):
            evaluate_policy(Still(), blind, 1, on_step=recorder)  # type: ignore[arg-type]

    def test_what_is_reported(self) -> None:
        played = PlayedEpisodes(
            np.array([1.0, 2.0, 6.0]), np.array([4, 5, 6]), np.zeros(3, np.int64)
        )
        found = evaluate.statistics(played)
        assert found["mean return"] == "3.00 +- 6.52 (95 %)"  # 4.27 sqrt(7) / sqrt(3)
        assert (found["lowest"], found["highest"], found["mean length"]) == ("1", "6", "5")

    @pytest.mark.parametrize(
        ("returns", "mean"),
        [
            ([-80.0, 60.0, 271.6316], "84 +- 436 (95 %)"),
            ([500.0, 500.0, 500.0], "500 +- 0 (95 %)"),
            ([83.8772], "83.8772"),
        ],
    )
    def test_a_mean_return_has_the_precision_of_its_interval(
        self, returns: list[float], mean: str
    ) -> None:
        lengths = np.ones(len(returns), np.int64)
        played = PlayedEpisodes(np.array(returns), lengths, 0 * lengths)
        assert evaluate.statistics(played)["mean return"] == mean


class TestTheCommandLine:
    def test_a_seed_plays_the_same_episodes_again(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        train(tmp_path, TARGET)
        output = []
        for arguments in (["seed=1"], ["seed=1"], ["seed=2"], ["seed=1", "greedy=false"]):
            assert (
                evaluate.main([str(tmp_path), "episodes=3", "plugins=[scripted]", *arguments]) == 0
            )
            output.append(capsys.readouterr().out)
        assert output[0] == output[1]
        assert len(set(output)) == 3
        assert output[0].startswith("policy: latest.ckpt, after 160 steps\nreturns: ")

    def test_writes_a_film_of_the_first_episode(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        pytest.importorskip("moviepy")
        train(tmp_path, SCRIPTED, env__kwargs={"lengths": [12]}, total_steps=32)
        arguments = [str(tmp_path), "episodes=2", "plugins=[scripted]", "video=true"]
        assert evaluate.main(arguments) == 0
        film = tmp_path / "videos" / "32.mp4"
        assert f"video: {film}" in capsys.readouterr().out
        assert film.read_bytes()[4:8] == b"ftyp"
        from moviepy import VideoFileClip

        with VideoFileClip(str(film)) as clip:
            assert clip.n_frames in (11, 12)  # its own arithmetic of times may miss the last
            assert clip.size == [6, 4]
            assert clip.fps == 20, "as the environment says"
        before = film.read_bytes()
        assert evaluate.main([*arguments, "seed=2"]) == 0  # the same policy, another film
        assert film.read_bytes() == before
        (film.parent / "32_2.mp4").unlink()
        film.unlink()
        film.mkdir()  # so that there is no place for another film
        assert evaluate.main(arguments) == 2
        assert "videos/32.mp4" in capsys.readouterr().err
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(evaluate, "check_names", lambda *_: None)  # it has come since
            assert evaluate.main(arguments) == 0
        assert "returns: " in capsys.readouterr().out
        assert "video 32.mp4" in caplog.text
        assert [path.name for path in film.parent.iterdir()] == [film.name]

    @pytest.mark.parametrize(
        ("arguments", "key", "value"),
        [
            ("episodes=0", "episodes", 0),
            ("episode=3", "episode", 3),
            ("video=true render=human", "video", True),
            ("plugins=[]", "env.id", CORRIDOR),
            ("video=true", "env.id", CORRIDOR),
        ],
    )
    def test_bad_input_is_one_line(
        self, arguments: str, key: str, value: object, corridor: Path, refuses: Refuses
    ) -> None:
        if arguments == "video=true":
            pytest.importorskip("moviepy")
        plugins = [] if arguments.startswith("plugins") else ["plugins=[scripted]"]
        refuses([str(corridor), *arguments.split(), *plugins], key, value, main=evaluate.main)

    def test_a_folder_without_a_run_or_with_a_checkpoint_that_cannot_be_used(
        self, tmp_path: Path, refuses: Refuses
    ) -> None:
        refuses([str(tmp_path / "nowhere")], "run", main=evaluate.main)
        refuses([str(tmp_path)], "run", str(tmp_path), main=evaluate.main)
        train(tmp_path / "run")
        train(tmp_path / "other", network__hidden_sizes=[8])
        path = tmp_path / "run" / "checkpoints" / "latest.ckpt"
        shutil.copy(tmp_path / "other" / "checkpoints" / "latest.ckpt", path)
        command = [str(tmp_path / "run"), "plugins=[scripted]"]
        refuses(command, "checkpoint", str(path), main=evaluate.main)
        path.unlink()
        refuses(command, "checkpoint", str(path), main=evaluate.main)

    def test_episodes_without_an_end_are_cut_and_counted(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        train(tmp_path, SCRIPTED, env__kwargs={"lengths": [0]}, eval__max_steps=20, total_steps=16)
        for given, length in (([], 20), (["max_steps=30"], 30)):
            assert evaluate.main([str(tmp_path), "episodes=3", "plugins=[scripted]", *given]) == 0
            out = capsys.readouterr().out
            assert f"mean length: {length}\n" in out and "cut by max_steps: 3\n" in out
            assert "own numbers" not in out, "it has none"

    @pytest.mark.parametrize(
        ("command", "options"), [(evaluate, evaluate.Options), (export, export.ExportOptions)]
    )
    def test_help_explains_every_option(
        self, command: Any, options: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command.main(["somewhere", "--help"]) == 0
        output = capsys.readouterr().out
        assert [name for name in options.__dataclass_fields__ if f"{name}:" not in output] == []


def test_a_sweep_has_a_row_for_each_run_that_can_be_played(
    corridor: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("0_s0", "1_s1", "2_s2"):
        shutil.copytree(corridor, tmp_path / name)
    (tmp_path / "report").mkdir()
    (tmp_path / "0_s0" / "checkpoints" / "best.ckpt").write_bytes(b"of another version")
    assert evaluate.main([str(tmp_path), "episodes=3", "plugins=[scripted]"]) == 1
    output = capsys.readouterr()
    head, line, *rows = output.out.splitlines()
    assert head.startswith("| run | policy | steps | episodes | mean return |") and set(
        line
    ) == set("| -")
    assert [row.split(" | ")[0] for row in rows] == ["| 1_s1", "| 2_s2"]
    assert re.fullmatch(
        (
            r".* \| best.ckpt \| [\d,]+ \| 3 \| 0\.96 \+- 0 \(95 %\) \| 0 \| 0\.96 \| "
            r"0\.96 \| \S+ \| 0 \| - \|"
        ),
        rows[0],
    )
    assert "not evaluated" in output.err and str(tmp_path / "0_s0") in output.err
    assert output.err.count("\n") == 1
