"""Composition: from overrides, as a user types them, to plain configurations.

Hydra composes files and groups. Values of settings are set afterwards, here, so that a setting may
have any key and any type: config.schema checks both. Hydra's global state is restored: notebooks
and programs may use Hydra themselves.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hydra import __version__ as hydra_version
from hydra import initialize_config_dir, version
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.default_element import ConfigDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, OverrideType
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from packaging.version import Version
from yaml import MarkedYAMLError, YAMLError

from a3c_exp.cli.draws import loguniform
from a3c_exp.cli.startup import conf_folder
from a3c_exp.common.reading import check_plain
from a3c_exp.common.settings import TARGET, flatten
from a3c_exp.config.schema import settings_of
from a3c_exp.errors import ConfigError, did_you_mean, either, require

CONFIG_NAME = "config"
ELSEWHERE = {("algorithm", "a2c"): "it is algorithm=a3c update=sync"} | {
    ("hydra/launcher", name): "it needs the extra sweep: pip install 'a3c-exp[sweep]'"
    for name in ("joblib", "submitit_local", "submitit_slurm")
}
# The words of the notebooks that compare the two: missing terms as zero, or the maximum of terms.
for _name, _option in {
    "n_step_missing": "n_step_zero",
    "n_step_max": "n_step",
    "max_terms": "n_step",
}.items():
    ELSEWHERE |= {
        (_group, _name): f"it is {_group}={_option}" for _group in ("returns", "critic_returns")
    }
"""What is meant by options that are not there."""
MOST_JOBS = 10_000
"""Runs of a sweep."""
OF_THE_PARSER = re.compile("(no viable|mismatched|extraneous|token recognition|missing) ")
"""How the messages of Hydra's parser begin, which name its tokens."""
DEFAULTS = {"version_base": "1.3"} if Version(hydra_version) < Version("1.4.0rc0") else {}
"""Hydra 1.3 warns where its defaults are not named, 1.4 where they are."""
COMPLAINTS = (HydraException, OmegaConfBaseException, YAMLError, ValueError, AssertionError)


_session = threading.RLock()  # Hydra has one state for a whole process


@contextmanager
def hydra_session(config_dir: str | None = None) -> Iterator[Any]:
    """Hydra on this project's configuration files and on those in `config_dir`. Raises
    ConfigError."""
    if config_dir is not None and not (config_dir and Path(config_dir).is_dir()):
        raise ConfigError("--config-dir", config_dir, "there is no such folder")
    if config_dir is not None and Path(config_dir).resolve() == conf_folder().resolve():
        raise ConfigError(
            "--config-dir",
            config_dir,
            "is this package's own: your files need a folder of their own",
        )
    if config_dir is not None and Path(config_dir, f"{CONFIG_NAME}.yaml").exists():
        problem = (
            f"has a {CONFIG_NAME}.yaml, which would not be read: "
            f"from={config_dir} runs that of a run's folder"
        )
        raise ConfigError("--config-dir", config_dir, problem)
    own = (
        []
        if config_dir is None
        else [path.relative_to(config_dir) for path in Path(config_dir).glob("*/*.yaml")]
    )
    for path in own:
        require(
            not (conf_folder() / path).exists(),
            "--config-dir",
            config_dir,
            f"without {path}, an option here",
        )
    _session.acquire()
    # What a program that uses Hydra itself has set.
    outer = GlobalHydra.instance().hydra
    base = version.getbase()
    job = JobRuntime().conf.get("name")
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf_folder()), "a3c_exp", **DEFAULTS):
            hydra: Any = GlobalHydra.instance().hydra
            if config_dir is not None:
                search_path = hydra.config_loader.get_search_path()
                place = f"file://{Path(config_dir).absolute()}"
                search_path.prepend("command-line", place, SearchPathQuery(provider="schema"))
                hydra.config_loader.repository.initialize_sources(search_path)
            yield hydra
    finally:
        if outer is not None:
            GlobalHydra.instance().initialize(outer)
        if isinstance(base, (Version, str)):  # else no program has set it
            version.VersionBase.instance().setbase(base)
        JobRuntime().set("name", job)
        _session.release()


def compose(overrides: Sequence[str] = (), config_dir: str | None = None) -> dict[str, Any]:
    """The configuration that the overrides compose, its keys and types not checked yet. Raises
    ConfigError.

    config_dir: see `hydra_session`.
    """
    with hydra_session(config_dir) as hydra:
        return to_container(compose_node(hydra, overrides))


