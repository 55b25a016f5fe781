"""A loss with a module of its own: its gradient, its parameter group, and what is refused before
training."""

from __future__ import annotations

import csv
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import make_batch
from gymnasium.spaces import Box, Discrete
from nets import draw_recurrent_input, normal, with_runtime
from runs import TARGET, config, train
from thirdparty import Attention, PredictingA3C, Predictor
from torch import Tensor, nn

from a3c_exp.algorithms import A3C, Algorithm, Batch, Metrics, PolicyOutputs
from a3c_exp.algorithms.algorithm import RUN_METRICS
from a3c_exp.common.arrays import Floats
from a3c_exp.config.builder import load_experiment
from a3c_exp.config.modules import network_of
from a3c_exp.engine.arrays import BatchArrays
from a3c_exp.engine.losses import LOSSES, loss_gradient
from a3c_exp.errors import ConfigError
from a3c_exp.networks import ActorCritic, Lstm, Mlp, Network
from a3c_exp.networks.composed import EncoderActorCritic
from a3c_exp.run.metrics import read_points

HERE = __name__.partition(".")[0]
PLUGINS = ["scripted", "thirdparty", HERE]
PREDICTING: dict[str, Any] = {
    "algorithm": {"_target_": "thirdparty.PredictingA3C"},
    "plugins": PLUGINS,
}
LENGTH = 5
COUNT = 3

NETWORKS: dict[str, Network] = {
    "shared": network_of(Mlp, {"hidden_sizes": (8,), "shared": True}),
    "separate": network_of(Mlp, {"hidden_sizes": (8,), "critic_hidden_sizes": (6,)}),
    "no layers": network_of(Mlp, {"hidden_sizes": ()}),
    "attention": network_of(Attention, {}),
    "lstm": Lstm(encoder=network_of(Mlp, {"hidden_sizes": (8,)}), hidden_size=6),
    "lstm, attention": Lstm(encoder=network_of(Attention, {}), hidden_size=6),
}


def build(network: Network, algorithm: Algorithm) -> EncoderActorCritic:
    observations = Box(-1, 1, (4,), np.float32)
    built = with_runtime(
        network.build(
            observations, Discrete(3), np.random.default_rng(1), build_loss=algorithm.build
        )
    )
    assert isinstance(built, EncoderActorCritic)
    return built


def draw_batch(network: ActorCritic, masked: bool) -> BatchArrays:
    """A drawn batch, with ends of episodes inside if the network is recurrent."""
    rows = (LENGTH, COUNT)
    rng = np.random.default_rng(2)
    log_probs, values, rewards, advantages, targets = normal(5, *rows)
    valid = rng.random(rows) < 0.6 if masked else None
    return replace(
        make_batch(log_probs, values, advantages, targets, valid),
        observations=normal(*rows, 4, seed=3),
        actions=rng.integers(0, 3, rows),
        rewards=rewards,
        recurrent_input=draw_recurrent_input(network, *rows),
    )


def gradient(network: ActorCritic, algorithm: Algorithm, batch: BatchArrays) -> Floats:
    """The gradient as a learner makes it."""
    network.gradient.fill(0)
    outputs, backward = network.runtime.evaluate(
        batch.observations, batch.actions, batch.recurrent_input
    )
    backward(loss_gradient(algorithm, network.loss_module)(outputs, batch, 0.0)[0])
    network_gradient: Floats = network.gradient.copy()
    return network_gradient


def torchs_gradient(network: ActorCritic, batch: BatchArrays, coefficient: float) -> Floats:
    """The gradient of the whole as torch finds it, from the modules and the formula."""
    copied = deepcopy(network)
    assert isinstance(copied, EncoderActorCritic) and copied.loss_module is not None
    state = boundaries = None
    if batch.recurrent_input is not None:
        state, boundaries = map(torch.from_numpy, batch.recurrent_input)
    parameters, values, features = copied.unroll(
        torch.from_numpy(batch.observations), state, boundaries
    )
    parameters, values = parameters.reshape(LENGTH, COUNT, -1), values.reshape(LENGTH, COUNT)
    valid = (
        torch.ones(batch.shape, dtype=torch.bool)
        if batch.valid is None
        else torch.from_numpy(batch.valid)
    )
    policy = torch.distributions.Categorical(logits=parameters)
    log_probs = policy.log_prob(torch.from_numpy(batch.actions))  # type: ignore[no-untyped-call]
    entropy = policy.entropy()  # type: ignore[no-untyped-call]
    advantages, targets, rewards = map(
        torch.from_numpy, (batch.advantages, batch.targets, batch.rewards)
    )
    terms = -log_probs * advantages + 0.25 * (targets - values) ** 2 - 0.01 * entropy
    terms = terms + coefficient * (copied.loss_module(features) - rewards) ** 2
    terms[valid].mean().backward()

    groups = [*copied.parameter_groups().values(), list(copied.loss_module.parameters())]
    gradients = [
        torch.zeros_like(p) if p.grad is None else p.grad for group in groups for p in group
    ]
    return torch.cat([one_gradient.ravel() for one_gradient in gradients]).numpy()


