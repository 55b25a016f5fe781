"""Encoders, LSTM cells, action distributions, and the actor-critic that they make."""

from a3c_exp.networks.actor_critic import ActorCritic, NetworkOutputs, OutputGradients
from a3c_exp.networks.cnn import Cnn, Impala
from a3c_exp.networks.components import EncoderNetwork, Lstm, ModuleSpec, Network, WholeNetwork
from a3c_exp.networks.dictionary import DictEncoder
from a3c_exp.networks.mlp import Mlp

__all__ = [
    "ActorCritic",
    "Cnn",
    "DictEncoder",
    "EncoderNetwork",
    "Impala",
    "Lstm",
    "Mlp",
    "ModuleSpec",
    "Network",
    "NetworkOutputs",
    "OutputGradients",
    "WholeNetwork",
]
