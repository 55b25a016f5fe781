"""Observations of several parts, and actions that are not always allowed."""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector.utils import batch_space
from nets import by_torch, with_runtime
from refusals import refused
from runs import drain, same

import a3c_exp
from a3c_exp.core.normalization import (
    NormalizedObservations,
    Normalizer,
    measure_stats,
)
from a3c_exp.engine.arrays import OutputGradients
from a3c_exp.envs import EnvError, SyncEnvBatch, VectorEnvBatch
from a3c_exp.envs.answers import AnswerCheck
from a3c_exp.envs.parts import MaskFromInfo, PartsBox, sample_action
from a3c_exp.envs.spaces import encoder
from a3c_exp.networks import DictEncoder, EncoderNetwork, Mlp, ModuleSpec
from a3c_exp.networks.distributions import FORBIDDEN, Categorical
from a3c_exp.networks.inputs import ObservationInput

SPACE = Dict(
    {
        "camera": Box(0, 255, (6, 5, 3), np.uint8),
        "place": Tuple((Discrete(3), Box(-1, 1, (2,), np.float64))),
        "action_mask": MultiBinary(4),
    }
)


class Signs(gymnasium.Env[Any, Any]):
    """Each episode has one right action of four. An image shows the half in which it lies, a vector
    the place in that half; the mask forbids another action, which would be paid most. The best
    return is 5, of five steps.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # as gymnasium has it
    observation_space = Dict(
        {
            "camera": Box(0, 255, (4, 4, 1), np.uint8),
            "state": Box(-1, 1, (1,)),
            "action_mask": MultiBinary(5),
        }
    )
    action_space = Discrete(5)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.mask[action], "a forbidden action"
        reward = float(action == self.right)
        self.steps += 1
        return self._look(), reward, self.steps == 5, False, {}

    def _look(self) -> dict[str, Any]:
        self.right = int(self.np_random.integers(4))
        self.mask = np.array([1, 1, 1, 1, 0], np.int8)
        self.mask[(self.right + 1) % 4] = 0
        camera = np.full((4, 4, 1), 200 if self.right >= 2 else 10, np.uint8)
        return {
            "camera": camera,
            "state": np.array([2 * (self.right % 2) - 1], np.float32),
            "action_mask": self.mask,
        }


SIGNS = list(Signs.observation_space.spaces)


class SignsOfBox(Signs):
    action_space: Any = Box(-1, 1, (5,))


gymnasium.register("Signs-v0", entry_point=lambda **kwargs: Signs(**kwargs), max_episode_steps=100)
gymnasium.register("SignsOfBox-v0", entry_point=lambda **kwargs: SignsOfBox(**kwargs))


def overrides(backend: str, **more: Any) -> list[str]:
    settings = {
        "env": "gym",
        "env.id": "Signs-v0",
        "network": "dict",
        "backend": backend,
        "total_steps": 40_000,
    }
    settings |= {
        "stop.mean_return": 4.9,
        "rollout_length": 20,
        "optimizer.learning_rate": 0.003,
        "seed": 0,
    }
    return [f"{key}={value}" for key, value in (settings | more).items()]


SLOW = [pytest.param(backend, marks=pytest.mark.slow) for backend in ("processes", "ga3c", "ray")]


@pytest.mark.parametrize("backend", ["serial", *SLOW])
def test_trains_to_the_optimum_with_an_image_a_vector_and_a_mask(
    backend: str, tmp_path: Path
) -> None:
    if backend == "ray" and find_spec("ray") is None:  # not imported: that is for the backend
        pytest.skip("clusters: pip install 'a3c-exp[ray]'")
    run = a3c_exp.train(overrides(backend, workers=2), tmp_path / "run")
    assert run.exit_code == 0
    policy = a3c_exp.load(tmp_path / "run")
    env = Signs()
    returns = 0.0
    for seed in range(10):
        observation, _ = env.reset(seed=seed)
        over = False
        while not over:
            observation, reward, over, _, _ = env.step(policy.act(observation))
            returns += reward
    assert returns == 50


def check_one_is_as_on_serial(
    backend: str, others: Collection[str] = (), **one_by_one: Any
) -> None:
    """others: what this backend counts otherwise."""
    more = {
        "env.normalize_observations": True,
        "total_steps": 1600,
        "workers": 1,
        "stop.mean_return": "null",
    }
    _, expected, _ = drain(a3c_exp.compose(overrides("serial", **more)))
    _, state, error = drain(a3c_exp.compose(overrides(backend, **more, **one_by_one)))
    assert error is None
    assert [
        key for key in expected.keys() - set(others) if not same(state[key], expected[key])
    ] == []


def test_one_agent_is_as_a_worker_on_serial() -> None:
    """Observations cross to another process here. On Ray: in test_ray, which has a cluster."""
    one_by_one: dict[str, Any] = {
        "backend.rollouts": 1,
        "backend.training_batch": 1,
        "backend.device": "cpu",
    }
    check_one_is_as_on_serial("ga3c", {"applied_gradients", "worker_episodes"}, **one_by_one)


def test_the_exported_policy_has_an_input_for_each_part(tmp_path: Path) -> None:
    """A file has one thing of a name: `state` is that of a network with a memory."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'a3c-exp[onnx]'")
    from a3c_exp.export import __main__ as export

    folder = tmp_path / "run"
    more = {"total_steps": 800, "env.normalize_observations": True}
    a3c_exp.train(overrides("serial", workers=1, **more), folder)
    assert export.main([str(folder), "steps=50"]) == 0  # checked against the policy
    session = onnxruntime.InferenceSession(
        str(folder / "policy.onnx"), providers=["CPUExecutionProvider"]
    )
    inputs = {entry.name: entry.type for entry in session.get_inputs()}
    assert inputs == {
        "action_mask": "tensor(float)",
        "camera": "tensor(uint8)",
        "observation.state": "tensor(float)",
    }


