"""Weights & Biases."""

from __future__ import annotations

import html
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from a3c_exp.callbacks.tracker import Tracker
from a3c_exp.core.callback import Media, RunView

log = logging.getLogger("a3c_exp")

STEP = "global_step"
"""The x axis of all curves there. W&B's own step counts rows, and may not go back: a point of an evaluation does."""


@dataclass(kw_only=True)
class Wandb(Tracker):
    """Sends a run to Weights & Biases. See `Tracker`.

    project, entity, tags: W&B's own. mode: offline writes files for `wandb sync` and makes no connection.
    folder: of W&B's own files; None: the run's folder, in which W&B makes wandb/.
    rows: that the run has there.
    """

    package: ClassVar[str] = "wandb"

    project: str = "a3c_exp"
    entity: str | None = None
    tags: tuple[str, ...] = ()
    mode: Literal["online", "offline"] = "online"
    folder: str | None = None
    rows: int = field(default=0, init=False)

    def on_start(self, run: RunView) -> None:
        import wandb

        self.connection = wandb.init(
            project=self.project,
            entity=self.entity,
            name=self.name or run.folder.name,
            group=self.group_of(run),
            tags=list(self.tags),
            dir=self.folder or str(run.folder),
            id=self.id,
            resume=None if self.id is None else "allow",
            mode=self.mode,
            config=dict(run.config),
            allow_val_change=True,  # a resumed run may have other total_steps
            reinit="create_new",
            settings=wandb.Settings(console="off", quiet=True),
        )
        self.id = self.connection.id
        self.connection.define_metric(STEP)
        self.connection.define_metric("*", step_metric=STEP)
        log.info("W&B: %s", self.connection.url if self.mode == "online" else Path(self.connection.dir).parent)

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        if self.connection is not None:
            row = max(self.rows, self.connection.step)  # offline W&B does not know of the rows of earlier sessions
            self.connection.log({STEP: step, **values}, step=row)
            self.rows = row + 1

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        self._log(step, values)

    def on_media(self, run: RunView, step: int, kind: Media, name: str, value: Any) -> None:
        import wandb

        match kind:
            case "histogram":
                content: object = wandb.Histogram(np_histogram=np.histogram(value, 64))
            case "image":
                content = wandb.Image(value)
            case "text":
                content = wandb.Html(f"<pre>{html.escape(value)}</pre>", inject=False)
            case "video":
                content = wandb.Video(str(value), format="mp4")
        self._log(step, {name: content})

    def on_checkpoint(self, run: RunView, path: Path) -> None:
        if self.sends(path):
            import wandb

            artifact = wandb.Artifact(f"{self.id}-{path.stem}", type="model", metadata={STEP: run.steps})
            artifact.add_file(str(path))
            self.connection.log_artifact(artifact)

    def on_end(self, run: RunView, summary: Mapping[str, Any]) -> None:
        if self.connection is not None:
            self.connection.summary.update(dict(summary))
            self.connection.finish(exit_code=int(summary["error"] is not None or summary["signal"] is not None))
