"""Networks as a configuration describes them: frozen records of a module's class and its settings,
that build it."""

from __future__ import annotations

import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from torch import nn

from a3c_exp.common.ranges import Checked, Positive, whole, within
from a3c_exp.envs.parts import PartsBox
from a3c_exp.errors import ConfigError, refused, require, under
from a3c_exp.networks.action_values import AveragedActorCritic, DuelingHead, QNetwork
from a3c_exp.networks.actor_critic import ActorCritic
from a3c_exp.networks.composed import EncoderActorCritic, WholeActorCritic
from a3c_exp.networks.distributions import Beta, Continuous, Distribution, Greedy, make_distribution
from a3c_exp.networks.heads import PolicyHead
from a3c_exp.networks.initialization import Initialization, Initializer, torch_generator
from a3c_exp.networks.inputs import ObservationInput, injected_names, sample_observations
from a3c_exp.networks.mlp import MAX_WIDTH, Mlp
from a3c_exp.networks.recurrent import LstmCore

ActionSpace = gym.Space[Any]
Rng = np.random.Generator | None

Cores = tuple[LstmCore | None, LstmCore | None]
"""Cells after the actor's and the critic's encoder; None where there are none."""

BuildLoss = Callable[[int], nn.Module | None]
"""Makes the loss's own module for features [T, B, F], given F; None if the loss has none."""

# Torch's global generator is drawn from while a module is constructed, in one thread at a time. A
# constructor may build another network: `a3c_exp.load` does.
construction = threading.RLock()


@contextmanager
def seeded_construction(seed: int) -> Iterator[None]:
    """Let modules be constructed under a seed, of float32 on the host: an environment may have set
    other defaults. Torch's global generator and defaults are the same afterwards."""
    with construction, torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        dtype = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


@dataclass(frozen=True)
class ModuleSpec:
    """A module's class and its settings: what travels to workers, which build the module where the
    spaces are known."""

    cls: type[nn.Module]
    settings: dict[str, Any] = field(default_factory=dict)

    def construct(self, injected: dict[str, Any]) -> nn.Module:
        """Construct the module. injected: what comes from the spaces, of which the constructor gets
        what it asks for.

        Raises ConfigError if the constructor refuses its arguments.
        """
        names = injected_names(self.cls)
        from_spaces = {name: value for name, value in injected.items() if name in names}
        with (
            refused("network", self.cls.__name__, f"it cannot be made with {self.settings}"),
            under("network"),
        ):
            return self.cls(**from_spaces, **self.settings)


class Network(Checked, ABC):
    """A component that builds an `ActorCritic`.

    nameable: whether a configuration may name the class itself. Those that stand for a module are
        named by the module.
    """

    nameable: ClassVar[bool] = True

    @property
    @abstractmethod
    def module_class(self) -> type[nn.Module]:
        """Return the class of the module that takes the observations."""

    def build(
        self,
        observations: Box,
        actions: ActionSpace,
        rng: Rng,
        *,
        seed: int = 0,
        build_loss: BuildLoss | None = None,
        action_values: bool = False,
        averaged: bool = False,
    ) -> ActorCritic:
        """Build a bound network with freshly drawn parameters.

        observations, actions: the spaces that it is for.
        rng: draws the parameters; None: they are about to be overwritten, and drawing may be left
            out.
        seed: of the constructors of modules: the same for every worker of a run.
        build_loss: makes the loss's own module; None if the loss has none.
        action_values: build a `QNetwork`. build_loss is None then.
        averaged: build an `AveragedActorCritic`. build_loss is None then.
        Raises ConfigError if the network cannot serve these spaces.
        """
        with seeded_construction(seed):
            if action_values:
                network: ActorCritic = self.make_action_values(observations, actions, rng)
            elif averaged:
                network = self.make_averaged(observations, actions, rng)
            else:
                network = self.make(observations, actions, rng, build_loss)

        warnings = [f"network: {warning}" for warning in network.warnings]
        network.warnings = tuple(dict.fromkeys(warnings))
        network.action_mask = _action_mask(observations, actions, network.distribution)
        if isinstance(network, AveragedActorCritic):
            network.online.action_mask = network.target.action_mask = network.action_mask
        network.bind()

        return network

    @abstractmethod
    def make(
        self, observations: Box, actions: ActionSpace, rng: Rng, build_loss: BuildLoss | None
    ) -> ActorCritic:
        """Make the network before it is bound. Torch's generator has been seeded."""

    def make_action_values(self, observations: Box, actions: ActionSpace, rng: Rng) -> QNetwork:
        """Make the same for action values. Raises ConfigError if the network has no such form."""
        component = type(self) if self.nameable else self.module_class
        problem = (
            "must be an encoder without a recurrent state, since the algorithm learns action values"
        )
        raise ConfigError("network", component.__name__, problem)

    def make_averaged(
        self, observations: Box, actions: ActionSpace, rng: Rng
    ) -> AveragedActorCritic:
        """Make the same for a policy, action values and an average. Raises ConfigError if the
        network has no such form."""
        problem = "must be made of an encoder, since the algorithm needs an average of the network"
        raise ConfigError("network", self.module_class.__name__, problem)


