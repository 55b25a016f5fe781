"""Bodies, recurrent cores, action heads and the actor-critic that they make."""

from a3c_exp.networks.actor_critic import ActorCritic, Network
from a3c_exp.networks.cnn import Cnn, Impala, sees_pictures
from a3c_exp.networks.lstm import Lstm
from a3c_exp.networks.mlp import Mlp
from a3c_exp.networks.outputs import OutputGradients, PolicyOutputs

__all__ = [
    "ActorCritic", "Cnn", "Impala", "Lstm", "Mlp", "Network", "OutputGradients", "PolicyOutputs", "sees_pictures",
]  # fmt: skip
