"""What the system must allow before worker processes can be started."""

from __future__ import annotations

import resource
from dataclasses import fields
from multiprocessing import reduction

from a3c_exp.backends import forkserver
from a3c_exp.core.experiment import Experiment
from a3c_exp.errors import ConfigError, one_line

# Files that a run has open, whatever the number of its workers: fewer than this.
OWN_FILES = 64


def check_processes(experiment: Experiment, *, files_each: int) -> None:
    """Raise ConfigError where no worker process could be started, or not so many of them.

    files_each: files that this process has open for each worker.
    """
    forkserver.check_temporary_folder()
    _allow_files(experiment.worker_count, files_each)
    for part in fields(experiment):
        _check_can_be_sent(part.name, getattr(experiment, part.name))


def _check_can_be_sent(key: str, component: object) -> None:
    """Workers are sent the whole experiment; a component of the user's own may hold what stays in its process."""
    try:
        reduction.ForkingPickler.dumps(component)
    except RuntimeError:  # multiprocessing's own locks and queues can be pickled only while a process is started
        return
    except Exception as error:  # a component's own way of being pickled may raise anything
        problem = f"cannot be pickled, which worker processes need (backend=threads does not): {one_line(error)}"
        raise ConfigError(key, type(component).__name__, problem) from error


def _allow_files(workers: int, each: int) -> None:
    """Let this process have so many files open for each of its workers, beside its own. ConfigError where the system
    does not allow it."""
    needed = workers * each + OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        most = max(0, hard - OWN_FILES) // each
        raise ConfigError(
            "workers", workers, f"must be at most {most}: no more than {hard} files may be open (ulimit -Hn)"
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
