"""Callbacks that a configuration may name: stop rules, histograms, videos, a profile, trackers. See
`core.run_view`."""

from __future__ import annotations

import html
import json
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from a3c_exp.common.arrays import Floats
from a3c_exp.common.log import log
from a3c_exp.common.ranges import Checked, Count
from a3c_exp.common.settings import flatten
from a3c_exp.core.events import RECENT, Event
from a3c_exp.core.run_view import Callback as Callback
from a3c_exp.core.run_view import EvalResult as EvalResult
from a3c_exp.core.run_view import Media
from a3c_exp.core.run_view import RunView as RunView
from a3c_exp.errors import one_line, require_package

STEP_AXIS = "global_step"
"""The x axis of all curves in W&B, whose own step may not go back: that of an evaluation does."""
MOST_PARAMS = 100  # of a request of MLflow's


def _warn_without_evaluations(run: RunView, consequence: str) -> None:
    if (run.config.get("eval") or {}).get("every") is None:
        log.warning("%s: with eval.every=null there are no evaluations", consequence)


@dataclass(kw_only=True)
class NoImprovement(Checked, Callback):
    """Ends a run after several evaluations in a row without a better mean return.

    evaluations: how many, >= 1.
    """

    evaluations: Count = 5
    best: float = field(default=-math.inf, init=False)
    count: int = field(default=0, init=False)

    def on_start(self, run: RunView) -> None:
        _warn_without_evaluations(run, "NoImprovement never ends this run")

    def on_evaluation(self, run: RunView, result: EvalResult) -> None:
        self.count = 0 if result.mean_return > self.best else self.count + 1
        self.best = max(self.best, result.mean_return)
        if self.count >= self.evaluations:
            run.stop("no_improvement")


@dataclass(kw_only=True)
class MetricTarget(Callback):
    """Ends a run once a curve has a value.

    metric: the curve's name; that of one below `rollout/` may be short, as in a report. A mean over
        episodes counts from 100 episodes on: the first ones are those that end soon.
    value: ends the run once the curve has it or more.
    at_most: ends the run once the curve has the value or less.
    """

    metric: str
    value: float
    at_most: bool = False
    seen: bool = field(default=False, init=False)

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        name = self.metric if self.metric in values else f"rollout/{self.metric}"
        if name not in values:
            return

        self.seen = True

        is_mean_of_episodes = name.startswith("rollout/") and name != "rollout/episodes"
        if is_mean_of_episodes and values.get("rollout/episodes", RECENT) < RECENT:
            return

        value = values[name]
        if value <= self.value if self.at_most else value >= self.value:
            run.stop("metric_target")

    def on_end(self, run: RunView, summary: Mapping[str, Any]) -> None:
        if not self.seen:
            log.warning(
                "MetricTarget could not end this run: there was no point of a curve %s", self.metric
            )


@dataclass(kw_only=True)
class Histograms(Checked, Callback):
    """Logs the distributions of the parameters and of a gradient, by parameter group (actor,
    critic, encoder), and of the staleness since the last log, and the share of gradients that are
    clipped, as train/clipped.

    A gradient is one of a worker before it is clipped, and at most 1,000 of its numbers a group.

    points: from one log of distributions to the next, >= 1. The first and the last point have one
        in any case.
    """

    measures = ("gradients",)

    points: Count = 10
    count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gradients: dict[str, Floats] = {}
        self.staleness: Counter[int] = Counter()

    def on_event(self, run: RunView, event: Event) -> None:
        self.gradients = event.gradients or self.gradients
        for staleness, count in event.staleness.items():
            self.staleness[staleness] += count

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        if "train/n_updates" not in values:  # of an evaluation, or of a callback
            return
        if self.count % self.points == 0:
            self._log(run)
        self.count += 1

    def on_trained(self, run: RunView) -> None:
        if (self.count - 1) % self.points:  # the last point has none
            self._log(run)

    def _log(self, run: RunView) -> None:
        for name, parameters in run.module().parameter_groups().items():
            if vectors := [parameter.detach().numpy().ravel() for parameter in parameters]:
                run.log_histogram(f"train/parameters/{name}", np.concatenate(vectors))
        for name, numbers in self.gradients.items():
            run.log_histogram(f"train/gradients/{name}", numbers)
        run.log_histogram("workers/staleness", [*self.staleness.elements()])
        self.staleness.clear()


