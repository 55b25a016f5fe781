"""The policy of a run as an ONNX file: it acts as the policy does, and one that does not is not
written."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from runs import BANDIT, TARGET, content, train

import a3c_exp
from a3c_exp.envs.parts import PartsBox
from a3c_exp.envs.spaces import encoder
from a3c_exp.errors import RunError
from a3c_exp.export import __main__ as export
from a3c_exp.export.policy_file import space_text
from a3c_exp.networks.distributions import FORBIDDEN
from a3c_exp.run.policy import Policy

onnx = pytest.importorskip("onnx", reason="pip install 'a3c-exp[onnx]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'a3c-exp[onnx]'")
pytest.importorskip("onnxscript", reason="pip install 'a3c-exp[onnx]'")
onnx_file: Any = importlib.import_module("a3c_exp.export.onnx_file")

PLUGINS = ["scripted", "user_modules"]
ALLOWED = "plugins=[scripted,user_modules]"
BFLOAT16 = onnx.TensorProto.BFLOAT16

CNN: dict[str, Any] = {
    "_target_": "a3c_exp.networks.Cnn",
    "layers": [[8, 3, 2], [8, 3, 2]],
    "policy_gain": 1.0,
}
CNN |= {"features_dim": None, "padding": "same", "activation": "elu", "precision": "bfloat16"}
LSTM = {
    "_target_": "a3c_exp.networks.Lstm",
    "hidden_size": 16,
    "policy_gain": 1.0,
    "distribution": "beta",
}

IMAGE = Box(0, 255, (12, 12, 3), np.uint8)
UNEVEN = Box(
    np.array([-2.0, -np.inf, 0.0], np.float32), np.array([4.0, np.inf, np.inf], np.float32)
)


class Wander(gymnasium.Env[Any, Any]):
    """Random observations of a space, and actions of another; one step in ten ends the episode."""

    def __init__(self, observations: Space[Any], actions: Space[Any]) -> None:
        self.observation_space = observations
        self.action_space = actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(np.asarray(action)), action
        return self.observation_space.sample(), 1.0, bool(self.np_random.random() < 0.1), False, {}


def exported(folder: Path, *arguments: str) -> tuple[Any, Any]:
    """The model of a run's file, and a session of it."""
    assert export.main([str(folder), ALLOWED, "steps=100", *arguments]) == 0
    path = folder / "policy.onnx"
    return onnx.load(path), onnxruntime.InferenceSession(
        str(path), providers=["CPUExecutionProvider"]
    )


def run(session: Any, **inputs: Any) -> dict[str, np.ndarray]:
    return dict(
        zip([entry.name for entry in session.get_outputs()], session.run(None, inputs), strict=True)
    )


def load(folder: Path) -> Policy:
    return a3c_exp.load(folder, PLUGINS)


class Case(NamedTuple):
    observations: Space[Any]
    actions: Space[Any]
    network: dict[str, Any]
    normalize: bool | str = False