class TestSpaces:
    def test_parts_lie_side_by_side_and_come_back(self) -> None:
        check = AnswerCheck(SPACE)
        space = check.box
        assert isinstance(space, PartsBox)
        SPACE.seed(0)
        rows = [SPACE.sample() for _ in range(3)]
        flat = check.batch(rows)
        assert flat.dtype == np.float32 and flat.shape == (3, 4 + 90 + 3 + 2) == (3, *space.shape)
        parts = space.split(flat)
        assert list(parts) == [".".join(map(str, part.path)) for part in space.parts]
        np.testing.assert_array_equal(parts["camera"], [row["camera"] for row in rows])
        np.testing.assert_array_equal(parts["place.0"].argmax(1), [row["place"][0] for row in rows])
        np.testing.assert_allclose(parts["place.1"], [row["place"][1] for row in rows], rtol=1e-6)
        np.testing.assert_array_equal(parts["action_mask"], [row["action_mask"] for row in rows])

    def test_those_of_a_vector_environment_come_one_by_one(self) -> None:
        check = AnswerCheck(SPACE)
        batched = batch_space(SPACE, 2)
        first, second = check.rows(batched.sample())
        assert first in SPACE and second in SPACE

    def test_parts_keep_their_bounds_but_those_that_running_statistics_scale(self) -> None:
        space, _ = encoder(SPACE)
        assert isinstance(space, PartsBox)
        for part in space.parts:
            bounds = (-1, 1) if part.name == "place.1" else (0, 1)
            for box, expected in ((space, bounds), (space.unbounded(), (-np.inf, np.inf))):
                part_bounds = {
                    (low, high)
                    for low, high in zip(box.low[part.columns], box.high[part.columns], strict=True)
                }
                assert part_bounds == {expected if part.is_measured else bounds}, part.name

    @pytest.mark.parametrize(
        ("space", "word"),
        [
            (Dict({"a": Box(0, 1, (2,)), "mission": Text(5)}), "Text"),
            (Dict({"a.b": Box(0, 1, (2,)), "a": Dict({"b": Box(0, 1, (3,))})}), "a.b"),
        ],
    )
    def test_a_text_and_parts_of_one_name_are_refused(self, space: Dict, word: str) -> None:
        with pytest.raises(TypeError, match=word):
            encoder(space)

    @pytest.mark.parametrize("shape", [(0,), (3, 0)])
    def test_an_empty_observation_is_refused_and_an_empty_part_is_none(
        self, shape: tuple[int, ...]
    ) -> None:
        empty = Box(-1, 1, shape)
        with pytest.raises(TypeError, match="no numbers"):
            AnswerCheck(empty, Discrete(2))
        assert AnswerCheck(Dict(a=empty, b=Box(-1, 1, (2,))), Discrete(2)).box.shape == (2,)

    def test_running_statistics_scale_vectors_alone(self) -> None:
        check = AnswerCheck(SPACE)
        space = check.box
        form = NormalizedObservations.of(True, space)
        flat = check.batch([SPACE.sample() for _ in range(50)])
        normalizer = Normalizer.from_row(measure_stats(flat, None), form, False)
        scaled = normalizer.observations(flat)
        assert isinstance(space, PartsBox)
        for part in space.parts:
            changed = not np.array_equal(scaled[:, part.columns], flat[:, part.columns])
            assert changed == (part.name == "place.1"), part.name