def compose_node(hydra: Any, overrides: Sequence[str], files: Files | None = None) -> DictConfig:
    """One job's composed configuration, Hydra's own settings under `hydra` included. Raises
    ConfigError.

    files: those of an earlier call, which are not composed again.
    """
    files = Files(hydra) if files is None else files
    typed = parse(overrides)
    for override in typed:
        if override.is_sweep_override():
            problem = "several values need -m (or quotes, if they are one text)"
            raise ConfigError(override.key_or_group, override.get_value_string(), problem)
    choices = [
        each
        for each in typed
        if files.is_choice(each.key_or_group) and not isinstance(each.value(), dict)
    ]
    settings = [each for each in typed if each not in choices]
    node = files.compose(choices)
    with open_dict(node):
        for override in settings:
            if override.key_or_group == "plugins":  # which the next step imports
                set_value(node, "plugins", override.value())
        _drop_foreign_settings(node, files, choices)
        for override in settings:
            if override.is_delete() or override.package is not None:
                problem = (
                    f"is for choices alone: {override.key_or_group}=null switches a setting off"
                )
                raise ConfigError(override.get_key_element(), override.value(), problem)
            set_value(node, override.key_or_group, override.value())
        callbacks = OmegaConf.to_container(node, resolve=False).get("callbacks")  # type: ignore[union-attr]
        if isinstance(callbacks, (str, list)):
            node.callbacks = files.callbacks(
                [callbacks] if isinstance(callbacks, str) else callbacks
            )
        lines = [str(override.input_line) for override in typed if not override.is_hydra_override()]
        node.hydra.job.override_dirname = ",".join(sorted(lines))
    return node


def compose_jobs(hydra: Any, jobs: Iterable[Sequence[str]]) -> Iterator[DictConfig]:
    """The configuration of each job of a sweep: that of `compose_node`, with its number. Raises
    ConfigError."""
    files = Files(hydra)
    first: DictConfig | None = None
    for number, job in enumerate(jobs):
        node = compose_node(hydra, job, files=files)
        first = node if first is None else first
        OmegaConf.copy_cache(first, node)  # all jobs have the same ${now:}
        with open_dict(node):
            node.hydra.job.num = number
            node.hydra.job.id = str(number)
        yield node


class Files:
    """The configuration files: which groups and options there are, and what Hydra composes of
    them."""

    def __init__(self, hydra: Any) -> None:
        self._hydra = hydra
        self._loader = hydra.config_loader
        self._composed: dict[tuple[str | None, ...], DictConfig] = {}

    def is_group(self, key: str) -> bool:
        return "." not in key and key != "callback" and self._loader.repository.group_exists(key)

    def is_choice(self, key: str) -> bool:
        """Return whether Hydra composes what has this key: a group's option, or a setting of
        Hydra's own."""
        return re.match(r"hydra\b", key) is not None or self.is_group(key)

    def compose(self, choices: Sequence[Override]) -> DictConfig:
        """What choices compose. Raises ConfigError."""
        key = tuple(choice.input_line for choice in choices)
        if key not in self._composed:
            self._check(choices)
            try:
                self._composed[key] = self._compose(choices)
            except COMPLAINTS as complaint:
                raise self._blame(choices, complaint) from complaint
        return copy.deepcopy(self._composed[key])

    def _compose(self, choices: Iterable[Override]) -> Any:
        texts = [
            f"~{o.key_or_group}"  # Hydra refuses no option of a group otherwise
            if o.type is OverrideType.CHANGE and self.is_group(o.key_or_group) and o.value() is None
            else str(o.input_line)
            for o in choices
        ]
        return self._hydra.compose_config(
            CONFIG_NAME, texts, RunMode.RUN, with_log_configuration=False
        )

    def _blame(self, choices: Sequence[Override], complaint: BaseException) -> ConfigError:
        """A complaint of Hydra's as an error about the last override without which there would be
        none."""
        for override in reversed(choices):
            try:
                self._compose([each for each in choices if each is not override])
            except COMPLAINTS:
                continue
            problem = f"cannot be composed: {first_line(complaint)}"
            return ConfigError(override.get_key_element(), override.value(), problem)
        return ConfigError(
            "command line", " ".join(str(o.input_line) for o in choices), first_line(complaint)
        )

    def _check(self, choices: Iterable[Override]) -> None:
        """Raise ConfigError for an option that does not exist."""
        for choice in choices:
            key, value = choice.key_or_group, choice.value()
            options = [] if "." in key else self._loader.get_group_options(key)
            if (
                options
                and not choice.is_delete()
                and (value is not None or "/" in key)
                and value not in options
            ):
                raise ConfigError(
                    key, value, f"is no option: {self._advice(key, str(value), options)}"
                )

    def _advice(self, group: str, value: str, options: Sequence[str]) -> str:
        """What is probably meant by an option that does not exist."""
        if (group, value) in ELSEWHERE:
            return ELSEWHERE[group, value]
        if group != "env" or not re.search(r"[:/]|-v\d+$", value):
            return f"{did_you_mean(value, options)}; --config-dir adds a folder of your own"
        files = {
            option: self._loader.repository.load_config(f"env/{option}").config
            for option in options
        }
        found = [
            f"env={option}"
            for option, file in files.items()
            if OmegaConf.select(file, "env.id") == value
        ]
        return f"it is {either(found or [f'env=gym env.id={value}'])}"

    def callbacks(self, given: Sequence[Any]) -> list[Any]:
        """Callbacks, with the files of those that are given by name. Raises ConfigError."""
        options = self._loader.get_group_options("callback")
        for name in given:
            if isinstance(name, str) and name not in options:
                raise ConfigError(
                    "callbacks", name, f"is no callback: {did_you_mean(name, options)}"
                )
        load = self._loader.repository.load_config
        return [
            load(f"callback/{each}").config if isinstance(each, str) else each for each in given
        ]

    def names_in_file(self, group: str, choice: str) -> set[str]:
        """The settings in a component's file, and in those of the group that it builds on. Imports
        no class."""
        file = self._loader.repository.load_config(f"{group}/{choice}")
        if file is None:
            return set()
        inside = OmegaConf.select(file.config, group)
        names = {str(key) for key in (inside if isinstance(inside, DictConfig) else file.config)}
        defaults = file.defaults_list or []
        names |= {default.package for default in defaults if default.package}  # network@encoder
        parents = [default.path for default in defaults if isinstance(default, ConfigDefault)]
        return names.union(
            *(self.names_in_file(group, path) for path in parents if path not in (None, "_self_"))
        )

    def names_in_group(self, group: str) -> set[str]:
        """The settings in the files of all options of a group."""
        return set[str]().union(
            *(self.names_in_file(group, each) for each in self._loader.get_group_options(group))
        )


