"""An optimizer that asks for the parameters at the pull: the example, which is DC-ASGD."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from refusals import refused
from runs import config, summary
from stores import SIZE, make_store, push
from test_replay import assert_equal, record, replay

from a3c_exp.config.builder import load_final

EXAMPLES = Path(__file__).parent.parent / "examples"
TARGET = "my_a3c.delay_compensated.DelayCompensated"
SETTINGS: dict[str, Any] = {
    "optimizer": {"_target_": TARGET, "learning_rate": 1e-2},
    "plugins": ["scripted", "my_a3c"],
}


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package of the examples can be imported."""
    monkeypatch.syspath_prepend(EXAMPLES)
    yield
    gymnasium.registry.pop("Thermostat-v0", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_a3c"]:
        del sys.modules[name]


@pytest.mark.parametrize("lock", [False, True])
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_stale_gradient_is_compensated_by_the_formula(adaptive: bool, lock: bool) -> None:
    from my_a3c.delay_compensated import DelayCompensated

    optimizer = DelayCompensated(
        learning_rate=0.1, decay=0.9, epsilon=0.01, compensation=3.0, adaptive=adaptive
    )
    store = make_store(optimizer=optimizer, lock=lock)
    first, *gradients = np.random.default_rng(1).normal(size=(4, SIZE)).astype(np.float32)
    store.initialize(first)
    pulled = np.empty(SIZE, np.float32)
    snapshot = store.pull(0, pulled)
    for gradient in gradients:  # all but the first one are stale
        push(store, 0, gradient, snapshot, parameters=pulled)

    parameters = first.astype(np.float64)
    mean_square = np.zeros(SIZE)
    for gradient in gradients:
        factor = np.full(SIZE, 3.0)
        if adaptive:
            factor /= np.sqrt(0.9 * mean_square + 0.1 * gradient**2 + 1e-7)
        compensated = gradient + factor * gradient**2 * (parameters - first)
        mean_square = 0.9 * mean_square + 0.1 * compensated**2
        parameters -= 0.1 * compensated / (np.sqrt(mean_square) + 0.01)
    assert store.state()["parameters"] == pytest.approx(parameters, rel=1e-5)


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_a_recorded_run_with_it_is_replayed_bit_for_bit(backend: str, tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", backend, **SETTINGS).folder
    assert summary(recorded)["staleness_max"] > 0
    assert_equal(recorded, replay(recorded, "plugins=[scripted,my_a3c]"))


def test_it_may_replace_the_optimizer_of_a_recorded_run(tmp_path: Path) -> None:
    rmsprop = {"_target_": "a3c_exp.optimizers.RMSProp", "learning_rate": 1e-2}
    recorded = record(tmp_path / "run", "serial", optimizer=rmsprop).folder
    words = ["plugins=[scripted,my_a3c]", f"optimizer._target_={TARGET}"]
    assert_equal(recorded, replay(recorded, *words, "+optimizer.compensation=0"))


@pytest.mark.parametrize(
    "settings",
    [
        {"update": "sync"},
        {"backend": {"_target_": "a3c_exp.backends.ga3c.Ga3c"}},
        {"backend": {"_target_": "a3c_exp.backends.ray.Ray"}},
    ],
    ids=["rounds", "ga3c", "ray"],
)
def test_it_is_refused_where_no_push_has_what_was_pulled(settings: dict[str, Any]) -> None:
    whole = config(**SETTINGS | {"workers": 2}) | settings
    assert "pulled" in refused(lambda: load_final(whole), "optimizer", "DelayCompensated")
