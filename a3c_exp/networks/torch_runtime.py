"""Networks that torch computes as a whole, on the CPU or on a device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.networks.actor_critic import ActorCritic, TrainOutputs
from a3c_exp.networks.recurrent import RecurrentInput


class TorchRuntime:
    """Computes an `ActorCritic` by its own `forward` and `unroll`, with arrays on the host on both sides.

    device: where the network has its parameters.
    """

    def __init__(self, network: ActorCritic, device: torch.device | str = "cpu") -> None:
        self._network = network
        self._device = device

    def act_forward(self, observations: Array, state: Array | None) -> tuple[Array, Array, Array | None]:
        with torch.inference_mode():
            before = None if state is None else self._tensor(state)
            parameters, values, after = self._network(self._tensor(observations), before)
        return _array(parameters), _array(values), None if after is None else _array(after)

    def values(self, observations: Array, state: Array | None) -> Array:
        return self.act_forward(observations, state)[1]

    def train_forward(self, observations: Array, recurrent_input: RecurrentInput | None) -> TrainOutputs:
        state = boundaries = None
        if recurrent_input is not None:
            state = self._tensor(recurrent_input.state)
            boundaries = self._tensor(recurrent_input.episode_boundaries)
        outputs = self._network.unroll(self._tensor(observations), state, boundaries)

        def backward(grad_parameters: Floats, grad_values: Floats, grad_features: Floats | None) -> None:
            pairs = [(outputs.parameters, grad_parameters), (outputs.values, grad_values)]
            if grad_features is not None and outputs.features is not None:
                pairs.append((outputs.features, grad_features))
            pairs = [(tensor, grad) for tensor, grad in pairs if tensor.requires_grad]
            if pairs:
                tensors, gradients = zip(*pairs, strict=True)
                moved = [torch.from_numpy(np.ascontiguousarray(grad)).to(tensors[0].device) for grad in gradients]
                torch.autograd.backward(tensors, moved)

        features = None if outputs.features is None else _array(outputs.features)
        return TrainOutputs(_array(outputs.parameters), _array(outputs.values), features, backward)

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


def _array(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().cpu().numpy()
    return array
