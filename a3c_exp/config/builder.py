"""From a plain mapping (composed, or a run's config.yaml) to an `Experiment`, and to the final one.

`build_experiment`, `resolve` and `check`, in this order, find all errors in a configuration, before
anything is started or written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from a3c_exp.common.reading import expanded
from a3c_exp.common.settings import TARGET
from a3c_exp.common.trust import import_plugins
from a3c_exp.config import checks
from a3c_exp.config.saved import LOG_EVERY, NORMALIZATION, TYPED, WORKERS
from a3c_exp.config.schema import build
from a3c_exp.core.cpu import cores_of_a_run, one_thread
from a3c_exp.core.experiment import Built, Eval, Experiment, Log
from a3c_exp.core.normalization import are_images, has_byte_vectors, require_images
from a3c_exp.envs.batch import EnvBatch, Environment, Normalization, opened
from a3c_exp.envs.parts import PartsBox
from a3c_exp.errors import ConfigError, RunError, named, require
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.cnn import ImageEncoder

Made = list[tuple[object, Any]]
"""Networks and measured normalizations, each with the components that it was made with."""
Value = TypeVar("Value")
DEVIATION = 1 / 4
"""Of the number of levels, so 64 of the 256 of a byte: the numbers that a network begins with are
of the order of 1."""
STEPS = 250
"""Of the random play: thousands of pixels each, most of which are those of the background."""
POINTS = 250
MOST_STEPS = 20_000
"""Points of the curves of a whole run, and the most steps between two, where `log.every=auto` is by
steps."""


def build_experiment(config: Mapping[str, Any], *, to_train: bool = True) -> Experiment:
    """The experiment that a plain configuration describes, its components checked one by one.

    to_train: False leaves out callbacks, whose packages may be gone when a policy is evaluated.
    Raises ConfigError.
    """
    plugins = build(config.get("plugins") or (), tuple[str, ...], "plugins")
    import_plugins(plugins)

    settings = {key: value for key, value in config.items() if key != TYPED}
    if not to_train:
        settings["callbacks"] = []

    experiment = build(settings, Experiment, plugins=plugins)
    return replace(experiment, eval=_build_eval(experiment, config, plugins))


def _build_eval(experiment: Experiment, config: Mapping[str, Any], plugins: Sequence[str]) -> Eval:
    """The settings of evaluations, those of their environment converted. Raises ConfigError."""
    changed = experiment.eval.env
    if not changed:
        return experiment.eval

    allowed = "settings of the run's environment, not another one"
    require(TARGET not in changed, "eval.env", changed, allowed)
    if isinstance(changed.get("kwargs"), Mapping):  # each argument is a setting of its own
        changed = {**changed, "kwargs": {**config["env"].get("kwargs", {}), **changed["kwargs"]}}

    env: Any = build({**config["env"], **changed}, Environment, "eval.env", plugins)  # type: ignore[type-abstract]
    return replace(experiment.eval, env={name: getattr(env, name) for name in changed})


def _made_once(made: Made | None, parts: tuple[object, ...], make: Callable[[], Value]) -> Value:
    """Return what `make` does, or has done for equal components before."""
    for components, value in made or ():
        if components == parts:
            return cast(Value, value)

    value = make()
    if made is not None:
        made.append((parts, value))
    return value


def resolve(
    config: Mapping[str, Any], experiment: Experiment, made: Made | None = None
) -> tuple[dict[str, Any], Experiment]:
    """The final configuration of a plain one (see `config.saved`), and the final experiment.

    What `auto` and `background` stand for takes their place. For images an environment is made and
    played. made: see `check`. Raises ConfigError.
    """
    final = dict(config)
    typed = dict(build(config.get(TYPED, {}), dict[str, Any], TYPED))
    if experiment.init_from is not None:
        final["init_from"] = str(expanded(experiment.init_from).absolute())
        experiment = replace(experiment, init_from=final["init_from"])

    if experiment.workers == "auto":
        typed[WORKERS] = "auto"
        final[WORKERS] = cores_of_a_run()
        experiment = replace(experiment, workers=final[WORKERS])

    setting = experiment.env.normalize_observations
    if setting in ("auto", "background"):
        typed[NORMALIZATION] = setting
        parts = attrgetter("env", "network", "plugins")(experiment)
        value = _made_once(made, parts, partial(measure, experiment))
        plain = list(value) if isinstance(value, tuple) else value
        final["env"] = {**final["env"], "normalize_observations": plain}
        env: Any = experiment.env
        experiment = replace(experiment, env=replace(env, normalize_observations=value))

    if experiment.log.every == "auto":
        typed[LOG_EVERY] = "auto"
        steps = min(max(1, experiment.total_steps // POINTS), MOST_STEPS)
        final["log"] = {"every": steps if experiment.backend.deterministic else None}
        experiment = replace(experiment, log=Log(**final["log"]))

    if typed:
        final[TYPED] = typed

    checks.check_combination(experiment)
    return final, experiment


def check(
    experiment: Experiment, *, to_train: bool = True, draw: bool = False, made: Made | None = None
) -> Built:
    """Try a final experiment: its environment, and its network, which is returned.

    to_train: False leaves out the checks of what only training needs, and which may be gone when
        the policy is evaluated: the cluster or the GPU of its backend.
    draw: the network gets the parameters that the run's seed draws, to begin the run with.
    made: what earlier calls have made, to which this one adds its own: of several experiments, one
        environment and one network are made for each distinct pair.
    Raises ConfigError.
    """
    if to_train:
        experiment.backend.check(experiment)

    parts = attrgetter("env", "eval.env", "network", "algorithm", "epsilon", "plugins")(experiment)
    make = partial(checks.check_environment_and_network, experiment, to_train=to_train, draw=draw)
    built = _made_once(made, parts, make)
    checks.check_fit(experiment, built)
    return built


def check_start(experiment: Experiment, config: Mapping[str, Any], network: ActorCritic) -> None:
    """Raise FolderError unless the run that an experiment starts from fits it. config: the final
    one."""
    if experiment.init_from is not None:
        with named("init_from"):
            module_class = experiment.network.module_class
            checks.check_init_from(experiment.init_from, config, network, module_class)


def load_final(
    config: Mapping[str, Any], *, to_train: bool = True, made: Made | None = None
) -> tuple[dict[str, Any], Experiment]:
    """The final configuration and experiment of a plain one, not tried yet. to_train: see
    `build_experiment`. made: see `check`."""
    return resolve(config, build_experiment(config, to_train=to_train), made)


def load_experiment(
    config: Mapping[str, Any], *, to_train: bool = True, made: Made | None = None
) -> Experiment:
    """The experiment of a plain configuration, fully checked. See `load_final`."""
    final, experiment = load_final(config, to_train=to_train, made=made)
    built = check(experiment, to_train=to_train, made=made)
    if to_train:
        check_start(experiment, final, built.network)
    return experiment


# What `env.normalize_observations` background and auto stand for.


def measure(experiment: Experiment) -> Normalization:
    """What `env.normalize_observations` auto or background stands for.

    The most frequent byte of the images of a short random play, and a quarter of the levels that
    they can have. `auto` is true for vectors of bytes, and false for what else is no image of
    bytes, or with a network that takes images as they are. The play has a fixed seed: two processes
    find the same number. Raises ConfigError for an environment that cannot be made or played.
    """
    setting = experiment.env.normalize_observations
    with opened(experiment.env, experiment.plugins) as env:
        space = env.observation_space
        if setting == "auto" and not (are_images(space) and _scales_pixels(experiment, env)):
            return has_byte_vectors(space) and not isinstance(space, PartsBox)

        require_images(space, "env.normalize_observations", setting)
        try:
            counts = count_bytes(env, STEPS)
        except RunError as error:
            problem = f"cannot be measured (false: it is not): {str(error).partition(chr(10))[0]}"
            raise ConfigError("env.normalize_observations", setting, problem) from error

    return float(counts.argmax()), len(counts) * DEVIATION


def count_bytes(env: EnvBatch, steps: int) -> NDArray[np.int64]:
    """How often each byte is in the images of so many random steps: of those that their space
    allows.

    Raises RunError if the environment fails.
    """
    counts = np.zeros(256, np.int64)
    env.action_space.seed(0)
    env.reset()
    for _ in range(steps):
        actions = np.stack([env.action_space.sample()])
        counts += np.bincount(env.step(actions).obs.ravel(), minlength=256)

    return counts[: int(env.observation_space.high.max()) + 1]


def _scales_pixels(experiment: Experiment, env: EnvBatch) -> bool:
    """Return whether the network of an experiment scales pixels. One of the user's own is built to
    find out."""
    if issubclass(experiment.network.module_class, ImageEncoder):
        return True

    unscaled = replace(
        experiment, env=replace(cast(Any, experiment.env), normalize_observations=False)
    )
    with one_thread():
        return unscaled.build_network(env, None).scales_pixels
