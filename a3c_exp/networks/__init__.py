"""Encoders, LSTM cells, action distributions, and the actor-critic that they make."""

from a3c_exp.networks.actor_critic import ActorCritic as ActorCritic
from a3c_exp.networks.cnn import Cnn as Cnn
from a3c_exp.networks.cnn import Impala as Impala
from a3c_exp.networks.components import EncoderNetwork as EncoderNetwork
from a3c_exp.networks.components import Lstm as Lstm
from a3c_exp.networks.components import ModuleSpec as ModuleSpec
from a3c_exp.networks.components import Network as Network
from a3c_exp.networks.components import WholeNetwork as WholeNetwork
from a3c_exp.networks.dictionary import DictEncoder as DictEncoder
from a3c_exp.networks.mlp import Mlp as Mlp
