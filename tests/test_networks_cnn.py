"""Networks for images: what they compute, in every number format and memory layout, and what they
refuse."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from learning import compare_gradients, learned
from nets import make_network
from torch import nn

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.engine.check_network import verify
from a3c_exp.errors import ConfigError
from a3c_exp.networks import ActorCritic, Cnn, Impala, cnn
from a3c_exp.networks.cnn import multiplies_bfloat16, to_format
from a3c_exp.networks.inputs import LEAST_FOR_CNN, ImageLayout

ATARI = Box(0, 255, (4, 84, 84), np.uint8)
SMALL = Box(0, 255, (2, 20, 18), np.uint8)
NATURE: dict[str, Any] = {"layers": ((32, 8, 4), (64, 4, 2), (64, 3, 1)), "features_dim": 512}
# float32 on every processor, so that tolerances are those of rounding.
EXACT: dict[str, Any] = {"precision": "float32", "policy_gain": 1.0}
ENCODERS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "plain": (Cnn, {"layers": ((4, 4, 2), (6, 3, 1)), "features_dim": 16}),
    "separate": (
        Cnn,
        {"layers": ((4, 4, 2),), "features_dim": 16, "shared": False, "activation": "elu"},
    ),
    "bare": (Cnn, {"layers": ((4, 4, 2), (6, 3, 1)), "features_dim": None}),
    "padded": (
        Cnn,
        {
            "layers": ((4, 3, 2), (6, 3, 2)),
            "features_dim": None,
            "padding": "same",
            "activation": "elu",
        },
    ),
    "residual": (Impala, {"sections": (4, 6), "blocks": 1, "features_dim": 16}),
}


def build(name: str, space: Box = SMALL, **settings: Any) -> ActorCritic:
    encoder, defaults = ENCODERS[name]
    return build_encoder(encoder, space, **EXACT | defaults | settings)


def build_encoder(encoder: type[nn.Module], space: Box = SMALL, **settings: Any) -> ActorCritic:
    return make_network(
        encoder, space, Discrete(5), **{"shared": True, "init": "orthogonal", **settings}
    )


def encoder_of(network: ActorCritic) -> Any:
    return dict(network.named_children())["actor_encoder"]


def random_images(count: int = 7, space: Box = SMALL) -> Array:
    return np.random.default_rng(2).integers(0, 256, (count, *space.shape)).astype(np.uint8)


def gradient(network: ActorCritic, images: Array) -> Floats:
    """The gradient of the sum of values and log-probabilities, over one step of a batch."""
    network.gradient.fill(0)
    learned(network, images[None], np.zeros((1, len(images)), np.int64), values=1, log_probs=1)
    gradient: Floats = network.gradient.copy()
    return gradient


@pytest.mark.parametrize(
    ("encoder", "settings", "convolutions", "flat", "features"),
    [
        (Cnn, {}, [4112, 8224], 32 * 9 * 9, 256),
        (Cnn, NATURE, [8224, 32832, 36928], 64 * 7 * 7, 512),
        (Impala, {}, [592, *[2320] * 4, 4640, *[9248] * 4, 9248, *[9248] * 4], 32 * 11 * 11, 256),
    ],
    ids=["paper", "nature", "impala"],
)
def test_the_published_networks_have_their_published_sizes(
    encoder: type[nn.Module],
    settings: dict[str, Any],
    convolutions: list[int],
    flat: int,
    features: int,
) -> None:
    network = build_encoder(encoder, ATARI, init="default", **settings)
    layers = [*encoder_of(network).convolutions, encoder_of(network).last]
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    assert sizes == [*convolutions, (flat + 1) * features]
    assert len(network.vector) == sum(sizes) + (features + 1) * (5 + 1)


def test_it_computes_what_torch_computes_with_the_same_layers() -> None:
    encoder = encoder_of(build_encoder(Cnn, ATARI, **EXACT))
    convolutions = [
        nn.Conv2d(4, 16, 8, 4),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.Flatten(),
    ]
    theirs = nn.Sequential(*convolutions, nn.Linear(2592, 256), nn.ReLU())
    for mine, index in zip([*encoder.convolutions, encoder.last], (0, 2, 5), strict=True):
        theirs[index].load_state_dict(mine.state_dict())
    images = torch.from_numpy(random_images(3, ATARI))
    np.testing.assert_allclose(
        encoder(images).detach(), theirs(images.float() / 255).detach(), atol=1e-5
    )


def tensorflows_zeros(n: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after n inputs with TensorFlow's padding SAME, by the formula in its guide
    on convolutions."""
    total = max(kernel - (stride if n % stride == 0 else n % stride), 0)
    return total // 2, total - total // 2


