"""The presets, their sources, and the results that are published there."""

from __future__ import annotations

from dataclasses import replace

from study.entries import Entry, Source
from study.runs import EPISODES, Training

GITHUB = "https://github.com"
PAPER = "[Mnih et al. 2016](https://arxiv.org/abs/1602.01783)"
GA3C = "[Babaeizadeh et al. 2017](https://arxiv.org/abs/1611.06256)"
TUTORIAL = "https://jaromiru.com/2017/03/26/lets-make-an-a3c-implementation/"
OURS = Source("our own", "-")
ATARI = "env=atari env.terminal_on_life_loss=true env.game="  # a lost life ends an episode, as in the zoo


def _notebooks(name: str) -> str:
    """A notebook of the threaded classic. Its outputs are a plot and a time."""
    repository = "ChuaCheowHuan/reinforcement_learning"
    return f"[{name}]({GITHUB}/{repository}/blob/master/{name})"


def _preset(
    name: str, env: str, source: Source, *overrides: str, seeds: int = 5, curve: bool = False, drawn: int = EPISODES,
    max_episode_steps: int | None = None,
) -> Entry:  # fmt: skip
    recipe = Training((f"experiment={name}", *overrides), drawn, max_episode_steps)
    key = "_".join(["preset", name, *(override.partition("=")[2] for override in overrides)])
    return Entry(key, env, " ".join((f"`{name}`", *overrides)), recipe, seeds, source=source, curve=curve)


PENDULUM = Source(
    _notebooks("DPPO/DPPO_cont_GAE_dist_GPU.ipynb"),
    "running mean of about -410 and -290 after 500 episodes (its two plots; 708 s)",
)
DPPO = Source(
    f"[Learning-Notes]({GITHUB}/Ceruleanacg/Learning-Notes): note/A3C.ipynb, playground/PPO.py",
    "no figure: 1000 episodes of each of 3 workers",
)

PRESETS = (
    _preset(
        "threads_n_step_zero", "cartpole",
        Source(
            _notebooks("A3C/A3C_disc_miss.ipynb"),
            "200 in every episode from about 185 to 400 (a plot of 500 episodes, in 59 s)",
        ),
        seeds=10,
    ),
    _preset(
        "threads_n_step_max", "cartpole",
        Source(
            _notebooks("A3C/A3C_disc_max.ipynb"), "200 in nearly every episode from about 195 to 500 (a plot)"
        ),
        seeds=10,
    ),
    _preset(
        "threads_continuous", "pendulum",
        Source(_notebooks("A3C/A3C_cont_max.ipynb"), "no figure: a plot of 2000 episodes, in 547 s (its output)"),
    ),
    *(
        _preset(
            "lstm_cartpole", "cartpole",
            Source(f"[liampetti/A3C-LSTM]({GITHUB}/liampetti/A3C-LSTM)", 'no figure; "does not converge", its README'),
            *overrides,
        )
        for overrides in ((), ("algorithm.entropy_coefficient=0.01",))
    ),
    *(
        _preset(name, env, Source("a notebook: A3C.ipynb with A3C.py", reports))
        for name, env, reports in (
            ("shared_adam_cartpole", "cartpole", "every agent stops at 200"),
            ("shared_adam_lunar_continuous", "lunar_continuous", "no figure: stops at 0, or after 100 episodes"),
        )
    ),
    _preset(
        "shared_adam_lunar_continuous", "lunar_continuous", Source("the same, with 2 million steps", "-"),
        "stop.worker_return=null", "stop.worker_episodes=null", "total_steps=2000000",
    ),
    *(_preset("dppo_pendulum", "pendulum", PENDULUM, *overrides, seeds=10) for overrides in ((), ("update=sync",))),
    _preset("dppo_cartpole", "cartpole", DPPO, max_episode_steps=500),
    _preset(
        "parameter_server_cartpole", "cartpole",
        Source(
            _notebooks("A3C/A3C_disc_max_dist.ipynb"),
            "200 in nearly every episode from about 180 to 270 on (a plot of 500)",
        ),
        seeds=10,
    ),
    _preset("dppo_cluster_pendulum", "pendulum", PENDULUM),
    _preset("dppo_cluster_cartpole", "cartpole", DPPO, max_episode_steps=500),
    _preset(
        "ga3c_cartpole", "cartpole",
        Source(f"[Let's make an A3C]({TUTORIAL})", "200 in 18 of 18 test episodes, drawn, of one run of 30 s"),
        drawn=18,
    ),
    _preset(
        "ga3c_pong", "pong",
        Source(GA3C, "Pong: 18 after a day (table 3)", "python -m a3c_exp experiment=ga3c_pong"),
        "reward_threshold=15", "total_steps=5000000", seeds=2, curve=True,
    ),
    _preset(
        "universe_pong", "pong",
        Source(
            f"[universe-starter-agent]({GITHUB}/openai/universe-starter-agent)",
            "solved in 30 minutes by 16 workers on 40 virtual cores, in 10 by 32 on 64, in just under 2 hours on a "
            "notebook (its README)",
            "python -m a3c_exp experiment=universe_pong",
        ),
        "reward_threshold=15", "total_steps=10000000", seeds=2, curve=True,
    ),
    _preset("fast_cartpole", "cartpole", OURS),
    _preset("fast_lunar", "lunar", OURS),
    _preset("ppo_lunar", "lunar", Source("our own", "zoo PPO: 242 +- 32, 1M"), seeds=10),
    replace(
        _preset("pong", "pong", Source("our own", "zoo A2C: 17.3 +- 3.2, PPO: 21.0 +- 0.1, 10M"), seeds=3, curve=True),
        title="`experiment=pong`, PPO",
    ),
    Entry(
        "pong_a3c", "pong", "`env=pong`, A3C", Training(("env=pong",)), 5,
        source=Source("our own", "zoo A2C: 17.3 +- 3.2, 10M"), curve=True,
    ),
    *(
        Entry(
            f"{game}_a3c", game, f"`{command}`, A3C", Training(tuple(command.split())), seeds,
            source=Source("our own", f"zoo {published}, 10M"), curve=True,
        )
        for game, command, seeds, published in (
            ("breakout", "env=breakout", 2, "A2C: 279.8 +- 122.2, PPO: 398.0 +- 33.3"),
            ("space_invaders", f"{ATARI}space_invaders", 1, "A2C: 627.2 +- 202.0, PPO: 960.3 +- 425.4"),
            ("seaquest", f"{ATARI}seaquest", 1, "A2C: 1721.5 +- 105.3, PPO: 1783.6 +- 34.1"),
        )
    ),
    *(
        _preset(
            name, "pong",
            Source(PAPER, f"{reports} (table S3; human starts)", f"python -m a3c_exp experiment={name}"),
            f"total_steps={steps}000000", seeds=1, curve=True,
        )
        for name, steps, reports in (
            ("a3c_paper_atari", 5, "Pong: 11.4 after a day, 5.6 after four"),
            ("a3c_paper_atari_lstm", 2, "Pong: 10.7 after four days"),
        )
    ),
)  # fmt: skip
