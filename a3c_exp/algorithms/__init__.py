"""Losses. With returns.py the only reinforcement-learning mathematics of the project."""

from a3c_exp.algorithms.a3c import A3C as A3C
from a3c_exp.algorithms.acer import ACER as ACER
from a3c_exp.algorithms.algorithm import Algorithm as Algorithm
from a3c_exp.algorithms.algorithm import Metrics as Metrics
from a3c_exp.algorithms.algorithm import MinibatchAlgorithm as MinibatchAlgorithm
from a3c_exp.algorithms.batch import Batch as Batch
from a3c_exp.algorithms.batch import PolicyOutputs as PolicyOutputs
from a3c_exp.algorithms.ppo import PPO as PPO
from a3c_exp.algorithms.q_learning import DQN as DQN
from a3c_exp.algorithms.q_learning import NStepQ as NStepQ
from a3c_exp.algorithms.q_learning import OneStepQ as OneStepQ
from a3c_exp.algorithms.q_learning import Sarsa as Sarsa