class TestAnswers:
    class Faulty(Signs):
        look: Any = None

        def _look(self) -> dict[str, Any]:
            return super()._look() | (self.look if getattr(self, "steps", 0) == 2 else {})

    @pytest.mark.parametrize(
        ("look", "words"),
        [
            ({"state": np.array([np.nan], np.float32)}, "state"),
            ({"camera": np.zeros((3, 4, 1), np.uint8)}, "camera"),
            ({"action_mask": np.zeros(5, np.int8)}, "no action"),
        ],
    )
    @pytest.mark.parametrize("vector", [False, True])
    def test_the_part_that_cannot_be_used_is_named(
        self, look: dict[str, Any], words: str, vector: bool
    ) -> None:
        faulty = type("Wrong", (self.Faulty,), {"look": look})
        if vector and words == "camera":
            return  # gymnasium's vector refuses it
        make = gymnasium.vector.SyncVectorEnv([faulty, faulty]) if vector else None
        batch = VectorEnvBatch(make, [0, 1]) if make else SyncEnvBatch([faulty(), faulty()], [0, 1])
        obs = batch.reset()
        with pytest.raises(EnvError, match=words):
            for _ in range(4):
                assert (
                    isinstance(batch.observation_space, PartsBox)
                    and batch.observation_space.mask is not None
                )
                allowed = obs[:, batch.observation_space.mask]
                obs = batch.step(allowed.argmax(1)).obs

    def test_the_last_observations_of_a_native_vector_may_be_arrays_of_each_part(self) -> None:
        class Native(gymnasium.vector.SyncVectorEnv):
            def step(self, actions: Any) -> Any:
                *answer, info = super().step(actions)
                if "final_obs" in info:  # both episodes end at once
                    info["final_obs"] = {
                        name: np.stack([row[name] for row in info["final_obs"]]) for name in SIGNS
                    }
                return *answer, info

        native = Native([Signs, Signs], autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)
        batches = VectorEnvBatch(native, [0, 1]), SyncEnvBatch([Signs(), Signs()], [0, 1])
        columns = batches[0].observation_space.mask  # type: ignore[attr-defined]
        obs, other = (batch.reset() for batch in batches)
        for _ in range(12):
            np.testing.assert_array_equal(obs, other)
            one, two = (batch.step(obs[:, columns].argmax(1)) for batch in batches)
            np.testing.assert_array_equal(
                one.final_obs[one.terminated], two.final_obs[two.terminated]
            )
            obs, other = one.obs, two.obs

    @pytest.mark.parametrize("vector", [False, True])
    def test_a_mask_allows_something_for_each_of_several_choices(self, vector: bool) -> None:
        class Choices(Signs):
            action_space: Any = MultiDiscrete([3, 2])

            def _look(self) -> dict[str, Any]:
                return super()._look() | {"action_mask": np.array([1, 0, 1, 0, 0], np.int8)}

        make: Any = gymnasium.vector.SyncVectorEnv([Choices, Choices]) if vector else None
        batch = (
            VectorEnvBatch(make, [0, 1]) if vector else SyncEnvBatch([Choices(), Choices()], [0, 1])
        )
        with pytest.raises(EnvError, match="no action"):
            batch.reset()

    def test_a_mask_in_info_becomes_a_part(self) -> None:
        class Masked(gymnasium.Wrapper[Any, Any, Any, Any]):
            def reset(self, **arguments: Any) -> Any:
                observation, _ = self.env.reset(**arguments)
                return observation, {"action_mask": np.array([1, 0], np.int8)}

            def step(self, action: Any) -> Any:
                *answer, _ = self.env.step(action)
                return *answer, {"action_mask": np.array([0, 1], np.int8)}

        env = MaskFromInfo(Masked(gymnasium.make("CartPole-v1")))
        first, _ = env.reset(seed=0)
        assert first in env.observation_space and first["action_mask"].tolist() == [1, 0]
        assert env.step(0)[0]["action_mask"].tolist() == [0, 1]

    @pytest.mark.parametrize("mask", [{}, {"action_mask": None}, {"action_mask": []}])
    @pytest.mark.parametrize("flag", ["terminated", "truncated"])
    def test_the_last_step_of_an_episode_needs_no_mask(self, mask: Any, flag: str) -> None:
        """The first one of the next episode has one again. In the middle it is an error."""

        class Game(gymnasium.Env[Any, Any]):
            observation_space = Box(-1, 1, (2,))
            action_space = Discrete(3)

            def reset(self, **arguments: Any) -> Any:
                self.left = 2
                return np.zeros(2, np.float32), {"action_mask": [1, 1, 0]}

            def step(self, action: Any) -> Any:
                self.left -= 1
                over = self.left == 0
                flags = over and flag == "terminated", over and flag == "truncated"
                info = mask if over or action == 2 else {"action_mask": [0, 1, 0]}
                return np.ones(2, np.float32), 1.0, *flags, info

        batch = SyncEnvBatch([MaskFromInfo(Game())], [0])
        batch.reset()
        space: Any = batch.observation_space
        assert batch.step(np.zeros(1, np.int64)).obs[0, space.mask].tolist() == [0, 1, 0]
        last = batch.step(np.zeros(1, np.int64))
        assert last.episode_over.all() and last.final_obs[0, space.mask].tolist() == [1, 1, 1]
        assert last.obs[0, space.mask].tolist() == [1, 1, 0]
        with pytest.raises(EnvError, match=r"action_mask|int"):
            batch.step(np.array([2]))

    @pytest.mark.parametrize(
        "choices", [MultiDiscrete([2, 3]), Tuple([Discrete(2), Discrete(3, start=7)])]
    )
    def test_a_mask_of_several_choices_is_a_tuple_in_info_and_draws_keep_to_it(
        self, choices: Any
    ) -> None:
        class Masked(gymnasium.Env[Any, Any]):
            observation_space = Box(-1, 1, (2,))
            action_space = choices

            def reset(self, **arguments: Any) -> Any:
                mask = np.array([1, 0], np.int8), np.array([0, 0, 1], np.int8)
                return np.zeros(2, np.float32), {"action_mask": mask}

        batch = SyncEnvBatch([MaskFromInfo(Masked())], [0])
        (row,) = batch.reset()
        assert (
            isinstance(batch.observation_space, PartsBox)
            and batch.observation_space.mask is not None
        )
        assert row[batch.observation_space.mask].tolist() == [1, 0, 0, 0, 1]
        for _ in range(9):
            assert sample_action(batch.action_space, batch.observation_space, row).tolist() == [
                0,
                2,
            ]


