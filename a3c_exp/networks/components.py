"""Networks as a configuration describes them: frozen records of a module's class and its settings, that build it."""

from __future__ import annotations

import re
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from a3c_exp.errors import FAILURES, ConfigError, one_line, require
from a3c_exp.networks.actor_critic import ActorCritic, Kernels
from a3c_exp.networks.composed import EncoderActorCritic
from a3c_exp.networks.distributions import make_distribution
from a3c_exp.networks.heads import make_head
from a3c_exp.networks.initialization import Initialization, Initializer, torch_generator
from a3c_exp.networks.inputs import PICTURE, ObservationInput, injected_names, observation_form, sample_observations
from a3c_exp.networks.mlp import MAX_WIDTH, Mlp
from a3c_exp.networks.recurrent import LstmCore
from a3c_exp.networks.whole import WholeActorCritic

Space = gym.Space[Any]
Rng = np.random.Generator | None

BuildLoss = Callable[[int], nn.Module | None]
"""Makes the loss's own module for features [T, B, F], given F; None if the loss has none."""

# Torch's global generator is drawn from while a module is constructed, one module at a time.
_construction = threading.Lock()


@contextmanager
def seeded_construction(seed: int) -> Iterator[None]:
    """Let modules be constructed under a seed. Torch's global generator is the same afterwards."""
    with _construction, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@dataclass(frozen=True)
class ModuleSpec:
    """A module's class and its settings: what travels to workers, which build the module where the spaces are known."""

    cls: type[nn.Module]
    settings: dict[str, Any] = field(default_factory=dict)

    def construct(self, injected: dict[str, Any]) -> nn.Module:
        """The module. injected: the constructor's arguments that come from the spaces.

        Raises ConfigError if the constructor refuses its arguments.
        """
        try:
            return self.cls(**injected, **self.settings)
        except ConfigError as error:
            raise error.under("network") from None
        except FAILURES as error:
            if is_lack_of_memory(error):
                raise
            own_text = " ".join(str(error).split()) if isinstance(error, ValueError) else ""
            text = own_text or one_line(error)
            raise ConfigError("network", self.settings or self.cls.__name__, f"{self.cls.__name__}: {text}") from error


def is_lack_of_memory(error: BaseException) -> bool:
    """Return whether an error says that there is not enough memory: Python's own, and two texts of torch."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and bool(re.search("allocate memory|calculation overflowed", str(error)))
    )


class Network(ABC):
    """A component that builds an `ActorCritic`.

    nameable: whether a configuration may name the class itself. Those that stand for a module are named by the module.
    kernels: what computes the network: see `ComposedNetwork`.
    """

    nameable: ClassVar[bool] = True
    kernels: Kernels = "auto"

    @property
    def class_name(self) -> str:
        """The name of the class that a configuration gives: of a module, the module's own."""
        return type(self).__name__

    @property
    def takes_pictures(self) -> bool:
        """Return whether the network is one for pictures."""
        return False

    def build(
        self,
        observation_space: Space,
        action_space: Space,
        rng: Rng,
        *,
        seed: int = 0,
        build_loss: BuildLoss | None = None,
    ) -> ActorCritic:
        """A bound network with freshly drawn parameters.

        rng: draws the parameters; None: they are about to be overwritten, and drawing may be left out.
        seed: of the constructors of modules: the same for every worker of a run.
        build_loss: makes the loss's own module; None if the loss has none.
        Raises ConfigError if the network cannot serve these spaces.
        """
        with seeded_construction(seed):
            network = self.make(observation_space, action_space, rng, build_loss)
        network.bind(self.kernels)
        return network

    @abstractmethod
    def make(self, observations: Space, actions: Space, rng: Rng, build_loss: BuildLoss | None) -> ActorCritic:
        """The same before it is bound. Torch's generator has been seeded."""


