"""The entries of the study."""

from __future__ import annotations

from dataclasses import replace

from study.entries import Entry, Goals
from study.peers import StableBaselines3
from study.presets import PRESETS
from study.runs import Training

# rl-baselines3-zoo, one run each: mean +- deviation of the reward, at how many steps (its benchmark.md; LunarLander
# there is version 2).
ENVIRONMENTS = (
    Entry(
        "cartpole", "cartpole", "CartPole-v1", Training(("env=cartpole",)), 20,
        Goals(495, worst_seed=475, seconds=5), ("500 +- 0, 500k", "500 +- 0, 100k"),
    ),
    Entry(
        "acrobot", "acrobot", "Acrobot-v1", Training(("env=acrobot",)), 10,
        Goals(-80, seconds=30), ("-83 +- 17, 500k", "-74 +- 18, 1M"),
    ),
    Entry(
        "mountaincar", "mountaincar", "MountainCar-v0", Training(("env=mountaincar",)), 10,
        Goals(-112), ("-111 +- 24, 1M", "-110 +- 19, 1M"),
    ),
    Entry(
        "pendulum", "pendulum", "Pendulum-v1", Training(("env=pendulum",)), 10,
        Goals(-165), ("-163 +- 103, 1M", "-172 +- 104, 100k"),
    ),
    Entry(
        "lunar", "lunar", "LunarLander-v3", Training(("env=lunar",)), 10,
        Goals(230, worst_seed=180, seconds=60), ("156 +- 80, 200k", "242 +- 32, 1M"),
    ),
    Entry(
        "lunar_continuous", "lunar_continuous", "LunarLanderContinuous-v3", Training(("env=lunar_continuous",)), 10,
        Goals(230, worst_seed=150, seconds=90), ("84 +- 146, 5M", "271 +- 32, 1M"),
    ),
    Entry(
        "bipedal", "bipedal", "BipedalWalker-v3", Training(("env=bipedal",)), 5,
        Goals(280), ("300 +- 23, 5M", "288 +- 2, 5M"),
    ),
    Entry(
        "mountaincar_continuous", "mountaincar_continuous", "MountainCarContinuous-v0",
        Training(("env=mountaincar_continuous",)), 5, Goals(90), ("91 +- 0, 100k", "88 +- 3, 20k"),
    ),
)  # fmt: skip


def _lunar(name: str, *overrides: str, seeds: int = 5, goals: Goals | None = None) -> Entry:
    return Entry(f"lunar_{name}", "lunar", " ".join(overrides), Training(("env=lunar", *overrides)), seeds, goals)


LANDS = Goals(230, worst_seed=180)
DEFAULT = tuple(
    replace(entry, title="default (a worker a core)", goals=LANDS) for entry in ENVIRONMENTS if entry.name == "lunar"
)
SIXTEEN = _lunar("workers_16", "workers=16", seeds=10, goals=LANDS)  # the stalest gradients, so the likeliest failure

# The same settings with other numbers of workers, and on other backends.
WORKERS = {
    1: _lunar("workers_1", "workers=1", goals=LANDS),
    2: DEFAULT[0],  # on a machine of two cores
    **{count: _lunar(f"workers_{count}", f"workers={count}", goals=LANDS) for count in (4, 8)},
    16: SIXTEEN,
}
ROBUSTNESS = (
    WORKERS[2],
    *(entry for count, entry in WORKERS.items() if count != 2),
    *(_lunar(backend, f"backend={backend}", goals=LANDS) for backend in ("serial", "threads")),
)

# The effect of each setting.
CHANGES = (
    *DEFAULT,
    SIXTEEN,
    _lunar("lock", "lock=true"),
    _lunar("sync", "update=sync"),
    _lunar("optimizer_state_per_worker", "optimizer_state=per_worker"),
    _lunar("staleness_power", "workers=16", "optimizer.staleness_power=0.5"),
    _lunar("shared_body", "network.shared=true"),
    _lunar("torch_init", "network.init=default"),
    _lunar("constant_rate", "schedule=constant"),
    _lunar("half_rate", "optimizer.learning_rate=1e-3"),
    _lunar("adam", "optimizer=adam"),
    _lunar("n_step", "returns=n_step", "returns.n=null"),
    _lunar("normalized_advantages", "algorithm.normalize_advantages=true"),
    _lunar("normalized_observations", "env.normalize_observations=true"),
    _lunar("normalized_rewards", "env.normalize_rewards=true"),
    _lunar("rollout_32", "rollout_length=32"),
    _lunar("more_environments", "envs_per_worker=16"),
    _lunar("gamma", "gamma=0.99"),
    _lunar("entropy", "algorithm.entropy_coefficient=0.01"),
)

# PPO, where A3C misses its goal or took many trials to reach it. LunarLanderContinuous does not stop at the mean of
# 260 that ends A3C: there PPO's policy still depends on its noise, and the greedy one lands far worse.
PPO_SETTINGS = {
    "acrobot": ("env.normalize_observations=true", "returns.lambda_=0.94"),  # as rl-baselines3-zoo has it
    "lunar_continuous": ("stop.mean_return=null", "total_steps=1000000"),
}
PPO = tuple(
    replace(
        entry, name=f"{entry.name}_ppo{suffix}", title=f"{entry.title}, PPO{title}", seeds=5,
        recipe=Training((f"env={entry.env}", "experiment=ppo", *PPO_SETTINGS[entry.name], *update)),
    )
    for entry in ENVIRONMENTS
    if entry.name in PPO_SETTINGS
    for suffix, title, update in (("", ", in synchronous rounds", ()), ("_async", ", asynchronous", ("update=async",)))
)  # fmt: skip

# CartPole on every backend.
BACKENDS = tuple(
    Entry(
        f"cartpole_{backend}", "cartpole", f"backend={backend}",
        Training(("env=cartpole", f"backend={backend}")), 5, Goals(495, worst_seed=475),
    )
    for backend in ("serial", "threads", "ga3c", "ray")
)  # fmt: skip

PEERS = tuple(
    Entry(
        f"sb3_{algorithm.lower()}_{env}",
        env,
        f"stable-baselines3 {algorithm}, {env_id}",
        StableBaselines3(algorithm, env_id, reward_threshold),
        3,
    )
    for env, env_id, reward_threshold in (("cartpole", "CartPole-v1", 475.0), ("lunar", "LunarLander-v3", 200.0))
    for algorithm in ("A2C", "PPO")
)

SECTIONS = {
    "Environments": ENVIRONMENTS,
    "PPO on Acrobot and LunarLanderContinuous": PPO,
    "LunarLander with other numbers of workers, and on other backends of one machine": ROBUSTNESS,
    "LunarLander with one thing changed": CHANGES,
    "CartPole on the other backends": BACKENDS,
    "stable-baselines3 on the same machine": PEERS,
    "Presets": PRESETS,
}