@dataclass(frozen=True, kw_only=True)
class ComposedNetwork(Network):
    """Encoders of observations, and the policy's head and the value layer after them.

    init: of weights: see `networks.initialization`. None: the last layers are orthogonal.
    init_std: standard deviation of all weights with init=normal; other schemes do not use it. With
        the default, 0.1, an affine layer of 100 inputs keeps the size of its inputs.
    policy_gain: of the policy's last layer. It starts near zero, so that the first policy is close
        to uniform. Only orthogonal weights and normalized columns have a gain.
    head_bias: False leaves out the biases of the last layers, the policy's and the value's.
    distribution: of continuous actions: see `networks.distributions`. Squashed Gaussians and Betas
        need bounds.
    state_dependent_std: for continuous actions, whether the network or a free parameter gives the
        standard deviation.
    initial_std: the standard deviation at the start, as a share of half the action range; of a Beta
        at most 0.5.
    squash_mean, softplus_std, clip_actions: see `Gaussian`.
    """

    init: Initialization | None = None
    init_std: Positive = 0.1
    policy_gain: Positive = 0.01
    head_bias: bool = True
    distribution: Continuous = "gaussian"
    state_dependent_std: bool = False
    initial_std: Annotated[float, within(0.01, 7)] = 1.0
    squash_mean: bool = False
    softplus_std: bool = False
    clip_actions: bool = False

    @property
    @abstractmethod
    def encoders(self) -> EncoderNetwork:
        """Return the record that describes the encoders."""

    @property
    def module_class(self) -> type[nn.Module]:
        return self.encoders.encoder.cls

    @abstractmethod
    def make_encoders(self, observations: Box) -> tuple[Encoder, Encoder, ObservationInput]:
        """Make the actor's and the critic's encoder, which may be the same, and the form of their
        observations.

        Raises ConfigError if they cannot take such observations.
        """

    def make_cores(self, actor: Encoder, critic: Encoder) -> Cores:
        """Make the cells after the encoders."""
        return None, None

    def make(
        self, observations: Box, actions: ActionSpace, rng: Rng, build_loss: BuildLoss | None
    ) -> ActorCritic:
        return self._make(observations, actions, rng, build_loss)

    def make_averaged(
        self, observations: Box, actions: ActionSpace, rng: Rng
    ) -> AveragedActorCritic:
        assert isinstance(actions, Discrete)
        require(actions.n > 1, "env.id", str(actions), "one of several actions with acer")
        online = self._make(observations, actions, rng, None, values=int(actions.n))
        network = AveragedActorCritic(online)
        network.warnings = online.warnings
        return network

    def _make(
        self,
        observations: Box,
        actions: ActionSpace,
        rng: Rng,
        build_loss: BuildLoss | None,
        values: int = 1,
    ) -> EncoderActorCritic:
        distribution = make_distribution(
            actions,
            self.distribution,
            squash_mean=self.squash_mean,
            softplus_std=self.softplus_std,
            clip_actions=self.clip_actions,
        )
        actor, critic, observation_input = self.make_encoders(observations)
        core, critic_core = self.make_cores(actor, critic)
        features = actor.width if core is None else core.hidden_size
        critic_features = critic.width if critic_core is None else critic_core.hidden_size

        loss_module = None if build_loss is None else build_loss(features)
        head = PolicyHead(
            features, distribution, self.state_dependent_std, self.initial_std, self.head_bias
        )
        value = nn.Linear(critic_features, values, self.head_bias)

        encoders = actor.module, critic.module
        initializer = Initializer(self.init or "orthogonal", self.init_std, torch_generator(rng))
        warnings = self._idle_settings(distribution)
        warnings += self.encoders.draw_encoders(encoders, initializer.generator)
        for cells in dict.fromkeys((core, critic_core)):
            if cells is not None:
                initializer = replace(initializer, generator=torch_generator(rng))
                cells.initialize(initializer)

        head.initialize(initializer, self.policy_gain)
        initializer.draw(value)

        network = EncoderActorCritic(
            encoders,
            observation_input,
            (core, critic_core),
            head,
            value,
            distribution,
            loss_module,
        )
        network.warnings = tuple(warnings)
        return network

    def _idle_settings(self, distribution: Distribution) -> list[str]:
        """Return warnings of settings that have no effect, and other values than the default."""
        reasons = {}
        if "normal" not in (self.init, getattr(self, "core_init", None)):
            reasons["init_std"] = "without init=normal"
        if self.init in ("glorot", "normal", "default"):
            reasons["policy_gain"] = f"with init={self.init}"
        if not distribution.spread:
            of_gaussian = "with discrete actions"
            of_std = of_gaussian
            reasons["initial_std"] = of_gaussian
        elif self.distribution != "gaussian":
            of_gaussian = f"with distribution={self.distribution}"
            of_std = of_gaussian if isinstance(distribution, Beta) else ""
        else:
            of_gaussian = of_std = ""

        reasons["state_dependent_std"] = reasons["softplus_std"] = of_std
        reasons["squash_mean"] = reasons["clip_actions"] = of_gaussian
        reasons["dueling"] = "" if isinstance(distribution, Greedy) else "without action values"
        return [
            f"{name}={getattr(self, name)} has no effect {reason}"
            for name, reason in reasons.items()
            if reason and getattr(self, name, None) != getattr(type(self), name, None)
        ]


