"""A profile: where the workers' time goes."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from a3c_exp.core.callback import Callback, RunView
from a3c_exp.core.events import Event

log = logging.getLogger("a3c_exp")

TRACE_FILE = "trace.json"


@dataclass(kw_only=True)
class Profile(Callback):
    """Logs the workers' seconds by part as curves, and as a table at the end of the run. The first moments of each
    worker become a Chrome trace, trace.json, which chrome://tracing shows.

    seconds: of all workers, by part. spans: of the trace.
    """

    stays_inside = True
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
        (run.folder / TRACE_FILE).write_text(json.dumps({"traceEvents": self.spans}))
        total = sum(self.seconds.values())
        rows = [f"{part:12}{seconds:10.1f} s{seconds / total:7.1%}" for part, seconds in self.seconds.items()]
        log.info("\n".join(["where the workers' time went:", *sorted(rows)]))
