"""Errors of environments: how they are reported, how many in a row end the run, and a `close` that hangs."""

from __future__ import annotations

import logging
import threading
import traceback
from typing import Literal, Protocol

import numpy as np

from a3c_exp.envs.answers import WrongAnswerError
from a3c_exp.errors import RunError, one_line

log = logging.getLogger("a3c_exp")

OnError = Literal["restart", "stop"]

MOST_IN_A_ROW = 10
"""Errors of one environment in a row that end the run."""

GOOD_STEPS = 1_000
"""Steps without an error after which the next one is not in a row with the last."""

MAX_STEPS_GUARD = 1_000_000
"""The default of `max_steps_guard`."""

CLOSE_SECONDS = 1.0
"""The longest wait for an environment that is being closed."""


class EnvErrors:
    """Counts the errors of a batch of environments, and ends the run after too many in a row.

    name: of the environments ('LunarLander-v3'). count: units that begin anew on their own: environments, or 1 vector
    whose environments begin anew `together`.

    Errors are in a row if between them no episode of the environment ended by itself, and it made fewer than GOOD_STEPS
    steps. Ticks count the steps of the batch. warnings: what has not been taken yet; no error is without one.
    """

    def __init__(self, name: str, count: int, on_error: OnError, together: bool = False) -> None:
        self._name, self._stop, self._together = name, on_error == "stop", together
        self._last, self._in_a_row = [-GOOD_STEPS] * count, [0] * count
        self._count = 0
        self.warnings: list[str] = []

    def take(self) -> tuple[int, tuple[str, ...]]:
        """The number of errors and the warnings since the last call."""
        count, warnings = self._count, tuple(self.warnings)
        self._count, self.warnings = 0, []
        return count, warnings

    def add(
        self, error: BaseException, *, tick: int, began: int, unit: int = 0, env: int | None = None,
        moment: int | None = None,
    ) -> None:  # fmt: skip
        """Count an error. Raises RunError if it is to end the run.

        tick: now. began: the tick at which the current episode of the unit began, or the latest of several.
        unit: the one that begins anew. env: index of the environment in its batch; None: all of them.
        moment: the step of its episode, or of all of them; None in a reset.
        """
        in_a_row = began <= self._last[unit] and tick - self._last[unit] < GOOD_STEPS
        self._in_a_row[unit] = self._in_a_row[unit] + 1 if in_a_row else 1
        self._last[unit] = tick
        text = self._text(error, env, moment)
        if self._stop:
            raise RunError(_with_traceback(f"{text} (env.on_error=stop)", error), "env_errors") from error
        if self._in_a_row[unit] >= MOST_IN_A_ROW:
            end = f"{text}: the last of {MOST_IN_A_ROW} errors in a row, without a whole episode between them"
            raise RunError(_with_traceback(end, error), "env_errors") from error
        self._count += 1
        self.warnings.append(f"{text}: {'all begin a new episode' if self._together else 'a new episode begins'}")

    def warn_of_endless(self, env: int, steps: int) -> None:
        """Report an episode that was truncated because it has so many steps."""
        text = f"{self._who(env)}: an episode has not ended after {steps:,} steps, and was truncated"
        self.warnings.append(f"{text} (env.max_steps_guard)")

    def _text(self, error: BaseException, env: int | None, moment: int | None) -> str:
        when = "in a reset"
        if moment is not None:
            when = f"at step {moment:,}" if env is None else f"at step {moment:,} of its episode"
        if isinstance(error, WrongAnswerError):
            return f"{self._who(env)} returned {error} {when}"
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        return f"{self._who(env)} raised {one_line(error)} {when}{place}"

    def _who(self, env: int | None) -> str:
        return f"the vector environment ({self._name})" if env is None else f"environment {env} ({self._name})"


def _with_traceback(text: str, error: BaseException) -> str:
    if isinstance(error, WrongAnswerError):
        return text
    return f"{text}\n{''.join(traceback.format_exception(error)).rstrip()}"


def another_seed(seed: int) -> int:
    """The seed of a reset after one that failed with `seed`."""
    return int(np.random.SeedSequence([seed, 1]).generate_state(1)[0]) >> 1


class Closeable(Protocol):
    """Anything with a `close`."""

    def close(self) -> None: ...


def close_within(env: Closeable, seconds: float = CLOSE_SECONDS) -> None:
    """Close environments in a thread of its own, and wait no longer than this. Errors are logged, never raised."""

    def close() -> None:
        try:
            env.close()
        except BaseException as error:  # whatever it is, the run goes on or ends without it
            log.warning("an environment could not be closed: %s", one_line(error))

    thread = threading.Thread(target=close, name="close of an environment", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        log.warning("an environment was not closed within %g s, and is left behind", seconds)
