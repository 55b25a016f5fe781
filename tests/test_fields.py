"""Fields of a checkpoint: what is saved is what is declared, and each owner takes its own back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runs import latest, same, train
from stores import make_store

from a3c_exp.common.fields import Check, is_array, is_count, is_list, is_number, or_none
from a3c_exp.run import checkpoint
from a3c_exp.run.milestones import Milestones


def test_a_checkpoint_has_the_declared_values_and_no_others(tmp_path: Path) -> None:
    train(tmp_path, env__normalize_observations=True)
    state = latest(tmp_path)
    declared = {
        f"{prefix}{name}" for prefix, fields in checkpoint.SECTIONS.items() for name in fields
    }
    saved = {f"{section}.{name}" for section in ("store", "statistics") for name in state[section]}
    saved |= state.keys() - {"store", "statistics"}
    assert saved - checkpoint.OTHERS.keys() == declared


def test_every_value_that_an_owner_saves_fits_its_own_field(tmp_path: Path) -> None:
    train(tmp_path, env__normalize_observations=True, reward_threshold=0.0, eval__every=80)
    state = latest(tmp_path)
    for section, fields in (
        (state["store"], checkpoint.SECTIONS["store."]),
        (state["statistics"], checkpoint.SECTIONS["statistics."]),
        (state, checkpoint.SECTIONS[""]),
    ):
        assert [name for name, field in fields.items() if not field.fits(section[name])] == []


def test_milestones_come_back_in_one_more_session() -> None:
    now = [5.0]
    before = Milestones(lambda: now[0])
    before.best_return = 3.5
    before.solved = (100, 2.5)
    after = Milestones(lambda: 1.0)
    after.restore(before.state())
    assert (after.resumed, after.best_return, after.solved) == (1, 3.5, (100, 2.5))
    assert (after.seconds, after.session_seconds) == (6.0, 1.0)
    after.stop_clock()
    assert after.state()["training_seconds"] == 6.0


@pytest.mark.parametrize(
    ("check", "fitting", "others"),
    [
        (is_count, [0, 2**40], [-1, 1.0, True, None, 2**63]),
        (is_number, [0, -1.5], [np.inf, "1", None]),
        (or_none(is_number), [None, 2], ["x"]),
        (is_array("f1", finite=True), [np.ones(2)], [np.ones((1, 1)), np.array([np.nan]), [1.0]]),
        (is_array("i1"), [np.ones(2, np.int64)], [np.ones(2)]),
        (lambda value: is_list(value, is_count, 2), [[1, 2]], [[1], [1, -1], (1, 2)]),
    ],
)
def test_checks_tell_fitting_values_from_others(
    check: Check, fitting: list[object], others: list[object]
) -> None:
    assert all(map(check, fitting))
    assert not any(map(check, others))


def test_a_store_saves_what_it_has_restored() -> None:
    store = make_store(workers=2)
    state = store.state()
    state["applied_gradients"][:] = (3, 4, 0)
    state["version"] = 7
    state["multipliers"][:] = (0.5, 2)
    other = make_store(workers=2)
    other.restore(state)
    assert same(other.state(), state)
