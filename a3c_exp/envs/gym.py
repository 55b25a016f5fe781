"""The `env` component for anything registered with gymnasium."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import inspect
import itertools
import os
import pkgutil
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv

from a3c_exp.common.trust import is_allowed_module, is_plain
from a3c_exp.envs.atari import INSTALL
from a3c_exp.envs.batch import EnvBatch, Environment, report_progress
from a3c_exp.envs.spaces import action_problem, observation_problem
from a3c_exp.envs.sync_batch import Env, SyncEnvBatch
from a3c_exp.envs.vector_batch import VectorEnvBatch, autoreset_mode
from a3c_exp.errors import ConfigError, did_you_mean, one_line, place_of, require

REGISTERED = "_registered"
"""Where a pickled component has its specification."""

MOST_MODULES = 10
"""Modules of a plugin that an error names."""

HARMLESS_WRAPPERS = frozenset({
    "AddRenderObservation", "AddWhiteNoise", "AtariPreprocessing", "Autoreset", "ClipAction", "ClipReward",
    "DelayObservation", "DiscretizeAction", "DiscretizeObservation", "DtypeObservation", "FilterObservation",
    "FlattenObservation", "FrameStackObservation", "GrayscaleObservation", "MaxAndSkipObservation",
    "NormalizeObservation", "NormalizeReward", "ObstructView", "OrderEnforcing", "PassiveEnvChecker",
    "RecordEpisodeStatistics", "RepeatAction", "RescaleAction", "RescaleObservation", "ReshapeObservation",
    "ResizeObservation", "StickyAction", "TimeAwareObservation", "TimeLimit",
})  # fmt: skip
"""Wrappers of gymnasium that a run's folder may name: they only change what passes through them."""


