"""The settings of `backend=ray`, for the modules that run it."""

from __future__ import annotations

from dataclasses import dataclass

from a3c_exp.backends.supervision import RestartSettings
from a3c_exp.errors import require

MOST = 1024
"""Servers, and pushes without a reply."""


@dataclass(frozen=True, kw_only=True)
class RaySettings(RestartSettings):
    """The settings of `Ray`.

    address: 'local' starts Ray on this machine for this run, on loopback only; 'auto' joins the cluster that this
        machine is part of; or the address of a cluster's head, host:port. A program that has already joined a cluster
        uses that one.
    shards: number of servers that share the parameter vector.
    in_flight: pushes without a reply with which a worker goes on. With 0 it waits for each, and one worker does what
        one worker does on any backend. Synchronous rounds are always waited for.
    cpus_per_worker: CPUs that Ray reserves for a worker. A node takes as many workers as fit into its cores.
    """

    address: str = "local"
    shards: int = 1
    in_flight: int = 1
    cpus_per_worker: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.address), "address", self.address, "'local', 'auto' or the address of a cluster's head")
        require(1 <= self.shards <= MOST, "shards", self.shards, f"a whole number from 1 to {MOST}")
        require(0 <= self.in_flight <= MOST, "in_flight", self.in_flight, f"a whole number from 0 to {MOST}")
        require(self.cpus_per_worker >= 0, "cpus_per_worker", self.cpus_per_worker, "a number >= 0")
