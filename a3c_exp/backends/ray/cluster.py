"""Joining a Ray cluster, or starting one on this machine's loopback for one run."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import ceil
from typing import TYPE_CHECKING, Any

from a3c_exp.errors import RunError

if TYPE_CHECKING:
    from a3c_exp.backends.ray import Ray
    from a3c_exp.core.store import StoreSpec

# A cluster's port lets whoever reaches it run programs here. So: on loopback alone (Ray takes this setting, meant for
# other systems, as "this machine only"; an address given by hand would be replaced by the network's), and with a token
# that only this program and what it starts know.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")

STORE_BYTES = 512 * 2**20
"""Room for what is under way, beside what the vectors of a run take: Ray lets go of what has been read with a delay,
and where the room is full it waits and writes to the disk. `python -m bench --only ray_1.7m` printed 6.3 pushes a
second with 128 MiB and 35.7 with 512. Memory is taken as it is used."""


def lost_errors() -> tuple[type[BaseException], ...]:
    """What a call raises whose actor has died or cannot be reached. Where memory runs out Ray kills one, and says so
    with an error of its own."""
    from ray import exceptions

    return (
        exceptions.RayActorError, exceptions.ObjectLostError, exceptions.OutOfMemoryError,
        exceptions.NodeDiedError, exceptions.WorkerCrashedError,
    )  # fmt: skip


def on_loopback() -> None:
    """Keep what Ray starts from the network: to be called before Ray is first imported, and for the whole process.

    Raises RunError where that is too late: Ray reads its settings when it is imported.
    """
    if "ray" in sys.modules and LOOPBACK.items() - os.environ.items():
        settings = " ".join(f"{name}={value}" for name, value in LOOPBACK.items())
        reason = f"Ray was imported before it was told to stay on this machine: import it later, or set {settings}"
        raise RunError(f"backend.address = 'local': {reason}")
    os.environ.update(LOOPBACK)
    if not any(name in os.environ for name in TOKENS):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


@contextmanager
def connected(backend: Ray, workers: int, layout: StoreSpec) -> Iterator[None]:
    """Within: this process is a driver of the cluster that the backend names. One that was joined before stays joined.

    Raises RunError where there is no such cluster, or none can be started.
    """
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        yield
        return
    local = backend.address == "local"
    if local:
        on_loopback()
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    with ExitStack() as stack:
        where: dict[str, Any] = {"address": backend.address}
        if local:
            where = _here(backend, workers, layout) | {"_temp_dir": stack.enter_context(_folder())}
        stack.callback(ray.shutdown)
        _join(ray, quiet | where)
        yield


def _join(ray: Any, arguments: dict[str, Any]) -> None:
    try:
        with _handlers_kept():
            ray.init(**arguments)
    except SystemExit:  # what Ray makes of SIGTERM while it starts
        signal.raise_signal(signal.SIGTERM)
        raise RunError("asked to end while Ray was starting") from None
    except Exception as error:  # of many kinds, some of them bare
        where = arguments.get("address", "local")
        raise RunError(f"backend.address = {where!r}: there is no Ray cluster: {error}") from error


def _here(backend: Ray, workers: int, layout: StoreSpec) -> dict[str, Any]:
    """What a cluster of this machine alone is started with: room for all workers, however few cores there are."""
    messages = 2 * (workers * (backend.in_flight + 1) + 1)
    return {
        "num_cpus": ceil(workers * backend.cpus_per_worker) + 1,
        "object_store_memory": STORE_BYTES + 2 * 4 * layout.size * messages,
        "include_dashboard": False,
    }


# Waits until nobody holds the other end of its input, then removes what Ray's processes still write until they notice:
# its helpers take most of a minute.
LAST_WILL = 'read -r _; for _ in 1 2 3 4 5 6 7 8 9; do sleep 10; rm -rf -- "$0"; done'


@contextmanager
def _folder() -> Iterator[str]:
    """A folder for the logs and sockets of a cluster; it goes with the cluster. Where this process is killed, a shell
    that outlives it by seconds removes the folder."""
    folder = tempfile.mkdtemp(prefix="a3c_exp_ray_")
    arguments = ["sh", "-c", LAST_WILL, folder]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True) as heir:
        try:
            yield folder
        finally:
            heir.kill()
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Within: whoever takes the signals over has them only so long. What they mean is for the run to say."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
