"""The `env` component for anything registered with gymnasium."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import os
import socket
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from a3c_exp.common.ranges import Count
from a3c_exp.common.trust import is_allowed_module
from a3c_exp.envs.batch import MAX_STEPS_GUARD, EnvBatch, Environment
from a3c_exp.envs.errors import close_within
from a3c_exp.envs.progress import report_progress
from a3c_exp.envs.sync_batch import Env, SyncEnvBatch
from a3c_exp.envs.vector_batch import VECTOR_WRAPPERS, VectorEnvBatch
from a3c_exp.errors import (
    UNREGISTERED,
    ConfigError,
    did_you_mean,
    one_line,
    refused,
    require_package,
)

REGISTERED = "_registered"
"""Where a pickled component has its specification."""

PACKAGES = {
    "ALE/": ("ale_py", "atari"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "Vizdoom": ("vizdoom.gymnasium_wrapper", "doom"),
    "dm_control/": ("shimmy", "dm_control"),
}
"""Packages whose environments need no `plugins`, by the start of the names, and the extra that
installs each."""

GYMNASIUM = "gymnasium"
ENVPOOL = "envpool"
"""Engines: see `Gym.engine`."""


def register(start: str, key: str, value: str) -> None:
    """Register the environments whose names begin with `start`, one of PACKAGES.

    Raises ConfigError about a setting if their package is not installed, or lacks another one.
    """
    package, extra = PACKAGES[start]
    require_package(key, value, extra, package.partition(".")[0])
    imported(package, key, value)


@dataclass(frozen=True, kw_only=True)
class Gym(Environment):
    """An environment that is registered with gymnasium, K copies of it stepped together.

    id: its registered name, version included ('CartPole-v1'). 'module:Name-v0' imports a module of
        yours first, whose package has to be listed in `plugins`.
    kwargs: arguments of the environment itself ({gravity: -5.0}). In a text '{port}' is a free TCP
        port of this machine, and '{copy}' a name, both others for each environment of any worker,
        evaluation and run.
    reset_options: the `options` of each reset: {difficulty: 3}. Not of a native vector, and not of
        another engine, which reset themselves.
    wrappers: by name, the innermost first: classes of gymnasium.wrappers, or 'module:Class' of a
        package in `plugins`. With arguments as {name: {argument: value}}, or as {wrapper: name,
        argument: value}.
    max_episode_steps: the time limit; null keeps the registered one. An episode that reaches it is
        truncated.
    vectorized: use the environment's native vector form, where it has one (CartPole-v1), instead of
        a Python loop.
    engine: 'gymnasium'; 'envpool': EnvPool's environment of that id, in C++; or 'module:function'
        of a package in `plugins`: function(id, num_envs=K, seed=seed, **kwargs) returns a
        gymnasium.vector.VectorEnv, in any autoreset mode. These have one seed for K environments.
        EnvPool takes the wrappers in VECTOR_WRAPPERS. Videos are of gymnasium's own environment.
    The other settings are those of every `Environment`.
    """

    id: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    reset_options: dict[str, Any] = field(default_factory=dict)
    wrappers: tuple[str | dict[str, Any], ...] = ()
    max_episode_steps: Count | None = None
    vectorized: bool = False
    engine: str = "gymnasium"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vectorized and self.wrappers:
            raise ConfigError("vectorized", True, "must be false where wrappers are used")

        for name in ("id", "max_episode_steps", "disable_env_checker", "num_envs"):
            if name in self.kwargs:
                problem = "must be left out: it is set elsewhere"
                raise ConfigError(f"kwargs.{name}", self.kwargs[name], problem)

        render_mode = self.kwargs.get("render_mode", "rgb_array")
        if render_mode != "rgb_array":
            problem = "must be rgb_array, for observations that are drawn"
            raise ConfigError("kwargs.render_mode", render_mode, problem)

        for entry in self.wrappers:
            name, arguments = _parsed(entry)
            if not (isinstance(name, str) and isinstance(arguments, Mapping)):
                forms = "a name, {name: {argument: value}} or {wrapper: name, argument: value}"
                raise ConfigError("wrappers", entry, f"must be {forms}")

        self._check_engine()

    def _check_engine(self) -> None:
        """Raise ConfigError for an engine that is none, or that another setting does not suit."""
        of_gymnasium = self.engine == GYMNASIUM
        if self.reset_options and (self.vectorized or not of_gymnasium):
            needed = f"empty unless engine={GYMNASIUM} and vectorized=false"
            problem = f"must be {needed}: others reset themselves"
            raise ConfigError("reset_options", self.reset_options, problem)
        if not of_gymnasium and self.vectorized:
            problem = f"must be {GYMNASIUM} where vectorized=true is used"
            raise ConfigError("engine", self.engine, problem)

        allowed = VECTOR_WRAPPERS if self.engine == ENVPOOL else {}
        names = [_parsed(entry)[0] for entry in self.wrappers]
        if not of_gymnasium and not set(names) <= allowed.keys():
            exception = f"{ENVPOOL} takes {' and '.join(VECTOR_WRAPPERS)} alone"
            problem = f"must be {GYMNASIUM} where wrappers are used: {exception}"
            raise ConfigError("engine", self.engine, problem)

        if not of_gymnasium and self.engine != ENVPOOL and ":" not in self.engine:
            problem = f"must be {GYMNASIUM}, {ENVPOOL} or module:function"
            raise ConfigError("engine", self.engine, problem)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a worker, with the specification of an environment that the calling
        script or notebook has registered."""
        spec = gymnasium.registry.get(self.id)
        if spec is None or str(spec.entry_point).startswith("gymnasium."):
            return self.__dict__
        return self.__dict__ | {REGISTERED: cloudpickle.dumps(spec)}

    def validate(self, plugins: Sequence[str]) -> None:
        _allow(self.id, "id", plugins)
        _allow(self.engine, "engine", plugins)
        packages = [
            package for start, (package, _) in PACKAGES.items() if self.id.startswith(start)
        ]
        for name, _ in map(_parsed, self.wrappers):
            _allow(name, "wrappers", [*plugins, *packages])

    def warning(self) -> str | None:
        """Warn of a guard that is not kept, of wrappers that keep statistics of their own, and of a
        game's raw frames."""
        is_native = self.vectorized or self.engine != GYMNASIUM
        if is_native and self.max_steps_guard not in (None, MAX_STEPS_GUARD):
            return "max_steps_guard has no effect on a native vector, which has limits of its own"

        spec = gymnasium.registry.get(self.id)
        is_game = spec is not None and str(spec.entry_point).startswith("ale_py")
        if is_game and not self.wrappers and self.engine == GYMNASIUM:
            return (
                f"{self.id} shows raw frames: env=pong, or env=atari env.game=<game>, "
                "has the usual preprocessing"
            )

        settings = {
            "NormalizeObservation": "env.normalize_observations",
            "NormalizeReward": "env.normalize_rewards",
        }
        for name, _ in map(_parsed, self.wrappers):
            if key := settings.get(name):
                return (
                    f"{name} keeps statistics of each environment alone, "
                    f"which no checkpoint holds: take {key}=true"
                )

        return None

    def make(self, count: int, seeds: Sequence[int], render_mode: str | None = None) -> EnvBatch:
        """Make environments that step together.

        count: how many.
        seeds: one for each environment (0 <= seed < 2**31).
        render_mode: as gymnasium's; None: nothing is drawn.
        Raises ConfigError if an environment cannot be made, or has spaces that no policy here
            supports.
        """
        try:
            with ExitStack() as failing:
                batch = self._batch(count, seeds, render_mode, failing)
                failing.pop_all()
                return batch
        except (AttributeError, MemoryError, TypeError) as error:  # what no batch can use
            raise ConfigError("id", self.id, one_line(error)) from error

    def _batch(
        self, count: int, seeds: Sequence[int], render_mode: str | None, failing: ExitStack
    ) -> EnvBatch:
        """Make environments that step together. failing: closes them."""
        if self.engine != GYMNASIUM and render_mode is None:
            return self._of_engine(count, int(seeds[0]), failing)

        spec = self._spec()
        if self.vectorized:
            vector = self._native(spec, count, render_mode)
            failing.callback(close_within, vector)
            return VectorEnvBatch(vector, seeds)

        envs = [self._one(spec, render_mode, failing) for _ in range(count)]
        return SyncEnvBatch(envs, seeds, self.max_steps_guard, self.reset_options)

    def _spec(self) -> EnvSpec:
        """Return gymnasium's specification of `id`. Imports the module that registers it if `id`
        names one."""
        module, _, name = self.id.rpartition(":")
        if name not in gymnasium.registry and REGISTERED in self.__dict__:
            gymnasium.registry[name] = cloudpickle.loads(self.__dict__[REGISTERED])
        if module:
            imported(module, "id", self.id)
        elif start := next(filter(name.startswith, PACKAGES), None):
            register(start, "id", self.id)
        elif name not in gymnasium.registry and importlib.util.find_spec("ale_py"):
            register("ALE/", "id", self.id)  # some games have names without a prefix

        if name not in gymnasium.registry:
            sentences = [
                UNREGISTERED,
                did_you_mean(name, gymnasium.registry, list_all=False),
            ]
            if not module:
                advice = "If a package registers it: plugins=[<package>], or its module that does"
                sentences.append(advice)
            if isinstance(getattr(sys.modules["__main__"], _class_name(name), None), type):
                sentences.append(f"Register the class first: {_registration(name)}")

            problem = " ".join(filter(None, sentences))
            raise ConfigError("id", self.id, problem)

        spec = gymnasium.registry[name]
        if str(spec.entry_point).startswith("gymnasium.envs.mujoco"):
            require_package("id", self.id, "mujoco")

        return spec

    def _one(self, spec: EnvSpec, render_mode: str | None, failing: ExitStack) -> Env:
        """Make one environment with its wrappers. failing: closes it."""
        env: Env = self._made(partial(gymnasium.make, spec, disable_env_checker=True), render_mode)
        failing.callback(lambda: close_within(env))  # with the wrappers that it has by then
        for entry in self.wrappers:
            name, arguments = _parsed(entry)
            wrapper = _wrapper(name)
            with refused("wrappers", entry, f"does not fit {self.id}"):
                env = wrapper(env, **_converted(wrapper, arguments))

        report_progress()
        return env

    def _of_engine(self, count: int, seed: int, failing: ExitStack) -> VectorEnvBatch:
        """Make `count` environments of another engine than gymnasium. failing: closes them."""
        if self.engine == ENVPOOL:
            require_package("engine", ENVPOOL, ENVPOOL)
        path = "envpool:make_gymnasium" if self.engine == ENVPOOL else self.engine
        module, _, name = path.rpartition(":")
        make: Any = getattr(imported(module, "engine", self.engine), name, None)
        if not callable(make):
            problem = f"must be a function of {module}: it has no {name}"
            raise ConfigError("engine", self.engine, problem)

        # A worker has a core of its own: more threads of EnvPool would share it.
        threads = {"num_threads": 1} if self.engine == ENVPOOL else {}
        make_env = partial(make, self.id, num_envs=count, seed=seed, **threads)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of EnvPool's bounds, in float64
            env = self._made(make_env)
            failing.callback(lambda: close_within(env))  # with the wrappers that it has by then
            for entry in self.wrappers:
                name, arguments = _parsed(entry)
                with refused("wrappers", entry, f"does not fit {self.id}"):
                    env = VECTOR_WRAPPERS[name](env, **arguments)

            return VectorEnvBatch(env, None)

    def _native(self, spec: EnvSpec, count: int, render_mode: str | None) -> Any:
        """Make the native vector environment."""
        # it would clip rewards and preprocess unasked
        if str(spec.entry_point).startswith("ale_py"):
            raise ConfigError(
                "vectorized", True, f"must be false for {self.id}: env=atari is its native form"
            )
        if spec.vector_entry_point is None:
            raise ConfigError(
                "vectorized", True, f"must be false: {self.id} has no native vector environment"
            )

        mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
        make = partial(gymnasium.make_vec, spec, num_envs=count, vectorization_mode=mode)
        return self._made(make, render_mode)

    def _made(self, make: Callable[..., Any], render_mode: str | None = None) -> Any:
        """Return what `make` makes with the settings of this component. What fails there is an
        error of the configuration."""
        arguments = _filled(self.kwargs)
        # observations may be drawn too, whether or not somebody watches
        if render_mode is not None:
            arguments["render_mode"] = render_mode
        if self.max_episode_steps is not None:
            arguments["max_episode_steps"] = self.max_episode_steps

        key, value = ("kwargs", self.kwargs) if self.kwargs else ("id", self.id)
        with refused(key, value, f"{self.id} cannot be made"):
            try:
                env = make(**arguments)
            except TypeError as error:
                if render_mode is None or "'render_mode'" not in str(error):
                    raise
                problem = f"cannot be drawn: {_needed_to_draw(render_mode)}"
                raise ConfigError("id", self.id, problem) from error

        np.seterr(under="ignore")  # where an environment has it raise, a small gradient would fail
        offered = env.metadata.get("render_modes")
        if render_mode is not None and render_mode not in (offered or []):
            close_within(env)  # gymnasium only warns of it
            advice = f"it offers {', '.join(offered)}" if offered else _needed_to_draw(render_mode)
            problem = f"cannot be drawn as {render_mode!r}; {advice}"
            raise ConfigError("id", self.id, problem)

        return env