class TestTheGradient:
    @pytest.mark.parametrize("masked", [False, True], ids=["every row", "some rows"])
    @pytest.mark.parametrize("name", NETWORKS)
    def test_is_torchs_of_the_whole(self, name: str, masked: bool) -> None:
        algorithm = PredictingA3C(prediction_coefficient=0.7)
        network = build(NETWORKS[name], algorithm)
        batch = draw_batch(network, masked)
        expected = torchs_gradient(network, batch, 0.7)
        loss_columns = network.param_slices["loss"]
        assert expected[loss_columns].any()
        np.testing.assert_allclose(
            gradient(network, algorithm, batch), expected, rtol=1e-3, atol=1e-6
        )


@dataclass(frozen=True, kw_only=True)
class Imitating(A3C):
    """A3C's loss, and a cross entropy between actions and logits where an observation's first
    number is positive."""

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        loss, metrics = super().loss(policy, batch, progress)
        cross = nn.functional.cross_entropy(
            policy.parameters.movedim(-1, 1), batch.actions, reduction="none"
        )
        return loss + batch.mean(cross * (batch.observations[..., 0] > 0)), metrics


@pytest.mark.parametrize("masked", [False, True], ids=["every row", "some rows"])
def test_a_loss_may_use_logits_actions_and_observations(masked: bool) -> None:
    network = build(NETWORKS["separate"], Imitating())
    batch = draw_batch(network, masked)
    weights = (
        batch.observations[..., 0] > 0
        if batch.valid is None
        else (batch.observations[..., 0] > 0) * batch.valid
    )
    # The cross entropy is -log pi(a | s), which A3C weights by the advantages.
    expected = gradient(
        network, A3C(), replace(batch, advantages=batch.advantages + weights.astype(np.float32))
    )
    computed = gradient(network, Imitating(), batch)
    np.testing.assert_allclose(computed, expected, rtol=1e-3, atol=1e-6)
    assert not np.allclose(computed, gradient(network, A3C(), batch), rtol=1e-3, atol=1e-6)


class TestItsParameters:
    @pytest.mark.parametrize(("name", "features"), [("separate", 8), ("lstm", 6), ("no layers", 4)])
    def test_are_the_last_group_and_are_built_for_the_features(
        self, name: str, features: int
    ) -> None:
        network = build(NETWORKS[name], PredictingA3C())
        assert list(network.param_slices)[-1] == "loss"
        loss_columns = network.param_slices["loss"]
        assert loss_columns == slice(
            len(network.vector) - (5 * 4 + 4 * (features - 4) + 4 + 1), len(network.vector)
        )
        module = network.loss_module
        assert isinstance(module, Predictor)
        parameters = torch.cat([parameter.detach().ravel() for parameter in module.parameters()])
        np.testing.assert_array_equal(network.vector[loss_columns], parameters)

    def test_the_rest_of_the_network_is_drawn_as_without_it(self) -> None:
        with_it, without = (
            build(NETWORKS["separate"], algorithm) for algorithm in (PredictingA3C(), A3C())
        )
        np.testing.assert_array_equal(with_it.vector[: len(without.vector)], without.vector)


class TestTraining:
    def test_the_module_learns_what_it_is_for(self, tmp_path: Path) -> None:
        """The reward of the bandit is 0 or 1, and depends on the observation and the action: at
        best its mean."""
        train(tmp_path, **PREDICTING, total_steps=4000, network__shared=True)
        with open(tmp_path / "metrics.csv", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["train/reward_loss"]]
        assert float(rows[-1]["train/reward_loss"]) < 0.5 * float(rows[0]["train/reward_loss"])


# -- what is refused
# --------------------------------------------------------------------------------------------------


def fail() -> Any:
    raise RuntimeError("two\nlines")


