"""MLflow."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from a3c_exp.callbacks.tracker import Tracker
from a3c_exp.common.settings import flatten
from a3c_exp.core.callback import Media, RunView
from a3c_exp.errors import one_line

log = logging.getLogger("a3c_exp")

MOST_PARAMS = 100  # of a request


@dataclass(kw_only=True)
class Mlflow(Tracker):
    """Sends a run to MLflow. See `Tracker`.

    experiment: that the run belongs to. tracking_uri: a server, a file or sqlite:///file; None: MLflow's own default,
    MLFLOW_TRACKING_URI. A sweep is the tag `group` of its runs.
    pending: points that MLflow's own thread is sending: a server that is slow, or away, does not hold the run up.
    """

    package: ClassVar[str] = "mlflow"

    experiment: str = "a3c_exp"
    tracking_uri: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pending: list[Any] = []

    def on_start(self, run: RunView) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        client, group = MlflowClient(self.tracking_uri), self.group_of(run)
        if self.id is None:
            tags = {} if group is None else {"group": group}
            created = client.create_run(self._experiment_id(client), tags=tags, run_name=self.name or run.folder.name)
            self.id = created.info.run_id
            params = [Param(name, str(value)) for name, value in flatten(run.config)]  # for good: MLflow changes none
            for first in range(0, len(params), MOST_PARAMS):
                client.log_batch(self.id, params=params[first : first + MOST_PARAMS])
        else:
            client.update_run(self.id, status="RUNNING")
        client.log_dict(self.id, dict(run.config), "config.yaml")
        self.connection = client
        log.info("MLflow: run %s", self.id)

    def _experiment_id(self, client: Any) -> str:
        from mlflow.exceptions import MlflowException

        found = client.get_experiment_by_name(self.experiment)
        try:
            return str(found.experiment_id if found else client.create_experiment(self.experiment))
        except MlflowException:  # another run of the sweep has made it meanwhile
            return str(client.get_experiment_by_name(self.experiment).experiment_id)

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        if self.connection is not None:
            from mlflow.entities import Metric

            now = round(time.time() * 1000)
            metrics = [Metric(name, float(value), now, step) for name, value in values.items()]
            self.pending.append(self.connection.log_batch(self.id, metrics=metrics, synchronous=False))

    def on_media(self, run: RunView, step: int, kind: Media, name: str, value: Any) -> None:
        """Log images, texts and videos. MLflow has no histograms."""
        if self.connection is None:
            return
        match kind:
            case "image":
                self.connection.log_image(self.id, value, key=name, step=step)
            case "text":
                self.connection.log_text(self.id, value, f"{name}_{step}.md")
            case "video":
                self.connection.log_artifact(self.id, str(value), "videos")

    def on_checkpoint(self, run: RunView, path: Path) -> None:
        if self.sends(path):
            self.connection.log_artifact(self.id, str(path), "checkpoints")

    def on_end(self, run: RunView, summary: Mapping[str, Any]) -> None:
        """Wait for the points, and log the summary: as a file, and its numbers as metrics, by which MLflow sorts."""
        if self.connection is None:
            return
        numbers = {name: value for name, value in summary.items() if type(value) in (int, float)}
        self.on_point(run, run.steps, {f"summary/{name}": value for name, value in numbers.items()})
        errors = []
        for operation in self.pending:
            try:
                operation.wait()
            except Exception as error:
                errors.append(error)
        if errors:
            log.warning("MLflow has refused %d points, the first: %s", len(errors), one_line(errors[0]))
        self.connection.log_dict(self.id, dict(summary), "summary.json")
        status = "KILLED" if summary["signal"] is not None else "FAILED" if summary["error"] is not None else "FINISHED"
        self.connection.set_terminated(self.id, status)
