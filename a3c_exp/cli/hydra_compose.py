"""Composition: from overrides to what Hydra composes, and to plain data.

Hydra itself runs the program (`cli.launch`). What it would compose is composed here first, so that
an error is one line and nothing has begun. Both ways end in `to_container`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, OverrideType
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from a3c_exp.cli.hydra_overrides import first_line, parse, texts_in
from a3c_exp.cli.hydra_session import CONFIG_NAME, HydraSession, hydra_session
from a3c_exp.common.reading import UnreadableError, parse_yaml
from a3c_exp.common.settings import TARGET, flatten
from a3c_exp.common.trust import PACKAGE, import_plugins
from a3c_exp.config.elsewhere import atari_choice, unknown
from a3c_exp.errors import ConfigError, did_you_mean, either, require

RECORDS = ("stop", "eval", "checkpoint", "log")
"""Mappings of settings in conf/config.yaml that are no components. Each has a class of its name."""
OF_ENVIRONMENT = re.compile(r"\$\{oc\.env:[^{}]*\}")
"""The value of an environment variable, which is a text for OmegaConf unless its key has a type."""
_composing = threading.RLock()  # Hydra has one state for a whole process


def compose_unchecked(
    overrides: Sequence[str] = (), config_dir: str | None = None
) -> dict[str, Any]:
    """Return the configuration that the overrides compose, its keys and types not checked yet.
    Raises ConfigError.

    config_dir: see `hydra_session`.
    """
    with _composing, hydra_session(config_dir) as session:
        return to_container(composed(session, overrides).node)


class Composed(NamedTuple):
    """What overrides compose, Hydra's own settings under `hydra` included, and these overrides as
    Hydra takes them: with `++` for a setting that its file does not have."""

    node: DictConfig
    words: list[str]


def composed(session: HydraSession, overrides: Sequence[str]) -> Composed:
    """What the overrides of one run compose. Raises ConfigError.

    A component that is written out replaces the one of the files, where Hydra merges the two.
    Callbacks that are named are those of their files.
    """
    typed = parse(overrides)
    for override in typed:
        if override.is_sweep_override():
            text = override.get_value_string()
            problem = f"several values need -m; a list is [{text}], and a number has no comma"
            raise ConfigError(override.key_or_group, text, problem)

        if override.key_or_group == "plugins":  # they may register options and resolvers
            import_plugins(texts_in(override.value()))

    node = session.compose([override for override in typed if session.is_choice(override)])
    words: list[str] = []
    replaced: set[str] = set()
    with open_dict(node):
        for override in typed:
            is_choice = session.is_choice(override)
            words.append(
                session.word(override) if is_choice else _apply(session, node, override, replaced)
            )

        tasks = [str(override.input_line) for override in typed if not override.is_hydra_override()]
        node.hydra.overrides.task = tasks
        node.hydra.job.override_dirname = ",".join(sorted(tasks))
        node.hydra.job.config_name = session.config_name

        choices = node.hydra.runtime.choices
        chosen = {override.key_or_group for override in typed}
        for group, option in choices.items():
            may_be_foreign = group in chosen or choices.get("experiment")
            if may_be_foreign and group not in replaced:
                _leave_out_foreign(session, node, typed, group, str(option))

        callbacks = node.get("callbacks")
        if isinstance(callbacks, str) or OmegaConf.is_list(callbacks):
            entries = [callbacks] if isinstance(callbacks, str) else list(callbacks)
            node.callbacks = session.callbacks(entries)

    _check_composed(session, node)
    _check_env(session, typed, choices)
    return Composed(node, words)


def _check_composed(session: HydraSession, node: DictConfig) -> None:
    """Raise ConfigError for a main file that has only some settings, for an option that a file has
    as a value, for a preset that is no package of the whole configuration, and for files of Hydra's
    in the run's own folder."""
    if session.config_name != CONFIG_NAME and "optimizer" not in node:
        name = session.config_name
        problem = (
            f"replaces the whole main file: one of settings is experiment={name} in --config-dir"
        )
        raise ConfigError("--config-name", name, problem)

    for group in map(str, node):
        is_other = OmegaConf.is_interpolation(node, group) or OmegaConf.is_missing(node, group)
        if OmegaConf.get_type(node, group) is str and not is_other and session.is_group(group):
            problem = f"in a file it is `defaults: [override /{group}: {node[group]}]`"
            raise ConfigError(group, node[group], problem)

    if isinstance(misplaced := node.get("experiment"), DictConfig):
        problem = f"its file must begin with `# @package _global_`: it sets {', '.join(misplaced)}"
        raise ConfigError("experiment", node.hydra.runtime.choices.experiment, problem)

    if node.hydra.output_subdir in (".", "./"):  # a run has a config.yaml of its own
        raise ConfigError("hydra.output_subdir", ".", "must be another folder than the run's")


