"""The policy and the value function as a torch module, and the flat vector that holds all its
parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from a3c_exp.common.arrays import Array, Floats, Vector
from a3c_exp.errors import ConfigError, FolderError
from a3c_exp.networks.distributions import FORBIDDEN, Distribution
from a3c_exp.networks.inputs import ObservationInput
from a3c_exp.networks.recurrent import RecurrentInput

UnrollOutputs = tuple[Tensor, Tensor, Tensor | None]
"""Outputs for a rollout: parameters [T B, P], values [T B], and features [T, B, F] if there are
any."""


class Runtime(Protocol):
    """What computes a bound network on arrays: see `engine.runtime`.

    description: a line for the log: what torch computes, and why.
    critic: computes the values of observations [N, ...] or [T, B, ...] alone; None if it is not
        apart from the policy.
    """

    description: str
    critic: Callable[[Array], Array] | None

    def act_forward(
        self, observations: Array, state: Array | None
    ) -> tuple[Array, Array | None, Array | None]:
        """See `ActorCritic.policy_forward`."""

    def evaluate(
        self, observations: Array, actions: Array, recurrent_input: RecurrentInput | None = None
    ) -> tuple[Any, Callable[[Any], None]]:
        """See `engine.runtime.ArrayRuntime.evaluate`."""


class ActorCritic(nn.Module, ABC):
    """pi(a | s) and V(s) as a torch module: see `forward`.

    A network in training is bound: `bind` moves all parameters into `vector`, one contiguous
    float32 array, and all gradients into `gradient`, another. Pulling, clipping, stepping, sending
    and saving are then one operation each. The parameters are views: whoever writes to `vector`
    changes the network. A bound network cannot be moved; a deep copy is unbound, with parameters of
    its own.
    With GA3C on a GPU, `move_to` replaces both by tensors there.

    observation_input: the form in which its modules take observations.
    encoders: from these to features, if it has any.
    distribution: of the actions.
    loss_module: a module of the loss's own, whose parameters are the group `loss`; None if the loss
        has none.
    action_mask: the columns of observations that say which actions are allowed; None: all are.
    warnings: settings that it does not use, a line each for the log.
    state_size: S, of a recurrent state, float32 [N, S]: the state of each environment's episode,
        which starts as zeros. 0 for a network without one.
    param_slices: where each parameter group lies in the vector.
    runtime: computes a bound network on arrays: see `Experiment.build_network`.
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
        """Compute one step: observations [N, ...] -> distribution parameters [N, P], values [N],
        the state after [N, S].

        observations: in the environment's shape, normalized if the run normalizes them; images of
            bytes as they are, which `observation_input` scales.
        state: None at the start of all episodes, and for a network without a state.
        """

    @abstractmethod
    def unroll(
        self, observations: Tensor, state: Tensor | None, boundaries: Tensor | None
    ) -> UnrollOutputs:
        """Compute all steps of a rollout: observations [T, B, ...], the state at t = 0 [B, S],
        episode boundaries [T, B]."""

    def evaluate_actions(
        self, parameters: Tensor, values: Tensor, actions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what a loss is made of, from parameters [N, P] and values [N] of `unroll`, and the
        actions [N, ...] that were taken: log pi(a | s), the entropy of pi(. | s), and V(s), float32
        [N] each."""
        log_probs, entropies = self.distribution.evaluate(parameters, actions)
        return log_probs, entropies, values

    @abstractmethod
    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return the trained parameters of each group, in the order in which they lie in the
        vector."""

    @property
    def recurrent(self) -> bool:
        """Return whether the network has a recurrent state."""
        return self.state_size > 0

    def initial_state(self, count: int) -> Floats | None:
        """Return the state of `count` environments whose episodes begin."""
        return np.zeros((count, self.state_size), np.float32) if self.recurrent else None

    def constants(self) -> dict[str, Tensor]:
        """Return buffers and frozen parameters by name: the numbers that are part of the network
        and never change."""
        frozen = {name: p for name, p in self.named_parameters() if not p.requires_grad}
        return dict(self.named_buffers()) | frozen

    @property
    def scales_pixels(self) -> bool:
        """Return whether `observation_input` or the encoder scales images: not if they are taken as
        they are."""
        form = self.observation_input
        if form.pixels is None or not form.raw:
            return form.pixels is not None
        return any(getattr(module, "pixels", None) is form.pixels for module in self.modules())

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

    def masked(self, parameters: Tensor, observations: Tensor) -> Tensor:
        """Return distribution parameters [N, P] in which actions that the observations [N, ...]
        forbid have no probability.

        Forbidden actions have no part in the entropy, and get no gradient.
        """
        if self.action_mask is None:
            return parameters
        return parameters.masked_fill(observations[:, self.action_mask] < 0.5, float(FORBIDDEN))

    # -- training
    # ----------------------------------------------------------------------------------------------

    def bind(self) -> None:
        """Move the parameters into one vector.

        Raises ConfigError for parameters that are not float32 or that two groups share.
        """
        for child in self.children():
            _check_parameters(child)
        groups = self.parameter_groups()
        if self.loss_module is not None:
            groups["loss"] = list(self.loss_module.parameters())
        trained = {
            name: [p for p in parameters if p.requires_grad] for name, parameters in groups.items()
        }
        ordered = [parameter for parameters in trained.values() for parameter in parameters]
        if len(set(map(id, ordered))) != len(ordered):
            problem = (
                "must not share parameters between actor, critic and loss: "
                "network.shared=true shares an encoder"
            )
            raise ConfigError("network", type(self).__name__, problem)

        self.param_slices = {}
        start = 0
        for name, parameters in trained.items():
            end = start + sum(parameter.numel() for parameter in parameters)
            self.param_slices[name] = slice(start, end)
            start = end

        flat = [parameter.detach().numpy().ravel() for parameter in ordered]
        self.vector: Vector = np.concatenate([np.empty(0, np.float32), *flat])
        self.gradient: Vector = np.zeros_like(self.vector)
        self._ordered = ordered
        place_parameters(ordered, torch.from_numpy(self.vector), torch.from_numpy(self.gradient))

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
        """Compute a step on arrays: [N, ...] -> distribution parameters [N, P], values [N], the
        state after."""
        parameters, values, after = self.runtime.act_forward(observations, state)
        return parameters, self.values(observations) if values is None else values, after

    def policy_forward(
        self, observations: Array, state: Array | None
    ) -> tuple[Array, Array | None, Array | None]:
        """Compute the same to act. The values are None if `values` of a whole rollout cost less:
        the critic is apart."""
        return self.runtime.act_forward(observations, state)

    def values(self, observations: Array, state: Array | None = None) -> Array:
        """Compute V(s) for observations [N, ...], or of a critic that is apart for [T, B, ...]:
        float32 [N] or [T, B]."""
        critic = self.runtime.critic
        return self.act_forward(observations, state)[1] if critic is None else critic(observations)

    def load_constants(self, constants: Mapping[str, Array]) -> None:
        """Write numbers that `constants` has given. Raises ValueError if they are of another
        network."""
        tensors = self.constants()
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if shapes != {name: array.shape for name, array in constants.items()}:
            raise ValueError(
                f"it has the constants {sorted(constants)}, the network {sorted(tensors)}"
            )
        for name, tensor in tensors.items():
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
        """Return the names of constants that are not those of another network, tensors or arrays by
        name. NaNs are equal."""
        constants = self.constants()

        def equal(name: str) -> bool:
            if name not in constants or name not in others:
                return False
            constant = constants[name]
            other = torch.as_tensor(others[name])
            same_form = (constant.shape, constant.dtype) == (other.shape, other.dtype)
            return same_form and torch.allclose(constant, other, rtol=0, atol=0, equal_nan=True)

        return [name for name in sorted(constants.keys() | others.keys()) if not equal(name)]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to 0. Those of a bound network stay in `gradient`."""
        if "gradient" in vars(self):
            self.gradient[:] = 0
        else:
            super().zero_grad(set_to_none)


def _check_parameters(module: nn.Module) -> None:
    """Raise ConfigError for a trained parameter that is not float32, or has no size yet."""
    for name, parameter in module.named_parameters():
        usable = not is_lazy(parameter) and parameter.dtype == torch.float32
        if parameter.requires_grad and not usable:
            problem = (
                f"its parameter {name} must be float32, "
                "and have a size once forward has been called"
            )
            raise ConfigError("network", type(module).__name__, problem)


def place_parameters(parameters: Sequence[nn.Parameter], vector: Tensor, gradient: Tensor) -> None:
    """Let parameters be views of a vector [P], one after another, and their gradients views of
    another vector."""
    sizes = [parameter.numel() for parameter in parameters]
    numbers = torch.split(vector, sizes)
    gradients = torch.split(gradient, sizes)
    for parameter, values, grad in zip(parameters, numbers, gradients, strict=True):
        parameter.grad = None  # torch refuses one of another device
        parameter.data = values.view_as(parameter)
        # torch adds to it in place, so a gradient lands in the vector
        parameter.grad = grad.view_as(parameter)
