"""Environments in batches: K of them step together, and a step means the same for every kind.

`Environment` is the component that a configuration names; it makes an `EnvBatch`, whose every step
is a `Step`.
`Gym` is the component for anything registered with gymnasium, `Atari` the one for Atari games.
Another source of environments (a simulator of your own, EnvPool) is another subclass of
`Environment`. Its `make` can put gymnasium environments into a `SyncEnvBatch`, wrap a native vector
environment in a `VectorEnvBatch`, or return an `EnvBatch` of its own.
"""

from __future__ import annotations

from a3c_exp.envs.atari import Atari as Atari
from a3c_exp.envs.batch import EnvBatch as EnvBatch
from a3c_exp.envs.batch import Environment as Environment
from a3c_exp.envs.batch import Step as Step
from a3c_exp.envs.errors import EnvError as EnvError
from a3c_exp.envs.errors import close_within as close_within
from a3c_exp.envs.gym import Gym as Gym
from a3c_exp.envs.progress import on_progress as on_progress
from a3c_exp.envs.sync_batch import SyncEnvBatch as SyncEnvBatch
from a3c_exp.envs.vector_batch import VectorEnvBatch as VectorEnvBatch