class TestMask:
    @pytest.mark.parametrize("actions", [Discrete(4), MultiDiscrete([2, 2])])
    @pytest.mark.parametrize("network", [DictEncoder, Mlp])
    @pytest.mark.parametrize("of_torch", [False, True])
    def test_a_forbidden_action_has_no_probability_and_no_gradient(
        self, actions: Any, network: type, of_torch: bool
    ) -> None:
        check = AnswerCheck(Dict({"vector": Box(-1, 1, (3,)), "action_mask": MultiBinary(4)}))
        space = check.box
        described = EncoderNetwork(encoder=ModuleSpec(network), policy_gain=1.0)
        built = with_runtime(described.build(space, actions, np.random.default_rng(0)))
        built = by_torch(built) if of_torch else built
        mask = np.array([[1, 0, 0, 1], [0, 1, 1, 1], [1, 0, 1, 0]], np.int8)
        rows = check.batch(
            [
                {"vector": np.full(3, 0.1 * k, np.float32), "action_mask": m}
                for k, m in enumerate(mask)
            ]
        )
        parameters, _, _ = built.act_forward(rows)
        assert (parameters[mask == 0] < -1e8).all() and (np.abs(parameters[mask == 1]) < 10).all()
        for _ in range(50):
            chosen, _ = built.distribution.sample(parameters, np.random.default_rng())
            one_hot = encoder(actions)[1](chosen)
            assert (one_hot <= mask).all()
        with torch.no_grad():
            np.testing.assert_allclose(
                built(torch.from_numpy(rows))[0].numpy(), parameters, rtol=1e-5
            )
        outputs, backward = built.runtime.evaluate(rows[None], chosen[None])
        assert np.isfinite(outputs.log_probs).all() and (outputs.entropy >= 0).all()
        ones = np.ones((1, 3), np.float32)
        backward(OutputGradients(ones, ones, ones))
        assert np.isfinite(built.gradient).all() and np.abs(built.gradient).max() > 0

    def test_exploration_keeps_to_it(self) -> None:
        distribution = Categorical(Discrete(3))
        logits = np.array([[0.0, FORBIDDEN, 5.0]] * 200, np.float32)
        actions, log_probs = distribution.sample_mixed(logits, np.random.default_rng(0), 0.5)
        assert set(actions) == {0, 2}
        share = 0.5 / (1 + np.exp(5.0)) + 0.25
        np.testing.assert_allclose(np.exp(log_probs[actions == 0]), share, rtol=1e-5)

    @pytest.mark.parametrize(
        ("setting", "words"),
        [
            # it stacks the mask too
            ({"env.wrappers": "[{FrameStackObservation: {stack_size: 2}}]"}, "it has 10"),
            ({"env.id": "SignsOfBox-v0"}, "left out"),
        ],
    )
    def test_one_that_does_not_fit_the_actions_is_refused(
        self, setting: dict[str, str], words: str
    ) -> None:
        assert words in refused(
            lambda: a3c_exp.train(overrides("serial", **setting)), "env.id", "action_mask"
        )

    @pytest.mark.parametrize("setting", ["shared", "background"])
    def test_its_observations_have_no_pixels_to_measure(self, setting: str) -> None:
        settings = overrides("serial", **{"env.normalize_observations": setting})
        assert "parts" in refused(
            lambda: a3c_exp.train(settings), "env.normalize_observations", setting
        )


