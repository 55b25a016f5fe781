"""Names that are no settings here: those of other libraries."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from a3c_exp.errors import did_you_mean

_HERE = {
    "optimizer.learning_rate": "learning_rate lr eta actor_alpha a_lr actor_lr",
    "optimizer.max_grad_norm": "max_grad_norm grad_clip clip_grad gradient_clip_val clip_norm",
    "algorithm.entropy_coefficient": (
        "ent_coef entropy_coef entropy_coeff beta entropy_beta entropy_weight "
        "entropy_loss_weight loss_entropy"
    ),
    "algorithm.target_every with algorithm=n_step_q": (
        "target_update_interval target_network_update_freq target_update"
    ),
    "memory.capacity with memory=transitions": (
        "buffer_size replay_buffer_size replay_capacity memory_size"
    ),
    "memory.min_size with memory=transitions": "learning_starts replay_start min_replay_size",
    "memory.ratio with memory=sequences": "replay_ratio gradient_steps",
    "memory.priority with memory=transitions": "per prioritized_replay prioritized",
    "algorithm.double with algorithm=dqn": "double_q double_dqn",
    "network.dueling with algorithm=dqn": "dueling_dqn dueling_net",
    "algorithm.value_coefficient": "vf_coef value_coef value_loss_coef vf_loss_coeff loss_v",
    "algorithm.normalize_advantages": "normalize_advantage norm_adv",
    "algorithm.epochs with algorithm=ppo": (
        "n_epochs update_epochs num_sgd_iter num_epochs a_epoch c_epoch"
    ),
    "algorithm.minibatch_size with algorithm=ppo": "batch_size minibatch_size num_minibatches",
    "algorithm.clip with algorithm=ppo": "clip_range clip_coef clip_param",
    "returns.lambda_": "gae_lambda lambda lambda_ lamda",
    "gamma": "discount discount_factor",
    "returns=n_step, returns=n_step_zero or returns=gae": "return_type returns_type",
    "returns.n with returns=n_step": "n_step n_step_return",
    "stop.max_episodes": "max_global_episodes max_episode max_episodes num_episodes ep_max",
    "stop.worker_episodes": "train_episodes",
    "stop.worker_return": "early_stopping_reward",
    "stop.max_seconds": "run_time max_seconds",
    "env.max_episode_steps": "max_episode_step max_episode_length max_episode_steps ep_len",
    "env.reward_scale": "reward_factor reward_scale",
    "env.reward_clip": "clip_reward clip_rewards",
    "env.normalize_observations": "norm_obs normalize_obs",
    "env.normalize_rewards": "norm_reward normalize_reward stats_clip",
    "env.frame_stack with env=atari env.game=pong": "frame_stack n_stack",
    "network.critic_hidden_sizes": "critic_hidden",
    "network.hidden_size with network=lstm": "cell_size cell_units lstm_hidden_size",
    "optimizer.param_groups.critic.learning_rate=1e-3": "critic_alpha c_lr critic_lr",
    "optimizer.betas with optimizer=adam": "beta1 beta2",
    "backend.training_batch with backend=ga3c": "min_batch",
    "epsilon": "eps eps_start eps_stop eps_end",
    "rollout_length": (
        "n_steps num_steps t_max rollout_fragment_length mini_batch batch update_rate "
        "train_every_step"
    ),
    "envs_per_worker": "n_envs num_envs num_envs_per_worker num_envs_per_env_runner",
    "workers": (
        "num_workers n_workers num_processes num_env_runners threads n_agents num_agents cpu_count"
    ),
    "backend.trainers with backend=ga3c": "optimizers",
    "experiment": "preset",
    "total_steps": "steps total_timesteps n_timesteps timesteps max_steps num_env_steps T_max",
    "eval.every": "eval_freq eval_interval evaluation_interval",
    "eval.episodes": "n_eval_episodes eval_episodes num_eval_episodes",
    "checkpoint.every": "save_freq save_interval checkpoint_freq save_model save_episode",
    "env.id": "env_id env_name gym_id environment env.name game_name",
    "network.hidden_sizes": "net_arch hidden_size fcnet_hiddens hidden actor_hidden capacity",
    "backend.device with backend=ga3c": "device cuda gpu num_gpus",
    "network=mlp, network=cnn or network=lstm": "policy model",
    "algorithm=a3c or algorithm=ppo": "algo agent",
    "hydra.run.dir=<folder>": (
        "name exp_name run_name output output_dir out_dir log_dir logdir save_dir save_path "
        "tensorboard_log"
    ),
    "python -m a3c_exp.evaluate latest render=human": "render render_mode",
    "python -m a3c_exp.evaluate latest video=true": "video capture_video record_video",
    "2>/dev/null after the command; train.log has every line": (
        "verbose quiet progress_bar log_level"
    ),
    "always on: tensorboard --logdir outputs": "tensorboard use_tensorboard",
    "callbacks=[wandb] or callbacks=[mlflow], beside TensorBoard's files": (
        "logger wandb mlflow track tracking"
    ),
}
ELSEWHERE = {name: here for here, names in _HERE.items() for name in names.split()}
"""What names in other libraries, such as stable-baselines3, and in public notebooks are here, for a
hint. Names in capitals are among them in small letters."""

RENAMED = {
    "cartpole_threads": "threads_n_step_max_solved",
    "cartpole_threads_zero": "threads_n_step_zero_solved",
    "cartpole_parameter_server": "parameter_server_cartpole_solved",
    "lunar_continuous_shared_adam": "shared_adam_lunar_continuous_solved",
    "fast_cartpole": "cartpole_solved",
    "fast_lunar": "lunar_solved",
    "pong": "ppo_pong_solved",
    "ppo_lunar": "ppo_lunar_solved",
    "n_step_q_cartpole": "n_step_q_cartpole_solved",
    "n_step_q_lunar": "n_step_q_lunar_solved",
    "n_step_q_pong": "n_step_q_pong_solved",
    "one_step_q_cartpole": "one_step_q_cartpole_solved",
    "sarsa_cartpole": "sarsa_cartpole_solved",
}
"""Presets by the names that they had before."""

EXAMPLES = {
    "callbacks": "callbacks=[no_improvement]",
    "checkpoint": "checkpoint.every=null",
    "env.game": "env.game=pong",
    "env.id": "env.id=Acrobot-v1",
    "eval": "eval.every=null",
    "log": "log.every=1000",
    "network.hidden_sizes": "network.hidden_sizes=[64,64]",
    "plugins": "plugins=[my_a3c]",
    "stop": "stop.max_episodes=500",
}
"""What settings may look like."""

_UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def unknown(name: str, owner: str, settings: Iterable[str], path: str) -> str:
    """The problem with a key that is no setting of `owner`, and the setting that is meant, or the
    nearest names.

    settings: those of `owner`. path: its key, "" for the whole configuration.
    """
    places = (f"{path}.{name}", name, name.lower())
    here = next((ELSEWHERE[place] for place in places if place in ELSEWHERE), None)
    meant = did_you_mean(name, settings) if here is None else f"here it is {here}"
    variable = "" if path else f"; vars.{name} is a variable of your own"
    return f"is no setting of {owner}: {meant}{variable}"


def number_meant(key: str, text: str) -> str:
    """The number that a text such as 1M, 5m or 0-4 means, for a hint: ": write 1000000"; "" if it
    means none."""
    if several := re.fullmatch(r"([0-9]{1,4})(?:-|\.\.)([0-9]{1,4})", text):
        first, last = int(several[1]), int(several[2])
        values = ",".join(map(str, range(first, last + 1)))
        return (
            f": write -m {key}={values}" if first <= last < first + 10 else ": write it with commas"
        )
    if re.fullmatch(r"[0-9]+([ '_][0-9]{3})+", text):
        return f": write {re.sub('[^0-9]', '', text)}"
    if clock := re.fullmatch(r"(?:([0-9]+):)?([0-9]+):([0-9]+)", text):
        hours, minutes, seconds = map(int, clock.groups("0"))
        return f": write {3600 * hours + 60 * minutes + seconds}"
    units = _SECONDS if key.endswith("seconds") else _UNITS
    quantity = re.fullmatch(r"([0-9]+\.?[0-9]*) ?([a-z]+)", text.lower())
    if quantity is None or quantity[2] not in units:
        return ""
    return f": write {float(quantity[1]) * units[quantity[2]]:.15g}"


def atari_choice(name: str) -> str | None:
    """The option for a game of gymnasium's Atari names, old and new; None for another name.

    PongNoFrameskip-v4 -> env=pong; ALE/SpaceInvaders-v5 -> env=atari env.game=space_invaders.
    """
    game = re.fullmatch(
        r"(ALE/)?([A-Z]\w*?)(NoFrameskip|Deterministic)?(?:-ram(?:NoFrameskip)?)?-v[045]", name
    )
    if game is None:
        return None
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", game[2]).lower()
    if snake in ("pong", "breakout"):
        return f"env={snake}"
    return f"env=atari env.game={snake}" if game[1] or game[3] else None


def module_advice(name: str) -> str:
    """What trains on an environment of a user's module, my_env:Chase-v0, of a class that it does
    not register, my_env:Chase, or of a file, my_env.py; "" for another name."""
    match = re.fullmatch(r"([\w.]+):(\w+?)(-v\d+)?|(\w+)\.py", name)
    if match is None:
        return ""

    module, attribute, version, file = match.groups()
    module = module or file
    attribute = attribute or "<Class>"
    package = module.partition(".")[0]
    command = f"it is env=gym env.id={module}:{attribute}{version or '-v0'} plugins=[{package}]"
    if version:
        return command

    line = f'gymnasium.register("{attribute}-v0", entry_point="{module}:{attribute}")'
    return f"{command}, once {module} has {line}"


def as_settings(arguments: Iterable[str], flags: Collection[str]) -> str:
    """What unknown flags are as settings: "env=lunar seed=1" for --env lunar --seed=1; "" without
    any. flags: those that are known, which may be shortened."""
    settings = []
    key = ""
    for argument in arguments:
        flag = re.fullmatch(r"(--?[a-zA-Z_][\w.-]*)(?:=(.*))?", argument)
        if flag is not None:
            is_known = len(flag[1]) == 2 or any(known.startswith(flag[1]) for known in flags)
            key = "" if is_known else flag[1].lstrip("-").replace("-", "_")
        value = argument if flag is None else flag[2]
        if key and value is not None and "=" not in value:
            here = ELSEWHERE.get(key, "")
            settings.append(f"{here if re.fullmatch('[a-z_.]+', here) else key}={value}")
            key = ""
    return " ".join(settings)
