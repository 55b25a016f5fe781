"""A network in training is a torch module whose parameters lie in one vector, whatever computes it."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from learning import compare_gradients, evaluated_by_torch, learned
from nets import VECTORS, draw_actions, draw_recurrent_input, make_lstm, make_network, normal
from torch import Tensor, nn

from a3c_exp.common.arrays import Array
from a3c_exp.config.modules import network_of
from a3c_exp.errors import ConfigError, FolderError
from a3c_exp.networks import ActorCritic, Cnn, Mlp, OutputGradients

PICTURES = Box(0, 255, (2, 20, 18), np.uint8)
MLP: dict[str, Any] = {"hidden_sizes": (5,), "policy_gain": 1.0, "init": "orthogonal"}
CNN: dict[str, Any] = {
    "layers": ((4, 4, 2),), "features_dim": 8, "precision": "float32", "policy_gain": 1.0, "init": "orthogonal",
}  # fmt: skip


class Residual(nn.Module):
    """An encoder that no kernel runs, with a buffer, frozen parameters, and a layer that is used twice."""

    scale: Tensor

    def __init__(self, inputs: int, width: int = 6) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(inputs, width), nn.Linear(width, width)
        self.register_buffer("scale", torch.tensor(0.5))
        self.shift = nn.Parameter(torch.ones(width), requires_grad=False)
        self.noise = nn.Parameter(torch.rand(inputs), requires_grad=False)

    def forward(self, observations: Tensor) -> Tensor:
        x = torch.tanh(self.first(observations + self.noise))
        for _ in range(2):
            x = x + self.scale * torch.tanh(self.again(x))
        return x + self.shift


class Tied(nn.Sequential):
    """An encoder for kernels, with a layer that is used twice, and a weight that two layers share."""

    def __init__(self, inputs: int) -> None:
        layer, other = nn.Linear(inputs, inputs), nn.Linear(inputs, inputs)
        other.weight = layer.weight
        super().__init__(layer, nn.Tanh(), layer, nn.ELU(), other)


class Half(nn.Module):
    """An encoder of which kernels run nothing, although its parts have kernels."""

    def __init__(self, inputs: int, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, width), nn.Tanh())

    def forward(self, observations: Tensor) -> Tensor:
        features: Tensor = self.layers(observations)
        return features


NETWORKS: dict[str, Callable[..., ActorCritic]] = {
    "mlp": lambda **more: make_network(Mlp, VECTORS, **MLP | more),
    "shared": lambda **more: make_network(Mlp, VECTORS, shared=True, **MLP | more),
    "box": lambda **more: make_network(Mlp, VECTORS, Box(-1, 1, (2,)), **MLP | more),
    "cnn": lambda **more: make_network(Cnn, PICTURES, Discrete(3), shared=True, **CNN | more),
    "cnns": lambda **more: make_network(Cnn, PICTURES, Discrete(3), **CNN | more),
    "residual": lambda **more: make_network(Residual, VECTORS, policy_gain=1.0, **more),
    "tied": lambda **more: make_network(Tied, VECTORS, policy_gain=1.0, **more),
    "lstm": lambda **more: make_lstm(
        Mlp, VECTORS, hidden_size=4, encoder={"hidden_sizes": (5,)}, policy_gain=1.0, **more
    ),
    "lstm of a box": lambda **more: make_lstm(Half, VECTORS, Box(-1, 1, (2,)), hidden_size=4, policy_gain=1.0, **more),
    "lstm of pictures": lambda **more: make_lstm(
        Cnn, PICTURES, hidden_size=4, policy_gain=1.0, encoder=CNN, **more
    ),
    "lstm of pictures, padded": lambda **more: make_lstm(
        Cnn, PICTURES, hidden_size=4, policy_gain=1.0, head_bias=False,
        encoder=CNN | {"features_dim": None, "padding": "same", "activation": "elu"}, **more
    ),
}  # fmt: skip
ALL = pytest.mark.parametrize("name", NETWORKS)


def space_of(name: str) -> gym.Space[Any]:
    if "box" in name:
        return Box(-1, 1, (2,))
    return Discrete(3) if name.startswith("cnn") else Discrete(2)


def draw_observations(name: str, *rows: int) -> Array:
    if "cnn" in name or "pictures" in name:
        return np.random.default_rng(2).integers(0, 256, (*rows, *PICTURES.shape)).astype(np.uint8)
    return normal(*rows, 4)


def outputs_of(network: ActorCritic, observations: Array) -> list[Array]:
    """Parameters, values and, if there is one, the state after the first step, by torch."""
    with torch.no_grad():
        outputs = network(torch.from_numpy(observations))
    return [tensor.numpy() for tensor in outputs if tensor is not None]


def assert_same_outputs(one: ActorCritic, other: ActorCritic, observations: Array, tolerance: float = 0.0) -> None:
    for mine, theirs in zip(outputs_of(one, observations), outputs_of(other, observations), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=tolerance, rtol=0)


class TestTheVector:
    @ALL
    def test_holds_every_trained_parameter_and_its_gradient_once(self, name: str) -> None:
        network = NETWORKS[name]()
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        assert sum(parameter.numel() for parameter in trained) == len(network.vector)
        places = []
        for parameter in trained:
            assert parameter.grad is not None
            for tensor, flat in ((parameter.detach(), network.vector), (parameter.grad, network.gradient)):
                assert np.shares_memory(tensor.numpy(), flat)
            places.append((parameter.data_ptr() - network.vector.ctypes.data) // 4)
            offset = (parameter.grad.data_ptr() - network.gradient.ctypes.data) // 4
            assert offset == places[-1]
        ends = [place + parameter.numel() for place, parameter in zip(places, trained, strict=True)]
        assert sorted(places) == [0, *sorted(ends)[:-1]]

    @ALL
    def test_who_writes_to_it_changes_parameters_state_dict_and_outputs(self, name: str) -> None:
        network, observations = NETWORKS[name](), draw_observations(name, 3)
        network.vector[:] = 0.25
        assert all((parameter == 0.25).all() for parameter in network.parameters() if parameter.requires_grad)
        trained = {key for key, p in network.named_parameters(remove_duplicate=False) if p.requires_grad}
        state = network.state_dict()
        assert trained and all((state[key] == 0.25).all() for key in trained)
        network.vector[:] = 0
        parameters, values, _ = network.act_forward(observations, network.initial_state(3))
        assert not parameters.any() and not values.any()

    @ALL
    def test_groups_cover_it_without_overlap(self, name: str) -> None:
        network = NETWORKS[name]()
        edges = [(part.start, part.stop) for part in network.param_slices.values()]
        assert [start for start, _ in edges] == [0, *[end for _, end in edges[:-1]]]
        assert edges[-1][1] == len(network.vector)

    @pytest.mark.parametrize("set_to_none", [True, False])
    @ALL
    def test_zero_grad_keeps_gradients_in_their_place(self, name: str, set_to_none: bool) -> None:
        """Since torch 2, zero_grad() sets gradients to None, which would silently cut them off the flat vector."""
        network, observations = NETWORKS[name](), draw_observations(name, 2, 3)
        network.gradient.fill(1)
        network.zero_grad(set_to_none=set_to_none)
        assert not network.gradient.any()
        recurrent_input = draw_recurrent_input(network, 2, 3)
        learned(network, observations, draw_actions(network, observations), recurrent_input, values=1, entropy=1)
        assert network.gradient.any()
        for parameter in network.parameters():
            assert parameter.grad is None or np.shares_memory(parameter.grad.numpy(), network.gradient)


def order(network: ActorCritic) -> list[str]:
    """The names of the trained parameters as they lie in the vector."""
    placed = {parameter.data_ptr(): name for name, parameter in network.named_parameters() if parameter.requires_grad}
    return [placed[pointer] for pointer in sorted(placed)]


LINEAR = ("weight", "bias")


def names(*modules: str) -> list[str]:
    return [f"{module}.{kind}" for module in modules for kind in LINEAR]


class TestTheOrderOfParameters:
    def test_of_a_shared_encoder(self) -> None:
        network = NETWORKS["shared"]()
        assert order(network) == names("actor_encoder.0", "head.linear", "value")
        sizes = {name: part.stop - part.start for name, part in network.param_slices.items()}
        assert sizes == {"encoder": 4 * 5 + 5, "actor": 5 * 2 + 2, "critic": 5 + 1}

    def test_of_two_encoders(self) -> None:
        network = make_network(Mlp, VECTORS, Box(-1, 1, (2,)), hidden_sizes=(5,), critic_hidden_sizes=(3,))
        expected = [*names("actor_encoder.0", "head.linear"), "head.log_std", *names("critic_encoder.0", "value")]
        assert order(network) == expected
        sizes = {name: part.stop - part.start for name, part in network.param_slices.items()}
        assert sizes == {"actor": 4 * 5 + 5 + 5 * 2 + 2 + 2, "critic": 4 * 3 + 3 + 3 + 1}

    def test_of_cells(self) -> None:
        network = NETWORKS["lstm"]()
        cells = ["core.inputs", "core.recurrent", "core.bias"]
        assert order(network) == [*names("actor_encoder.0"), *cells, *names("head.linear", "value")]
        sizes = {name: part.stop - part.start for name, part in network.param_slices.items()}
        assert sizes == {"encoder": 4 * 5 + 5 + 16 * (5 + 4 + 1), "actor": 4 * 2 + 2, "critic": 4 + 1}

    @pytest.mark.parametrize("shared", [True, False])
    def test_the_module_of_a_loss_comes_last(self, shared: bool) -> None:
        network = network_of(Mlp, {"hidden_sizes": (5,), "shared": shared}).build(
            VECTORS, Discrete(2), np.random.default_rng(1), build_loss=lambda features: nn.Linear(features, 3)
        )
        assert order(network)[-2:] == names("loss_module")
        assert list(network.param_slices)[-1] == "loss"
        loss = network.param_slices["loss"]
        assert (loss.stop - loss.start, loss.stop) == (5 * 3 + 3, len(network.vector))

    def test_frozen_parameters_and_buffers_are_not_in_it_but_among_the_constants(self) -> None:
        network = NETWORKS["residual"]()
        encoders = ("actor_encoder", "critic_encoder")
        expected = {f"{encoder}.{name}" for encoder in encoders for name in ("scale", "shift", "noise")}
        assert network.constants().keys() == expected
        assert len(network.vector) == 2 * (4 * 6 + 6 + 6 * 6 + 6) + (6 * 2 + 2) + (6 + 1)

    def test_constants_are_read_and_written_by_name(self) -> None:
        """A buffer of no axis among them."""
        one, other = NETWORKS["residual"](seed=1), NETWORKS["residual"](seed=2)
        constants = {name: tensor.numpy().copy() for name, tensor in one.constants().items()}
        constants["actor_encoder.scale"] = np.array(0.75, np.float32)
        other.load_constants(constants)
        for name, tensor in other.constants().items():
            np.testing.assert_array_equal(tensor.numpy(), constants[name])
        with pytest.raises(ValueError, match="has the constants"):
            NETWORKS["mlp"]().load_constants(constants)
        saved = constants | {"actor_encoder.scale": np.array(0.5), "actor_encoder.noise": np.zeros(4)}
        with pytest.raises(FolderError, match=r"network with the same constants: actor_encoder\.noise differs"):
            one.check_constants({"constants": saved}, "run")


class TestTheStateDict:
    @ALL
    def test_goes_from_bound_to_unbound_networks_and_back(self, name: str) -> None:
        network, other, observations = NETWORKS[name](), NETWORKS[name](), draw_observations(name, 3)
        copied = network.unbound_copy()
        assert copied.state_dict().keys() == network.state_dict().keys()
        with torch.no_grad():
            for index, tensor in enumerate(copied.parameters()):
                tensor.copy_(torch.from_numpy(0.3 * normal(*tensor.shape, seed=index)))
        network.load_state_dict(copied.state_dict(), strict=True)
        assert_same_outputs(network, copied, observations)
        other.unbound_copy().load_state_dict(network.state_dict(), strict=True)
        other.load_state_dict(network.state_dict(), strict=True)
        np.testing.assert_array_equal(other.vector, network.vector)

    def test_takes_the_place_of_parameters_of_a_copy_only(self) -> None:
        network = NETWORKS["mlp"]()
        state = {key: torch.zeros_like(tensor) for key, tensor in network.state_dict().items()}
        with pytest.raises(RuntimeError, match="keeps its parameters: assign must be False"):
            network.load_state_dict(state, assign=True)
        copied = network.unbound_copy()
        copied.load_state_dict(state, assign=True)
        assert network.vector.any() and not any(parameter.any() for parameter in copied.parameters())


class TestAnUnboundCopy:
    @ALL
    def test_has_the_same_outputs_and_parameters_of_its_own(self, name: str) -> None:
        network, observations = NETWORKS[name](), draw_observations(name, 3)
        copied = network.unbound_copy()
        before = outputs_of(copied, observations)
        parameters, values, state = network.act_forward(observations, network.initial_state(3))
        for mine, theirs in zip(before, [x for x in (parameters, values, state) if x is not None], strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)
        network.vector[:] = 0
        for one, other in zip(before, outputs_of(copied, observations), strict=True):
            np.testing.assert_array_equal(one, other)
        assert all(parameter.grad is None for parameter in copied.parameters())

    @pytest.mark.parametrize("bound", [False, True])
    @ALL
    def test_is_saved_and_loaded_by_torch(self, name: str, bound: bool) -> None:
        """Weights, and the whole module. A network in training is loaded as such a copy."""
        network, observations = NETWORKS[name](), draw_observations(name, 3)
        copied = network if bound else network.unbound_copy()
        file = io.BytesIO()
        torch.save(copied.state_dict(), file)
        file.seek(0)
        other = NETWORKS[name]().unbound_copy()
        other.load_state_dict(torch.load(file, weights_only=True))
        assert_same_outputs(other, network, observations)

        file = io.BytesIO()
        torch.save(copied, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        assert_same_outputs(loaded, network, observations)
        loaded.to(torch.float64)


@pytest.mark.parametrize(
    "move",
    [lambda n: n.to("cpu"), lambda n: n.to(torch.float64), lambda n: n.half(), lambda n: n.cuda(), lambda n: n.float()],
    ids=["to cpu", "to float64", "half", "cuda", "float"],
)
def test_a_network_in_training_is_neither_moved_nor_cast(move: Callable[[ActorCritic], Any]) -> None:
    network = NETWORKS["mlp"]()
    text = r"^a network in training cannot be moved or cast; a3c_exp.load\(run\).network is a copy$"
    with pytest.raises(RuntimeError, match=text):
        move(network)
    assert all(np.shares_memory(p.detach().numpy(), network.vector) for p in network.parameters())


class TestTies:
    @pytest.mark.parametrize("kernels", ["auto", "torch"])
    @pytest.mark.parametrize("shared", [True, False])
    def test_within_an_encoder_have_the_gradient_of_torch(self, shared: bool, kernels: str) -> None:
        network = make_network(Tied, VECTORS, shared=shared, policy_gain=1.0, kernels=kernels)
        assert len(network.vector) == (1 if shared else 2) * (4 * 4 + 4 + 4) + (4 * 2 + 2) + (4 + 1)
        observations = normal(3, 2, 4)
        actions, weights = draw_actions(network, observations), OutputGradients(*normal(3, 3, 2, seed=4))
        learned(network, observations, actions, log_probs=weights.log_probs, entropy=weights.entropy,
                values=weights.values)  # fmt: skip
        found = network.gradient.copy()

        plain = network.unbound_copy()
        parameters, values, _ = plain(torch.from_numpy(observations).flatten(0, 1))
        log_probs, entropy = evaluated_by_torch(Discrete(2), parameters, torch.from_numpy(actions).flatten())
        outputs = {"log_probs": log_probs, "entropy": entropy, "values": values}
        total = sum((torch.from_numpy(getattr(weights, key).ravel()) * outputs[key]).sum() for key in outputs)
        torch.autograd.backward(total)
        for key, parameter in plain.named_parameters():
            start = dict(network.named_parameters())[key]
            place = (start.data_ptr() - network.vector.ctypes.data) // 4
            assert parameter.grad is not None
            gradient = found[place : place + parameter.numel()]
            np.testing.assert_allclose(gradient, parameter.grad.numpy().ravel(), atol=1e-5, rtol=1e-4)

    def test_of_actor_and_critic_are_refused(self) -> None:
        layer = nn.Linear(4, 3)

        class Shares(nn.Sequential):
            def __init__(self, inputs: int) -> None:
                super().__init__(layer, nn.Tanh())

        make_network(Shares, VECTORS, shared=True)
        with pytest.raises(ConfigError, match=r"^network = 'EncoderActorCritic': must not share parameters .*=true"):
            make_network(Shares, VECTORS)


class TestKernels:
    @pytest.mark.parametrize("name", NETWORKS)
    def test_give_the_same_outputs_and_gradient_as_torch(self, name: str) -> None:
        by_kernels, by_torch = NETWORKS[name](kernels="auto"), NETWORKS[name](kernels="torch")
        by_torch.vector[:] = by_kernels.vector
        observations = draw_observations(name, 4, 3)
        actions = draw_actions(by_kernels, observations)
        recurrent_input = draw_recurrent_input(by_kernels, 4, 3)
        state = None if recurrent_input is None else recurrent_input.state
        acted = by_kernels.act_forward(observations[0], state)
        for one, other in zip(acted, by_torch.act_forward(observations[0], state), strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert one.dtype == other.dtype == np.float32
                np.testing.assert_allclose(one, other, atol=1e-5)
        np.testing.assert_allclose(by_kernels.values(observations[0], state), acted[1], atol=1e-6)
        np.testing.assert_allclose(by_torch.values(observations[0], state), acted[1], atol=1e-5)

        rows, evaluated, gradients = normal(3, 4, 3, seed=7), list[list[Array]](), list[Array]()
        for network in (by_kernels, by_torch):
            outputs, _ = network.evaluate(observations, actions, recurrent_input)
            assert outputs.features is not None
            evaluated.append([x.copy() for x in (outputs.log_probs, outputs.entropy, outputs.values, outputs.features)])
            for weights in (None, normal(*outputs.features.shape, seed=8)):
                network.gradient.fill(0)
                given = dict(zip(("log_probs", "entropy", "values"), rows, strict=True))
                learned(network, observations, actions, recurrent_input, features=weights, **given)
                gradients.append(network.gradient.copy())
        for one, other in zip(*evaluated, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
        for one, other in zip(gradients[:2], gradients[2:], strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5 * max(np.abs(other).max(), 1), rtol=1e-5)
        assert not np.allclose(gradients[0], gradients[1])

    @pytest.mark.parametrize("kernels", ["auto", "torch"])
    @ALL
    def test_give_the_gradient_of_torchs_graph_step_by_step(self, name: str, kernels: str) -> None:
        network = NETWORKS[name](kernels=kernels)
        recurrent_input = draw_recurrent_input(network, 4, 3)
        compare_gradients(network, draw_observations(name, 4, 3), space_of(name), recurrent_input)

    def test_run_an_encoder_that_begins_with_an_activation_or_a_norm(self) -> None:
        """On observations that the environment's buffers hold, which are left as they are."""

        class First(nn.Sequential):
            def __init__(self, inputs: int, norm: bool) -> None:
                super().__init__(nn.LayerNorm(inputs) if norm else nn.Tanh(), nn.Linear(inputs, 3))

        for norm in (True, False):
            network, observations = make_network(First, VECTORS, norm=norm), normal(2, 3, 4)
            untouched = observations.copy()
            assert network.describe_kernels() == "kernels: numpy"
            network.act_forward(observations[0])
            learned(network, observations, np.zeros((2, 3), np.int64), log_probs=1, values=1)
            np.testing.assert_array_equal(observations, untouched)

    def test_of_the_setting_numpy_refuse_what_they_cannot_run(self) -> None:
        make_network(Mlp, VECTORS, kernels="numpy")
        make_lstm(Mlp, VECTORS, kernels="numpy")
        text = r"^network\.kernels = 'numpy': must be auto or torch: Residual is none of the layers with a kernel$"
        with pytest.raises(ConfigError, match=text):
            make_network(Residual, VECTORS, kernels="numpy")
        with pytest.raises(ConfigError, match="Cnn is none of the layers with a kernel"):
            make_network(Cnn, PICTURES, kernels="numpy", **CNN)

    @pytest.mark.parametrize(
        ("network", "text"),
        [
            (NETWORKS["mlp"], "kernels: numpy"),
            (NETWORKS["cnn"], "kernels: numpy, but torch for an encoder (Cnn is none of the layers with a kernel)"),
            (lambda: NETWORKS["mlp"](kernels="torch"), "torch computes the network"),
        ],
        ids=["mlp", "cnn", "torch"],
    )
    def test_are_described_for_the_log(self, network: Callable[[], ActorCritic], text: str) -> None:
        assert network().describe_kernels() == text


