"""Joining a Ray cluster, or starting one on this machine's loopback for one run."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import Any

from a3c_exp.common.signals import take_back
from a3c_exp.errors import RunError

# Whoever reaches a cluster's port can run programs on this machine. So a cluster of our own listens
# on loopback only, and requires a token that only this program and its children have. The first
# setting is meant for other systems, but means "this machine only" to Ray, which would replace an
# explicit loopback address by that of the network.
LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
}
TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")

NEEDED = ("gcs_server", "raylet")
"""Processes of Ray without which no actor is watched or started."""

OBJECT_STORE_BYTES = 512 * 2**20
"""Size of Ray's object store beyond the vectors of a run. Ray frees objects some time after they
were read, and writes to the disk when the store is full. With 1.7 million parameters a server took
6.3 pushes a second with 128 MiB and 35.7 with 512. The memory is allocated as it is used."""

HANDLER_SECONDS = 0.05
"""How long SIGTERM may do what Ray wants, while it starts: abort the process 3 s later, without a
checkpoint."""

CONNECT_SECONDS = 5.0
SHUTDOWN_SECONDS = 10.0
"""The longest wait for Ray to leave a cluster, which may be gone."""
ANSWER_SECONDS = 60
"""The longest wait for the answer of a cluster. Healthy ones take a second or two, most of it to
import Ray here."""


def lost_errors() -> tuple[type[BaseException], ...]:
    """Return the exceptions of a call whose actor has died or cannot be reached.

    OutOfMemoryError: Ray ends an actor when memory runs out.
    """
    from ray.exceptions import (
        NodeDiedError,
        ObjectLostError,
        OutOfMemoryError,
        RayActorError,
        WorkerCrashedError,
    )

    return RayActorError, ObjectLostError, OutOfMemoryError, NodeDiedError, WorkerCrashedError


def death_text(error: BaseException) -> str:
    """Return the cause of an actor's death in one line, of what Ray says about it. Ray does not
    know the signal."""
    first, *lines = str(error).splitlines() or ["no cause is known"]
    cause = " ".join(line for line in lines if not line.startswith("\t")) or first
    cause = cause.rpartition("Worker exit detail: ")[2]
    return cause.partition(" If the process was killed by")[0].rstrip(".")


def dead_process() -> str | None:
    """Return the name of a process that has ended and that a cluster started here needs; None if
    all live."""
    import ray

    node = ray._private.worker._global_node
    if node is None:
        return None
    return next((name for name, _ in node.dead_processes() if name in NEEDED), None)


def restrict_to_loopback() -> None:
    """Keep every process that Ray starts off the network. Call before the first import of Ray.

    Raises RunError if Ray is already imported without these settings: it reads them when it is
    imported.
    """
    if "ray" in sys.modules and LOOPBACK.items() - os.environ.items():
        settings = " ".join(f"{name}={value}" for name, value in LOOPBACK.items())
        raise RunError(
            "backend.address = 'local': Ray was imported before it was restricted to this machine: "
            f"import it later, or set {settings}"
        )

    os.environ.update(LOOPBACK)
    if not any(name in os.environ for name in TOKENS):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def is_joined() -> bool:
    """Return whether this process has joined a cluster."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def find_fault(address: str) -> str | None:
    """Find out why no cluster answers at an address; None if one does, or if this process has
    joined one.

    Ray itself tries for a quarter of an hour to join whatever accepts connections, and no signal
    ends that. So another process asks for the cluster's status first.
    """
    if is_joined():
        return None

    if address != "auto":
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        except (OSError, ValueError, OverflowError) as error:
            return f"this one does not answer ({error})"

    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        probe = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=ANSWER_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"it does not answer as a cluster does, within {ANSWER_SECONDS} s"

    if probe.returncode == 0:
        return None

    lines = probe.stderr.strip().splitlines()
    return lines[-1].strip() if lines else f"`ray status` ends with {probe.returncode}"


@contextmanager
def connected(address: str, cpus: int, messages: int) -> Iterator[None]:
    """Connect this process as a driver to the cluster at an address. A cluster joined before stays
    joined.

    cpus: of a cluster that is started here, however few cores there are.
    messages: bytes that it has room for.

    Raises RunError if there is no such cluster, or none can be started.
    """
    if is_joined():
        yield
        return

    if address == "local":
        restrict_to_loopback()
    # Otherwise Ray ends this process, without a word to it, when the head has been gone for a
    # minute.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(10**6))

    import ray

    # The address also where it is the default: without one Ray would take that of RAY_ADDRESS.
    arguments: dict[str, Any] = {
        "address": address,
        "log_to_driver": False,
        "logging_level": "ERROR",
    }
    logging.getLogger("ray").setLevel("ERROR")
    with ExitStack() as stack:
        if address == "local":
            # Ray's helper processes may still write there while it is removed
            folder = tempfile.TemporaryDirectory(prefix="a3c_exp_ray_", ignore_cleanup_errors=True)
            arguments |= {
                "num_cpus": cpus,
                "object_store_memory": OBJECT_STORE_BYTES + messages,
                "include_dashboard": False,
                "_temp_dir": stack.enter_context(folder),
            }

        # In the main thread Ray would replace the run's signal handlers. Its processes end with the
        # thread.
        thread = ThreadPoolExecutor(1)
        stack.callback(thread.shutdown, wait=False)
        stack.callback(lambda: wait([thread.submit(ray.shutdown)], SHUTDOWN_SECONDS))
        _wait_until_joined(thread.submit(ray.init, **arguments), address)
        yield


def _wait_until_joined(joining: Future[Any], address: str) -> None:
    """Wait for a call of `ray.init`, and keep this program's handlers of signals meanwhile. Raises
    RunError if it fails."""
    while not joining.done():
        wait([joining], HANDLER_SECONDS)
        take_back()

    try:
        joining.result()
    except Exception as error:  # of many kinds, some without a base class of Ray's
        problem = f"there is no Ray cluster: {error}"
        raise RunError(f"backend.address = {address!r}: {problem}") from error
