"""Plugins of a3c_exp for Hydra: the launcher `processes` and the sweeper `grid`.

Hydra imports this module wherever a program of its own starts in this environment. So it imports
nothing of a3c_exp, and what it does is what a3c_exp's task function knows. Hydra runs it before it
is in sys.modules, where dataclasses look up annotations that are postponed: they are not here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class ProcessesConf:
    """Settings of the launcher. jobs: most runs at the same time."""

    _target_: str = "hydra_plugins.a3c_exp_sweeps.ProcessesLauncher"
    jobs: int = 1


@dataclass
class GridConf:
    """Settings of the sweeper, which are those of Hydra's basic one."""

    _target_: str = "hydra_plugins.a3c_exp_sweeps.GridSweeper"
    max_batch_size: int | None = None
    params: dict[str, str] | None = None


_store = ConfigStore.instance()
_store.store(group="hydra/launcher", name="processes", node=ProcessesConf, provider="a3c_exp")
_store.store(group="hydra/sweeper", name="grid", node=GridConf, provider="a3c_exp")


def _of_a3c_exp(task_function: Any, choice: str) -> Any:
    """The task function of a3c_exp. Raises HydraException for that of another program."""
    if not hasattr(task_function, "launch"):
        raise HydraException(f"{choice} is for a3c_exp alone")
    return task_function


class ProcessesLauncher(Launcher):
    """Runs each job in a process of its own, some at the same time.

    A finished run is skipped, and one that was cut is continued.
    """

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.task = _of_a3c_exp(task_function, "hydra/launcher=processes")

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        returns: Sequence[JobReturn] = self.task.launch(job_overrides, initial_job_idx)
        return returns


class GridSweeper(Sweeper):
    """Runs each combination of values once, in a folder that is named by what differs."""

    def __init__(
        self, max_batch_size: int | None = None, params: dict[str, str] | None = None
    ) -> None:
        self.max_batch_size = max_batch_size

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.config = config
        self.task = _of_a3c_exp(task_function, "hydra/sweeper=grid")
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self.launch = launcher.launch

    def sweep(self, arguments: list[str]) -> Any:
        return self.task.sweep(self.launch, self.config, self.max_batch_size)
