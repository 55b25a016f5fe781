"""The record of a setting, and names of settings in other libraries."""

from __future__ import annotations

from typing import Any, NamedTuple


class Setting(NamedTuple):
    """The type of a setting, and whether it must be given."""

    hint: Any
    required: bool


ELSEWHERE = {
    "learning_rate": "optimizer.learning_rate",
    "lr": "optimizer.learning_rate",
    "max_grad_norm": "optimizer.max_grad_norm",
    "ent_coef": "algorithm.entropy_coefficient",
    "vf_coef": "algorithm.value_coefficient",
    "normalize_advantage": "algorithm.normalize_advantages",
    "n_epochs": "algorithm.epochs with algorithm=ppo",
    "batch_size": "algorithm.minibatch_size with algorithm=ppo",
    "clip_range": "algorithm.clip with algorithm=ppo",
    "gae_lambda": "returns.lambda_",
    "n_steps": "rollout_length",
    "n_envs": "envs_per_worker",
    "num_envs": "envs_per_worker",
    "num_workers": "workers",
    "total_timesteps": "total_steps",
    "env_id": "env.id",
    "device": "backend.device with backend=ga3c",
    "policy": "network=mlp, network=cnn or network=lstm",
    "render": "python -m a3c_exp.evaluate outputs/<run> render=human",
    "video": "python -m a3c_exp.evaluate outputs/<run> video=true",
}
"""What names in other libraries, such as stable-baselines3, are here, for a hint."""
