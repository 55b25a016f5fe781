"""One update of A2C here and in stable-baselines3, with rl-baselines3-zoo's recipe for Atari
games."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from workers import make_workers, next_event

from a3c_exp import compose
from a3c_exp.common.arrays import Array
from a3c_exp.core import seeding
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.events import Event
from a3c_exp.core.rollout import Rollout
from a3c_exp.core.seeding import Role

SB3 = pytest.importorskip("stable_baselines3", reason="peers: pip install 'a3c-exp[bench]'")
from stable_baselines3.common.logger import Logger  # noqa: E402 - after the skip
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv  # noqa: E402

GAMES = 16
STEPS = 5
ACTIONS = 6
UPDATES = 3
NOISE = "NoiseImages-v0"
RECIPE = f"""
    env=gym env.id={NOISE} env.normalize_observations=false
    network=cnn_nature network.precision=float32 network.policy_gain=1
    returns=gae returns.lambda_=1 gamma=0.99
    algorithm=a3c algorithm.entropy_coefficient=0.01 algorithm.value_coefficient=0.5
    optimizer=rmsprop_tf optimizer.learning_rate=7e-4 optimizer.epsilon=1e-5
    optimizer.max_grad_norm=0.5 schedule=constant
    backend=serial workers=1 envs_per_worker={GAMES} rollout_length={STEPS}
