"""A run in the hands of a program or a notebook: what `a3c_exp.train` and `a3c_exp.open_run`
return."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from a3c_exp.cli.arguments import read_arguments
from a3c_exp.cli.execute import Plan, alone, execute
from a3c_exp.cli.help import WORDS
from a3c_exp.cli.resume import saved_plan
from a3c_exp.common.settings import override_text
from a3c_exp.common.signals import error_of
from a3c_exp.common.trust import beyond_folder
from a3c_exp.config.saved import of_saved_run
from a3c_exp.config.schema import build
from a3c_exp.core.run_view import Callback
from a3c_exp.core.seeding import globals_kept
from a3c_exp.errors import ConfigError, RunError, say, texts
from a3c_exp.evaluate import Evaluation, Options, load_run, play
from a3c_exp.export import __main__ as export
from a3c_exp.run.console import duration, return_text
from a3c_exp.run.outcome import clock_note, outcome, short
from a3c_exp.run.policy import Policy
from a3c_exp.run.run_folder import read_summary
from a3c_exp.run.session import Run

_POLICY = "run.load_policy()"
HABITS = {
    "learn": 'run.resume(["total_steps=2e6"]) trains on, to that many steps in all',
    "predict": f"{_POLICY}.act(observation) returns the action",
    "act": f"{_POLICY}.act(observation) returns the action",
    "policy": f"it is {_POLICY}",
    "model": f"it is {_POLICY}.network, a module of torch",
    "save": "run.folder has its checkpoints; run.export() writes an ONNX file",
    "load": "a3c_exp.open_run(folder) opens a run",
}
"""What is written here for what other libraries have on a trained model."""


@dataclass(frozen=True, slots=True, repr=False)
class SavedRun(Run):
    """A run that has ended, or at least begun: its folder, and its summary, which is {} before the
    end.

    Its methods do what the commands do, in the program that knows the run's classes: those of a
    script or of a notebook's cells are known nowhere else.

    plugins: packages that its configuration may name.
    config: the configuration that this program has trained; None: another program has.
    callbacks: those that the program gave.
    """

    plugins: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = field(default=None, compare=False)
    callbacks: tuple[Callback, ...] = ()

    def load_policy(self) -> Policy:
        """Return the policy of the best checkpoint, or the latest of a run without evaluations.

        Raises ConfigError.
        """
        return load_run(self.folder, plugins=self.plugins).policy

    def evaluate(self, episodes: int = 100, video: bool = False, **options: Any) -> Evaluation:
        """Play episodes with the policy of the best checkpoint, or the latest of a run without
        evaluations.

        options: the others of `python -m a3c_exp.evaluate`: checkpoint, greedy, seed, max_steps,
            render.
        Raises ConfigError.
        """
        settings = {"episodes": episodes, "video": video, "plugins": self.plugins, **options}
        with globals_kept():
            return play(self.folder, build(settings, Options))

    def export(self, file: str | Path | None = None, **options: Any) -> Path:
        """Write the policy as an ONNX file, by default policy.onnx in the run's folder, or its
        weights as a safetensors file, and return its path.

        options: the others of `python -m a3c_exp.export`: format, checkpoint, steps.
        Raises ConfigError, and RunError if the file differs from the policy.
        """
        path = None if file is None else str(file)
        settings = {"file": path, "plugins": self.plugins, **options}
        with globals_kept():
            return export.export_run(self.folder, build(settings, export.ExportOptions))

    def resume(
        self,
        overrides: Sequence[str] = (),
        callbacks: Sequence[Callback] | None = None,
        config_dir: str | None = None,
    ) -> SavedRun:
        """Continue the run in its folder, and return it as it is then.

        overrides: settings that may change: ["total_steps=2e6", "stop.mean_return=null"].
        callbacks: of a program; None: those that it gave before.
        config_dir: see `a3c_exp.compose`.
        Raises what `a3c_exp.train` does. A run that would end at once stays as it is, and a line
        says so.
        """
        watching = self.callbacks if callbacks is None else as_callbacks(callbacks)
        again: dict[str, Any] = {"plugins": list(self.plugins)}
        if self.config is not None:
            again |= beyond_folder(self.config)
            if self.callbacks:  # which config.yaml may have too
                again["callbacks"] = self.config.get("callbacks") or []
        words = [f"{key}={override_text(value)}" for key, value in again.items()]
        flags = [] if config_dir is None else ["--config-dir", config_dir]
        line = read_arguments([*words, *settings_alone(overrides), *flags])
        plan = saved_plan("resume", str(self.folder), line)

        with of_saved_run():
            resumed = run_plan(replace(plan, callbacks=watching))
        if resumed is None:
            say(
                f"{short(self.folder)}: has finished: a larger total_steps, "
                "or null for its stop rule, goes on"
            )
        return resumed or replace(self, summary=read_summary(self.folder) or {})

    if not TYPE_CHECKING:  # which finds such names by itself

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError, with the call that is meant by a name of another library's."""
            meant = f": {HABITS[name]}" if name in HABITS else ""
            raise AttributeError(f"a run has no {name!r}{meant}", name=name, obj=self)

    def __repr__(self) -> str:
        ending = outcome(self.summary) if self.summary else "has not ended"
        return f"<run {short(self.folder)}: {ending}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        summary = self.summary
        mean = summary.get("mean_return_100")
        best = summary.get("best_eval_return")
        rows = {
            "run": short(self.folder),
            "ended by": summary.get("stop_reason", "-"),
            "steps": f"{summary.get('steps', 0):,}",
            "training": duration(summary.get("training_seconds", 0.0)) + clock_note(summary),
            "mean return of 100 episodes": "-" if mean is None else return_text(mean),
            "best evaluation": "-" if best is None else return_text(best),
        }
        cells = (f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows.items())
        return f"<table>{''.join(cells)}</table>"


