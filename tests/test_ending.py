"""The end of a run: which reason counts, and what follows from it."""

from __future__ import annotations

from dataclasses import fields

import pytest

from a3c_exp.core.experiment import Stop
from a3c_exp.ending import (
    FAILED,
    STOP_RULES,
    Ending,
    StopReason,
    reason_text,
)


def test_each_rule_of_stop_is_a_reason() -> None:
    assert set(STOP_RULES) == {each.name for each in fields(Stop)} - {"window"}


def test_the_first_rule_counts_and_what_a_callback_says_is_its_own_word() -> None:
    ending = Ending()
    assert ending.stop_reason is None
    assert ending.stop_by_callback("enough")
    assert not ending.stop(StopReason.MAX_SECONDS)
    assert ending.stop_reason == "enough"
    assert ending.is_finished


@pytest.mark.parametrize("word", [*FAILED, "interrupted"])
def test_a_callback_has_no_word_of_failures(word: str) -> None:
    ending = Ending()
    ending.stop_by_callback(word)
    assert ending.stop_reason == f"callback: {word}" and ending.is_finished


@pytest.mark.parametrize("word", ["mean_return", "callback"])
def test_a_callback_may_name_any_other_reason(word: str) -> None:
    ending = Ending()
    ending.stop_by_callback(word)
    assert ending.stop_reason == word == ending.reason


def test_a_failure_replaces_a_rule_and_the_first_of_two_counts() -> None:
    ending = Ending()
    ending.stop(StopReason.TOTAL_STEPS)
    ending.fail(StopReason.STALLED, "one")
    ending.fail(StopReason.FAILED, "two")
    assert (ending.stop_reason, ending.error) == ("stalled", "one\ntwo")
    assert not ending.is_finished


@pytest.mark.parametrize(
    ("reason", "word"), [("max_episodes", "interrupted"), ("max_seconds", "max_seconds")]
)
def test_a_run_that_a_resumption_would_end_at_once_counts_as_interrupted(
    reason: str, word: str
) -> None:
    ending = Ending(StopReason(reason))
    ending.be_continued()
    assert ending.stop_reason == word


def test_a_reason_is_described_in_words() -> None:
    assert reason_text("total_steps") == "finished"
    assert reason_text("worker_return") == "reached stop.worker_return"
    assert reason_text("enough") == "enough"
