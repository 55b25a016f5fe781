"""Modules of a user's own, of the network and of the loss: in several workers, in checkpoints, and
afterwards."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backend_runs import ATTENTION
from refusals import refused
from runs import config, latest, same, train, train_config
from thirdparty import Attention, Predictor
from workers import make_workers

import a3c_exp
from a3c_exp.config.builder import load_experiment
from a3c_exp.config.saved import read_config
from a3c_exp.core.experiment import Experiment, build_network
from a3c_exp.networks.initialization import Initializer
from a3c_exp.run import checkpoint

PREDICTING: dict[str, Any] = ATTENTION | {"algorithm": {"_target_": "thirdparty.PredictingA3C"}}
LSTM = {
    "_target_": "a3c_exp.networks.Lstm",
    "hidden_size": 8,
    "encoder": {"_target_": "thirdparty.Attention"},
}
CONSTANTS = {"actor_encoder.directions", "critic_encoder.directions", "loss_module.scale"}

# One episode an update, of an environment without randomness: see tests/test_resume.py.


def resume(folder: Path, **changes: Any) -> Any:
    return train_config(read_config(folder, ATTENTION["plugins"]) | changes, folder, resume=True)


def constants(whole: dict[str, Any]) -> dict[str, Any]:
    return build_network(load_experiment(whole))[0].constants()


class TestConstants:
    """Numbers that a constructor has drawn, and that no optimizer changes."""

    def test_are_those_of_the_seed_in_every_worker_and_in_the_checkpoint(
        self, tmp_path: Path
    ) -> None:
        run_config = config(workers=3, **PREDICTING)
        expected = constants(run_config)
        assert expected.keys() == CONSTANTS
        others = constants(run_config | {"seed": 1})
        assert not any(torch.equal(expected[name], others[name]) for name in CONSTANTS)
        assert not torch.equal(
            expected["actor_encoder.directions"], expected["critic_encoder.directions"]
        )
        torch.manual_seed(1)  # as another process would have another state
        train_config(run_config, tmp_path)
        found = [worker._network.constants() for worker in make_workers(run_config)[1]]
        for each in [*found, latest(tmp_path)["store"]["constants"]]:
            assert each.keys() == CONSTANTS
            for name in CONSTANTS:
                np.testing.assert_array_equal(each[name], expected[name])

    def test_are_drawn_by_no_initialization(self) -> None:
        """Only the network that a run begins with is initialized. Its workers' networks would have
        others."""
        network = {"_target_": "thirdparty.Frozen", "init": "orthogonal"}
        experiment = load_experiment(config(network=network, plugins=["scripted", "thirdparty"]))
        first = build_network(experiment)[0]
        again = build_network(experiment, draw=False)[0]
        for name, tensor in first.constants().items():
            assert torch.equal(tensor, again.constants()[name]), name
        assert any("first (Linear)" in warning for warning in first.warnings)

    def test_of_a_layer_whose_weight_is_trained_stay(self) -> None:
        layer = torch.nn.Linear(4, 4)
        bias = layer.bias.requires_grad_(False).clone()
        assert Initializer("orthogonal", 0.1, torch.Generator()).draw(layer)
        assert torch.allclose(layer.weight @ layer.weight.T, torch.eye(4), atol=1e-5)
        assert torch.equal(layer.bias, bias)

    def test_are_as_built_where_a_forward_pass_changes_them(self, tmp_path: Path) -> None:
        """The checks before a run make such passes."""
        run_config = config(
            network={"_target_": "thirdparty.Counting"}, plugins=["scripted", "thirdparty"]
        )
        a3c_exp.train(run_config, tmp_path / "run")
        built = build_network(load_experiment(run_config))[0].constants()
        saved = latest(tmp_path / "run")["store"]["constants"]
        assert saved["actor_encoder.passes"] == built["actor_encoder.passes"]

    def test_that_each_worker_would_draw_anew_are_refused(self) -> None:
        run_config = config(
            network={"_target_": "thirdparty.Unseeded"}, plugins=["scripted", "thirdparty"]
        )
        refused(
            lambda: load_experiment(run_config),
            "network",
            ["actor_encoder.matrix", "critic_encoder.matrix"],
        )

    def test_are_the_same_in_threads_that_begin_at_once(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        networks = []

        def build(self: Any, *arguments: Any) -> Any:
            networks.append(made(self, *arguments))
            return networks[-1]

        made = Experiment.build_network
        monkeypatch.setattr(Experiment, "build_network", build)
        network = {"_target_": "thirdparty.Frozen"}
        train(
            tmp_path,
            backend="threads",
            workers=8,
            network=network,
            plugins=["scripted", "thirdparty"],
        )
        assert len(networks) > 8
        matrices = [network.constants()["actor_encoder.matrix"] for network in networks]
        assert all(torch.equal(matrix, matrices[0]) for matrix in matrices)

    @pytest.mark.parametrize(
        ("name", "change"), [*zip(sorted(CONSTANTS), ("other", "missing", "shape"), strict=True)]
    )
    def test_a_checkpoint_with_others_is_not_resumed(
        self, name: str, change: str, tmp_path: Path
    ) -> None:
        train(tmp_path, **PREDICTING)
        before = spoil(tmp_path, name, change)
        assert f"{name} differs" in refused(
            lambda: resume(tmp_path, total_steps=320), "folder", str(tmp_path)
        )
        assert same(latest(tmp_path), before), "nothing has been written"

    def test_nor_started_from(self, tmp_path: Path) -> None:
        train(tmp_path / "one", **PREDICTING)
        run_config = config(**PREDICTING, init_from=str(tmp_path / "one"))
        load_experiment(run_config)
        assert "constants" in refused(
            lambda: load_experiment(run_config | {"seed": 1}), "init_from"
        )


def spoil(folder: Path, name: str, change: str) -> dict[str, Any]:
    """Change a constant in a run's checkpoint, and return the checkpoint."""
    state = copy.deepcopy(latest(folder))
    constants = state["store"]["constants"]
    if change == "missing":
        del constants[name]
    else:
        constants[name] = (
            constants[name] + 1 if change == "other" else np.append(constants[name], 0)
        )
    checkpoint.save(folder / "checkpoints" / "latest.ckpt", state)
    return latest(folder)


def test_the_trained_policy_has_the_modules_with_the_parameters_and_constants_of_its_checkpoint(
    tmp_path: Path,
) -> None:
    """Also if the constants were drawn by other code."""
    train(tmp_path, "CartPole-v1", **PREDICTING)
    store = spoil(tmp_path, "actor_encoder.directions", "other")["store"]
    policy = a3c_exp.load(tmp_path, plugins=ATTENTION["plugins"])
    network = policy.network
    assert isinstance(network.actor_encoder, Attention) and isinstance(
        network.loss_module, Predictor
    )
    groups = [*network.parameter_groups().values(), list(network.loss_module.parameters())]
    vector = np.concatenate([p.detach().numpy().ravel() for group in groups for p in group])
    np.testing.assert_array_equal(vector, store["parameters"])
    np.testing.assert_array_equal(
        network.actor_encoder.directions, store["constants"]["actor_encoder.directions"]
    )
    observation = np.array([0.1, -0.2, 0.03, 0.4], np.float32)
    parameters, _, _ = network(torch.from_numpy(observation)[None])
    assert policy.act(observation) == int(parameters.argmax())