@dataclass(kw_only=True)
class Videos(Callback):
    """Has a video made of the first episode of each evaluation, and logs its first frame as an
    image."""

    def on_start(self, run: RunView) -> None:
        _warn_without_evaluations(run, "Videos films nothing in this run")
        run.record_evaluations()

    def on_evaluation(self, run: RunView, result: EvalResult) -> None:
        if result.video is not None:
            run.log_image("eval/first_frame", result.video.frame)
            run.log_video("eval/video", result.video.path)


@dataclass(kw_only=True)
class Profile(Callback):
    """Logs the workers' seconds by part as curves, and as a table at the end of the run. The first
    updates of each worker become a Chrome trace, trace.json, which chrome://tracing shows.

    seconds: of all workers, by part. spans: of the trace.
    """

    measures = ("time",)

    seconds: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.spans: list[dict[str, Any]] = []

    def on_event(self, run: RunView, event: Event) -> None:
        for name, metric in event.metrics.items():
            kind, _, part = name.partition("/")
            if kind == "seconds":
                self.seconds[part] = self.seconds.get(part, 0.0) + metric.sum
        for part, start, seconds in event.spans:
            times = {"ts": 1e6 * start, "dur": 1e6 * seconds}
            self.spans.append({"name": part, "ph": "X", "pid": 0, "tid": event.worker, **times})

    def on_end(self, run: RunView, summary: Mapping[str, Any]) -> None:
        total = sum(self.seconds.values())
        rows = [
            f"{part:12}{seconds:10.1f} s{seconds / total:7.1%}"
            for part, seconds in self.seconds.items()
        ]
        log.info("\n".join(["where the workers' time went:", *sorted(rows)]))
        # else the disk is full, or another run's folder may be there
        if "summary.json" not in summary["unwritten"]:
            with open(run.folder / "trace.json", "w") as file:
                json.dump({"traceEvents": self.spans}, file)


@dataclass(kw_only=True)
class Tracker(Callback):
    """Sends configuration, curves, media, summary and checkpoints of a run to a tracker, which may
    be a server.

    name: of the run; None: that of its folder.
    group: of the run; None: the name of its sweep's folder, if it has one.
    checkpoints: those that are sent whenever they are written.

    package: the tracker's. It is imported when a run starts: whoever evaluates does not need it.
    connection: to the tracker; None before the start, and if that failed.
    id: the tracker's own of the run, by which a resumed run continues its run there.
    sweep: the group, if none is set.
    """

    package: ClassVar[str]

    name: str | None = None
    group: str | None = None
    checkpoints: Literal["none", "best", "latest", "both"] = "none"
    id: str | None = field(default=None, init=False)
    sweep: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.connection: Any = None
        target = f"{type(self).__module__}.{type(self).__qualname__}"
        require_package("_target_", target, self.package)

    def group_of(self, run: RunView) -> str | None:
        """Return the group of a run, which is remembered: a run of a sweep may be resumed outside
        of it."""
        self.sweep = run.sweep or self.sweep
        return self.group or self.sweep

    def takes(self, run: RunView, step: int) -> bool:
        """Return whether there is a connection, and what a run logs at a step is new: a tracker
        keeps what came after the checkpoint from which the run goes on."""
        return self.connection is not None and step > run.dropped

    def sends(self, checkpoint: Path) -> bool:
        """Return whether a checkpoint is one that is asked for, and there is a connection."""
        return self.connection is not None and self.checkpoints in ("both", checkpoint.stem)


