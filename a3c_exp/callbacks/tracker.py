"""What trackers of experiments have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from a3c_exp.core.callback import Callback, RunView
from a3c_exp.errors import ConfigError


@dataclass(kw_only=True)
class Tracker(Callback):
    """Sends configuration, curves, media, summary and checkpoints of a run to a tracker, which may be a server.

    name: of the run; None: that of its folder. group: of the run; None: the name of its sweep's folder, if it has one.
    checkpoints: those that are sent whenever they are written.

    package: the tracker's. It is imported when a run starts: whoever evaluates does not need it. connection: to the
    tracker; None before the start, and if that failed.
    id: the tracker's own of the run, by which a resumed run continues its run there. sweep: the group, if none is set.
    """

    package: ClassVar[str]

    name: str | None = None
    group: str | None = None
    checkpoints: Literal["none", "best", "latest", "both"] = "none"
    id: str | None = field(default=None, init=False)
    sweep: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.connection: Any = None
        found = find_spec(self.package)
        if found is None or found.origin is None:  # a folder of that name is no package; W&B itself makes one
            target = f"{type(self).__module__}.{type(self).__qualname__}"
            need = f"needs the extra {self.package}: pip install 'a3c-exp[{self.package}]'"
            raise ConfigError("_target_", target, need)

    def group_of(self, run: RunView) -> str | None:
        """The group of a run, which is remembered: a run of a sweep may be resumed outside of it."""
        self.sweep = run.sweep or self.sweep
        return self.group or self.sweep

    def sends(self, checkpoint: Path) -> bool:
        """Whether a checkpoint is one that is asked for, and there is a connection."""
        asked = ("best", "latest") if self.checkpoints == "both" else (self.checkpoints,)
        return self.connection is not None and checkpoint.stem in asked