def _leave_out_foreign(
    session: HydraSession, node: DictConfig, typed: Sequence[Override], group: str, option: str
) -> None:
    """Leave out what files set for other options of a group than the one that is chosen.

    `experiment=ppo_pong_solved algorithm=a3c` keeps the entropy's weight, without PPO's epochs. A
    setting that is typed stays, and so does a mistyped one, which no option has: both are refused.
    """
    component = node.get(group)
    if not (isinstance(component, DictConfig) and TARGET in component):
        return

    allowed = session.names_in_file(group, option) | {TARGET}
    for override in typed:
        owner, *names = override.key_or_group.split(".")
        if owner == group:
            value = override.value()
            allowed.update(names[:1] or (value if isinstance(value, dict) else ()))

    foreign = {str(name) for name in component if str(name).removeprefix("critic_") not in allowed}
    if not foreign:  # to read the files of all options takes a tenth of a second
        return

    foreign &= session.names_in_group(group) - allowed
    is_of_user = not session.is_shipped(group, option)
    if foreign and is_of_user and not str(component[TARGET]).startswith("torch."):
        from a3c_exp.config.schema import settings_of  # such a file may lack some settings

        foreign -= settings_of(component[TARGET], list(node.get("plugins") or [])).keys()

    for name in foreign:
        del component[name]


def _check_env(session: HydraSession, typed: Sequence[Override], choices: DictConfig) -> None:
    """Raise ConfigError for a game by gymnasium's name whose frames nothing prepares, and for an
    environment that would train with the settings of another one, since no file of environments is
    chosen."""
    values = {override.key_or_group: override.value() for override in typed}
    name = values.get("env.id")
    game = atari_choice(str(name))
    if game is not None and "env.wrappers" not in values:
        problem = f"has raw frames: {game} prepares them, or env.wrappers of your own"
        raise ConfigError("env.id", name, problem)

    if name is None or "env" in values:
        return

    option = choices.get("env")
    file = session.load(f"env/{option}")
    default_name = None if file is None else OmegaConf.select(file.config, "env.id")
    if default_name not in (None, name):
        problem = f"needs env=gym, because env={option} has the settings of {default_name}"
        raise ConfigError("env.id", name, problem)


def compose_jobs(session: HydraSession, jobs: Iterable[Sequence[str]]) -> Iterator[Composed]:
    """What each job of a sweep composes, with its number. Raises ConfigError."""
    first: DictConfig | None = None
    for number, job in enumerate(jobs):
        run = composed(session, job)
        first = run.node if first is None else first
        OmegaConf.copy_cache(first, run.node)  # all jobs have the same ${now:}
        with open_dict(run.node):
            run.node.hydra.job.num = number
            run.node.hydra.job.id = str(number)
        yield run


def _lacks(node: DictConfig, key: str, value: Any = None) -> bool:
    """Return whether a configuration has no such key; of a mapping, not all of its keys."""
    if isinstance(value, dict) and value:
        return any(_lacks(node, f"{key}.{name}", inner) for name, inner in value.items())

    outer, _, name = key.rpartition(".")
    parent: Any = OmegaConf.select(node, outer, throw_on_missing=False) if outer else node
    if isinstance(parent, DictConfig):
        return name not in parent.keys()  # noqa: SIM118  # one that is ??? is a key

    return not OmegaConf.is_list(parent)