@dataclass(frozen=True, kw_only=True)
class Gym(Environment):
    """An environment that is registered with gymnasium, K copies of it stepped together.

    id: its registered name, version included ('CartPole-v1'). 'module:Name-v0' imports a module of yours first, whose
        package has to be listed in `plugins`.
    kwargs: arguments of the environment itself ({gravity: -5.0}). In a text '{port}' is a free TCP port of this
        machine, and '{copy}' a name, both others for each environment of any worker, evaluation and run.
    wrappers: by name, the innermost first: classes of gymnasium.wrappers, or 'module:Class' of a package in `plugins`.
        With arguments as {name: {argument: value}}, or as {wrapper: name, argument: value}.
    max_episode_steps: the time limit; null keeps the registered one. An episode that reaches it is truncated.
    vectorized: use the environment's native vector form, where it has one (CartPole-v1), instead of a Python loop.
    The other settings are those of every `Environment`.
    """

    id: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: tuple[str | dict[str, Any], ...] = ()
    max_episode_steps: int | None = None
    vectorized: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        limit = self.max_episode_steps
        require(limit is None or limit >= 1, "max_episode_steps", limit, "a whole number >= 1, or null")
        require(not (self.vectorized and self.wrappers), "vectorized", True, "false where wrappers are used")
        for name in ("id", "max_episode_steps", "disable_env_checker", "num_envs"):
            require(name not in self.kwargs, f"kwargs.{name}", self.kwargs.get(name), "left out: it is set elsewhere")
        drawn = self.kwargs.get("render_mode", "rgb_array")
        require(drawn == "rgb_array", "kwargs.render_mode", drawn, "rgb_array, for observations that are drawn")
        for entry in self.wrappers:
            name, arguments = _parsed(entry)
            fits = isinstance(name, str) and isinstance(arguments, Mapping)
            require(fits, "wrappers", entry, "a name, {name: {argument: value}} or {wrapper: name, argument: value}")

    def __getstate__(self) -> dict[str, Any]:
        """For a worker: with the specification of an environment that the calling script or notebook has registered."""
        spec = gymnasium.registry.get(self.id)
        own = spec is not None and not str(spec.entry_point).startswith("gymnasium.")
        return self.__dict__ | ({REGISTERED: cloudpickle.dumps(spec)} if own else {})

    def validate(self, plugins: Sequence[str]) -> None:
        _allow(self.id, "id", plugins)
        for name, _ in map(_parsed, self.wrappers):
            _allow(name, "wrappers", plugins)
        self._spec(plugins)
        for name, _ in map(_parsed, self.wrappers):
            _wrapper(name)

    def settings_to_trust(self) -> dict[str, object]:
        """The wrappers, if one may do more than convert what passes through it: RecordVideo writes files."""
        for name, arguments in map(_parsed, self.wrappers):
            # The code of a plugin's wrapper is trusted, its arguments are not.
            if not (":" in name or name in HARMLESS_WRAPPERS) or not is_plain(arguments):
                return {"wrappers": list(self.wrappers)}
        return {}

    def warning(self) -> str | None:
        """Warn of wrappers that keep statistics of their own."""
        own = {"NormalizeObservation": "env.normalize_observations", "NormalizeReward": "env.normalize_rewards"}
        for name, _ in map(_parsed, self.wrappers):
            if key := own.get(name):
                return f"{name} keeps statistics of each environment alone, which no checkpoint holds: take {key}=true"
        return None

    def make(self, count: int, seeds: Sequence[int], render_mode: str | None = None) -> EnvBatch:
        """`count` environments, each with its seed (0 <= seed < 2**31). render_mode: as gymnasium's; None: not drawn.

        Raises ConfigError if an environment cannot be made, or has spaces that no policy here supports.
        """
        spec = self._spec()
        if self.vectorized:
            vector = self._native(spec, count, render_mode)
            self._check(vector, vector.single_observation_space, vector.single_action_space)
            return VectorEnvBatch(vector, seeds, self.max_steps_guard)
        envs: list[Env] = []
        for _ in range(count):
            envs.append(self._one(spec, render_mode))
            report_progress()
            if len(envs) == 1:
                spaces = (getattr(envs[0], name, None) for name in ("observation_space", "action_space"))
                self._check(envs[0], *spaces)
        return SyncEnvBatch(envs, seeds, self.max_steps_guard)

    def _spec(self, plugins: Sequence[str] = ()) -> EnvSpec:
        """gymnasium's specification of `id`. Imports the module that registers it if `id` names one."""
        module, _, name = self.id.rpartition(":")
        if name not in gymnasium.registry and REGISTERED in self.__dict__:
            gymnasium.registry[name] = cloudpickle.loads(self.__dict__[REGISTERED])
        if module:
            _import(module, "id", self.id)
        elif name not in gymnasium.registry:  # it may be an Atari game, some of which have names without a prefix
            if importlib.util.find_spec("ale_py") is not None:
                gymnasium.register_envs(importlib.import_module("ale_py"))
            elif name.startswith("ALE/"):
                raise ConfigError("id", self.id, f"needs the Atari packages: {INSTALL}")
        if name in gymnasium.registry:
            return gymnasium.registry[name]
        old = getattr(sys.modules.get("gym.envs.registration"), "registry", {})
        if name in getattr(old, "env_specs", old):  # so gym called it up to 0.25
            problem = "is registered with gym, which gymnasium has replaced: it needs a class of yours around it"
            raise ConfigError("id", self.id, f"{problem}, or that of the package shimmy")
        guess = did_you_mean(name, gymnasium.registry, list_all=False)
        problem = f"no such environment is registered{f': {guess}' if guess else '.'}"
        raise ConfigError("id", self.id, problem if module else f"{problem} {_other_package(name, plugins)}")

    def _one(self, spec: EnvSpec, render_mode: str | None) -> Env:
        """One environment with its wrappers."""
        with self._making(spec):
            arguments = _filled(self.kwargs) | self._drawing(spec.entry_point, render_mode)
            limit = self.max_episode_steps
            env: Env = gymnasium.make(spec, max_episode_steps=limit, disable_env_checker=True, **arguments)
        for entry in self.wrappers:
            name, given = _parsed(entry)
            wrapper = _wrapper(name)
            try:
                env = wrapper(env, **_converted(wrapper, given))
            except gymnasium.error.DependencyNotInstalled as error:
                lacks = "pip install 'a3c-exp[pictures]'" if "opencv" in str(error) else one_line(error)
                raise ConfigError("wrappers", entry, f"needs a package that is not installed: {lacks}") from error
            except Exception as error:
                hint = ". env.kwargs.render_mode=rgb_array draws" if "render_mode" in str(error) else ""
                raise ConfigError(
                    "wrappers", entry, f"does not fit {self.id}: {one_line(error)}{place_of(error)}{hint}"
                ) from error
        return env

    def _native(self, spec: EnvSpec, count: int, render_mode: str | None) -> VectorEnv[Any, Any, Any]:
        """The native vector environment."""
        if str(spec.entry_point).startswith("ale_py"):  # it would clip rewards and preprocess unasked
            raise ConfigError("vectorized", True, f"must be false for {self.id}: env=atari is its native form")
        if spec.vector_entry_point is None:
            raise ConfigError("vectorized", True, f"must be false: {self.id} has no native vector environment")
        with self._making(spec):
            arguments = _filled(self.kwargs) | self._drawing(spec.vector_entry_point, render_mode)
            if self.max_episode_steps is not None:
                arguments["max_episode_steps"] = self.max_episode_steps
            mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
            env = gymnasium.make_vec(spec, num_envs=count, vectorization_mode=mode, **arguments)
            autoreset_mode(env)
        return env

    def _drawing(self, entry_point: Any, render_mode: str | None) -> dict[str, str]:
        """The render_mode argument. Refuses a mode that the environment does not support; gymnasium only warns."""
        render_mode = render_mode or self.kwargs.get("render_mode")  # observations may be pictures of the environment
        if render_mode is None:
            return {}
        creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        metadata = getattr(creator, "metadata", None)
        if isinstance(metadata, dict):  # a function that makes the environment has no metadata
            modes = metadata.get("render_modes") or []
            if render_mode not in modes and not (render_mode == "human" and "rgb_array" in modes):
                offer = ", ".join(modes) or "none"
                raise ConfigError("id", self.id, f"cannot be drawn as {render_mode!r}; it offers {offer}")
        return {"render_mode": render_mode}

    @contextmanager
    def _making(self, spec: EnvSpec) -> Iterator[None]:
        """Within, environments are made: what fails there is an error of this configuration."""
        try:
            yield
        except ConfigError:
            raise
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            raise ConfigError("id", self.id, f"needs a package that is not installed: {one_line(error)}") from error
        except Exception as error:
            key, value = ("kwargs", self.kwargs) if self.kwargs else ("id", self.id)
            problem = f"{spec.id} cannot be made: {one_line(error)}{place_of(error.__cause__ or error)}"
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                problem += ". In env.kwargs '{port}' is a free port, another one for each copy"
            raise ConfigError(key, value, problem) from error

    def _check(self, env: Env | VectorEnv[Any, Any, Any], observations: Any, actions: Any) -> None:
        """Refuse spaces that are not supported."""
        problem = observation_problem(observations) or action_problem(actions)
        if problem is not None:
            env.close()
            raise ConfigError("id", self.id, problem)


