"""The configuration in a run's folder, in the settings of this version, whichever version has written it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from a3c_exp.common.reading import UnreadableError, expanded, parse_yaml, read_text
from a3c_exp.common.settings import flatten
from a3c_exp.config.final import RESOLVED, TYPED
from a3c_exp.config.removed import without_removed
from a3c_exp.errors import FolderError
from a3c_exp.run.run_folder import CONFIG_FILE


def read_config(folder: str | Path, plugins: Sequence[str] = ()) -> dict[str, Any]:
    """The configuration in a run's folder, or in a file, with `plugins` in place of its own.

    A folder may come from anyone, so it cannot itself allow code: the user names the plugins again.
    Raises FolderError, and ConfigError for a removed setting that did something.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    folder = expanded(folder)
    try:
        config = parse_yaml(read_text(folder if folder.is_file() else folder / CONFIG_FILE))
        OmegaConf.create(config if isinstance(config, dict) else {})  # refuses interpolations that are none
    except OSError:
        raise FolderError(folder, f"must be the folder of a run: it has no readable {CONFIG_FILE}") from None
    except (UnreadableError, OmegaConfBaseException) as error:
        raise FolderError(folder, f"its {CONFIG_FILE} is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict) or not config:
        raise FolderError(folder, f"its {CONFIG_FILE} is damaged: it holds no settings")
    config = without_removed({str(name): value for name, value in config.items()})
    typed = config.pop(TYPED, None)
    if isinstance(typed, dict):
        final = dict(flatten(config))
        config[TYPED] = {key: typed[key] for key in RESOLVED if key in typed and key in final}
    # The schema refuses a text, not each letter of it.
    return config | {"plugins": plugins if isinstance(plugins, str) else list(plugins)}
