"""The policy and the value function as a torch module, and the flat vector that holds all its
parameters."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from a3c_exp.common.arrays import Array, Floats, Vector
from a3c_exp.errors import ConfigError, FolderError
from a3c_exp.networks.distributions import FORBIDDEN, Distribution
from a3c_exp.networks.inputs import ObservationInput
from a3c_exp.networks.kernels import array_of
from a3c_exp.networks.recurrent import RecurrentInput


@dataclass(frozen=True, slots=True)
class NetworkOutputs:
    """Outputs of the learner's network for a batch.

    log_probs: float32 [T, B], log pi(a_t | s_t) of the actions that were taken, summed over the
        parts of an action.
    entropy: float32 [T, B], of pi(. | s_t), in nats.
    values: float32 [T, B], V(s_t); Q(s_t, a_t) of a network of action values, whose log_probs and
        entropy are 0.
    features: float32 [T, B, F], from which the policy is computed; None for a network that has none
        to show.
    parameters: float32 [T, B, P], of the distribution pi(. | s_t).

    Memory of the last two is the network's own, which overwrites it as soon as the gradient is
    added.
    """

    log_probs: Floats
    entropy: Floats
    values: Floats
    features: Floats | None = None
    parameters: Floats | None = None


class OutputGradients(NetworkOutputs):
    """A loss's derivatives by these outputs, under their names. The last two: None if the loss does
    not use them."""

    __slots__ = ()


UnrollOutputs = tuple[Tensor, Tensor, Tensor | None]
"""Outputs for a rollout in torch: parameters [T B, P], values [T B], and features [T, B, F] if
there are any."""

TrainOutputs = tuple[Floats, Floats, Floats | None, Callable[[Floats, Floats, Floats | None], None]]
"""The same as arrays, and the function that adds the gradient of all parameters, given a loss's
derivatives by parameters [T B, P], values [T B] and, if the loss uses them, features [T, B, F]. It
may be called once."""


class Runtime(Protocol):
    """The way in which a network is computed: by kernels and torch, part by part, or by torch
    alone.

    description: a line for the log: which parts numpy runs, and which torch.
    critic: computes the values of observations [N, ...] or [T, B, ...] alone; None if it is not
        apart from the policy.
    """

    description: str

    @property
    def critic(self) -> Callable[[Array], Array] | None: ...

    def act_forward(
        self, observations: Array, state: Array | None
    ) -> tuple[Array, Array | None, Array | None]:
        """See `ActorCritic.policy_forward`."""

    def train_forward(
        self, observations: Array, recurrent_input: RecurrentInput | None
    ) -> TrainOutputs:
        """observations [T, B, ...] -> see `TrainOutputs`."""


class ActorCritic(nn.Module, ABC):
    """pi(a | s) and V(s) as a torch module: see `forward`.

    A network in training is bound: `bind` moves all parameters into `vector`, one contiguous
    float32 array, and all gradients into `gradient`, another. Pulling, clipping, stepping, sending
    and saving are then one operation each. The parameters are views: whoever writes to `vector`
    changes the network. A bound network cannot be moved; a deep copy is unbound, with parameters of
    its own.
    With GA3C on a GPU, `move_to` replaces both by tensors there.

    observation_input: the form in which its modules take observations. encoders: from these to
        features, if it has any.
    distribution: of the actions. param_slices: where each parameter group lies in the vector.
    loss_module: a module of the loss's own, whose parameters are the group `loss`; None if the loss
        has none.
    action_mask: the columns of observations that say which actions are allowed; None: all are.
    warnings: settings that it does not use, a line each for the log.
    state_size: S, of a recurrent state, float32 [N, S]: the state of each environment's episode,
        which starts as zeros. 0 for a network without one.
    runtime: computes a bound network.
    """

    encoders: tuple[nn.Module, ...] = ()
    action_mask: slice | None = None
    warnings: tuple[str, ...] = ()
    state_size: int = 0
    runtime: Runtime

    BOUND: ClassVar[tuple[str, ...]] = ("runtime", "_ordered", "vector", "gradient", "param_slices")

    def __init__(
        self,
        observation_input: ObservationInput,
        distribution: Distribution,
        loss: nn.Module | None,
    ) -> None:
        super().__init__()
        self.observation_input = observation_input
        self.distribution = distribution
        self.loss_module = loss

    # -- the torch module
    # ---------------------------------------------------------------------------------------------

    @abstractmethod
    def forward(
        self, observations: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """One step: observations [N, ...] -> distribution parameters [N, P], values [N], the state
        after [N, S].

        observations: in the environment's shape, normalized if the run normalizes them; images of
        bytes as they are, which `observation_input` scales. state: None at the start of all
        episodes, and for a network without a state.
        """

    @abstractmethod
    def unroll(
        self, observations: Tensor, state: Tensor | None, boundaries: Tensor | None
    ) -> UnrollOutputs:
        """All steps of a rollout: observations [T, B, ...], the state at t = 0 [B, S], episode
        boundaries [T, B]."""

    @abstractmethod
    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """The trained parameters of each group, in the order in which they lie in the vector."""

    @property
    def recurrent(self) -> bool:
        """Return whether the network has a recurrent state."""
        return self.state_size > 0

    def initial_state(self, count: int) -> Floats | None:
        """The state of `count` environments whose episodes begin."""
        return np.zeros((count, self.state_size), np.float32) if self.recurrent else None

    def constants(self) -> dict[str, Tensor]:
        """Buffers and frozen parameters by name: the numbers that are part of the network and never
        change."""
        frozen = {name: p for name, p in self.named_parameters() if not p.requires_grad}
        return dict(self.named_buffers()) | frozen

    @property
    def scales_pixels(self) -> bool:
        """Return whether `observation_input` or the encoder scales images: not if they are taken as
        they are."""
        form = self.observation_input
        scaling = (getattr(module, "pixels", None) for module in self.modules())
        return form.pixels is not None and (
            not form.raw or any(each is form.pixels for each in scaling)
        )

    def normalize_pixels(self, mean: Floats, inverse_std: Floats) -> None:
        """Scale images by a mean and the inverse of a standard deviation from now on: see
        `PixelScaling.normalize`.

        The network must scale pixels: see `scales_pixels`.
        """
        form = self.observation_input
        assert form.layout is not None and form.pixels is not None
        form.pixels.normalize(form.layout, mean, inverse_std)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self.BOUND}

    def masked(self, parameters: Any, observations: Any) -> Any:
        """Distribution parameters [N, P] in which actions that the observations [N, ...] forbid
        have no probability.

        Of arrays or tensors. Forbidden actions have no part in the entropy, and get no gradient.
        """
        if self.action_mask is None:
            return parameters
        forbidden = observations[:, self.action_mask] < 0.5
        if isinstance(parameters, Tensor):
            return parameters.masked_fill(forbidden, float(FORBIDDEN))
        return np.where(forbidden, FORBIDDEN, parameters)

    # -- training
    # ----------------------------------------------------------------------------------------------

    def make_runtime(self) -> Runtime:
        """The runtime of this network, once it is bound."""
        return TorchRuntime(self)

    def bind(self) -> None:
        """Move the parameters into one vector.

        Raises ConfigError for parameters that are not float32 or that two groups share.
        """
        for child in self.children():
            for name, parameter in child.named_parameters():
                if parameter.requires_grad and (
                    is_lazy(parameter) or parameter.dtype != torch.float32
                ):
                    problem = (
                        f"its parameter {name} must be float32, "
                        "and have a size once forward has been called"
                    )
                    raise ConfigError("network", type(child).__name__, problem)
        whole = self.parameter_groups() | (
            {"loss": list(self.loss_module.parameters())} if self.loss_module else {}
        )
        groups = {
            name: [p for p in parameters if p.requires_grad] for name, parameters in whole.items()
        }
        ordered = [parameter for parameters in groups.values() for parameter in parameters]
        if len(set(map(id, ordered))) != len(ordered):
            problem = (
                "must not share parameters between actor, critic and loss: "
                "network.shared=true shares an encoder"
            )
            raise ConfigError("network", type(self).__name__, problem)
        sizes = [
            sum(parameter.numel() for parameter in parameters) for parameters in groups.values()
        ]
        edges = itertools.pairwise([0, *itertools.accumulate(sizes)])
        self.param_slices = {
            name: slice(start, end) for name, (start, end) in zip(groups, edges, strict=True)
        }
        self.vector: Vector = np.concatenate(
            [np.empty(0, np.float32), *(array_of(each).ravel() for each in ordered)]
        )
        self.gradient: Vector = np.zeros_like(self.vector)
        self._ordered = ordered
        place_parameters(ordered, torch.from_numpy(self.vector), torch.from_numpy(self.gradient))
        self.runtime = self.make_runtime()

    def move_to(self, vector: Tensor, gradient: Tensor, runtime: Runtime) -> None:
        """Replace a bound network's vectors [P] by tensors on a device, whose numbers its
        parameters then have.

        runtime: computes it there.
        """
        self.vector = vector
        self.gradient = gradient
        place_parameters(self._ordered, vector, gradient)
        for constant in self.constants().values():
            constant.data = constant.data.to(vector.device)
        self.runtime = runtime

    def act_forward(
        self, observations: Array, state: Array | None = None
    ) -> tuple[Array, Array, Array | None]:
        """The forward pass of a step: [N, ...] -> distribution parameters [N, P], values [N], the
        state after."""
        parameters, values, after = self.runtime.act_forward(observations, state)
        return parameters, self.values(observations) if values is None else values, after

    def policy_forward(
        self, observations: Array, state: Array | None
    ) -> tuple[Array, Array | None, Array | None]:
        """The same to act. The values are None if `values` of a whole rollout cost less: the critic
        is apart."""
        return self.runtime.act_forward(observations, state)

    def values(self, observations: Array, state: Array | None = None) -> Array:
        """V(s) for observations [N, ...], or of a critic that is apart for [T, B, ...]: float32 [N]
        or [T, B]."""
        critic = self.runtime.critic
        return self.act_forward(observations, state)[1] if critic is None else critic(observations)

    def evaluate(
        self, observations: Array, actions: Array, recurrent_input: RecurrentInput | None = None
    ) -> tuple[NetworkOutputs, Callable[[OutputGradients], None]]:
        """The forward pass to learn: observations [T, B, ...] and actions [T, B, ...] -> outputs,
        and the function that adds a loss's gradient to `gradient`, given the loss's derivatives by
        the outputs. It may be called once.

        recurrent_input: of a network with a state; others ignore it.
        """
        shape = observations.shape[:2]
        parameters, values, features, backward = self.runtime.train_forward(
            observations, recurrent_input
        )
        flat_actions = actions.reshape(-1, *actions.shape[2:])
        log_probs, entropy, parameter_gradients = self.distribution.evaluate(
            parameters, flat_actions
        )

        def add_gradient(grad: OutputGradients) -> None:
            grad_parameters = parameter_gradients(grad.log_probs.ravel(), grad.entropy.ravel())
            if grad.parameters is not None:
                own = grad.parameters.reshape(parameters.shape)
                grad_parameters = grad_parameters + np.where(
                    parameters == FORBIDDEN, np.float32(0), own
                )
            backward(grad_parameters, grad.values.ravel(), grad.features)

        outputs = NetworkOutputs(
            log_probs.reshape(shape),
            entropy.reshape(shape),
            values.reshape(shape),
            features,
            parameters.reshape(*shape, -1),
        )
        return outputs, add_gradient

    def load_constants(self, constants: Mapping[str, Array]) -> None:
        """Write numbers that `constants` has given. Raises ValueError if they are of another
        network."""
        own = self.constants()
        if {name: tuple(tensor.shape) for name, tensor in own.items()} != {
            n: a.shape for n, a in constants.items()
        }:
            raise ValueError(f"it has the constants {sorted(constants)}, the network {sorted(own)}")
        for name, tensor in own.items():
            tensor.data.copy_(torch.from_numpy(np.array(constants[name])))

    def check_constants(self, store_state: Mapping[str, Any], folder: object) -> None:
        """Raise FolderError if a checkpoint's buffers or frozen parameters differ from those of
        this network."""
        for name in self.differing_constants(store_state.get("constants", {})):
            problem = (
                "must be a run of a network with the same constants: "
                f"{name} differs (other code or seed)"
            )
            raise FolderError(folder, problem)

    def differing_constants(self, others: Mapping[str, Any]) -> list[str]:
        """Names of constants that are not those of another network, tensors or arrays by name; NaNs
        are equal."""

        def equal(name: str) -> bool:
            if name not in own or name not in others:
                return False
            one = own[name]
            other = torch.as_tensor(others[name])
            same_form = (one.shape, one.dtype) == (other.shape, other.dtype)
            return same_form and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)

        own = self.constants()
        return [name for name in sorted(own.keys() | others.keys()) if not equal(name)]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to 0. Those of a bound network stay in `gradient`."""
        if "gradient" in vars(self):
            self.gradient[:] = 0
        else:
            super().zero_grad(set_to_none)


