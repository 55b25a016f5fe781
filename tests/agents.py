"""Agents of GA3C that go wrong by themselves, whatever becomes of errors of environments."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Literal

from a3c_exp.backends.ga3c.agent import Agent
from a3c_exp.backends.supervision import RESUMED_STRIDE
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.worker import YieldPoint


class FailingAgent(Agent):
    """An agent of which the first with this index fails after so many rollouts that it has reported."""

    def __init__(
        self, context: RunContext, index: int, *arguments: Any, victim: int, after: int, how: Literal["raise", "hang"]
    ) -> None:
        super().__init__(context, index, *arguments)
        self._fails = index == victim and context.resumed < RESUMED_STRIDE
        self._after = after
        self._how = how

    def run(self) -> Iterator[Event | YieldPoint]:
        for number, output in enumerate(super().run()):
            if self._fails and number == self._after:
                if self._how == "hang":
                    time.sleep(600)
                raise RuntimeError("scripted to fail")
            yield output