@pytest.mark.parametrize("kernel", [1, 3, 4])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_padding_is_that_of_tensorflow(kernel: int, stride: int) -> None:
    """Even and odd heights and widths, larger and smaller than the kernel. Zeros around bytes are
    zeros, scaled."""
    for height, width in ((6, 9), (7, 8), (3, 2)):
        fixed: dict[str, Any] = {
            "features_dim": None,
            "activation": "elu",
            "padding": "same",
            "precision": "float32",
        }
        encoder = Cnn(2, height, width, 255.0, ((3, kernel, stride),), **fixed)
        image = random_images(1, Box(0, 255, (2, height, width), np.uint8))
        layer: Any = encoder.convolutions[0]
        margins = (
            *tensorflows_zeros(width, kernel, stride),
            *tensorflows_zeros(height, kernel, stride),
        )
        x = nn.functional.pad(torch.from_numpy(image).float() / 255, margins)
        expected = nn.functional.elu(nn.functional.conv2d(x, layer.weight, layer.bias, stride))
        assert expected.shape[1:] == (3, -(-height // stride), -(-width // stride))
        torch.testing.assert_close(
            encoder(torch.from_numpy(image)), expected.flatten(1), atol=1e-5, rtol=0
        )


def test_a_residual_block_adds_to_its_input() -> None:
    """With blocks that are 0 a section is its convolution and the maximum."""
    encoder = encoder_of(build("residual"))
    for convolution in [
        layer for start in (1, 4) for layer in encoder.convolutions[start : start + 2]
    ]:
        convolution.weight.data.zero_()
    images = torch.from_numpy(random_images(3))
    x = images.float() / 255
    for first in (encoder.convolutions[0], encoder.convolutions[3]):
        x = nn.functional.max_pool2d(
            nn.functional.conv2d(x, first.weight, first.bias, padding=1), 3, 2, 1
        )
    expected = torch.relu(
        nn.functional.linear(torch.relu(x).flatten(1), encoder.last.weight, encoder.last.bias)
    )
    torch.testing.assert_close(encoder(images), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ENCODERS)
def test_its_gradient_is_that_of_torch(name: str) -> None:
    """Heads and values are computed on arrays. Their derivatives go on into the graph of the
    convolutions."""
    compare_gradients(build(name), random_images(6).reshape(3, 2, *SMALL.shape), Discrete(5))


@pytest.mark.parametrize("name", ["separate", "padded", "residual"])
def test_acting_and_learning_agree_in_every_layout_and_size_of_chunks(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels lie last with AVX-512. The layout changes nothing but rounding, as the size of
    chunks."""
    images = random_images()
    network = build(name)
    outputs = []
    for vectors, chunk in (("AVX512", 1), ("AVX512", 2**20), ("DEFAULT", 2**20)):
        monkeypatch.setattr(
            torch.backends.cpu, "get_cpu_capability", lambda vectors=vectors: vectors
        )
        monkeypatch.setattr(cnn, "CHUNK_BYTES", chunk)
        parameters, values, _ = network.act_forward(images)
        actions, log_probs = network.distribution.sample(parameters, np.random.default_rng(3))
        again, _ = network.runtime.evaluate(images[None], actions[None])
        np.testing.assert_allclose(again.values[0], values, atol=1e-5)
        np.testing.assert_allclose(network.values(images), values, atol=1e-5)
        np.testing.assert_allclose(again.log_probs[0], log_probs, atol=1e-5)
        outputs.append((parameters, gradient(network, images)))
    for parameters, by in outputs[1:]:
        np.testing.assert_allclose(parameters, outputs[0][0], atol=1e-5)
        np.testing.assert_allclose(by, outputs[0][1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["plain", "padded", "residual"])
def test_in_bfloat16_it_is_the_same_network_to_two_digits(name: str) -> None:
    half = build(name, precision="bfloat16")
    full = build(name)
    images = random_images()
    np.testing.assert_array_equal(half.vector, full.vector)
    assert half.act_forward(images)[1].dtype == half.gradient.dtype == np.float32
    np.testing.assert_allclose(half.act_forward(images)[1], full.act_forward(images)[1], atol=0.05)
    one = gradient(half, images)
    other = gradient(full, images)
    assert one @ other > 0.99 * np.linalg.norm(one) * np.linalg.norm(other)


@pytest.mark.parametrize(
    ("half", "vectors"), [(True, "AVX512"), (False, "AVX512"), (False, "DEFAULT")]
)
def test_auto_chooses_what_is_fast_on_the_processor(
    half: bool, vectors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bfloat16 for many images, if it is multiplied; channels last with AVX-512, in bfloat16 and
    where they pay."""
    monkeypatch.setattr(cnn, "multiplies_bfloat16", lambda: half)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    formats: list[Any] = []

    def noted(x: torch.Tensor, *chosen: Any) -> torch.Tensor:
        formats.append(chosen)
        return to_format(x, *chosen)

    monkeypatch.setattr(cnn, "to_format", noted)
    for name, large, always_last in (("plain", 12, False), ("residual", 4, True)):
        encoder = encoder_of(build(name, precision="auto"))
        for count, learns in product((large, large - 1), (False, True)):
            with torch.set_grad_enabled(learns):
                encoder(torch.from_numpy(random_images(count)))
            reduced = half and count == large
            last = vectors == "AVX512" and (reduced or learns or always_last)
            assert formats.pop() == (torch.bfloat16 if reduced else torch.float32, last)


@pytest.mark.parametrize(
    ("flags", "multiplies"),
    [
        ("fpu avx512f amx_tile amx_bf16", True),
        ("fpu avx512f avx512_bf16 clzero", True),
        ("fpu avx512f", False),
    ],
)
def test_processors_that_multiply_bfloat16(
    flags: str, multiplies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"processor\t: 0\nflags\t\t: {flags}\n")
    assert multiplies_bfloat16.__wrapped__() == multiplies


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((8, 9), (1, 8, 9)),
        ((4, 8, 9), (4, 8, 9)),
        ((8, 9, 3), (3, 8, 9)),
        ((8, 8, 1), (1, 8, 8)),
        ((4, 8, 9, 3), (12, 8, 9)),
        ((4, 3, 8, 9), (12, 8, 9)),
        ((8, 8, 20), (20, 8, 8)),
    ],
)
def test_every_order_of_axes_is_understood(
    shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """Each number lies where channel, row and column say. Stacked frames and their colours are both
    channels."""
    layout = ImageLayout.of(shape)
    assert layout is not None
    assert layout.shape == expected
    images = np.random.default_rng(2).integers(0, 256, (2, *shape)).astype(np.uint8)
    frames = images.reshape(2, -1, *shape[-3:]) if len(shape) > 2 else images[:, None, None]
    if shape[-1] in (1, 3, 20):
        frames = np.moveaxis(frames, -1, 2)
    by_hand = np.concatenate([frames[:, moment] for moment in range(frames.shape[1])], 1)
    for channels_last in (False, True):
        arranged = to_format(
            layout.channels_first(torch.from_numpy(images)), torch.float32, channels_last
        )
        assert arranged.dtype == torch.float32
        np.testing.assert_array_equal(arranged.numpy(), by_hand)


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(0, 1, np.uint8), (0, 255, np.uint8), (-255, 100, np.float32), (0, 0.5, np.float32)],
)
def test_the_largest_number_of_an_image_is_scaled_to_1(low: float, high: float, dtype: Any) -> None:
    """A board game of 0 and 1 is no darker than one of 0 and 255, in bytes or in floats."""
    board = np.random.default_rng(2).integers(0, 2, (3, *SMALL.shape))
    values_of_bytes = build("plain", Box(low, high, SMALL.shape, dtype)).values(
        (board * high).astype(dtype)
    )
    expected = build("plain", Box(0, 1, SMALL.shape)).values(
        (board * high / max(-low, high, 1)).astype(np.float32)
    )
    np.testing.assert_allclose(values_of_bytes, expected, atol=1e-5)