@dataclass(frozen=True, kw_only=True)
class Wrong(A3C):
    """A loss with a mistake."""

    kind: str

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> Any:
        loss, metrics = super().loss(policy, batch, progress)
        mistakes: dict[str, Callable[[], Any]] = {
            "rows": lambda: (policy.values, {}),
            "alone": lambda: loss,
            "text": lambda: (loss, {"policy_loss": "high"}),
            "raises": fail,
            "constant": lambda: (0 * loss, metrics),
            "NaN": lambda: (np.nan * loss, metrics),
            "grad_norm": lambda: (loss, {"grad_norm": 1.0}),
            "loss:aux": lambda: (loss, {"loss:aux": 1.0}),
            "features": lambda: (loss + batch.mean(policy.features.square().sum(-1)), metrics),
        }
        return mistakes.get(self.kind, lambda: (loss, metrics))()

    def build(self, features: int) -> Any:
        modules: dict[str, Callable[[], Any]] = {
            "unbuilt": fail,
            "no module": lambda: features,
            "double": lambda: Predictor(features).double(),
            "lazy": lambda: nn.LazyLinear(1),
        }
        return modules.get(self.kind, lambda: None)()


@dataclass(frozen=True, kw_only=True)
class Dropping(PredictingA3C):
    """A loss whose module is another function of the features each time."""

    def build(self, features: int) -> nn.Module:
        return nn.Sequential(nn.Dropout(0.5), Predictor(features))


@dataclass(frozen=True, kw_only=True)
class Miswritten(A3C):
    """A loss with the derivatives of another one."""

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        return batch.mean(policy.values**2), {}


@dataclass(frozen=True, kw_only=True)
class Unmasked(A3C):
    """A loss with derivatives of rows that are no transitions, too."""


LOSSES[Miswritten] = LOSSES[A3C]
LOSSES[Unmasked] = lambda algorithm, outputs, batch, progress: LOSSES[A3C](
    algorithm, outputs, replace(batch, valid=None), progress
)


def refusal(algorithm: str, **settings: Any) -> ConfigError:
    target = algorithm if "." in algorithm else f"{HERE}.{algorithm}"
    kind = settings.pop("kind", None)
    algorithm_node = {"_target_": target} | ({} if kind is None else {"kind": kind})
    with pytest.raises(ConfigError) as refused:
        load_experiment(config(TARGET, plugins=PLUGINS, algorithm=algorithm_node, **settings))
    assert "\n" not in str(refused.value)
    return refused.value


WRONG = {
    "rows": "one number",
    "alone": "a tensor and a mapping",
    "text": "the metric policy_loss",
    "raises": "RuntimeError: two lines",
    "constant": "no gradient",
    "NaN": "not finite",
    "grad_norm": "'grad_norm' needs another name",
    "loss:aux": "'loss:aux' needs another name",
    "unbuilt": "16 features: RuntimeError: two lines",
    "no module": "a torch module or None",
    "double": "layers.0.weight must be float32",
    "lazy": "have a size",
}


def test_the_names_that_a_run_keeps_for_itself_are_those_of_its_curves(tmp_path: Path) -> None:
    train(tmp_path, algorithm={"_target_": "a3c_exp.algorithms.A3C"})
    names = {
        name.removeprefix("train/")
        for point in read_points(tmp_path / "metrics.csv")
        for name in point
    }
    metric_names = {name for name in names if "/" not in name} - {
        "policy_loss",
        "value_loss",
        "entropy",
    }
    assert metric_names - {"step", "wall_seconds"} == RUN_METRICS - {"clipped"}, (
        "this one is measured for callbacks alone"
    )


class TestWhatIsRefused:
    @pytest.mark.parametrize("kind", WRONG)
    def test_a_loss_with_a_mistake(self, kind: str) -> None:
        assert WRONG[kind] in refusal("Wrong", kind=kind).problem

    def test_a_loss_that_is_another_one_each_time_or_in_its_closed_form(self) -> None:
        assert "another gradient when it is computed again" in refusal("Dropping").problem
        for mistaken in ("Miswritten", "Unmasked"):
            assert "its closed form has another gradient" in refusal(mistaken).problem
            load_experiment(
                config(
                    TARGET,
                    plugins=PLUGINS,
                    algorithm={"_target_": f"{HERE}.{mistaken}"},
                    kernels=False,
                )
            )

    def test_one_that_needs_features_for_a_whole_actor_critic(self) -> None:
        whole_network = {"_target_": "thirdparty.Whole"}
        error = refusal("thirdparty.PredictingA3C", network=whole_network)
        assert (error.key, error.value) == (
            "network",
            "Whole",
        ) and "must be made of an encoder" in error.problem
        assert (
            "must be made of an encoder"
            in refusal("Wrong", kind="features", network=whole_network).problem
        )