def set_value(node: DictConfig, key: str, value: Any) -> None:
    """Set the value at a dotted key. A mapping is merged with what is there, unless it is empty, or
    a component that is written out, and none of Hydra's. Raises ConfigError."""
    try:
        is_component = (
            isinstance(value, dict) and TARGET in value and key.partition(".")[0] != "hydra"
        )
        merge = isinstance(value, dict) and len(value) > 0 and not is_component
        OmegaConf.update(node, key, value, merge=merge, force_add=True)
    except (OmegaConfBaseException, ValueError, TypeError) as complaint:
        raise ConfigError(
            key, value, f"does not fit what it would replace: {first_line(complaint)}"
        ) from complaint


def _drop_foreign_settings(node: DictConfig, files: Files, choices: Sequence[Override]) -> None:
    """Delete what presets have set for components that others, chosen on the command line, replace.

    A component that is chosen by name keeps the settings of presets that it knows:
    `experiment=pong algorithm=a3c` keeps the entropy's weight and drops PPO's epochs. A mistyped
    setting, which no option's file has, stays and is refused. An experiment replaces the components
    of its environment in the same way.
    """
    chosen = [
        (choice.package or choice.key_or_group, choice.key_or_group, str(choice.value()))
        for choice in choices
        if not (choice.is_delete() or choice.is_hydra_override())
    ]
    if any(group == "experiment" for _, group, _ in chosen):
        chosen += [
            (g, g, str(option))
            for g, option in node.hydra.runtime.choices.items()
            if re.fullmatch(r"\w+", g)
        ]
    for place, group, option in chosen:
        component = OmegaConf.select(node, place)
        if not isinstance(component, DictConfig) or TARGET not in component:
            continue
        foreign = {str(key) for key in component} - files.names_in_file(group, option)
        if not foreign - {TARGET}:
            continue
        # the check of the whole configuration reports what is wrong, in one line
        with suppress(Exception):
            # its settings have names of torch's
            of_torch = str(component[TARGET]).startswith("torch.")
            own = (
                {} if of_torch else settings_of(component[TARGET], list(node.get("plugins") or []))
            )
            for key in foreign & files.names_in_group(group) - own.keys() - {TARGET}:
                del component[key]


def job_config() -> dict[str, Any]:
    """The configuration of Hydra's current job, which a launcher of Hydra's may have started
    anywhere."""
    job = HydraConfig.get()
    places = {source.provider: source.path for source in job.runtime.config_sources}
    with hydra_session(places.get("command-line")) as hydra:
        return to_container(
            compose_node(hydra, [*job.overrides.task, f"hydra.job.num={job.job.num}"])
        )