def _other_package(name: str, plugins: Sequence[str]) -> str:
    """The advice to import what registers an environment: a package, if it has the environment's name, or a module."""
    if plugins:
        places = [(plugin, getattr(sys.modules.get(plugin), "__path__", ())) for plugin in plugins]
        modules = [f"{plugin}.{module.name}" for plugin, path in places for module in pkgutil.iter_modules(path)]
        inside = ". A module inside may, and is then named in its place: " if modules else ""
        return f"None of the plugins {', '.join(plugins)} registers it{inside}{', '.join(modules[:MOST_MODULES])}"
    package = re.split(r"\W", name)[0].lower()
    installed = package.isidentifier() and importlib.util.find_spec(package) is not None
    return f"If another package registers it: plugins=[{package if installed else '<package>'}]"


def _parsed(entry: str | Mapping[str, Any]) -> tuple[Any, Any]:
    """The name of a wrapper and its arguments; None for both where an entry has none of the forms."""
    if isinstance(entry, str):
        return entry, {}
    if "wrapper" in entry:
        return entry["wrapper"], {key: value for key, value in entry.items() if key != "wrapper"}
    return next(iter(entry.items())) if len(entry) == 1 else (None, None)


def _converted(wrapper: Callable[..., Env], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with arrays or tuples in the place of lists: YAML has neither. An annotation asks for an array."""
    asked = inspect.signature(wrapper).parameters
    kinds = {key: np.array if key in asked and "ndarray" in str(asked[key].annotation) else tuple for key in arguments}
    return {key: kinds[key](value) if isinstance(value, list) else value for key, value in arguments.items()}


_copies = itertools.count()


def _filled(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of one copy: see `Gym.kwargs`."""
    copy = f"{os.getpid()}-{next(_copies)}"
    port = _free_port() if any("{port}" in value for value in kwargs.values() if isinstance(value, str)) else 0

    def fill(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return port if value == "{port}" else value.replace("{port}", str(port)).replace("{copy}", copy)

    return {key: fill(value) for key, value in kwargs.items()}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _allow(name: str, key: str, plugins: Sequence[str]) -> None:
    """Refuse 'module:...' of a package that is neither this one nor one of the user's plugins."""
    module, colon, _ = name.rpartition(":")
    if colon and not is_allowed_module(module, plugins):
        package = module.partition(".")[0]
        raise ConfigError(key, name, f"imports {module}: allow it with plugins=[{package}]")


def _import(module: str, key: str, value: str) -> Any:
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise ConfigError(
            key, value, f"the module {module} cannot be imported: {one_line(error)}{place_of(error)}"
        ) from error


def _wrapper(name: str) -> Callable[..., Env]:
    """The wrapper class of that name. Raises ConfigError where there is none."""
    module, _, attribute = name.rpartition(":")
    source = _import(module, "wrappers", name) if module else gymnasium.wrappers
    found = getattr(source, attribute, None)
    if isinstance(found, type) and issubclass(found, gymnasium.Wrapper):
        return found
    known = [
        key for key, value in vars(source).items() if isinstance(value, type) and issubclass(value, gymnasium.Wrapper)
    ]
    guess = did_you_mean(attribute, known, list_all=False)
    elsewhere = "" if module else " One of another package is written module:Class"
    raise ConfigError("wrappers", name, f"{source.__name__} has no such wrapper: {guess}{elsewhere}".rstrip(": "))
