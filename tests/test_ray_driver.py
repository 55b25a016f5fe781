"""What no cluster does on demand: the driver with a stand-in for Ray."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from a3c_exp.backends.ray import driver as driver_module
from a3c_exp.backends.ray.driver import SEQUENCE_STRIDE, CachedStore, Driver, _RunningWorker
from a3c_exp.errors import RunError


def driver_of(**ray: Any) -> tuple[Driver, mock.MagicMock, list[mock.MagicMock]]:
    """A driver of two servers and no workers whose calls are never answered, its store and its servers.

    ray: functions of the stand-in.
    """
    servers, store = [mock.MagicMock(), mock.MagicMock()], mock.MagicMock(spec=CachedStore)
    driver = object.__new__(Driver)
    driver._ray = SimpleNamespace(**{"wait": lambda calls, timeout: ([], calls)} | ray)
    driver._unreachable, driver._servers, driver._store = (TimeoutError,), servers, store
    driver._workers, driver._begun = {}, True
    return driver, store, servers


def test_servers_that_never_start_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "START_SECONDS", 0.0)
    driver, _, _ = driver_of()
    with pytest.raises(RunError, match="no parameter server could be started: it does not answer"):
        list(driver._call_until_answered(0, "status"))


@pytest.mark.parametrize("begun", [False, True])
def test_the_state_of_servers_that_never_had_one_is_not_fetched_at_the_end(begun: bool) -> None:
    driver, store, _ = driver_of(kill=lambda actor: None)
    driver._begun = begun
    driver.close()
    assert store.state.called == begun


def test_a_cluster_that_is_gone_at_the_end_leaves_the_cached_state() -> None:
    """The trainer saves it: from then on nothing may call the cluster."""
    driver, store, _ = driver_of(wait=mock.MagicMock(side_effect=ConnectionError("the head is gone")))
    driver._workers = {"run": _RunningWorker(0, "actor", "run", 1)}
    with pytest.raises(ConnectionError):
        driver.close()
    assert store.driver is None


def test_rounds_do_not_wait_for_a_worker_that_was_killed() -> None:
    """It may have joined after the last status, and would never push."""
    killed: list[Any] = []
    driver, _, servers = driver_of(kill=killed.append)
    worker = driver._workers["run"] = _RunningWorker(2, "actor", "run", 1)
    driver._kill_worker(worker)
    assert (killed, driver._workers) == (["actor"], {})
    for server in servers:
        server.leave.remote.assert_called_once_with(2, 2 * SEQUENCE_STRIDE)
