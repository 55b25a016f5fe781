"""The final configuration, and how it reads back from a run's folder.

It has plain values in the place of what the machine, the current folder or a measurement decides.
It is what config.yaml holds, and all that a run, its processes and whatever continues it are given.
Settings that have become others stay there as they were typed, under TYPED: `workers=auto` is the
same setting on another machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from a3c_exp.common.reading import UnreadableError, expanded, parse_yaml, read_text
from a3c_exp.common.settings import flatten
from a3c_exp.errors import ONLY_THERE, UNREGISTERED, ConfigError, FolderError
from a3c_exp.run.run_folder import CONFIG_FILE, alike

TYPED = "typed"
"""The key of the settings as they were typed, by dotted keys."""

WORKERS = "workers"
NORMALIZATION = "env.normalize_observations"
LOG_EVERY = "log.every"
RESOLVED = (WORKERS, NORMALIZATION, LOG_EVERY)
"""Settings that are resolved."""


def read_config(
    folder: str | Path, plugins: Sequence[str] = (), *, or_file: bool = False
) -> dict[str, Any]:
    """The configuration in a run's folder, with `plugins` in place of its own. or_file: `folder`
    may be a file of one.

    A folder may come from anyone, so it cannot itself allow code: the user names the plugins again.
    Raises FolderError.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    folder = expanded(folder)
    run = next((parent for parent in folder.parents if (parent / CONFIG_FILE).is_file()), None)
    hint = "" if run is None else f"; did you mean {str(run)!r}?"
    file = folder if or_file and folder.is_file() else folder / CONFIG_FILE
    try:
        config = parse_yaml(read_text(file))
        # refuses interpolations that are none
        OmegaConf.create(config if isinstance(config, dict) else {})
    except OSError:
        problem = f"must be the folder of a run: it has no readable {CONFIG_FILE}"
        if not (hint or folder.exists()):
            problem = f"there is no such folder{' or file' if or_file else ''}; {alike(folder)}"
        raise FolderError(folder, f"{problem}{hint}") from None
    except (UnreadableError, OmegaConfBaseException) as error:
        raise FolderError(
            folder, f"its {CONFIG_FILE} is damaged: {' '.join(str(error).split())}{hint}"
        ) from error

    if not isinstance(config, dict) or not config:
        raise FolderError(folder, f"its {CONFIG_FILE} is damaged: it holds no settings{hint}")

    config = {str(name): value for name, value in config.items()}
    typed = config.pop(TYPED, None)
    if isinstance(typed, dict):
        final = dict(flatten(config))
        config[TYPED] = {key: typed[key] for key in RESOLVED if key in typed and key in final}

    # The schema refuses a text, not each letter of it.
    return config | {"plugins": plugins if isinstance(plugins, str) else list(plugins)}


def is_whole(config: object) -> bool:
    """Return whether plain data is a configuration of a run, and not only settings of one."""
    names = ("env", "network", "backend")
    return isinstance(config, Mapping) and all(isinstance(config.get(n), Mapping) for n in names)


@contextmanager
def of_saved_run() -> Iterator[None]:
    """Say in a ConfigError about an environment of a saved run that is not registered here that it
    was so in the program that trained."""
    try:
        yield
    except ConfigError as error:
        if not error.problem.startswith(UNREGISTERED):
            raise
        problem = (
            f"{UNREGISTERED} {ONLY_THERE}; that of a package needs plugins=[<package>] once more"
        )
        raise ConfigError(error.key, error.value, problem) from error


def with_value(config: Mapping[str, Any], key: str, value: object) -> dict[str, Any]:
    """The configuration with a value at a dotted key."""
    name, _, inside = key.partition(".")
    return {**config, name: with_value(config.get(name, {}), inside, value) if inside else value}


def as_typed(config: Mapping[str, Any], keys: Iterable[str] = RESOLVED) -> dict[str, Any]:
    """The configuration as it was typed, in the settings `keys`; the others stay final."""
    typed = dict(config.get(TYPED) or {})
    settings = {name: value for name, value in config.items() if name != TYPED}
    for key in [key for key in keys if key in typed]:
        settings = with_value(settings, key, typed.pop(key))

    return settings | ({TYPED: typed} if typed else {})


def without_typed(config: Mapping[str, Any], changed: str) -> dict[str, Any]:
    """The configuration after a change at a dotted key: what was typed there before is
    forgotten."""
    typed = {
        key: value
        for key, value in (config.get(TYPED) or {}).items()
        if not f"{key}.".startswith(f"{changed}.")
    }
    settings = {name: value for name, value in config.items() if name != TYPED}
    return settings | ({TYPED: typed} if typed else {})
