"""The record of a setting, and names of settings in other libraries."""

from __future__ import annotations

from typing import Any, NamedTuple


class Setting(NamedTuple):
    """The type of a setting, and whether it must be given."""

    hint: Any
    required: bool


ELSEWHERE_VALUES = {
    "policy": {
        "MlpPolicy": "network=mlp", "CnnPolicy": "network=cnn", "MlpLstmPolicy": "network=lstm",
        "CnnLstmPolicy": "network=lstm network@network.encoder=cnn",
    },
}  # fmt: skip
"""What settings of other libraries with certain values are here, for a hint."""

ELSEWHERE = {
    "learning_rate": "optimizer.learning_rate", "lr": "optimizer.learning_rate",
    "max_grad_norm": "optimizer.max_grad_norm",
    "ent_coef": "algorithm.entropy_coefficient", "vf_coef": "algorithm.value_coefficient",
    "normalize_advantage": "algorithm.normalize_advantages", "n_epochs": "algorithm.epochs",
    "batch_size": "algorithm.minibatch_size", "clip_range": "algorithm.clip", "gae_lambda": "returns.lambda_",
    "n_steps": "rollout_length", "n_envs": "envs_per_worker", "num_envs": "envs_per_worker", "num_workers": "workers",
    "total_timesteps": "total_steps", "env_id": "env.id", "device": "backend.device",
}  # fmt: skip
"""Names in other libraries, such as stable-baselines3, of settings here, for a hint."""

ONLY_WITH = {
    "algorithm.epochs": "algorithm=ppo", "algorithm.minibatch_size": "algorithm=ppo", "algorithm.clip": "algorithm=ppo",
    "backend.device": "backend=ga3c",
}  # fmt: skip
"""Choices without which a setting of ELSEWHERE does not exist."""

OTHER_COMMANDS = {
    "render": "python -m a3c_exp.evaluate outputs/<run> render=human",
    "video": "python -m a3c_exp.evaluate outputs/<run> video=true",
}
"""Settings of other commands than training."""
