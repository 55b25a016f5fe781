"""The environments of other tests: they are found in every process, and their rewards are the documented ones."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from a3c_exp.common.arrays import Array
from a3c_exp.envs import Gym, Step


def first_observation() -> list[Any]:
    """Runs in a child process, which imports this module afresh."""
    obs: list[Any] = Gym(id="scripted:Scripted-v0").make(1, [5]).reset().tolist()
    return obs


class TestScriptedEnvironmentsAreFound:
    def test_in_a_child_of_multiprocessing(self) -> None:
        with multiprocessing.get_context("forkserver").Pool(1) as pool:
            assert pool.apply(first_observation) == [[5, 0, 0, -1]]


class TestTinyEnvironments:
    """The best policy has the documented return."""

    def episode(self, env_id: str, act: Callable[[Array], Array], **kwargs: Any) -> tuple[float, Step]:
        batch = Gym(id=f"scripted:{env_id}", kwargs=kwargs).make(1, [0])
        total, obs = 0.0, batch.reset()
        while True:
            step = batch.step(act(obs))
            total, obs = total + float(step.reward[0]), step.obs
            if step.terminated[0] or step.truncated[0]:
                return total, step

    def test_the_bandit_pays_for_the_lever_of_its_light(self) -> None:
        total, step = self.episode("Bandit-v0", lambda obs: obs.argmax(1), n=4, length=5)
        assert total == 5
        assert step.terminated[0]
        assert self.episode("Bandit-v0", lambda obs: (obs.argmax(1) + 1) % 4, n=4, length=5)[0] == 0

    def test_the_corridor_pays_at_its_right_end_and_truncates_who_stays(self) -> None:
        total, step = self.episode("Corridor-v0", lambda obs: np.array([1]), n=6)
        assert total == pytest.approx(1 - 0.01 * 4)
        assert (step.terminated[0], step.truncated[0]) == (True, False)
        total, step = self.episode("Corridor-v0", lambda obs: np.array([0]))
        assert total == pytest.approx(-0.5)
        assert (step.terminated[0], step.truncated[0]) == (False, True)

    def test_the_target_costs_nothing_if_it_is_hit(self) -> None:
        assert self.episode("Target-v0", lambda obs: obs, length=4)[0] == 0
        assert self.episode("Target-v0", lambda obs: -obs, length=4)[0] < 0