class TestSeeds:
    @pytest.mark.parametrize("rng_seed", [None, 1])
    @ALL
    def test_building_leaves_torchs_generator_as_it_was(self, name: str, rng_seed: int | None) -> None:
        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(7)
        NETWORKS[name]() if name.startswith("lstm") else NETWORKS[name](rng_seed=rng_seed)
        torch.testing.assert_close(torch.rand(3), expected, atol=0, rtol=0)

    def test_a_constructor_that_fails_leaves_torchs_generator_as_it_was(self) -> None:
        class Fails(nn.Module):
            def __init__(self, inputs: int) -> None:
                torch.rand(3)
                raise ValueError("no")

        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(7)
        with pytest.raises(ConfigError):
            make_network(Fails)
        torch.testing.assert_close(torch.rand(3), expected, atol=0, rtol=0)

    def test_one_seed_gives_the_same_constants_and_another_one_others(self) -> None:
        """Every worker builds the network for itself, and only the vector is sent to it."""

        def noise(seed: int, rng_seed: int | None) -> Tensor:
            torch.rand(1)  # whatever was drawn before
            return make_network(Residual, VECTORS, seed=seed, rng_seed=rng_seed).constants()["actor_encoder.noise"]

        one = noise(3, None)
        assert torch.equal(one, noise(3, None)) and torch.equal(one, noise(3, 1)) and torch.equal(one, noise(3, 2))
        assert not torch.equal(one, noise(4, None))
        constants = make_network(Residual, VECTORS, rng_seed=None).constants()
        assert not torch.equal(constants["actor_encoder.noise"], constants["critic_encoder.noise"])
