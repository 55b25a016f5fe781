"""CleanRL's ppo.py, given as a file: its own code from the first line to the last, but for CHANGES.

Settings: the flags of its command, without dashes.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

from evidence.bench.drivers.changed import Change, execute
from evidence.bench.drivers.watch import Task, Watch, run

CHANGES = (
    Change(
        "since gymnasium 1.0 a vector environment restarts an episode one step later, unless told",
        "for i in range(args.num_envs)],\n",
        "for i in range(args.num_envs)],\n"
        "        autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,\n",
    ),
    Change(
        "since gymnasium 1.0 `final_info` has another form; the watch gets the episodes",
        """                for info in infos["final_info"]:
                    if info and "episode" in info:
                        print(f"global_step={global_step}, episodic_return={info['episode']['r']}")
                        writer.add_scalar("charts/episodic_return", info["episode"]["r"], \
global_step)
                        writer.add_scalar("charts/episodic_length", info["episode"]["l"], \
global_step)
""",
        """                returns = infos["final_info"]["episode"]["r"]
                for index in np.flatnonzero(infos["_final_info"]).tolist():
                    watch.episode(float(returns[index]), index, global_step)
""",
    ),
    Change(
        "the watch's seconds begin with the first step",
        "    start_time = time.time()\n",
        "    start_time = time.time()\n    watch.start()\n",
    ),
    Change(
        "the watch ends the training",
        '        print("SPS:", int(global_step / (time.time() - start_time)))\n',
        "        if not watch.iteration(global_step):\n            break\n",
    ),
)


class NoWriter:
    """Takes the place of torch's writer for TensorBoard: no other library writes curves here."""

    def __init__(self, *arguments: Any) -> None:
        """Take what the writer takes."""

    def add_text(self, *arguments: Any) -> None:
        """Write nothing."""

    def add_scalar(self, *arguments: Any) -> None:
        """Write nothing."""

    def close(self) -> None:
        """Do nothing."""


def train(task: Task) -> dict[str, Any]:
    """Train until the goal, the time or the settings' number of steps ends it."""
    if task.file is None:
        raise ValueError("it needs the path of CleanRL's ppo.py")

    settings = {"num_envs": 4, **task.settings, "env_id": task.environment, "seed": task.seed}
    if task.goal is None:
        settings["total_timesteps"] = 10**8
    sys.argv[1:] = [
        word
        for name, value in settings.items()
        for word in (f"--{name.replace('_', '-')}", f"{value}")
    ]
    tensorboard = types.ModuleType("torch.utils.tensorboard")
    tensorboard.__dict__["SummaryWriter"] = NoWriter
    sys.modules[tensorboard.__name__] = tensorboard

    watch = Watch(task.goal, settings["num_envs"], task.seconds)
    execute(Path(task.file), CHANGES, "__main__", watch=watch)
    return watch.report(task)


if __name__ == "__main__":
    run(train)
