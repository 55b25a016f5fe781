"""Images of bytes with a mean and a standard deviation: measured by the workers, applied by the
network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from nets import make_network
from refusals import refused
from runs import CORNERS, SMALL_CNN, TARGET, config, latest, train
from test_networks_cnn import SMALL, build, random_images
from user_modules import SeenRaw

import a3c_exp
from a3c_exp.callbacks import Callback, RunView
from a3c_exp.common.arrays import Array
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.experiment import build_network
from a3c_exp.core.normalization import NormalizedObservations
from a3c_exp.engine.arrays import OutputGradients
from a3c_exp.errors import ConfigError
from a3c_exp.networks import Cnn
from a3c_exp.networks.inputs import ImageLayout
from a3c_exp.run.policy import Policy

SPACE = SMALL
MEAN = 87.3
DEVIATION = 40.0


def statistics(each: bool) -> tuple[Array, Array]:
    """A mean and the inverse of a deviation, of all pixels together or of each."""
    if not each:
        return np.array(MEAN, np.float32), np.array(1 / DEVIATION, np.float32)
    rng = np.random.default_rng(3)
    mean = rng.uniform(60, 160, SPACE.shape).astype(np.float32)
    return mean, (1 / rng.uniform(30, 80, SPACE.shape)).astype(np.float32)


def scaled(images: Array, each: bool) -> Array:
    """By definition; the one mean of all pixels is a whole number."""
    mean, inverse_std = statistics(each)
    values: Array = (images.astype(np.float32) - (mean if each else mean.round())) * inverse_std
    return values


def test_a_normalization_that_is_yet_to_be_measured_is_none() -> None:
    with pytest.raises(ValueError, match="resolve"):
        NormalizedObservations.of("background", SPACE)


def test_a_fixed_mean_is_of_pixels_alone() -> None:
    vectors = Box(-1, 1, (4,), np.float32)
    refused(
        lambda: NormalizedObservations.of((87.0, 64.0), vectors),
        "env.normalize_observations",
        [87.0, 64.0],
    )


@pytest.mark.parametrize("each", [False, True], ids=["one", "each"])
@pytest.mark.parametrize("name", ["plain", "padded", "residual"])
def test_pixels_less_their_mean_over_their_deviation_enter_the_network(
    name: str, each: bool
) -> None:
    """The same numbers give the same outputs and gradients as a network that gets them as they
    are."""
    images = random_images()
    network = build(name)
    plain = build(name, Box(-1, 1, SPACE.shape, np.float32))
    plain.vector[:] = network.vector
    network.normalize_pixels(*statistics(each))
    actions = np.zeros((1, len(images)), np.int64)
    results = []
    for one, observations in ((network, images), (plain, scaled(images, each))):
        outputs, add_gradient = one.runtime.evaluate(observations[None], actions)
        ones = np.ones_like(outputs.values)
        add_gradient(OutputGradients(log_probs=ones, entropy=0 * ones, values=ones))
        results.append(
            (outputs.values, outputs.log_probs, one.act_forward(observations)[0], one.gradient)
        )
    for scaled_by_network, expected in zip(*results, strict=True):
        np.testing.assert_allclose(scaled_by_network, expected, rtol=1e-3, atol=1e-4)


def test_bfloat16_does_not_lose_what_differs_a_little_from_the_center() -> None:
    """A byte less the center is a whole number of at most 255, which bfloat16 has; a scaled one is
    rounded first."""
    encoder = Cnn(1, 8, 8, 255.0, layers=((1, 1, 1),), features_dim=None, precision="bfloat16")
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            parameter.fill_(float("weight" in name))
    layout = ImageLayout.of((1, 8, 8))
    assert layout is not None
    encoder.pixels.normalize(layout, np.array(200, np.float32), np.array(1 / 64, np.float32))
    images = torch.full((16, 1, 8, 8), 200, dtype=torch.uint8)
    images[:, :, 4, 4] = 201
    features = encoder(images).reshape(16, 8, 8)
    assert torch.all(features[:, 4, 4] == 1 / 64)
    assert int(torch.count_nonzero(features)) == 16


def test_pixels_of_one_color_are_not_blown_up() -> None:
    network = build("plain")
    network.normalize_pixels(np.array(7, np.float32), np.array(1e4, np.float32))
    pixels: Any = network.observation_input.pixels
    assert pixels.scale == pytest.approx(1 / 2.55)


@pytest.mark.parametrize("setting", ["shared", True])
def test_workers_measure_the_pixels_of_their_environments(setting: Any, tmp_path: Path) -> None:
    """CORNERS shows bright squares on black: the statistics of a run are those of its images."""
    train(
        tmp_path, CORNERS, network=SMALL_CNN, env__normalize_observations=setting, total_steps=800
    )
    row = latest(tmp_path)["store"]["stats"]
    experiment = load_experiment(
        config(CORNERS, network=SMALL_CNN, env__normalize_observations=setting)
    )
    _, env = build_network(experiment)
    seen = np.concatenate(
        [experiment.env.make(4, range(i, i + 4)).reset() for i in range(0, 400, 4)]
    )
    form = NormalizedObservations.of(setting, env.observation_space)
    flat = seen.reshape(-1, *form.shape)
    assert row[0] >= 200  # one step in four of four environments
    size = max(int(np.prod(form.shape)), 1)
    np.testing.assert_allclose(row[1 : 1 + size], flat.mean(0).ravel(), atol=25)
    policy = Policy(experiment, latest(tmp_path)["store"])
    pixels = policy.network.observation_input.pixels
    assert pixels is not None and policy.normalizer is not None
    np.testing.assert_allclose(
        np.mean(torch.as_tensor(pixels.center).numpy()), row[1 : 1 + size].mean(), atol=0.5
    )


def test_the_network_of_a_callback_scales_them_as_the_policy_does(tmp_path: Path) -> None:
    @dataclass(kw_only=True)
    class Looks(Callback):
        outputs: ClassVar[list[Any]] = []

        def on_trained(self, run: RunView) -> None:
            self.outputs.append(run.module()(seen))

    seen = torch.from_numpy(random_images(2, Box(0, 255, (12, 12, 3), np.uint8)))
    run_config = config(CORNERS, network=SMALL_CNN, env__normalize_observations="shared")
    a3c_exp.train(run_config, tmp_path / "run", callbacks=[Looks()])
    [looked_at] = Looks.outputs
    torch.testing.assert_close(
        looked_at[:2], a3c_exp.load(tmp_path / "run", ["scripted"]).network(seen)[:2]
    )


def test_workers_elsewhere_measure_them_too(tmp_path: Path) -> None:
    """Images are sent as bytes, and whoever computes the network scales them."""
    settings: dict[str, Any] = {"env__normalize_observations": "shared", "network": SMALL_CNN}
    train(tmp_path, CORNERS, "ga3c", workers=2, total_steps=800, **settings)
    count, mean = latest(tmp_path)["store"]["stats"][:2]
    # one step in four, of which some are still on their way at the end
    assert count >= 800 / 4 * 12 * 12 * 3 / 2
    assert mean == pytest.approx(60, abs=5)


@pytest.mark.parametrize(
    ("env", "setting"),
    [(CORNERS, [87, 0]), (CORNERS, [1e39, 64]), (TARGET, [87, 60]), (CORNERS, "pixels")],
)
def test_what_cannot_be_normalized_so_is_refused(env: str, setting: Any) -> None:
    network: dict[str, Any] = {"network": SMALL_CNN} if env == CORNERS else {}
    with pytest.raises(ConfigError, match=r"^env.normalize_observations = "):
        load_experiment(config(env, env__normalize_observations=setting, **network))


def test_a_network_that_takes_the_bytes_must_be_able_to_scale_them() -> None:
    with pytest.raises(ConfigError, match=r"^env.normalize_observations = 'shared': .*raw_images"):
        NormalizedObservations.of("shared", SPACE).prepare(
            make_network(SeenRaw, SPACE, Discrete(5))
        )
