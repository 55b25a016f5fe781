"""How vectors are encoded between workers and parameter servers, and how they are split among servers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from servers import SIZE, MakeCluster, learn, spec

from a3c_exp.backends.ray.wire import decode, encode, shard_slices, shard_spec
from a3c_exp.common.arrays import Floats


class TestEncoding:
    @given(arrays(np.float32, 9, elements=st.floats(-(2.0**99), 2.0**99, width=32)))
    def test_float32_is_exact_and_bfloat16_has_eight_bits(self, vector: Floats) -> None:
        exact, half = np.empty_like(vector), np.empty_like(vector)
        decode(encode(vector, "float32"), exact)
        encoded = encode(vector, "bfloat16")
        decode(encoded, half)
        assert exact.tobytes() == vector.tobytes()
        assert encoded.nbytes * 2 == vector.nbytes
        assert half == pytest.approx(vector, rel=2**-8, abs=1e-38)

    def test_bfloat16_is_rounded_as_torch_does(self) -> None:
        import torch

        vector = np.random.default_rng(0).normal(size=1000).astype(np.float32)
        half = np.empty_like(vector)
        decode(encode(vector, "bfloat16"), half)
        assert np.array_equal(half, torch.from_numpy(vector).to(torch.bfloat16).float().numpy())

    def test_training_in_bfloat16_sends_two_bytes_a_number(self, cluster: MakeCluster) -> None:
        servers = cluster(spec(1), shards=2, wire_dtype="bfloat16")
        remote = servers.started()
        learn(remote, 0, -1.0)
        assert learn(remote, 0, -0.5)[0] == 1.0
        remote.leave(0)
        assert servers.fetch()["parameters"].tolist() == [1.5] * SIZE
        assert servers.ask(servers.servers[0].status()).received == 2 * 2 * (SIZE // 2)


class TestShards:
    def test_a_vector_and_the_parts_of_its_network_are_split(self) -> None:
        shards = shard_slices(SIZE, 3)
        assert [list(range(SIZE))[shard] for shard in shards] == [[0, 1], [2, 3], [4, 5, 6]]
        assert [shard_spec(spec(), shard).param_slices for shard in shards] == [
            {"actor": slice(0, 2), "critic": slice(2, 2)},
            {"actor": slice(0, 2), "critic": slice(2, 2)},
            {"actor": slice(0, 0), "critic": slice(0, 3)},
        ]

    def test_no_server_is_without_a_number(self) -> None:
        assert len(shard_slices(2, 5)) == 2