class Encoder(NamedTuple):
    """An encoder: a module from observations to features [N, F]. width: F."""

    module: nn.Module
    width: int


@dataclass(frozen=True, kw_only=True)
class EncoderNetwork(ComposedNetwork):
    """Encoders for actor and critic, with the last layers right after them.

    encoder: a module from observations to features [N, F].
    critic_encoder: the critic's, if it has other settings; None: as the actor's.
    shared: one encoder for actor and critic; False: each has its own.
    dueling: of action values: a `DuelingHead` in place of one affine layer.
    init: of the weights of every affine layer and convolution. A warning names the layers that it
        does not know. Orthogonal layers of an encoder have gain sqrt(2), normalized columns 1.
        None: the encoder keeps what its constructor has drawn.
    """

    nameable: ClassVar[bool] = False

    encoder: ModuleSpec
    critic_encoder: ModuleSpec | None = None
    shared: bool = False
    dueling: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared:
            self._refuse_critic("critic_", "must be null where shared=true")

    def _refuse_critic(self, prefix: str, problem: str) -> None:
        """Raise ConfigError for the first setting that the critic's encoder alone has, if there is
        one."""
        if self.critic_encoder is None:
            return
        of_actor = self.encoder.settings
        for name, value in self.critic_encoder.settings.items():
            if of_actor.get(name) != value:
                raise ConfigError(prefix + name, value, problem)

    @property
    def encoders(self) -> EncoderNetwork:
        return self

    def make_encoders(self, observations: Box) -> tuple[Encoder, Encoder, ObservationInput]:
        actor, observation_input = _construct_encoder(self.encoder, observations)
        if self.shared:
            return actor, actor, observation_input

        spec = self.critic_encoder or self.encoder
        try:
            critic, _ = _construct_encoder(spec, observations)
        except ConfigError as error:
            name = error.key.removeprefix("network.")
            if self.critic_encoder is None or name not in spec.settings:
                raise
            raise ConfigError(f"network.critic_{name}", error.value, error.problem) from error

        return actor, critic, observation_input

    def draw_encoders(
        self, encoders: Iterable[nn.Module], generator: torch.Generator | None
    ) -> list[str]:
        """Draw the weights of encoders, and return warnings of layers that keep theirs."""
        if self.init is None:
            return []
        initializer = Initializer(self.init, self.init_std, generator)
        return [
            f"init={self.init} does not draw the weights of {layer}"
            for encoder in dict.fromkeys(encoders)
            for layer in initializer.draw_encoder(encoder)
        ]

    def make_action_values(self, observations: Box, actions: ActionSpace, rng: Rng) -> QNetwork:
        self._refuse_critic("network.critic_", "must be null: action values have no critic")
        assert isinstance(actions, Discrete)
        distribution = Greedy(actions)
        encoder, observation_input = _construct_encoder(self.encoder, observations)
        head = DuelingHead if self.dueling else nn.Linear
        last = head(encoder.width, int(actions.n), self.head_bias)

        generator = torch_generator(rng)
        warnings = self._idle_settings(distribution)
        warnings += self.draw_encoders([encoder.module], generator)
        initializer = Initializer(self.init or "orthogonal", self.init_std, generator)
        if isinstance(last, DuelingHead):
            initializer.draw_encoder(last)
            initializer.draw(last.value, self.policy_gain)
            initializer.draw(last.advantage, self.policy_gain)
        else:
            initializer.draw(last, self.policy_gain)

        network = QNetwork(encoder.module, last, observation_input, distribution)
        network.warnings = tuple(warnings)
        return network


