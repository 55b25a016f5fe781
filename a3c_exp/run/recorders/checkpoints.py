"""The checkpoints of a run: when they are written, what they hold, and which stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from a3c_exp.core.run_view import RunView
from a3c_exp.run import checkpoint, files, run_folder
from a3c_exp.run.open_run import OpenRun
from a3c_exp.run.recorders.recorder import Every, RunRecorder
from a3c_exp.run.run_folder import BEST, CHECKPOINTS, LATEST


class Checkpoints(RunRecorder):
    """Saves the latest state every so many steps, and when SIGUSR1 asks for it. Keeps as many as
    are asked for.

    before_writing: functions of a checkpoint's content, which write what belongs to it.
    """

    def __init__(self, run: OpenRun) -> None:
        super().__init__(run)
        self._settings = run.experiment.checkpoint
        self._folder = run.folder / CHECKPOINTS
        self._due = Every(self._settings.every, run.steps)
        self.before_writing: list[Callable[[Mapping[str, Any]], None]] = []
        # Buffers and frozen parameters, which a policy has besides parameters and statistics.
        self._constants = {
            name: tensor.numpy().copy() for name, tensor in run.network.constants().items()
        }

    def on_tick(self, run: RunView) -> None:
        if self._due(self._run.statistics.steps) or self._run.interruption.save_requested:
            self._run.interruption.save_requested = False
            self.save()

    def save(self, store_state: Mapping[str, Any] | None = None) -> None:
        """Write the latest checkpoint, and keep it by its number of steps too."""
        state = self.content(store_state)
        self.write(LATEST, state)

    def write(self, name: str, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, whole or not at all, and notify callbacks of it."""
        output = self._run.output
        path = self._folder / name
        for write_more in self.before_writing:
            write_more(state)
        output.write(name, checkpoint.save, path, state)
        if name in output.unwritten:
            return

        if name == LATEST:
            output.write("numbered checkpoints", self._number_latest, state["store"]["steps"])
        self._run.hooks.on_checkpoint(path)

    def content(self, store_state: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the content of a checkpoint, as of now.

        store_state: of the store; None: its present one.
        """
        run = self._run
        store = run.store.state() if store_state is None else dict(store_state)
        # Events arrive up to a tenth of a second late, so the store is ahead of the statistics.
        ahead = {"steps": store["steps"], "updates": store["version"]}
        if self._constants:
            store["constants"] = self._constants
        return {
            "store": store,
            "statistics": run.statistics.state() | ahead,
            **run.milestones.state(),
            "callbacks": run.hooks.states.state(),
        }

    def _number_latest(self, steps: int) -> None:
        """Keep the latest checkpoint by its steps, and delete numbered ones that are too many.

        Two are kept at least: the next save may leave a damaged latest one. Those of later steps
        are of a part of the run that was lost.
        """
        files.copy_as(self._folder / LATEST, self._folder / f"step_{steps}.ckpt")
        numbers = run_folder.numbered_checkpoints(self._run.folder)
        earlier = [path for path, number in numbers.items() if number <= steps]
        staying = earlier[: max(2, self._settings.last)]
        for path in numbers.keys() - set(staying):
            path.unlink()

    def close(self, finished: bool) -> None:
        """Delete the checkpoints that a finished run does not leave. Numbered ones stay with the
        latest.

        A checkpoint that could not be written leaves everything.
        """
        if finished and not {LATEST, BEST} & self._run.output.unwritten:
            self._run.output.write("checkpoints", self._leave, self._settings.keep)

    def _leave(self, keep: str) -> None:
        if keep == "best" and not (self._folder / BEST).exists():
            keep = "latest"
        staying: set[str] = {
            "both": {LATEST, BEST},
            "latest": {LATEST},
            "best": {BEST},
            "none": set[str](),
        }[keep]

        numbered = [path.name for path in run_folder.numbered_checkpoints(self._run.folder)]
        if LATEST in staying:
            numbered = numbered[self._settings.last :]
        for name in {LATEST, BEST, *numbered} - staying:
            (self._folder / name).unlink(missing_ok=True)