def for_hydra(hydra: Any, overrides: Sequence[Override]) -> list[str]:
    """Overrides as Hydra's own sweepers and launchers compose them: settings with ++, since they
    may have any key."""
    files = Files(hydra)
    found = []
    for each in overrides:
        text = str(each.input_line)
        # of a function, perhaps, that Hydra does not know
        if isinstance(each.value(), ChoiceSweep):
            text = f"{each.get_key_element()}={','.join(each.sweep_string_iterator())}"
        is_setting = isinstance(each.value(), dict) or not files.is_choice(each.key_or_group)
        found.append(f"++{text}" if is_setting and each.type is OverrideType.CHANGE else text)
    return found


def setting(node: DictConfig, key: str) -> Any:
    """The value at a dotted key. Raises ConfigError if an interpolation in it fails."""
    try:
        return OmegaConf.select(node, key)
    except OmegaConfBaseException as complaint:
        raise _unresolved(node, key, complaint) from complaint


def to_container(node: DictConfig) -> dict[str, Any]:
    """A composed configuration as plain scalars, lists and mappings, without Hydra's own
    settings."""
    with open_dict(node):
        task = OmegaConf.masked_copy(node, [str(key) for key in node if key != "hydra"])
    try:
        return OmegaConf.to_container(task, resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as complaint:
        raise _unresolved(task, complaint.full_key or "configuration", complaint) from complaint


def _unresolved(node: DictConfig, key: str, complaint: OmegaConfBaseException) -> ConfigError:
    """The error about the value at a key, as it is written."""
    written: Any = OmegaConf.to_container(node, resolve=False)
    return ConfigError(
        key, dict(flatten(written)).get(key), f"cannot be resolved: {first_line(complaint)}"
    )


def sweep(overrides: Sequence[Override]) -> list[list[str]]:
    """The overrides of every job of a sweep (-m), in order. Raises ConfigError."""
    typed = " ".join(str(each.input_line) for each in overrides)
    for each in overrides:
        if each.is_sweep_override() and each.key_or_group.startswith("hydra"):
            raise ConfigError(
                each.key_or_group, each.get_value_string(), "must be one value, for the whole sweep"
            )
        if isinstance(each.value(), IntervalSweep):
            problem = "is a range, for search=<trials>: loguniform(1e-4,1e-2,20) has 20 values"
            raise ConfigError(each.key_or_group, each.get_value_string(), problem)
    try:
        choices = [choices_of(override) for override in overrides]
    except COMPLAINTS as complaint:
        raise ConfigError("command line", typed, first_line(complaint)) from complaint
    count = math.prod(map(len, choices))
    if not 0 < count <= MOST_JOBS:
        problem = (
            f"of more than {MOST_JOBS:,} runs"
            if count
            else "without a run: one of its choices is empty"
        )
        raise ConfigError("command line", typed, f"is a sweep {problem}")
    return [list(job) for job in itertools.product(*choices)]


def choices_of(override: Override) -> list[str]:
    """The override with each of its values. Without a choice, as it was typed."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    key = override.get_key_element()
    # range() may have no end.
    return [
        f"{key}={each}"
        for each in itertools.islice(override.sweep_string_iterator(), MOST_JOBS + 1)
    ]


def parse(overrides: Sequence[str], hydra: Any = None) -> list[Override]:
    """Overrides as Hydra's grammar reads them; with `hydra`, choices such as glob(*) too. Raises
    ConfigError."""
    parser = OverridesParser.create(hydra.config_loader if hydra else None)
    parsed = []
    parser.functions.register("loguniform", loguniform)
    for text in overrides:
        key, equals, value = text.partition("=")
        try:
            override = parser.parse_override(text)
            if not override.key_or_group:
                raise HydraException("there is no key")
            override.config_loader = parser.config_loader  # glob(*) looks up the options in it
            if not (override.is_sweep_override() or override.is_delete()):
                check_plain(override.value(), override.key_or_group)
            parsed.append(override)
        except ConfigError:
            raise
        except (
            ValueError,
            RecursionError,
        ) as complaint:  # of Python's limits, on digits and on nesting
            raise ConfigError(
                key, value, "has a number that is too long, or is nested too deeply"
            ) from complaint
        except HydraException as complaint:
            if not (key and equals):
                raise ConfigError("command line", text, "must be key=value") from complaint
            text = first_line(complaint)
            if OF_THE_PARSER.match(text):
                text = (
                    "a bracket, a comma or a quote is missing, or the text needs quotes: "
                    f"\"{key}='{value}'\""
                )
            raise ConfigError(key, value, f"cannot be read: {text}") from complaint
    return parsed


def first_line(error: BaseException) -> str:
    """The first line of an error's text; the place in the file, where a file cannot be read."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{mark.name}, line {mark.line + 1}: {error.problem or 'cannot be read'}"
    cause = error.__cause__ if error.__cause__ is not None and not str(error) else error
    return (str(cause).strip() or type(cause).__name__).splitlines()[0].strip()
