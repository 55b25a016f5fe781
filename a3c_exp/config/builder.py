"""From a plain mapping (composed, or a run's config.yaml) to the final one, and to an `Experiment`.

All errors in a configuration are found here, before anything is started or written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from a3c_exp.common.reading import expanded
from a3c_exp.common.settings import TARGET
from a3c_exp.common.trust import check_trust, import_plugins, texts_to_trust
from a3c_exp.config import checks
from a3c_exp.config.background import measure
from a3c_exp.config.saved import LOG_EVERY, NORMALIZATION, TYPED, WORKERS
from a3c_exp.config.schema import build
from a3c_exp.core.cpu import cores_of_a_run
from a3c_exp.core.experiment import Experiment
from a3c_exp.envs.batch import Environment
from a3c_exp.errors import named, require
from a3c_exp.networks import ActorCritic

Made = list[tuple[object, ActorCritic]]
"""Networks, each with the components that it was tried with."""
POINTS = 250
MOST_STEPS = 20_000
"""Points of the curves of a whole run, and the most steps between two, where `log.every=auto` is by
steps."""


def build_experiment(config: Mapping[str, Any]) -> Experiment:
    """The experiment that a plain configuration describes, its components checked one by one.
    Raises ConfigError."""
    plugins = build(config.get("plugins") or (), tuple[str, ...], "plugins")
    import_plugins(plugins)
    experiment = build(
        {key: value for key, value in config.items() if key != TYPED}, Experiment, plugins=plugins
    )
    changed = experiment.eval.env
    if not changed:
        return experiment
    require(
        TARGET not in changed,
        "eval.env",
        changed,
        "settings of the run's environment, not another one",
    )
    if isinstance(changed.get("kwargs"), Mapping):  # each argument is a setting of its own
        changed = {**changed, "kwargs": {**config["env"].get("kwargs", {}), **changed["kwargs"]}}
    env: Any = build({**config["env"], **changed}, Environment, "eval.env", plugins)  # type: ignore[type-abstract]
    converted = {name: getattr(env, name) for name in changed}
    return replace(experiment, eval=replace(experiment.eval, env=converted))


def load_experiment(config: Mapping[str, Any], check: bool = True, **options: Any) -> Experiment:
    """The experiment of `load_final`."""
    return load_final(config, check, **options)[1]


def load_final(
    config: Mapping[str, Any],
    check: bool = True,
    *,
    to_train: bool = True,
    begins: bool = True,
    made: Made | None = None,
    trusted: Sequence[str] | None = None,
) -> tuple[dict[str, Any], Experiment]:
    """The final configuration of a plain one (see `config.saved`), and the experiment that it
    describes, fully checked.

    `env.normalize_observations` auto and background are measured, for which an environment is made
    and played.
    check: False leaves out the checks that make an environment and a network.
    to_train: False leaves out the checks of what only training needs, and which may be gone when
        the policy is evaluated: the cluster or the GPU of its backend, the run that it started
        from.
    begins: False leaves out the check of the run that it starts from.
    made: the networks of earlier calls, to which this one adds its own: of several experiments, one
        environment and one network are made for each distinct pair.
    trusted: of a configuration from a run's folder, the settings that may act beyond it: see
        `check_trust`. None: the configuration is the user's own.
    Raises ConfigError.
    """
    final: dict[str, Any] = dict(config)
    typed = dict(build(config.get(TYPED, {}), dict[str, Any], TYPED))
    if final.get(WORKERS, "auto") == "auto":
        typed[WORKERS] = "auto"
        final[WORKERS] = cores_of_a_run()
    if isinstance(start := final.get("init_from"), str):
        final["init_from"] = str(expanded(start).absolute())
    if trusted is not None:
        check_trust(texts_to_trust(config, to_train), trusted)
    if not to_train:
        final["callbacks"] = []  # their packages may be gone
    experiment = build_experiment(final)
    if trusted is not None:
        check_trust(experiment.acting_settings(to_train), trusted)
    if (setting := experiment.env.normalize_observations) in ("auto", "background"):
        value = measure(experiment)
        typed[NORMALIZATION] = setting
        final["env"] = {
            **final["env"],
            "normalize_observations": list(value) if isinstance(value, tuple) else value,
        }
    if experiment.log.every == "auto":
        steps = min(max(1, experiment.total_steps // POINTS), MOST_STEPS)
        typed[LOG_EVERY] = "auto"
        final["log"] = {"every": steps if experiment.backend.deterministic else None}
    if typed:
        final[TYPED] = typed
    experiment = build_experiment(final)
    checks.check_combination(experiment)
    if check:
        network = _check_network(experiment, to_train, [] if made is None else made)
        if to_train and begins and experiment.init_from is not None:
            with named("init_from"):
                checks.check_init_from(experiment.init_from, final, network)
    return final, experiment


def _check_network(experiment: Experiment, to_train: bool, made: Made) -> ActorCritic:
    """The network of an experiment, tried with its environment and its algorithm. Raises
    ConfigError."""
    if to_train:
        experiment.backend.check(experiment)
    parts = attrgetter("env", "eval.env", "network", "algorithm", "epsilon", "plugins")(experiment)
    network = next((each for known, each in made if known == parts), None)
    if network is None:
        network = checks.check_environment_and_network(experiment, to_train=to_train)
        made.append((parts, network))
    checks.check_fit(experiment, network)
    return network
