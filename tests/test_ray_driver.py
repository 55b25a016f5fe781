"""The driver of a cluster, where no cluster does on demand what is looked at: Ray is a stand-in here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from a3c_exp.backends.ray import driver
from a3c_exp.backends.ray.driver import Crew
from a3c_exp.errors import RunError


def crew_of(**ray: Any) -> Crew:
    crew = object.__new__(Crew)
    crew._ray, crew._late = SimpleNamespace(wait=lambda calls, timeout: ([], calls), **ray), (TimeoutError,)
    crew._servers, crew._hired = [mock.MagicMock(), mock.MagicMock()], {}
    return crew


def test_servers_that_never_start_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(RunError, match="no parameter server could be started: it does not answer"):
        list(crew_of()._reach(0, "news"))


@pytest.mark.parametrize("begun", [False, True])
def test_what_no_server_has_is_not_waited_for_at_the_end(begun: bool) -> None:
    crew = crew_of(kill=lambda actor: None)
    crew._mirror, crew._begun = mock.MagicMock(), begun
    crew.close()
    assert crew._mirror.state.called == begun


def test_a_cluster_that_is_gone_at_the_end_leaves_what_was_fetched_last() -> None:
    """The runner saves it: nothing may ask the cluster for more."""
    gone = mock.MagicMock(side_effect=ConnectionError("the head is gone"))
    crew = crew_of()
    crew._ray.wait, crew._hired = gone, {"run": driver._Hired(0, "actor", "run", 1)}
    crew._mirror = mock.MagicMock()
    with pytest.raises(ConnectionError):
        crew.close()
    assert crew._mirror.crew is None


def test_rounds_do_not_wait_for_who_is_dismissed() -> None:
    """It may have joined after the last news, and would never push."""
    killed: list[Any] = []
    crew = crew_of(kill=killed.append)
    crew._hired["run"] = hired = driver._Hired(2, "actor", "run", 1)
    crew._dismiss(hired)
    assert (killed, crew._hired) == (["actor"], {})
    for server in crew._servers:
        server.leave.remote.assert_called_once_with(2, 2 * driver.NUMBERS)
