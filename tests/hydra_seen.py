"""A package of a user's own for test_hydra.py: it registers with Hydra and OmegaConf, and watches
runs and jobs."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import hydra
import hydra_app
from hydra.core.config_store import ConfigStore
from hydra.experimental.callback import Callback as HydraCallback
from omegaconf import OmegaConf
from scripted import Bandit

from a3c_exp.cli.hydra_session import DEFAULTS
from a3c_exp.cli.startup import conf_folder
from a3c_exp.core.run_view import Callback, RunView


class Composing(Bandit):
    """A bandit that composes with Hydra by itself."""

    def __init__(self) -> None:
        super().__init__()
        with hydra.initialize_config_dir(str(conf_folder()), **DEFAULTS):
            assert hydra.compose("config", ["gamma=0.5"]).gamma == 0.5


gymnasium.register("Composing-v0", entry_point="hydra_seen:Composing")
OmegaConf.register_new_resolver("half", lambda number: float(number) / 2, replace=True)
STORED = {"_target_": "a3c_exp.optimizers.RMSProp", "decay": 0.125}
ConfigStore.instance().store(group="optimizer", name="stored", node=STORED)


@dataclass
class Seen(Callback):
    """Writes what hydra_app.py writes."""

    def on_start(self, run: RunView) -> None:
        hydra_app.note(run.folder, dict(run.config))


@dataclass
class CtrlC(Callback):
    """Interrupts the run when it starts."""

    def on_start(self, run: RunView) -> None:
        os.kill(os.getpid(), signal.SIGINT)


class Told(HydraCallback):
    """Writes a line for each moment at which Hydra calls it."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def _note(self, text: str) -> None:
        with self.file.open("a") as lines:
            lines.write(f"{text}\n")

    def on_multirun_start(self, config: Any, **kwargs: Any) -> None:
        self._note("multirun starts")

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        self._note("multirun ends")

    def on_job_start(self, config: Any, **kwargs: Any) -> None:
        self._note("job starts")

    def on_job_end(self, config: Any, job_return: Any, **kwargs: Any) -> None:
        self._note(f"job {job_return.status.name}")