@dataclass(frozen=True, kw_only=True)
class ComposedNetwork(Network):
    """Encoders of observations, and the policy's head and the value layer after them.

    init: of weights: see `networks.initialization`. None: the last layers are orthogonal.
    init_std: standard deviation of all weights with init=normal; other schemes do not use it. With the default, 0.1, an
        affine layer of 100 inputs keeps the size of its inputs.
    policy_gain: of the policy's last layer. It starts near zero, so that the first policy is close to uniform. Only
        orthogonal weights and normalized columns have a gain.
    head_bias: False leaves out the biases of the policy's last layer and of the value layer.
    state_dependent_std: for continuous actions, whether the network or a free parameter gives the standard deviation.
        With true it starts as the exponential of biases, so head_bias must be true.
    initial_std: the standard deviation at the start, as a share of half the action range.
    kernels: 'auto': numpy kernels for what they can run, torch for the rest; 'numpy': refuse what kernels cannot run;
        'torch': torch for everything.
    """

    init: Initialization | None = None
    init_std: float = 0.1
    policy_gain: float = 0.01
    head_bias: bool = True
    state_dependent_std: bool = False
    initial_std: float = 1.0
    kernels: Kernels = "auto"

    def __post_init__(self) -> None:
        require(self.init_std > 0, "init_std", self.init_std, "a number > 0")
        require(self.policy_gain > 0, "policy_gain", self.policy_gain, "a number > 0")
        require(0.01 <= self.initial_std <= 7, "initial_std", self.initial_std, "a number from 0.01 to 7")
        if self.state_dependent_std and not self.head_bias:
            problem = "must be true with state_dependent_std=true: the initial standard deviation is set by the biases"
            raise ConfigError("head_bias", self.head_bias, problem)

    def make(self, observations: Space, actions: Space, rng: Rng, build_loss: BuildLoss | None) -> ActorCritic:
        distribution = make_distribution(actions)
        parts = self.make_parts(observations)
        loss_module = None if build_loss is None else build_loss(parts.features)
        head = make_head(parts.features, distribution, self.state_dependent_std, self.initial_std, self.head_bias)
        value = nn.Linear(parts.critic_features, 1, self.head_bias)

        initializer = self.initialize_parts(parts, rng)
        head.initialize(initializer, self.policy_gain)
        initializer.draw(value)
        return EncoderActorCritic(
            parts.encoders, parts.observation_input, parts.core, head, value, distribution, loss_module
        )

    @abstractmethod
    def make_parts(self, observations: Space) -> Parts:
        """All but the last layers. Raises ConfigError if they cannot take such observations."""

    @abstractmethod
    def initialize_parts(self, parts: Parts, rng: Rng) -> Initializer:
        """Draw their weights, and return what draws those of the last layers."""


class Parts(NamedTuple):
    """The actor's and the critic's encoder, which may be the same, the cells after a shared one, and the size of what
    the policy's head and the value layer get."""

    encoders: tuple[nn.Module, nn.Module]
    observation_input: ObservationInput
    core: LstmCore | None
    features: int
    critic_features: int


@dataclass(frozen=True, kw_only=True)
class EncoderNetwork(ComposedNetwork):
    """Encoders for actor and critic, with the last layers right after them.

    encoder: a module from observations to features [N, F].
    critic_encoder: the critic's, if it has other settings; None: as the actor's.
    shared: one encoder for actor and critic; False: each has its own.
    init: of the weights of every affine layer and convolution. Orthogonal layers of an encoder have gain sqrt(2),
        normalized columns 1. None: the encoder keeps what its constructor has drawn.
    """

    nameable: ClassVar[bool] = False

    encoder: ModuleSpec
    critic_encoder: ModuleSpec | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared and self.critic_encoder is not None:
            own = self.encoder.settings
            name, value = next(each for each in self.critic_encoder.settings.items() if own.get(each[0]) != each[1])
            raise ConfigError(f"critic_{name}", value, "must be null where shared=true")

    @property
    def class_name(self) -> str:
        return self.encoder.cls.__name__

    @property
    def takes_pictures(self) -> bool:
        return observation_form(self.encoder.cls) == PICTURE

    def make_parts(self, observations: Space) -> Parts:
        actor, observation_input, features = _construct_encoder(self.encoder, observations)
        critic, critic_features = actor, features
        if not self.shared:
            critic, critic_features = self._make_critic_encoder(observations)
        return Parts((actor, critic), observation_input, None, features, critic_features)

    def _make_critic_encoder(self, observations: Space) -> tuple[nn.Module, int]:
        """The critic's own encoder, and the size of its features."""
        spec = self.critic_encoder or self.encoder
        try:
            encoder, _, features = _construct_encoder(spec, observations)
        except ConfigError as error:
            name = error.key.removeprefix("network.")
            if self.critic_encoder is None or name not in spec.settings:
                raise
            raise ConfigError(f"network.critic_{name}", error.value, error.problem) from error
        return encoder, features

    def initialize_parts(self, parts: Parts, rng: Rng) -> Initializer:
        initializer = Initializer(self.init or "orthogonal", self.init_std, torch_generator(rng))
        for encoder in dict.fromkeys(parts.encoders):
            self.initialize_encoder(encoder, initializer)
        return initializer

    def initialize_encoder(self, encoder: nn.Module, initializer: Initializer) -> None:
        """Draw the weights of an encoder, if `init` says how."""
        if self.init is not None:
            initializer.draw_encoder(encoder)


