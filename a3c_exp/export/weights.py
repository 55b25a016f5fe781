"""The weights of a policy as a safetensors file, which programs read without unpickling.

The format: 8 bytes with the length of the header, the header as JSON, and the numbers of all
tensors. See https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from a3c_exp.common.arrays import Array
from a3c_exp.run.policy import Policy

LENGTH_BYTES = 8
METADATA = "__metadata__"
TYPE_LETTERS = {"f": "F", "i": "I", "u": "U"}


def tensors_of(policy: Policy) -> dict[str, Array]:
    """Return the state of a policy's network by torch's names, and the scales of observations:
    a network takes (observation - mean) * inverse_std, clipped to -10 and 10."""
    tensors = {name: tensor.numpy() for name, tensor in policy.network.state_dict().items()}
    if policy.normalizer is not None:
        tensors["observation.mean"] = policy.normalizer.mean
        tensors["observation.inverse_std"] = policy.normalizer.inverse_std
    return tensors


def encode(tensors: Mapping[str, Array], about: Mapping[str, str]) -> bytes:
    """Return the content of a file. about: its metadata."""
    header: dict[str, object] = {METADATA: about}
    numbers = b""
    for name, tensor in tensors.items():
        start = len(numbers)
        numbers += np.ascontiguousarray(tensor).tobytes()
        header[name] = {
            "dtype": _type_name(tensor.dtype),
            "shape": tensor.shape,
            "data_offsets": [start, len(numbers)],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)  # the numbers begin at a multiple of 8 bytes
    return len(text).to_bytes(LENGTH_BYTES, "little") + text + numbers


def _type_name(dtype: np.dtype[np.generic]) -> str:
    if dtype.kind == "b":
        return "BOOL"
    return f"{TYPE_LETTERS[dtype.kind]}{8 * dtype.itemsize}"


def header_metadata(data: bytes) -> dict[str, str]:
    """Return the metadata of a file. Raises ValueError or KeyError for another one."""
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    header = json.loads(data[LENGTH_BYTES : LENGTH_BYTES + length])
    return dict(header[METADATA])
