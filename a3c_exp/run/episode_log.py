"""episodes.csv: one row for each training episode."""

from __future__ import annotations

import logging
from pathlib import Path

from a3c_exp.core.events import Episodes
from a3c_exp.run.curves import Appender, ResumePoint
from a3c_exp.run.files import atomic_write, set_aside

log = logging.getLogger("a3c_exp")

HEADER = b"step,worker,return,length,seconds\n"


class EpisodeLog:
    """Writes episodes.csv.

    step: environment steps of the run, of all workers, at which the episode ended, as its worker knew them. worker: its
    index. return: sum of the environment's own rewards. length: transitions. seconds: of training, when the run learned
    of the episode.

    path: of the file. most: rows that it may have. resumed: where a resumed run continues: later rows are dropped. None
    for a new run.
    """

    def __init__(self, path: Path, most: int, resumed: ResumePoint | None) -> None:
        self._most, self._pending = most, list[str]()
        self._rows = _purged(path, resumed)
        self._file = Appender(path)

    def add(self, worker: int, episodes: Episodes, seconds: float) -> None:
        """Add the episodes of an event. They are written by the next `flush`."""
        left = self._most - self._rows
        if left <= 0:
            return
        columns = (episodes.end_steps[:left], episodes.returns[:left], episodes.lengths[:left])
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        # One format for all rows takes half the time of one for each.
        template = f"%d,{worker},%.10g,%d,{seconds:.3f}\n" * len(rows)
        self._pending.append(template % tuple(cell for row in rows for cell in row))
        self._rows += len(rows)
        if self._rows >= self._most:
            log.warning("episodes.csv has %d rows (record_episodes): later episodes are not recorded", self._rows)

    def flush(self) -> None:
        """Write what is pending. Raises OSError if it does not fit on the disk: the next call tries again.

        Another thread may `add` meanwhile.
        """
        if count := len(self._pending):
            self._file.write("".join(self._pending[:count]).encode())
            del self._pending[:count]

    def close(self) -> None:
        """Write what is pending, and close the file."""
        try:
            self.flush()
        finally:
            self._file.close()


def _purged(path: Path, resumed: ResumePoint | None) -> int:
    """Write the file anew without its rows after the checkpoint; return the number of rows.

    These are of later steps, or the run learned of them later: rollouts that were under way at the checkpoint are lost,
    and episodes in them may have ended at a step before it.

    A last line without its end, of a writer that was killed, is left out. A file with anything else that cannot be
    read is set aside as it is.
    """
    content, lost = path.read_bytes() if path.exists() else b"", ""
    rows = list[bytes]()
    if not content.startswith(HEADER):
        lost = "is no record of episodes" if content else ""
    else:
        lines = [line for line in content.splitlines(keepends=True)[1:] if line.endswith(b"\n")]
        rows = [line for line in lines if _is_whole(line)]
        if len(rows) < len(lines):
            lost = f"has unreadable rows ({len(lines) - len(rows)})"
    if lost:
        aside = set_aside(path)
        log.warning("%s %s: it is kept as %s", path.name, lost, aside.name)
    if resumed is not None:
        rows = [line for line in rows if _is_before(line, resumed)]
    atomic_write(path, lambda file: file.writelines([HEADER, *rows]))
    return len(rows)


def _is_before(line: bytes, resumed: ResumePoint) -> bool:
    step, *_, seconds = line.split(b",")
    return int(step) <= resumed.steps and float(seconds) <= round(resumed.training_seconds, 3)


def _is_whole(line: bytes) -> bool:
    """Return whether a line has a step and a time, and as many cells as there are columns."""
    step, *others = line.split(b",")
    if len(others) != HEADER.count(b",") or not step.isdigit() or len(step) >= 20:
        return False
    try:
        float(others[-1])
    except ValueError:
        return False
    return True
