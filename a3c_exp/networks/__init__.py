"""Encoders, recurrent cores, action heads and the actor-critic that they make."""

from a3c_exp.networks.actor_critic import ActorCritic, Network
from a3c_exp.networks.lstm import Encoder, Lstm
from a3c_exp.networks.mlp import Mlp, MlpEncoder

__all__ = ["ActorCritic", "Encoder", "Lstm", "Mlp", "MlpEncoder", "Network"]
