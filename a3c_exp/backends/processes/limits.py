"""Checks made before worker processes are started: temporary folder, open files, pickling."""

from __future__ import annotations

import resource
from dataclasses import fields
from multiprocessing import reduction

from a3c_exp.backends import forkserver
from a3c_exp.core.experiment import Experiment
from a3c_exp.errors import ConfigError, one_line

# An upper bound of the files that a run has open besides those of its workers.
OWN_FILES = 64


def check_processes(experiment: Experiment, *, files_each: int) -> None:
    """Raise ConfigError if the worker processes of an experiment could not be started.

    files_each: files that this process has open for each worker.
    """
    forkserver.check_temporary_folder()
    _allow_files(experiment.worker_count, files_each)
    for field in fields(experiment):
        _check_can_be_pickled(field.name, getattr(experiment, field.name))


def _check_can_be_pickled(key: str, component: object) -> None:
    """Raise ConfigError if a component cannot be sent to a worker: a user's own may hold open files or locks."""
    try:
        reduction.ForkingPickler.dumps(component)
    except RuntimeError:  # multiprocessing's own locks and queues can be pickled only while a process is being started
        return
    except Exception as error:  # a component's own __reduce__ may raise anything
        problem = f"cannot be pickled, which worker processes need (backend=threads does not): {one_line(error)}"
        raise ConfigError(key, type(component).__name__, problem) from error


def _allow_files(workers: int, each: int) -> None:
    """Raise this process's limit of open files to what its workers need, `each` for every worker.

    Raises ConfigError if the system's limit is lower.
    """
    needed = workers * each + OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        most = max(0, hard - OWN_FILES) // each
        raise ConfigError(
            "workers", workers, f"must be at most {most}: no more than {hard} files may be open (ulimit -Hn)"
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