@pytest.mark.parametrize("largest", [1, 8, 255])
def test_images_of_small_numbers_reach_1_too(largest: int) -> None:
    """As they do where they are the whole observation."""
    space = Dict({"board": Box(0, largest, (4, 5, 2), np.uint8), "action_mask": MultiBinary(3)})
    check = AnswerCheck(space)
    full = {"board": np.full((4, 5, 2), largest, np.uint8), "action_mask": np.ones(3, np.int8)}
    answers = check.observations([full])
    assert answers is not None
    inputs: Any = ObservationInput.of(DictEncoder, check.box).prepare(torch.from_numpy(answers))
    assert inputs["board"].max().item() == 1 and inputs["action_mask"].max().item() == 1


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.float32])
def test_a_mask_may_have_the_axes_of_the_choices(kind: Any) -> None:
    space = Dict({"x": Box(-1, 1, (2,)), "action_mask": Box(0, 1, (2, 3), kind)})
    check = AnswerCheck(space, MultiDiscrete([3, 3]))
    mask = np.array([[0, 1, 0], [0, 0, 1]], kind)
    answers = check.observations([{"x": np.zeros(2, np.float32), "action_mask": mask}])
    assert answers is not None and check.mask is not None
    np.testing.assert_array_equal(answers[0, check.mask], mask.ravel())
    check.require_action(answers)