def settings_alone(overrides: Sequence[str]) -> Sequence[str]:
    """Return overrides as they were given. Raises ConfigError for a word or a flag of the command
    line, with what a program writes."""
    for override in texts("overrides", overrides):
        key, _, value = override.lstrip("+~").partition("=")
        instead = {
            "from": "train takes the content of a run's config.yaml",
            "resume": f"a3c_exp.open_run({value!r}).resume() goes on",
            "hydra": "train takes a `folder`",
        }
        word = re.split("[./]", key)[0]
        if word in instead or key in WORDS or key.startswith("-"):
            meant = instead.get(word, f"python -m a3c_exp {override} does it")
            raise ConfigError(key, value, f"is for the command line: {meant}")

    return overrides


def run_plan(plan: Plan) -> SavedRun | None:
    """Train as planned; None if the run in the folder has ended, and stays as it is.

    Raises what `a3c_exp.train` does.
    """
    with alone(), globals_kept():
        ended = execute(plan)
    if ended is None:
        return None

    summary = ended.summary
    if summary["signal"] is not None:
        # The signal ends the caller too: a loop over seeds does not continue with the next one.
        raise error_of(summary["signal"])
    if ended.exit_code:
        unwritten = f"cannot be written: {', '.join(summary['unwritten'])}"
        raise RunError(f"{ended.folder}: {summary['error'] or unwritten}")
    return SavedRun(
        ended.folder,
        summary,
        plugins=tuple(plan.config.get("plugins") or ()),
        config=plan.config,
        callbacks=tuple(plan.callbacks),
    )


def as_callbacks(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    """Return callbacks as they were given. Raises ConfigError for what is no list of them."""
    is_list = isinstance(callbacks, Sequence)
    if not is_list or not all(isinstance(callback, Callback) for callback in callbacks):
        raise ConfigError(
            "callbacks", callbacks, "must be a list of callbacks: objects, not classes"
        )
    return tuple(callbacks)
