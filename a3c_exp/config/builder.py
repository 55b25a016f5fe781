"""From a plain mapping (composed, or a run's config.yaml) to the final one, and to an `Experiment`.

All errors in a configuration are found here, before anything is started or written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from a3c_exp.common.reading import expanded
from a3c_exp.common.trust import check_trust, import_plugins, texts_to_trust
from a3c_exp.config.background import has_pictures_of_bytes, measure_background
from a3c_exp.config.checks import (
    check_combination,
    check_environment_and_network,
    check_fit,
    check_init_from,
    network_scales_pixels,
)
from a3c_exp.config.final import NORMALIZATION, TYPED, WORKERS, resolved, value_at
from a3c_exp.config.schema import build
from a3c_exp.core.cpu import cores_of_a_run
from a3c_exp.core.experiment import Experiment
from a3c_exp.envs.batch import Normalization
from a3c_exp.errors import ConfigError, named
from a3c_exp.networks import ActorCritic

MEASURED = ("auto", "background")
"""Values of `env.normalize_observations` that stand for others."""


def build_experiment(config: Mapping[str, Any]) -> Experiment:
    """The experiment that a plain configuration describes, its components checked one by one. Raises ConfigError."""
    plugins = build(config.get("plugins") or (), tuple[str, ...], "plugins")
    import_plugins(plugins)
    return build({key: value for key, value in config.items() if key != TYPED}, Experiment, plugins=plugins)


def resolve(
    config: Mapping[str, Any], *, to_train: bool = True, trusted: Sequence[str] | None = None
) -> dict[str, Any]:
    """The final configuration: see `config.final`. A final one stays as it is.

    `env.normalize_observations` auto and background are measured, for which an environment is made and played.
    to_train, trusted: see `load_experiment`. Raises ConfigError.
    """
    final = dict(config)
    if final.get(WORKERS, "auto") == "auto":
        final = resolved(final, WORKERS, cores_of_a_run(), "auto")
    if isinstance(start := final.get("init_from"), str):
        final["init_from"] = str(expanded(start).absolute())
    setting = value_at(final, NORMALIZATION)
    if setting is None or setting in MEASURED:
        experiment = _build_trusted(final, to_train, trusted)
        setting = experiment.env.normalize_observations
        if setting in MEASURED:
            value = _measured(experiment)
            plain = list(value) if isinstance(value, tuple) else value
            final = resolved(final, NORMALIZATION, plain, setting)
    return final


def _build_trusted(config: Mapping[str, Any], to_train: bool, trusted: Sequence[str] | None) -> Experiment:
    """`build_experiment`. Raises ConfigError for settings that may act beyond a run's folder and are not trusted."""
    if trusted is None:
        return build_experiment(config)
    check_trust(texts_to_trust(config if to_train else {**config, "backend": None}), trusted)
    experiment = build_experiment(config)
    check_trust(((f"env.{name}", each) for name, each in experiment.env.settings_to_trust().items()), trusted)
    if to_train:
        connecting = experiment.backend.settings_to_trust().items()
        check_trust(((f"backend.{name}", each) for name, each in connecting), trusted)
    return experiment


def _measured(experiment: Experiment) -> Normalization:
    """Numbers or false in the place of `env.normalize_observations` auto or background."""
    env, setting = experiment.env, experiment.env.normalize_observations
    unscaled = replace(experiment, env=replace(cast(Any, env), normalize_observations=False))
    try:
        env.validate(experiment.plugins)
        if setting == "auto" and not has_pictures_of_bytes(env):
            return False
    except ConfigError as error:
        raise error.under("env") from error
    if setting == "auto" and not network_scales_pixels(unscaled):
        return False
    try:
        return measure_background(env)
    except ConfigError as error:
        raise error.under("env") from error


def load_experiment(
    config: Mapping[str, Any],
    check: bool = True,
    *,
    to_train: bool = True,
    made: dict[str, ActorCritic] | None = None,
    trusted: Sequence[str] | None = None,
) -> Experiment:
    """The experiment that a plain configuration describes, resolved if it is not final, and fully checked.

    check: False leaves out the checks that make an environment and a network.
    to_train: False leaves out the checks of what only training needs, and which may be gone when the policy is
        evaluated: the cluster or the GPU of its backend, the run that it started from.
    made: the networks of earlier calls, to which this one adds its own: of several experiments, one environment and one
        network are made for each distinct pair.
    trusted: of a configuration from a run's folder, the settings that may act beyond it: see `check_trust`. None: the
        configuration is the user's own.
    Raises ConfigError.
    """
    config = resolve(config, to_train=to_train, trusted=trusted)
    experiment = _build_trusted(config, to_train, trusted)
    check_combination(experiment)
    if not check:
        return experiment
    if to_train:
        experiment.backend.check(experiment)
    made = {} if made is None else made
    parts = [config.get(name) for name in ("env", "network", "algorithm", "epsilon", "plugins")]
    key = json.dumps(parts, sort_keys=True, default=repr)
    if key not in made:
        made[key] = check_environment_and_network(experiment)
    network = made[key]
    check_fit(experiment, network)
    if to_train and experiment.init_from is not None:
        with named("init_from"):
            check_init_from(experiment.init_from, config, network, experiment.env.normalize_observations)
    return experiment