@dataclass(kw_only=True)
class Wandb(Tracker):
    """Sends a run to Weights & Biases. See `Tracker`.

    project, entity, tags: W&B's own.
    mode: offline, which it also is without a login, writes files for `wandb sync` and makes no
        connection.
    folder: of W&B's own files; None: the run's folder, in which W&B makes wandb/.
    rows: the least number of the run's next row there.
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

        mode = self.mode
        if mode == "online" and not wandb.login(prompt=False, verify=False):
            mode = "offline"
            log.warning(
                "W&B is offline: it has no login (wandb login), or WANDB_MODE says so. "
                "Later wandb sync sends its files"
            )

        self.connection = wandb.init(
            project=self.project,
            entity=self.entity,
            name=self.name or run.folder.name,
            group=self.group_of(run),
            tags=list(self.tags),
            dir=self.folder or str(run.folder),
            id=self.id,
            resume=None if self.id is None else "allow",
            mode=mode,
            config=dict(run.config),
            allow_val_change=True,  # a resumed run may have other total_steps
            reinit="create_new",
            settings=wandb.Settings(console="off", quiet=True),
        )
        self.id = self.connection.id
        self.connection.define_metric(STEP_AXIS)
        self.connection.define_metric("*", step_metric=STEP_AXIS)
        files = Path(self.connection.dir).parent
        log.info("W&B: %s", self.connection.url if mode == "online" else files)

    def on_point(self, run: RunView, step: int, values: Mapping[str, Any]) -> None:
        if self.takes(run, step):
            # Offline W&B does not know of the rows of earlier sessions, nor a checkpoint of the
            # last ones before a kill: these have smaller steps.
            row = max(self.rows, self.connection.step, run.steps)
            self.connection.log({STEP_AXIS: step, **values}, step=row)
            self.rows = row + 1

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
        self.on_point(run, step, {name: content})

    def on_checkpoint(self, run: RunView, path: Path) -> None:
        if not self.sends(path):
            return
        import wandb

        name = f"{self.id}-{path.stem}"
        artifact = wandb.Artifact(name, type="model", metadata={STEP_AXIS: run.steps})
        artifact.add_file(str(path))
        self.connection.log_artifact(artifact)

    def on_end(self, run: RunView, summary: Mapping[str, Any]) -> None:
        if self.connection is None:
            return
        self.connection.summary.update(dict(summary))
        failed = summary["error"] is not None or summary["signal"] is not None
        self.connection.finish(exit_code=int(failed))


@dataclass(kw_only=True)
class Mlflow(Tracker):
    """Sends a run to MLflow. See `Tracker`.

    A sweep is the tag `group` of its runs.

    experiment: that the run belongs to.
    tracking_uri: a server, a file or sqlite:///file; None: MLflow's own default,
        MLFLOW_TRACKING_URI.
    pending: points that MLflow's own thread is sending: a server that is slow, or away, does not
        hold the run up.
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

        client = MlflowClient(self.tracking_uri)
        group = self.group_of(run)
        if self.id is None:
            tags = {} if group is None else {"group": group}
            created = client.create_run(
                self._experiment_id(client), tags=tags, run_name=self.name or run.folder.name
            )
            self.id = created.info.run_id
            # for good: MLflow changes none
            params = [Param(name, str(value)) for name, value in flatten(run.config)]
            for first in range(0, len(params), MOST_PARAMS):
                client.log_batch(self.id, params=params[first : first + MOST_PARAMS])
        else:
            client.update_run(self.id, status="RUNNING")

        client.log_dict(self.id, dict(run.config), "config.yaml")
        self.connection = client
        log.info("MLflow: run %s", self.id)

    def _experiment_id(self, client: Any) -> str:
        from mlflow.exceptions import MlflowException

        experiment = client.get_experiment_by_name(self.experiment)
        if experiment:
            return str(experiment.experiment_id)

        try:
            return str(client.create_experiment(self.experiment))
        except MlflowException:  # another run of the sweep has made it meanwhile
            return str(client.get_experiment_by_name(self.experiment).experiment_id)

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        if not self.takes(run, step):
            return
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        metrics = [Metric(name, float(value), now, step) for name, value in values.items()]
        self.pending.append(self.connection.log_batch(self.id, metrics=metrics, synchronous=False))

    def on_media(self, run: RunView, step: int, kind: Media, name: str, value: Any) -> None:
        """Log images, texts and videos. MLflow has no histograms."""
        if not self.takes(run, step):
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
        """Wait for the points, and log the summary: as a file, and its numbers as metrics, by which
        MLflow sorts."""
        if self.connection is None:
            return

        numbers = {
            f"summary/{name}": value
            for name, value in summary.items()
            if type(value) in (int, float)
        }
        self.on_point(run, run.steps, numbers)

        errors = []
        for operation in self.pending:
            try:
                operation.wait()
            except Exception as error:
                errors.append(error)

        if errors:
            log.warning(
                "MLflow has refused %d points, the first: %s", len(errors), one_line(errors[0])
            )

        self.connection.log_dict(self.id, dict(summary), "summary.json")
        status = "FINISHED"
        if summary["error"] is not None:
            status = "FAILED"
        if summary["signal"] is not None:
            status = "KILLED"
        self.connection.set_terminated(self.id, status)