def test_kernels_have_the_size_of_their_initialization() -> None:
    def kernel(scheme: str) -> torch.Tensor:
        weight: torch.Tensor = (
            encoder_of(build("separate", features_dim=8, init=scheme)).convolutions[0].weight
        )
        return weight.detach().flatten(1)

    torch.testing.assert_close(kernel("normalized_columns").norm(dim=1), torch.ones(4))
    rows = kernel("orthogonal")
    torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(4), atol=1e-5, rtol=0)
    assert kernel("normal").std().item() == pytest.approx(0.1, rel=0.25)
    assert 0.9 / np.sqrt(32) < kernel("default").abs().max().item() <= 1 / np.sqrt(32)


def test_an_image_too_small_for_the_convolutions_is_refused_with_networks_that_take_it() -> None:
    small = Box(0, 255, (7, 7, 3), np.uint8)
    with pytest.raises(ConfigError, match=r"layers.* 7 x 7: padding=same .*network=cnn_impala"):
        make_network(Cnn, small)
    for network in (make_network(Cnn, small, padding="same"), make_network(Impala, small)):
        verify(network, small)
    sides = [LEAST_FOR_CNN - 1, LEAST_FOR_CNN]
    for side, fits in zip(sides, (False, True), strict=True):
        with nullcontext() if fits else pytest.raises(ConfigError, match="leave nothing"):
            make_network(Cnn, Box(0, 255, (side, side, 3), np.uint8))