class TorchRuntime:
    """Computes an `ActorCritic` by its own `forward` and `unroll`, with arrays on the host on both
    sides.

    device: where the network has its parameters.
    """

    description = "torch computes the network"
    critic = None

    def __init__(self, network: ActorCritic, device: torch.device | str = "cpu") -> None:
        self._network = network
        self._device = device

    def act_forward(
        self, observations: Array, state: Array | None
    ) -> tuple[Array, Array, Array | None]:
        with torch.inference_mode():
            before = None if state is None else self._tensor(state)
            parameters, values, after = self._network(self._tensor(observations), before)
        return array_of(parameters), array_of(values), None if after is None else array_of(after)

    def train_forward(
        self, observations: Array, recurrent_input: RecurrentInput | None
    ) -> TrainOutputs:
        state, boundaries = (
            (None, None) if recurrent_input is None else map(self._tensor, recurrent_input)
        )
        parameters, values, features = self._network.unroll(
            self._tensor(observations), state, boundaries
        )

        def backward(
            grad_parameters: Floats, grad_values: Floats, grad_features: Floats | None
        ) -> None:
            pairs = [(parameters, grad_parameters), (values, grad_values)]
            if grad_features is not None and features is not None:
                pairs.append((features, grad_features))
            # `torch.autograd.backward(tensors, gradients)` imports sympy: 34 MB and a second in
            # each process.
            terms = [
                (tensor * self._tensor(grad)).sum()
                for tensor, grad in pairs
                if tensor.requires_grad
            ]
            if terms:
                torch.autograd.backward(torch.stack(terms).sum())

        return (
            array_of(parameters),
            array_of(values),
            None if features is None else array_of(features),
            backward,
        )

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


def place_parameters(parameters: Sequence[nn.Parameter], vector: Tensor, gradient: Tensor) -> None:
    """Let parameters be views of a vector [P], one after another, and their gradients views of
    another vector."""
    sizes = [parameter.numel() for parameter in parameters]
    places = torch.split(vector, sizes)
    slopes = torch.split(gradient, sizes)
    for parameter, place, slope in zip(parameters, places, slopes, strict=True):
        parameter.grad = None  # torch refuses one of another device
        parameter.data = place.view_as(parameter)
        # torch adds to it in place, so a gradient lands in the vector
        parameter.grad = slope.view_as(parameter)