def _check_key(session: HydraSession, node: DictConfig, override: Override) -> None:
    """Raise ConfigError for a key that no setting of a run has. Files say which there are, so that
    the error needs no torch."""
    key = override.key_or_group
    group, _, name = key.rpartition(".")
    if override.is_hydra_override():
        parent: Any = OmegaConf.select(node, group, throw_on_missing=False)
        if OmegaConf.is_dict(parent) and OmegaConf.get_type(parent) is not dict:
            problem = f"is no setting of Hydra: {did_you_mean(name, map(str, parent))}"
            raise ConfigError(key, override.value(), problem)
        return

    if session.config_name != CONFIG_NAME or "." in group:
        return

    if not group:
        settings = [str(setting) for setting in node if setting != "hydra"]
        raise ConfigError(key, override.value(), unknown(name, "Experiment", settings, ""))

    component = node.get(group)
    if not isinstance(component, DictConfig):
        return

    target = str(component.get(TARGET, ""))
    option = node.hydra.runtime.choices.get(group)
    is_of_package = session.is_shipped(group, option) and target.startswith(f"{PACKAGE}.")
    if group not in RECORDS and (group == "network" or not is_of_package):
        return

    owner = target.rpartition(".")[2] or group.title()
    options = session.options(group)
    having = [f"{group}={o}" for o in options if name in session.names_in_file(group, o)]
    if having:
        raise ConfigError(key, override.value(), f"is a setting of {either(having)}, not {owner}")

    settings = [str(setting) for setting in component if setting != TARGET]
    raise ConfigError(key, override.value(), unknown(name, owner, settings, group))


def _apply(session: HydraSession, node: DictConfig, override: Override, replaced: set[str]) -> str:
    """Set, add or delete a value; return the override as Hydra takes it. Raises ConfigError.

    replaced: the keys of components that are written out, to which this one is added.
    """
    key = override.key_or_group
    value = override.value()
    element = override.get_key_element()
    text = str(override.input_line)
    if override.package is not None:
        raise ConfigError(element, value, f"is for groups alone, and there is no group {key}")

    if key in ("hydra.launcher", "hydra.sweeper") and not isinstance(value, dict):
        group = key.replace(".", "/")
        raise ConfigError(key, value, f"must be a mapping: {group}={value} chooses one")

    is_new = _lacks(node, key)
    if override.is_delete():
        require(not is_new, element, value, "a setting that is there")
        outer, _, name = key.rpartition(".")
        parent: Any = OmegaConf.select(node, outer) if outer else node
        try:
            del parent[name]
        except OmegaConfBaseException as complaint:  # a setting of Hydra's own
            raise ConfigError(element, value, "cannot be deleted") from complaint
        return text

    is_forced = any(key.startswith(f"{component}.") for component in replaced)
    if override.type is OverrideType.CHANGE and not is_forced:
        if is_new:
            _check_key(session, node, override)
        is_forced = _lacks(node, key, value)

    is_added = override.is_add() and not is_forced and not isinstance(value, dict | list)
    if is_added and OmegaConf.select(node, key, throw_on_missing=False) is not None:
        raise ConfigError(element, value, f"is there already: {key}={value} changes it")

    is_replaced = replaces(value) and not override.is_hydra_override()
    if is_replaced:
        replaced.add(key)

    set_value(node, key, value, replace=is_replaced)
    return f"++{text.lstrip('+')}" if is_forced else text


def replaces(value: object) -> bool:
    """Return whether a mapping replaces what is there: one that is empty, or a component."""
    return isinstance(value, dict) and (not value or TARGET in value)


