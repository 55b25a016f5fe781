"""The end of a run: why it ended, who may say so, and what follows from it.

A run ends because it has made all its steps, because a rule of `stop` or a callback has ended it,
because a signal has interrupted it, or because it failed. `Ending` decides which of these counts
where several come together. Whether a run goes on, is repeated or is left as it is, and the words
of its last lines follow from the names below. Its exit code is `exit_codes.run_exit_code`, and what
a signal does to it is in `common.signals`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class StopReason(StrEnum):
    """Why a run ended. The values are the words of `stop_reason` in summary.json.

    A callback ends a run with a word of its own, which summary.json has in place of CALLBACK.
    """

    TOTAL_STEPS = "total_steps"
    CALLBACK = "callback"
    INTERRUPTED = "interrupted"
    ORDER = "order"  # a replay has come to the end of its order

    # The rules of `stop`. By the last two a worker stops, and the run ends with the last worker.
    MAX_EPISODES = "max_episodes"
    MAX_SECONDS = "max_seconds"
    MEAN_RETURN = "mean_return"
    WORKER_EPISODES = "worker_episodes"
    WORKER_RETURN = "worker_return"

    # Failures: in general; after too many restarts of a worker; because of a worker that hangs and
    # cannot be ended; after an error of an environment that may not be replaced; after
    # MANY_FAILURES of workers without a single ended episode.
    FAILED = "failed"
    MAX_RESTARTS = "max_restarts"
    STALLED = "stalled"
    ENV_ERRORS = "env_errors"
    NO_EPISODES = "no_episodes"


STOP_RULES = (
    StopReason.MAX_EPISODES,
    StopReason.MAX_SECONDS,
    StopReason.MEAN_RETURN,
    StopReason.WORKER_EPISODES,
    StopReason.WORKER_RETURN,
)
"""Reasons that are settings of `stop`, by the same names."""

FAILED = (
    StopReason.FAILED,
    StopReason.MAX_RESTARTS,
    StopReason.STALLED,
    StopReason.ENV_ERRORS,
    StopReason.NO_EPISODES,
)
"""Reasons of runs that failed. `resume` continues such a run, and a repeated sweep begins it anew,
except for NO_EPISODES: another run would be no better."""

HOLDING = (
    StopReason.TOTAL_STEPS,
    StopReason.MAX_EPISODES,
    StopReason.WORKER_EPISODES,
    StopReason.MEAN_RETURN,
)
"""Reasons that soon end a resumed run again. A limit of seconds is one of each session."""

BY_TOTALS = (StopReason.TOTAL_STEPS, StopReason.MAX_EPISODES, StopReason.MEAN_RETURN)
"""Reasons that depend on `stop` and `total_steps` alone. Whether another reason holds again depends
on the callbacks and on the number of workers too."""

MANY_FAILURES = 10
"""Failures of workers after which a run without an ended episode has failed, and one whose episodes
mostly end in failures says so."""


def reason_text(word: str) -> str:
    """Return the words that a run's last lines have for a `stop_reason`."""
    if word == StopReason.TOTAL_STEPS:
        return "finished"
    if word == StopReason.ORDER:
        return "replayed"
    if word in STOP_RULES:
        return f"reached stop.{word}"
    return word


@dataclass(slots=True)
class Ending:
    """The end of one session of a run: the reason that counts, of those that are reported.

    The first stop rule or callback counts. An interruption replaces it, and a failure does so too,
    unless the run was interrupted: workers may have received the signal themselves, and fail by it.

    Args:
        reason: None while the run goes on.
        word: the callback's own, where the reason is CALLBACK.
        error: what a failed run reports, in one line or with a traceback.
    """

    reason: StopReason | None = None
    word: str = ""
    error: str | None = None

    @property
    def stop_reason(self) -> str | None:
        """The `stop_reason` of the summary."""
        word = self.word if self.reason is StopReason.CALLBACK else self.reason
        return None if word is None else str(word)

    @property
    def is_interrupted(self) -> bool:
        return self.reason is StopReason.INTERRUPTED

    @property
    def is_finished(self) -> bool:
        """Return whether the run has neither failed nor been interrupted."""
        return self.error is None and not self.is_interrupted

    def stop(self, reason: StopReason) -> bool:
        """End the run in order, and return whether it was to go on until now."""
        if self.reason is not None:
            return False
        self.reason = reason
        return True

    def stop_by_callback(self, word: str) -> bool:
        """End the run in order for a callback, as `stop` does.

        A callback may name a stop rule, and the run counts as ended by that. The words of runs that
        failed or were interrupted are the package's own: such a word has "callback: " before it.
        """
        if word in (*FAILED, StopReason.INTERRUPTED):
            word = f"callback: {word}"
        is_rule = word in [*StopReason]
        if not self.stop(StopReason(word) if is_rule else StopReason.CALLBACK):
            return False
        self.word = word
        return True

    def interrupt(self) -> None:
        """End the run because a signal or an environment asks for it at once."""
        self.reason = StopReason.INTERRUPTED

    def fail(self, reason: StopReason, text: str) -> None:
        """End the run because of an error. The reason of the first error counts, and the texts of
        all of them are kept."""
        if self.error is None:
            self.reason = reason
            self.error = text
        else:
            self.error = f"{self.error}\n{text}"

    def be_continued(self) -> None:
        """Let the run count as interrupted where it would end at once if it were resumed.

        For a run whose last evaluation was interrupted: resumed, it makes that evaluation.
        """
        if self.reason in HOLDING:
            self.interrupt()
