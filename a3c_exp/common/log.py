"""The package's logger: a run that is open shows its lines in the terminal and in train.log."""

from __future__ import annotations

import logging


class _Log(logging.Logger):
    """A logger that stays enabled. `logging.config`, as an environment's own program may use it,
    disables those that it does not name, and with them train.log."""

    disabled = property(lambda self: False, lambda self, value: None)


log = logging.getLogger("a3c_exp")
log.__class__ = _Log