def set_value(node: DictConfig, key: str, value: Any, replace: bool | None = None) -> None:
    """Set the value at a dotted key. A mapping is merged with what is there unless it `replaces`
    that. Raises ConfigError."""
    merge = not (replaces(value) if replace is None else replace)
    try:
        OmegaConf.update(node, key, value, merge=merge, force_add=True)
    except (OmegaConfBaseException, ValueError, TypeError, AttributeError) as complaint:
        raise ConfigError(
            key, value, f"does not fit what it would replace: {first_line(complaint)}"
        ) from complaint


def job_config() -> dict[str, Any]:
    """The plain configuration of the job that Hydra runs, wherever a launcher has started it."""
    job: Any = HydraConfig.instance().cfg
    session = HydraSession(GlobalHydra.instance().hydra, job.hydra.job.config_name or CONFIG_NAME)
    typed = job.hydra.overrides
    node = composed(session, [*typed.hydra, *typed.task]).node
    with open_dict(node):
        node.hydra = job.hydra
    return to_container(node)


def setting(node: DictConfig, key: str) -> Any:
    """The value at a dotted key, as plain data. Raises ConfigError if an interpolation fails."""
    try:
        with hydra_config(node):
            value = OmegaConf.select(node, key)
            is_plain = not OmegaConf.is_config(value)
            return value if is_plain else OmegaConf.to_container(value, resolve=True)
    except OmegaConfBaseException as complaint:
        raise _unresolved(node, key, complaint) from complaint


@contextmanager
def hydra_config(node: DictConfig) -> Iterator[None]:
    """Resolve `${hydra:...}` by this node, if it has Hydra's settings."""
    before = HydraConfig.instance().cfg
    if "hydra" in node:
        HydraConfig.instance().cfg = node  # type: ignore[assignment]  # `set_config` copies it
    try:
        yield
    finally:
        HydraConfig.instance().cfg = before


def to_container(node: DictConfig) -> dict[str, Any]:
    """A composed configuration as plain scalars, lists and mappings, without Hydra's own
    settings."""
    import_plugins(texts_in(node.get("plugins")))  # a file may name them: they register resolvers
    written: Any = OmegaConf.to_container(node, resolve=False)
    written.pop("hydra", None)
    try:
        with hydra_config(node):
            for key, text in flatten(written):
                if isinstance(text, str) and OF_ENVIRONMENT.fullmatch(text):
                    OmegaConf.update(node, key, _decoded(OmegaConf.select(node, key)))

            config = {}
            for key in written:
                value = "???" if OmegaConf.is_missing(node, key) else node[key]
                is_plain = not OmegaConf.is_config(value)
                config[key] = value if is_plain else OmegaConf.to_container(value, resolve=True)

            return config
    except OmegaConfBaseException as complaint:
        raise _unresolved(node, complaint.full_key or "configuration", complaint) from complaint


def _decoded(text: Any) -> Any:
    """The number, true, false or null that a text is; else the text."""
    try:
        value = parse_yaml(str(text))
    except UnreadableError:
        return text
    return text if isinstance(value, dict | list) else value


def _unresolved(node: DictConfig, key: str, complaint: OmegaConfBaseException) -> ConfigError:
    """The error about the value at a key, as it is written."""
    written: Any = OmegaConf.to_container(node, resolve=False)
    return ConfigError(
        key, dict(flatten(written)).get(key), f"cannot be resolved: {first_line(complaint)}"
    )


def sweep_word(session: HydraSession, base: DictConfig, override: Override) -> str:
    """An override with several values as Hydra's own sweepers take it: `loguniform` is not one of
    its functions."""
    text = str(override.input_line)
    value = override.value()
    key = override.get_key_element()
    if "loguniform" in text and isinstance(value, ChoiceSweep):
        text = f"{key}={','.join(override.sweep_string_iterator())}"
    elif "loguniform" in text and isinstance(value, IntervalSweep):
        text = f"{key}=tag(log,interval({value.start},{value.end}))"

    is_setting = key == override.key_or_group and not session.is_group(key)
    return f"++{text}" if is_setting and _lacks(base, key) else text
