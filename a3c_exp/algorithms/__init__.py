"""Losses. With returns.py the only reinforcement-learning mathematics of the project."""

from a3c_exp.algorithms.a3c import A3C
from a3c_exp.algorithms.algorithm import Algorithm, Metrics, MinibatchAlgorithm
from a3c_exp.algorithms.batch import Batch, BatchArrays, PolicyOutputs, explained_variance
from a3c_exp.algorithms.ppo import PPO
from a3c_exp.algorithms.q_learning import NStepQ, OneStepQ, Sarsa

__all__ = [
    "A3C",
    "PPO",
    "Algorithm",
    "Batch",
    "BatchArrays",
    "Metrics",
    "MinibatchAlgorithm",
    "NStepQ",
    "OneStepQ",
    "PolicyOutputs",
    "Sarsa",
    "explained_variance",
]
