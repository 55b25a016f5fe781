"""A program of Hydra's as its documentation has it, on the configuration files of this project.

Each job writes what it was given into its folder: see test_hydra.py.
"""

import json
import logging
import os
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from a3c_exp.cli.hydra_session import DEFAULTS
from a3c_exp.cli.startup import conf_folder


def note(folder: Path | str, config: Any) -> None:
    """Write down what a job sees."""
    seen = {"cwd": Path.cwd().name, "SEEN": os.environ.get("SEEN"), "config": config}
    seen["level"] = logging.getLogger().level
    seen["choice"] = HydraConfig.get().runtime.choices["returns"]
    Path(folder, "seen.json").write_text(json.dumps(seen))
    logging.getLogger("mine").info("said by a job")


@hydra.main(config_path=str(conf_folder()), config_name="config", **DEFAULTS)
def main(config: Any) -> float:
    note(HydraConfig.get().runtime.output_dir, OmegaConf.to_container(config, resolve=True))
    return float(config.gamma)