"""
"""The policy's gain is 1, so that it is far from uniform. The critic's coefficient is of half the
squared error here, and of the whole there, where it is 0.25."""
# Layers here -> layers there.
LAYERS = {
    "actor_encoder.convolutions.0": "features_extractor.cnn.0",
    "actor_encoder.convolutions.1": "features_extractor.cnn.2",
    "actor_encoder.convolutions.2": "features_extractor.cnn.4",
    "actor_encoder.last": "features_extractor.linear.0",
    "head.linear": "action_net",
    "value": "value_net",
}


class NoiseImages(gymnasium.Env[Array, Any]):
    """Four frames of random bytes. Rewards depend on the action; episodes end at random, by death
    or a time limit."""

    observation_space = Box(0, 255, (4, 84, 84), np.uint8)
    action_space = Discrete(ACTIONS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        return self._image(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        died, cut = (bool(flag) for flag in self.np_random.random(2) < 0.2)
        return (
            self._image(),
            float(self.np_random.normal() + action - 2),
            died,
            cut and not died,
            {},
        )

    def _image(self) -> NDArray[np.uint8]:
        return self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)


def their_name(name: str) -> str:
    layer, _, kind = name.rpartition(".")
    return f"{LAYERS[layer]}.{kind}"


class Ours:
    """A worker that takes one update after another. Parameters and gradients have the names that
    they have there."""

    def __init__(self) -> None:
        _, (self._worker,) = make_workers(compose(RECIPE.split()))

    def update(self) -> tuple[Rollout, Event]:
        snapshot = self._worker._learner.pull()
        rollout = self._worker._actor.collect(snapshot)
        return rollout, next_event(self._worker._learner.learn(rollout, snapshot))

    def parameters(self) -> dict[str, Array]:
        """The shared parameters as they are now."""
        self._worker._learner.pull()
        parameters = self._worker._network.named_parameters()
        return {
            their_name(name): parameter.detach().numpy().copy() for name, parameter in parameters
        }

    def gradients(self) -> dict[str, Array]:
        """The gradient of the latest update, clipped."""
        parameters: Any = self._worker._network.named_parameters()
        return {their_name(name): parameter.grad.numpy() for name, parameter in parameters}


class Theirs:
    """Its A2C on the same environments, with the actions that it is told."""

    def __init__(self, parameters: dict[str, Array], monkeypatch: pytest.MonkeyPatch) -> None:
        envs = DummyVecEnv([NoiseImages] * GAMES)
        envs._seeds = list(seeding.environment_seeds(0, Role.ENVIRONMENT, 0, GAMES))
        policy = {
            "optimizer_class": RMSpropTFLike,
            "optimizer_kwargs": {"eps": 1e-5},
            "ortho_init": False,
        }
        loss = {
            "gamma": 0.99,
            "gae_lambda": 1.0,
            "vf_coef": 0.25,
            "ent_coef": 0.01,
            "normalize_advantage": False,
        }
        descent = {"learning_rate": 7e-4, "max_grad_norm": 0.5, "policy_kwargs": policy}
        self.model = SB3.A2C("CnnPolicy", envs, n_steps=STEPS, device="cpu", **loss, **descent)
        self.model.set_logger(Logger(None, []))
        self.policy = self.model.policy
        with torch.no_grad():
            for name, parameter in self.policy.named_parameters():
                parameter.copy_(torch.from_numpy(parameters[name]))
        self._actions: Iterator[Array] = iter(())
        monkeypatch.setattr(
            self.policy.action_dist, "sample", lambda: torch.from_numpy(next(self._actions))
        )
        _, self._callback = self.model._setup_learn(10**9)

    def update(self, actions: Array) -> tuple[Array, Array]:
        """Returns values and log-probabilities of the rollout, [T, B]."""
        self._actions = iter(actions)
        buffer = self.model.rollout_buffer
        assert self.model.collect_rollouts(self.model.env, self._callback, buffer, STEPS)
        values, log_probs = buffer.values.copy(), buffer.log_probs.copy()
        self.model.train()
        return values, log_probs

    def log(self) -> dict[str, float]:
        """The losses that it reports."""
        return {
            name.removeprefix("train/"): value
            for name, value in self.model.logger.name_to_value.items()
        }

    def parameters(self) -> dict[str, Array]:
        return {
            name: parameter.detach().numpy().copy()
            for name, parameter in self.policy.named_parameters()
        }

    def gradients(self) -> dict[str, Array]:
        return {name: parameter.grad.numpy() for name, parameter in self.policy.named_parameters()}


def deviations(ours: dict[str, Array], theirs: dict[str, Array]) -> dict[str, float]:
    """The largest deviation of each array, as a share of its largest number there."""
    assert ours.keys() == theirs.keys()
    return {
        name: float(abs(ours[name] - expected).max() / abs(expected).max())
        for name, expected in theirs.items()
    }


def differences(after: dict[str, Array], before: dict[str, Array]) -> dict[str, Array]:
    return {name: after[name] - before[name] for name in after}


def assert_close(of_updates: list[dict[str, float]]) -> None:
    """Deviations are within 1e-4.

    But one of a million units may have an input that is 0 but for rounding, and be active in one
    library alone. Then the gradients of all layers before it differ by about 1e-3. So these need to
    be within 1e-4 in some update only.
    """
    for name in of_updates[0]:
        differences = [update[name] for update in of_updates]
        before_units = name.startswith("features_extractor")
        assert max(differences) < (1e-2 if before_units else 1e-4), (name, differences)
        assert min(differences) < 1e-4, (name, differences)


@pytest.fixture
def noise() -> Iterator[None]:
    """The environment, under a name."""
    gymnasium.register(NOISE, f"{__name__}:NoiseImages")
    yield
    del gymnasium.registry[NOISE]


@pytest.mark.usefixtures("noise")
def test_updates_are_those_of_stable_baselines3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both libraries step the same environments from the same parameters with the same actions,
    take the gradient and make the step. Later updates have the statistics of the first."""
    ours = Ours()
    theirs = Theirs(ours.parameters(), monkeypatch)
    gradients = list[dict[str, float]]()
    steps = list[dict[str, float]]()
    for _ in range(UPDATES):
        before = ours.parameters(), theirs.parameters()
        with one_thread():
            rollout, event = ours.update()
            values, log_probs = theirs.update(rollout.actions)
        np.testing.assert_allclose(rollout.values, values, 1e-4, 1e-4)
        np.testing.assert_allclose(rollout.log_probs, log_probs, 1e-4, 1e-4)

        metrics, log = {name: metric.mean for name, metric in event.metrics.items()}, theirs.log()
        assert metrics["policy_loss"] == pytest.approx(log["policy_loss"], rel=1e-4, abs=1e-4)
        assert 2 * metrics["value_loss"] == pytest.approx(log["value_loss"], rel=1e-4)
        assert metrics["entropy"] == pytest.approx(-log["entropy_loss"], rel=1e-4)
        assert metrics["explained_variance"] == pytest.approx(log["explained_variance"], abs=1e-4)

        after = ours.parameters(), theirs.parameters()
        gradients.append(deviations(ours.gradients(), theirs.gradients()))
        steps.append(deviations(differences(after[0], before[0]), differences(after[1], before[1])))
        for name, expected in after[1].items():
            np.testing.assert_allclose(after[0][name], expected, 1e-4, 1e-6, err_msg=name)
        # The rollout has what matters: ends of both kinds before its last row, and a gradient that
        # is clipped.
        assert rollout.terminated[:-1].any() and rollout.truncated[:-1].any()
        assert metrics["grad_norm"] > 1
    assert_close(gradients)
    # Of steps from weights, which are much larger, the last digits are lost. Biases start at 0.
    assert all(deviation < 0.03 for step in steps for deviation in step.values())
    assert_close([{name: step[name] for name in step if name.endswith(".bias")} for step in steps])