@dataclass(frozen=True, kw_only=True)
class Lstm(ComposedNetwork):
    """An encoder, LSTM cells after it, and the heads of actor and critic on those (Mnih et al. 2016).

    encoder: any network without a recurrent state. The cells get the features of its encoder, the actor's if there are
        two. Its heads are left out, and so are the settings about them.
    hidden_size: number of cells; a state has two numbers for each.
    init, init_std: of the heads and the cells.
    core_init: of the cells, with gain 1; None: as `init`. See `LstmCore.initialize`.
    forget_bias: initial bias of the forget gates. With 1 a new network remembers for a few steps, so that it can find
        out what is worth remembering (Jozefowicz et al. 2015).
    """

    encoder: Network = field(default_factory=lambda: EncoderNetwork(encoder=ModuleSpec(Mlp), init="orthogonal"))
    hidden_size: int = 64
    core_init: Initialization | None = None
    forget_bias: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.encoder, EncoderNetwork):
            problem = "must be a network without a recurrent state of its own, made of an encoder"
            raise ConfigError("encoder", type(self.encoder).__name__, problem)
        allowed = f"a whole number from 1 to {MAX_WIDTH}"
        require(1 <= self.hidden_size <= MAX_WIDTH, "hidden_size", self.hidden_size, allowed)
        require(abs(self.forget_bias) <= 10, "forget_bias", self.forget_bias, "a number from -10 to 10")

    @property
    def takes_pictures(self) -> bool:
        return self.encoder.takes_pictures

    def make_parts(self, observations: Space) -> Parts:
        assert isinstance(self.encoder, EncoderNetwork)
        try:
            encoder, observation_input, features = _construct_encoder(self.encoder.encoder, observations)
        except ConfigError as error:
            key = error.key.replace("network", "network.encoder", 1)
            raise ConfigError(key, error.value, error.problem) from error
        core = LstmCore(features, self.hidden_size)
        return Parts((encoder, encoder), observation_input, core, self.hidden_size, self.hidden_size)

    def initialize_parts(self, parts: Parts, rng: Rng) -> Initializer:
        encoder = self.encoder
        assert isinstance(encoder, EncoderNetwork) and parts.core is not None
        of_encoder = Initializer(encoder.init or "orthogonal", encoder.init_std, torch_generator(rng))
        encoder.initialize_encoder(parts.encoders[0], of_encoder)
        initializer = Initializer(self.init or "orthogonal", self.init_std, torch_generator(rng))
        parts.core.initialize(replace(initializer, scheme=self.core_init or initializer.scheme), self.forget_bias)
        return initializer


@dataclass(frozen=True, kw_only=True)
class WholeNetwork(Network):
    """A whole actor-critic of the user's own. module: see `networks.whole.WholeActorCritic`."""

    nameable: ClassVar[bool] = False

    module: ModuleSpec

    @property
    def class_name(self) -> str:
        return self.module.cls.__name__

    @property
    def takes_pictures(self) -> bool:
        return observation_form(self.module.cls) == PICTURE

    def make(self, observations: Space, actions: Space, rng: Rng, build_loss: BuildLoss | None) -> ActorCritic:
        if build_loss is not None:
            problem = "must be made of an encoder: the algorithm has a module of its own, which needs features"
            raise ConfigError("network", self.class_name, problem)
        distribution = make_distribution(actions)
        observation_input = ObservationInput.of(self.module.cls, observations)
        of_actions = {"action_space": actions, "outputs": distribution.size}
        own = {name: value for name, value in of_actions.items() if name in injected_names(self.module.cls)}
        module = self.module.construct(observation_input.arguments | own)
        network = WholeActorCritic(module, observation_input, distribution)
        with torch.no_grad(), evaluation_mode(module):  # fills lazy modules
            run_module(network, torch.from_numpy(sample_observations(observations, 1)), self.class_name)
        return network


def _construct_encoder(spec: ModuleSpec, space: Space) -> tuple[nn.Module, ObservationInput, int]:
    """An encoder, the form of its observations, and F: the width of its features, found by one pass.

    The pass also fills lazy modules. It is in evaluation mode, in which no module changes its buffers.
    """
    observation_input = ObservationInput.of(spec.cls, space)
    encoder = spec.construct(observation_input.arguments)
    with torch.no_grad(), evaluation_mode(encoder):
        inputs = observation_input.prepare(torch.from_numpy(sample_observations(space, 1)))
        features = run_module(encoder, inputs, spec.cls.__name__)
    if not isinstance(features, torch.Tensor) or features.dim() != 2 or len(features) != 1 or not features.shape[1]:
        shape = tuple(features.shape) if isinstance(features, torch.Tensor) else type(features).__name__
        problem = f"must return features [N, F]: for 1 observation it returned {shape}"
        raise ConfigError("network", spec.cls.__name__, problem)
    return encoder, observation_input, features.shape[1]


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Set a module and all in it to evaluation mode, and back to their own modes on exit."""
    modes = [(each, each.training) for each in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for each, training in modes:
            each.training = training


def run_module(module: nn.Module, inputs: torch.Tensor, name: str) -> Any:
    """The module's outputs. Raises ConfigError, in one line, if its `forward` raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # lazy modules announce themselves
            return module(inputs)
    except FAILURES as error:
        if is_lack_of_memory(error):
            raise
        problem = f"its forward failed for observations {tuple(inputs.shape)}: {one_line(error)}"
        raise ConfigError("network", name, problem) from error
