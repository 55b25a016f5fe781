"""Callbacks that a configuration may name: see `a3c_exp.core.callback`."""

from __future__ import annotations

from a3c_exp.callbacks.media import Histograms, Videos
from a3c_exp.callbacks.mlflow import Mlflow
from a3c_exp.callbacks.profile import Profile
from a3c_exp.callbacks.stopping import MetricTarget, NoImprovement
from a3c_exp.callbacks.wandb import Wandb
from a3c_exp.core.callback import Callback, EvalResult, RunView

__all__ = [
    "Callback",
    "EvalResult",
    "Histograms",
    "MetricTarget",
    "Mlflow",
    "NoImprovement",
    "Profile",
    "RunView",
    "Videos",
    "Wandb",
]
