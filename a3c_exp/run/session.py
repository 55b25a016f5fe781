"""What the caller of a run decides about one session of it, and no setting of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One session of a run: from its start, or a resumption, to its end.

    overrides: those of this run alone. label: of a run beside others, in front of its warnings on the terminal, which
    shows nothing else of it. sweep: the name of the folder of its sweep; None: it is part
    of none.
    """

    overrides: Sequence[str] = ()
    label: str = ""
    sweep: str | None = None
