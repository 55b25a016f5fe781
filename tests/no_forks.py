"""Imported by a fork server: the system then refuses it processes, as at the limit of a user's."""

from __future__ import annotations

import errno
import os
from typing import NoReturn


def _refused() -> NoReturn:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


os.fork = _refused
