"""Names that are no settings here: those of other libraries."""

from __future__ import annotations

from collections.abc import Iterable

from a3c_exp.errors import did_you_mean

_HERE = {
    "optimizer.learning_rate": "learning_rate lr eta",
    "optimizer.max_grad_norm": "max_grad_norm grad_clip clip_grad gradient_clip_val",
    "algorithm.entropy_coefficient": "ent_coef entropy_coef entropy_coeff beta",
    "algorithm.target_every with algorithm=n_step_q": (
        "target_update_interval target_network_update_freq target_update"
    ),
    "algorithm.value_coefficient": "vf_coef value_coef value_loss_coef vf_loss_coeff",
    "algorithm.normalize_advantages": "normalize_advantage norm_adv",
    "algorithm.epochs with algorithm=ppo": "n_epochs update_epochs num_sgd_iter num_epochs",
    "algorithm.minibatch_size with algorithm=ppo": "batch_size minibatch_size num_minibatches",
    "algorithm.clip with algorithm=ppo": "clip_range clip_coef clip_param",
    "returns.lambda_": "gae_lambda lambda lambda_",
    "gamma": "discount discount_factor",
    "rollout_length": "n_steps num_steps t_max rollout_fragment_length",
    "envs_per_worker": "n_envs num_envs num_envs_per_worker num_envs_per_env_runner",
    "workers": "num_workers n_workers num_processes num_env_runners threads",
    "total_steps": "total_timesteps n_timesteps timesteps max_steps num_env_steps T_max",
    "eval.every": "eval_freq eval_interval evaluation_interval",
    "eval.episodes": "n_eval_episodes eval_episodes num_eval_episodes",
    "checkpoint.every": "save_freq save_interval checkpoint_freq save_model",
    "env.id": "env_id env_name gym_id environment",
    "network.hidden_sizes": "net_arch hidden_size fcnet_hiddens",
    "backend.device with backend=ga3c": "device cuda gpu num_gpus",
    "network=mlp, network=cnn or network=lstm": "policy model",
    "algorithm=a3c or algorithm=ppo": "algo agent",
    "hydra.run.dir=<folder>": (
        "name exp_name run_name output_dir out_dir log_dir logdir save_path tensorboard_log"
    ),
    "python -m a3c_exp.evaluate outputs/<run> render=human": "render render_mode",
    "python -m a3c_exp.evaluate outputs/<run> video=true": "video capture_video record_video",
    "2>/dev/null after the command; train.log has every line": (
        "verbose quiet progress_bar log_level"
    ),
    "callbacks=[wandb] or callbacks=[mlflow], beside TensorBoard's files": (
        "logger wandb mlflow track tracking"
    ),
}
ELSEWHERE = {name: here for here, names in _HERE.items() for name in names.split()}
"""What names in other libraries, such as stable-baselines3, are here, for a hint."""


def unknown(name: str, owner: str, known: Iterable[str], path: str) -> str:
    """The problem with a key that is no setting of `owner`, and the setting that is meant, or the
    nearest names.

    known: the settings of `owner`. path: its key, "" for the whole configuration.
    """
    here = f"here it is {ELSEWHERE[name]}" if name in ELSEWHERE else ""
    own = "" if path else f"; vars.{name} is a variable of your own"
    return f"is no setting of {owner}: {here or did_you_mean(name, known)}{own}"
