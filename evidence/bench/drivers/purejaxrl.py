"""purejaxrl's ppo.py, given as a file beside its wrappers.py, on gymnax's environments.

The whole training is one compiled program. It cannot be ended earlier: it makes all its steps, and
its own callback says when an episode ended. Compiling it counts as start.

Settings: the dictionary `config` of the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evidence.bench.drivers.changed import Change, execute
from evidence.bench.drivers.watch import Task, Watch, run

WRAPPER_CHANGES = (
    Change(
        "its other wrappers need brax and navix, which this task does not",
        "from brax import envs\n"
        "from brax.envs.wrappers.training import EpisodeWrapper, AutoResetWrapper\n"
        "import navix as nx\n",
        "",
    ),
    Change(
        "since gymnax 1.0 a step says by two numbers how an episode ended, and gives observations "
        "in `info`, which the file would shuffle with the minibatches",
        "        obs, state, reward, done, info = self._env.step(key, state, action, params)\n"
        "        obs = jnp.reshape(obs, (-1,))\n",
        "        obs, state, reward, terminated, truncated, _ = "
        "self._env.step(key, state, action, params)\n"
        "        done = jnp.logical_or(terminated, truncated)\n"
        "        info = {}\n"
        "        obs = jnp.reshape(obs, (-1,))\n",
    ),
)
CHANGES = (
    Change(
        "the watch gets the episodes, which the file prints",
        """                    return_values = info["returned_episode_returns"]\
[info["returned_episode"]]
                    timesteps = info["timestep"][info["returned_episode"]] * config["NUM_ENVS"]
                    for t in range(len(timesteps)):
                        print(f"global step={timesteps[t]}, episodic return={return_values[t]}")
""",
        "                    note(info)\n",
    ),
)


def train(task: Task) -> dict[str, Any]:
    """Train for the settings' number of steps."""
    import jax  # here, so that CHANGES can be read without it
    import numpy as np

    if task.file is None:
        raise ValueError("it needs the path of purejaxrl's ppo.py")

    path = Path(task.file)
    config = {**task.settings, "ENV_NAME": task.environment, "DEBUG": True}
    watch = Watch(task.goal, config["NUM_ENVS"], task.seconds)

    def note(info: Any) -> None:
        ended = np.asarray(info["returned_episode"])
        returns = np.asarray(info["returned_episode_returns"])
        steps = np.asarray(info["timestep"]) * watch.environments
        for at in map(tuple, np.argwhere(ended)):
            watch.episode(float(returns[at]), int(at[1]), int(steps[at]))
        watch.iteration(int(steps.max()))

    execute(path.with_name("wrappers.py"), WRAPPER_CHANGES, "wrappers")
    ppo = execute(path, CHANGES, "ppo", note=note)

    key = jax.random.PRNGKey(task.seed)
    program = jax.jit(ppo.make_train(config)).lower(key).compile()
    watch.start()
    jax.block_until_ready(program(key))
    jax.effects_barrier()
    return watch.report(task)


if __name__ == "__main__":
    run(train)