CASES = {
    "one-hot, user's encoder, continuous": Case(
        Discrete(5), UNEVEN, {"_target_": "user_modules.Residual"}
    ),
    "images in bfloat16, several choices": Case(
        IMAGE, MultiDiscrete([2, 3]), CNN, normalize="shared"
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_file_takes_the_actions_of_the_policy(
    case: Case, register: Callable[..., str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of an observation at a time, and of any number of them; `act` takes the environment's own
    observations."""
    name = register("Wander-v0", lambda: Wander(case.observations, case.actions))
    settings: dict[str, Any] = {
        "total_steps": 64,
        "plugins": PLUGINS,
        "env__normalize_observations": case.normalize,
    }
    train(tmp_path, name, network=case.network, **settings)
    capfd.readouterr()
    model, session = exported(tmp_path)
    said = capfd.readouterr()
    assert said.err == ""
    assert said.out.startswith(
        f"{tmp_path / 'policy.onnx'}: equal to the policy on 104 observations, largest "
    )
    assert said.out.count("\n") == 1
    assert BFLOAT16 not in {entry.data_type for entry in model.graph.initializer}
    assert BFLOAT16 not in [
        entry.i for node in model.graph.node for entry in node.attribute if entry.name == "to"
    ]

    policy = load(tmp_path)
    policy.use_float32()
    case.observations.seed(1)
    seen = [case.observations.sample() for _ in range(7)]
    rows = (
        np.eye(5, dtype=np.float32)[seen]
        if isinstance(case.observations, Discrete)
        else np.stack(seen)
    )
    outputs = run(session, observation=rows)
    assert outputs.keys() == {"action", "value", "parameters"}
    for row, observation in enumerate(seen):
        expected = policy.act(observation)
        np.testing.assert_allclose(outputs["action"][row], expected, rtol=1e-5, atol=1e-5)
        alone = run(session, observation=rows[row : row + 1])
        for key, output in outputs.items():
            np.testing.assert_allclose(alone[key][0], output[row], rtol=1e-5, atol=1e-5)


def test_a_memory_is_carried_from_step_to_step_of_normalized_vectors(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "env__normalize_observations": True,
        "optimizer__learning_rate": 1e-5,
    }
    train(tmp_path, TARGET, network=LSTM, env__kwargs={"length": 5}, plugins=PLUGINS, **settings)
    _, session = exported(tmp_path)
    policy = load(tmp_path)
    state = np.zeros((1, session.get_inputs()[1].shape[1]), np.float32)
    actions = []
    for number in np.linspace(-1, 1, 20, dtype=np.float32):
        outputs = run(session, observation=np.array([[number]]), state=state)
        state = outputs["next_state"]
        actions.append(outputs["action"][0])
        np.testing.assert_allclose(
            actions[-1], policy.act(np.array([number])), rtol=1e-5, atol=1e-5
        )
    first = run(session, observation=np.array([[1.0]], np.float32), state=np.zeros_like(state))[
        "action"
    ][0]
    assert np.abs(first - actions[-1]).max() > 1e-4, "the last number, with something remembered"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose file is written."""
    folder = tmp_path_factory.mktemp("target") / "run"
    train(folder, TARGET, env__kwargs={"length": 3}, network__distribution="squashed_gaussian")
    assert export.main([str(folder), ALLOWED, "checkpoint=latest", "steps=40"]) == 0
    return folder


@pytest.fixture
def cheap(target: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same run, which is exported in no time: its model is the one in the file."""
    monkeypatch.setattr(onnx_file, "make_model", lambda *_: onnx.load(target / "policy.onnx"))
    return target


def test_the_file_says_where_it_comes_from(target: Path) -> None:
    model = onnx.load(target / "policy.onnx")
    said = {entry.key: entry.value for entry in model.metadata_props}
    assert said.pop("commit")
    assert said.pop("observation_space").startswith("Box(-1.0, 1.0, (1,)")
    assert said.pop("action_space").startswith("Box(")
    assert said.pop("env") == TARGET
    assert said == {"network": "Mlp", "run": "run", "checkpoint": "latest.ckpt", "steps": "160"}
    assert str(Path(a3c_exp.__file__).parent).encode() not in model.SerializeToString(), (
        "no paths of this machine"
    )


def read_safetensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors and the metadata of a file, by the description of the format."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        dtype = {"F32": np.float32, "I64": np.int64}[entry["dtype"]]
        array = np.frombuffer(data[start + first : start + last], dtype)
        tensors[name] = array.reshape(entry["shape"])
    assert start % 8 == 0 and last == len(data) - start
    return tensors, metadata


def test_the_weights_of_a_file_of_safetensors_compute_what_the_policy_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packages of ONNX are not needed."""
    monkeypatch.setitem(sys.modules, "onnx", None)
    settings: dict[str, Any] = {"env__normalize_observations": True}
    train(tmp_path, TARGET, env__kwargs={"length": 3}, **settings)
    arguments = [str(tmp_path), ALLOWED, "format=safetensors"]
    for _ in range(2):  # an earlier export is replaced
        assert export.main(arguments) == 0
    tensors, metadata = read_safetensors(tmp_path / "policy.safetensors")
    assert metadata["env"] == TARGET and metadata["checkpoint"] == "latest.ckpt"

    policy = load(tmp_path)
    mean, inverse_std = (tensors.pop(f"observation.{name}") for name in ("mean", "inverse_std"))
    network = policy.network
    observations = np.array([[0.3], [-0.8]], np.float32)
    expected, _, _ = policy.outputs(observations, None)
    for parameter in network.parameters():
        parameter.data.zero_()
    network.load_state_dict({name: torch.tensor(array) for name, array in tensors.items()})
    scaled = ((observations - mean) * inverse_std).clip(-10, 10)
    with torch.no_grad():
        parameters, *_ = network(torch.tensor(scaled, dtype=torch.float32), None)
    np.testing.assert_allclose(parameters, expected, rtol=1e-5, atol=1e-6)

    (tmp_path / "policy.safetensors").write_text("of another program")
    assert export.main(arguments) == 2


def test_the_spaces_of_a_file_can_be_read() -> None:
    many = Box(-np.arange(300, dtype=np.float32), np.arange(300, dtype=np.float32))
    space = Dict({"camera": IMAGE, "arm": many, "goal": Discrete(5)})
    parts = PartsBox.of(space, encoder)
    assert space_text(parts) == (
        "Dict(arm: Box(-299.0, 299.0, (300,), float32), "
        "camera: Box(0, 255, (12, 12, 3), uint8), goal: Discrete(5))"
    )


def test_another_file_is_written_in_its_place(cheap: Path, tmp_path: Path) -> None:
    before = (cheap / "policy.onnx").stat().st_mtime_ns
    assert export.main([str(cheap), ALLOWED, "steps=40", f"file={tmp_path / 'else.onnx'}"]) == 0
    assert (cheap / "policy.onnx").stat().st_mtime_ns == before
    assert (tmp_path / "else.onnx").read_bytes()


@pytest.fixture
def fails(capfd: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Checks that a file is not written: (folder, exit code, words of the only line,
    *arguments)."""

    def check(folder: Path, code: int, complaint: str, *more: str) -> None:
        before = content(folder)
        capfd.readouterr()
        assert export.main([str(folder), ALLOWED, "steps=40", *more]) == code
        said = capfd.readouterr()
        assert said.out == "" and said.err.count("\n") == 1
        assert said.err.startswith("a3c_exp: ") and complaint in said.err
        assert content(folder) == before

    return check


class TestAFileThatIsNotWritten:
    def test_one_with_other_weights(
        self, target: Path, fails: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = onnx.load(target / "policy.onnx")
        [tensor] = [entry for entry in model.graph.initializer if entry.name.endswith("value.bias")]
        weights = onnx.numpy_helper.to_array(tensor) + np.float32(0.001)
        tensor.CopyFrom(onnx.numpy_helper.from_array(weights, tensor.name))
        monkeypatch.setattr(onnx_file, "make_model", lambda *_: model)
        fails(target, 1, "not written, since the file's ")

    def test_one_for_which_the_disk_is_full(
        self, cheap: Path, fails: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        fails(cheap, 1, "cannot be written: OSError: [Errno 28] No space left on device")

    def test_one_of_a_network_that_no_graph_can_hold(self, tmp_path: Path, fails: Any) -> None:
        train(
            tmp_path,
            TARGET,
            network={"_target_": "user_modules.Branches"},
            total_steps=16,
            plugins=PLUGINS,
        )
        fails(tmp_path, 2, "network = 'Branches': cannot be exported to ONNX by torch ")

    def test_one_for_which_a_package_is_missing(
        self, cheap: Path, fails: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "onnxscript", None)
        fails(cheap, 2, "needs onnxscript: pip install 'a3c-exp[onnx]'")

    def test_one_of_a_wrong_command(self, cheap: Path, fails: Any) -> None:
        fails(cheap, 2, "steps = 0: ", "steps=0")
        fails(cheap, 2, "there is no such checkpoint", "checkpoint=best")
        fails(cheap, 2, "file = 'nowhere/policy.onnx': ", "file=nowhere/policy.onnx")


def float32(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.float32)


class TestTheComparison:
    def test_a_difference_is_relative_to_the_largest_number_of_an_output_and_to_1(self) -> None:
        assert onnx_file.difference("value", float32(50, 4e-4), float32(50, 0)) == pytest.approx(
            8e-6, rel=1e-3
        )
        for output in (
            float32(50, 6e-4),
            float32(np.nan, 1),
            float32([50], [0]),
            np.array([50.0, 0]),
        ):
            with pytest.raises(RunError, match="value"):
                onnx_file.difference("value", output, float32(50, 0))
        with pytest.raises(RunError, match=r"value differs by 2e-05"):
            onnx_file.difference("value", float32(2e-5), float32(0))
        with pytest.raises(RunError, match="parameters"):
            onnx_file.difference("parameters", float32(1, 2, FORBIDDEN), float32(1, 3, FORBIDDEN))


def test_a_policy_of_action_values_is_greedy_in_the_file_and_in_evaluations(tmp_path: Path) -> None:
    algorithm = {"_target_": "a3c_exp.algorithms.OneStepQ", "target_every": 50}
    train(tmp_path, BANDIT, algorithm=algorithm, returns__n=1, epsilon=0.5, plugins=PLUGINS)
    _, session = exported(tmp_path)
    policy = load(tmp_path)
    rows = np.eye(4, dtype=np.float32)
    outputs = run(session, observation=rows)
    best = outputs["parameters"][:, :4].argmax(-1)
    np.testing.assert_array_equal(outputs["action"], best)
    np.testing.assert_allclose(outputs["value"], outputs["parameters"][:, 4:].max(-1), rtol=1e-5)
    for greedy in (True, False):
        np.testing.assert_array_equal([policy.act(row, greedy) for row in rows], best)
