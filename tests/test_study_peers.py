"""stable-baselines3 as a recipe of the study: our rule for its threshold, and its result as one of our records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("stable_baselines3", reason="peers: pip install 'a3c-exp[bench]'")

from study import stable_baselines3
from study.stable_baselines3 import Watch


def episodes(watch: Watch, env: int, returns: float, count: int, steps: int = 0) -> None:
    """So many episodes end in one of two environments, one a step; the other goes on with its own."""
    for _ in range(count):
        infos: list[dict[str, Any]] = [{}, {}]
        infos[env] = {"episode": {"r": returns}}
        assert watch({"infos": infos, "self": SimpleNamespace(num_timesteps=steps)}, {})


def test_its_threshold_is_a_mean_over_a_hundred_episodes_with_one_of_every_environment() -> None:
    watch = Watch(reward_threshold=10.0, environments=2)
    episodes(watch, env=0, returns=10.0, count=150, steps=150)
    assert watch.solved_steps is None, "the other's first episode may be a long one that fails"
    episodes(watch, env=1, returns=9.0, count=1, steps=151)
    assert watch.solved_steps is None, "a mean of 9.99"
    episodes(watch, env=0, returns=11.0, count=1, steps=152)
    assert watch.solved_steps == 152
    episodes(watch, env=0, returns=12.0, count=1, steps=153)
    assert watch.solved_steps == 152, "the first time counts"


@pytest.mark.parametrize(("written", "at_half"), [("lin_1e-3", 5e-4), (0.2, 0.2)])
def test_the_zoos_schedules(written: Any, at_half: float) -> None:
    read = stable_baselines3._schedule(written)
    assert (read(0.5) if callable(read) else read) == pytest.approx(at_half)