def _needed_to_draw(render_mode: str) -> str:
    """Return what gymnasium asks of the class of an environment that is drawn."""
    metadata = f"metadata = {{'render_modes': [{render_mode!r}]}}"
    return f"its class needs render_mode=None in __init__, {metadata} and render()"


def foreign_module(env: Environment) -> str | None:
    """Return the module of an environment whose name says nothing of it; None for those of
    gymnasium, of PACKAGES, and for a name with a module."""
    spec = gymnasium.registry.get(env.id) if isinstance(env, Gym) else None
    if spec is None or spec.entry_point is None:
        return None

    entry: Any = spec.entry_point
    maker = getattr(entry, "func", entry)  # of a partial
    module = str(entry).partition(":")[0] if isinstance(entry, str) else maker.__module__
    packages = [GYMNASIUM, *(package for package, _ in PACKAGES.values())]
    return None if is_allowed_module(module, packages) else module


def _parsed(entry: str | Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the name of a wrapper and its arguments; None for both where an entry has none of the
    forms."""
    if isinstance(entry, str):
        return entry, {}
    if "wrapper" in entry:
        return entry["wrapper"], {key: value for key, value in entry.items() if key != "wrapper"}
    return next(iter(entry.items())) if len(entry) == 1 else (None, None)


def _converted(wrapper: Callable[..., Env], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with arrays or tuples in the place of lists: YAML has neither. An annotation
    asks for an array."""
    parameters = inspect.signature(wrapper).parameters

    def convert(key: str, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        takes_array = key in parameters and "ndarray" in str(parameters[key].annotation)
        return np.array(value) if takes_array else tuple(value)

    return {key: convert(key, value) for key, value in arguments.items()}


_copies = itertools.count()


def _filled(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of one copy: see `Gym.kwargs`."""
    copy = f"{os.getpid()}-{next(_copies)}"
    port = cache(_free_port)

    def fill(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: fill(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(map(fill, value))
        if not isinstance(value, str):
            return value
        if value == "{port}":
            return port()

        if "{port}" in value:
            value = value.replace("{port}", str(port()))

        return value.replace("{copy}", copy)

    return dict(fill(kwargs))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _allow(name: str, key: str, plugins: Sequence[str]) -> None:
    """Refuse 'module:...' of a package that is neither this one nor one of the user's plugins."""
    module, colon, attribute = name.rpartition(":")
    if colon and not is_allowed_module(module, plugins):
        package = module.partition(".")[0]
        advice = f"allow it with plugins=[{package}]"
        if key == "id" and module == "__main__":
            advice = f"register the class instead: {_registration(attribute)}"
        raise ConfigError(key, name, f"imports {module}: {advice}")


def _class_name(id_: str) -> str:
    """Return the class that an id is usually named after."""
    return id_.partition("-v")[0]


def _registration(id_: str) -> str:
    """Return the line that registers the class of a script or a notebook."""
    name = _class_name(id_)
    return f'gymnasium.register("{name}-v0", entry_point={name})'


def imported(module: str, key: str, value: object) -> Any:
    """Import a module, and return it. Raises ConfigError about a setting if it cannot be
    imported."""
    with refused(key, value, f"the module {module} cannot be imported"):
        return importlib.import_module(module)


def _wrapper(name: str) -> Callable[..., Env]:
    """Return the wrapper class of that name. Raises ConfigError where there is none."""
    module, _, attribute = name.rpartition(":")
    source = imported(module, "wrappers", name) if module else gymnasium.wrappers
    # gymnasium imports some when they are asked for
    with refused("wrappers", name, "cannot be imported"):
        wrapper = getattr(source, attribute, None)
    if isinstance(wrapper, type) and issubclass(wrapper, gymnasium.Wrapper):
        return wrapper

    guess = did_you_mean(attribute, vars(source), list_all=False)
    advice = "" if module else " One of another package is written module:Class"
    problem = f"{source.__name__} has no such wrapper: {guess}{advice}".rstrip(": ")
    raise ConfigError("wrappers", name, problem)