@dataclass(frozen=True, kw_only=True)
class Lstm(ComposedNetwork):
    """An encoder, LSTM cells after it, and the heads of actor and critic on those (Mnih et al.
    2016).

    encoder: any network without a recurrent state, of which only the encoder is used: the actor's
        if actor and critic share it, or else both. Its heads are left out, and so are the settings
        about them.
    shared: one encoder with its cells for actor and critic; False: each has its own, as the paper's
        network for continuous actions.
    hidden_size: number of cells; a state has two numbers for each. 0: there are none.
    critic_hidden_size: number of the critic's cells, if it has its own; None: as the actor's.
    init, init_std: of the heads and the cells.
    core_init: of the cells, with gain 1; None: as `init`. See `LstmCore.initialize`.
    forget_bias: initial bias of the forget gates. With 1 a new network remembers for a few steps,
        so that it can find out what is worth remembering (Jozefowicz et al. 2015).
    """

    encoder: Network = field(
        default_factory=lambda: EncoderNetwork(encoder=ModuleSpec(Mlp), init="orthogonal")
    )
    shared: bool = True
    hidden_size: Annotated[int, whole(0, MAX_WIDTH)] = 64
    critic_hidden_size: Annotated[int, whole(0, MAX_WIDTH)] | None = None
    core_init: Initialization | None = None
    forget_bias: Annotated[float, within(-10, 10)] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.encoder, EncoderNetwork):
            problem = "must be a network without a recurrent state of its own, made of an encoder"
            raise ConfigError("encoder", type(self.encoder).__name__, problem)
        if self.shared and self.critic_hidden_size is not None:
            problem = "must be null where shared=true"
            raise ConfigError("critic_hidden_size", self.critic_hidden_size, problem)

    @property
    def encoders(self) -> EncoderNetwork:
        assert isinstance(self.encoder, EncoderNetwork)
        critic_encoder = None if self.shared else self.encoder.critic_encoder
        return replace(self.encoder, shared=self.shared, critic_encoder=critic_encoder)

    def make_encoders(self, observations: Box) -> tuple[Encoder, Encoder, ObservationInput]:
        try:
            return self.encoders.make_encoders(observations)
        except ConfigError as error:
            key = error.key.replace("network", "network.encoder", 1)
            raise ConfigError(key, error.value, error.problem) from error

    def _idle_settings(self, distribution: Distribution) -> list[str]:
        warnings = []
        for setting in fields(ComposedNetwork):
            name = setting.name
            value = getattr(self.encoder, name)
            if name not in ("init", "init_std") and value != setting.default:
                warning = f"encoder.{name}={value} has no effect: {name} is that of the heads"
                warnings.append(warning)

        if self.shared and getattr(self.encoder, "critic_encoder", None) is not None:
            warnings.append("encoder.critic_* has no effect with shared=true")

        return warnings + super()._idle_settings(distribution)

    def make_cores(self, actor: Encoder, critic: Encoder) -> Cores:
        core = self._make_core(actor, self.hidden_size)
        if self.shared:
            return core, core
        own_size = self.critic_hidden_size
        return core, self._make_core(critic, self.hidden_size if own_size is None else own_size)

    def _make_core(self, encoder: Encoder, cells: int) -> LstmCore | None:
        if not cells:
            return None
        return LstmCore(encoder.width, cells, self.core_init, self.forget_bias)


