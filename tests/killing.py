"""Children that kill themselves, by SIGKILL, at a chosen line."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def killed_at_line(number: int, of: str, action: Callable[[], object]) -> bool:
    """Run an action in a child that kills itself at that line of the files whose path begins with
    `of`.

    False if the action ends before.
    """
    pid = os.fork()
    if pid == 0:
        lines = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal lines
            if not frame.f_code.co_filename.startswith(of):
                return None
            if event == "line":
                lines += 1
                if lines == number:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        action()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFEXITED(status) or os.WTERMSIG(status) == signal.SIGKILL
    return os.WIFSIGNALED(status)