@dataclass(frozen=True, kw_only=True)
class WholeNetwork(Network):
    """A whole actor-critic of the user's own.

    module: see `networks.composed.WholeActorCritic`.
    """

    nameable: ClassVar[bool] = False

    module: ModuleSpec

    @property
    def module_class(self) -> type[nn.Module]:
        return self.module.cls

    def make(
        self, observations: Box, actions: ActionSpace, rng: Rng, build_loss: BuildLoss | None
    ) -> ActorCritic:
        if build_loss is not None:
            problem = (
                "must be made of an encoder: the algorithm has a module of its own, "
                "which needs features"
            )
            raise ConfigError("network", self.module_class.__name__, problem)

        distribution = make_distribution(actions)
        observation_input = ObservationInput.of(self.module.cls, observations)
        of_actions = {"action_space": actions, "outputs": distribution.size}
        module = self.module.construct(observation_input.arguments | of_actions)
        network = WholeActorCritic(module, observation_input, distribution)
        sample = torch.from_numpy(sample_observations(observations, 1))
        with torch.no_grad(), evaluation_mode(module):  # fills lazy modules
            run_module(network, sample, self.module_class.__name__)

        return network


def _action_mask(
    observations: Box, actions: ActionSpace, distribution: Distribution
) -> slice | None:
    """Return the columns of the mask of actions. Raises ConfigError for one that does not fit the
    actions."""
    columns = observations.mask if isinstance(observations, PartsBox) else None
    if columns is None:
        return None

    is_choice = isinstance(actions, (Discrete, MultiDiscrete))
    if not is_choice or isinstance(distribution, Greedy):
        problem = "must be left out: only a policy over Discrete or MultiDiscrete actions has masks"
        raise ConfigError("env.id", "action_mask", problem)

    size = columns.stop - columns.start
    if size != distribution.size:
        allowed = f"a mask of {distribution.size} numbers, one for each choice: it has {size}"
        raise ConfigError("env.id", "action_mask", f"must be {allowed}")

    return columns


def _construct_encoder(spec: ModuleSpec, space: Box) -> tuple[Encoder, ObservationInput]:
    """Make an encoder, whose width is found by one pass, and the form of its observations.

    The pass also fills lazy modules. It is in evaluation mode, in which no module changes its
    buffers.
    """
    observation_input = ObservationInput.of(spec.cls, space)
    module = spec.construct(observation_input.arguments)
    with torch.no_grad(), evaluation_mode(module):
        inputs = observation_input.prepare(torch.from_numpy(sample_observations(space, 1)))
        features = run_module(module, inputs, spec.cls.__name__)

    is_tensor = isinstance(features, torch.Tensor)
    shape: Any = tuple(features.shape) if is_tensor else type(features).__name__
    if not is_tensor or len(shape) != 2 or shape[0] != 1 or not shape[1]:
        problem = f"must return features [N, F]: for 1 observation it returned {shape}"
        raise ConfigError("network", spec.cls.__name__, problem)

    return Encoder(module, shape[1]), observation_input


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Set a module and all in it to evaluation mode, and back to their own modes on exit."""
    modes = {submodule: submodule.training for submodule in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for submodule, training in modes.items():
            submodule.training = training


def run_module(module: nn.Module, inputs: Any, name: str) -> Any:
    """Return the module's outputs. Raises ConfigError, in one line, if its `forward` raises."""
    shapes: Any
    if isinstance(inputs, dict):
        shapes = {key: tuple(part.shape) for key, part in inputs.items()}
    else:
        shapes = tuple(inputs.shape)

    with (
        refused("network", name, f"its forward failed for observations {shapes}"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UserWarning)  # lazy modules announce themselves
        return module(inputs)
